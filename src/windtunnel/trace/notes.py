"""What a trace had to assume, with the lines of the user's code."""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST_LINES = 4


@dataclass(slots=True)
class Notes:
    """Collected while a step is traced; `cautions` says it in words."""

    reads: dict[str, None] = field(default_factory=dict)
    decisions: dict[str, None] = field(default_factory=dict)
    assumptions: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    compiled: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    rehearsed_batch: int = 0

    def begin(self) -> None:
        """Forget what was read before the recorded step."""
        self.reads.clear()

    def read(self, line: str) -> None:
        """The host reads a value from the device here."""
        self.reads[line] = None

    def decide(self, line: str) -> None:
        """A value that a real step showed decides here."""
        self.decisions[line] = None

    def assume(self, line: str) -> None:
        """Indices or values that were assumed decide here."""
        self.assumptions[line] = None

    def assume_values(self, line: str) -> None:
        """Floats that were drawn at random leave PyTorch here."""
        self.values[line] = None

    def compile(self, line: str) -> None:
        """The job calls torch.compile itself here."""
        self.compiled[line] = None

    def say(self, caution: str) -> None:
        self.others[caution] = None

    def cautions(self, target: str, execution: str) -> tuple[str, ...]:
        said = []
        if self.rehearsed_batch:
            lines = {**self.decisions, **self.assumptions}
            said.append(
                f"values decide what the step does ({_lines(lines)}): a step of batch {self.rehearsed_batch} "
                "was run here for real, and the forecast takes its branches"
            )
        elif self.assumptions:
            said.append(
                f"indices that the network computes ({_lines(self.assumptions)}) are assumed to be "
                "spread evenly"
            )
        if self.values:
            said.append(f"values that leave PyTorch ({_lines(self.values)}) are random numbers here")
        if self.compiled and execution != "compiled":
            said.append(
                f"the job calls torch.compile itself ({_lines(self.compiled)}), but this forecast is for "
                "eager execution: use --execution compiled"
            )
        if self.reads and target == "gpu":
            said.append(f"the host waits for the device where it reads a value: {_lines(self.reads)}")
        return (*said, *self.others)


def _lines(lines: dict[str, None]) -> str:
    named = [line for line in lines if line]
    if not named:
        return "in a library"
    first, more = named[:_MOST_LINES], len(named) - _MOST_LINES
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
