"""What a trace had to assume, with the lines of the user's code."""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST_LINES = 4


@dataclass(slots=True)
class Notes:
    """Lines of the user's code, collected while a step is traced; `cautions` turns them into text."""

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
    """Such as "train.py lines 8 and 12": a file is named once."""
    files: dict[str, list[int]] = {}
    for line in list(dict.fromkeys(filter(None, lines)))[:_MOST_LINES]:
        name, _, number = line.rpartition(" line ")
        files.setdefault(name, []).append(int(number))
    more = sum(map(bool, lines)) - _MOST_LINES
    texts = [f"{name} line{'s' * (len(n) > 1)} {_listed(sorted(n))}" for name, n in files.items()]
    return (", ".join(texts) + (f" and {more} more" if more > 0 else "")) or "in a library"


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
