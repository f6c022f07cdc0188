"""The fields that a forecast and a measurement share, so that the two can be compared."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from windtunnel import displays, records, units
from windtunnel.records import Plain
from windtunnel.strategy import PRECISIONS

_MIN_WIDTH, _MAX_WIDTH = 40, 110
_SHORT = 30  # a field of the headline with fewer characters is never broken over two lines
_INDENT = 11  # two spaces, and a title of nine characters
_NO_BREAK = "\0"
Row = tuple[str, str]  # a title and a text
PARTS = ("compute", "launch", "feed", "copy", "communication", "update", "waiting")
BOUNDS = {
    "compute": "the device's arithmetic and memory traffic",
    "launch": "the host launching one small op after another",
    "feed": "storage and decoding that bring the data",
    "copy": "the link that carries the batch to the device",
    "communication": "workers exchanging gradients",
    "update": "the optimiser's passes over the weights",
    "waiting": "waiting for others",
}
INFERENCE_OF_LOSS = "the job gives no forward(), so inference runs its loss()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one device at the peak of a step; the parts sum to `peak_bytes`.

    `reserved_bytes` is what the allocator has taken from the driver, `context_bytes` what the driver and the
    framework's kernels need in addition.
    """

    peak_bytes: float
    parts: Mapping[str, float] = field(default_factory=dict)
    reserved_bytes: float | None = None
    context_bytes: float = 0.0
    capacity_bytes: float | None = None

    @property
    def total_bytes(self) -> float:
        return (self.reserved_bytes or self.peak_bytes) + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """None if the device's memory size is not known."""
        return None if self.capacity_bytes is None else self.total_bytes <= self.capacity_bytes


class Printed(displays.Displayed):
    """A result that prints itself: a headline, then rows of a title and a text."""

    __slots__ = ()

    def headline(self) -> str:
        raise NotImplementedError

    def _rows(self) -> list[Row]:
        """All rows after the headline; a row without a title continues the previous row."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, width: int | None = None) -> list[str]:
        """The result as text of this width. Default: that of the terminal."""
        width = width or terminal_width()
        fields = [f.replace(" ", _NO_BREAK) if len(f) < _SHORT else f for f in self.headline().split(", ")]
        head = textwrap.wrap(", ".join(fields), width, subsequent_indent="  ", break_on_hyphens=False)
        lines = [line.replace(_NO_BREAK, " ") for line in head]
        return lines + [line for title, text in self._rows() for line in wrapped(title, text, width)]

    def _repr_html_(self) -> str:
        """The result as a table, for notebooks."""
        return displays.display(self.headline(), self._facts())

    def _facts(self, rows: Iterable[Row] | None = None) -> str:
        """Rows as a table for notebooks. Default: all."""
        shown = self._rows() if rows is None else rows
        return displays.facts((title, text.replace(_NO_BREAK, " ")) for title, text in shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Printed):
    """One steady step: seconds with an interval and parts, memory, bottleneck and cautions.

    `inputs`: the size of an image or the length of a sequence, in words; empty if the batch has neither.
    """

    job: str
    machine: str
    strategy: Mapping[str, object]
    batch: int
    step_seconds: float
    low_seconds: float
    high_seconds: float
    parts: Mapping[str, float]
    memory: Memory
    bound_by: str
    device_seconds: float | None = None
    host_seconds: float | None = None
    examples: int | None = None
    inputs: str = ""
    cautions: tuple[str, ...] = ()

    @property
    def examples_per_second(self) -> float:
        return self.batch / self.step_seconds

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds for one pass over the data, where the job says how many examples it has."""
        return None if self.examples is None else self.examples / self.examples_per_second

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        data: Plain = records.plain(self)
        return {**data, "examples_per_second": self.examples_per_second, "epoch_seconds": self.epoch_seconds}

    def headline(self) -> str:
        inputs = f"{self.inputs}, " if self.inputs else ""
        return f"{self.job} on {self.machine}: batch {self.batch}, {inputs}{in_words(self.strategy)}"

    def _rows(self) -> list[Row]:
        return [
            *self._time_rows(),
            *self._own_rows(),
            *self._memory_rows(),
            *(("caution", caution) for caution in self.cautions),
        ]

    def _repr_html_(self) -> str:
        """For notebooks: the parts of the step as a bar, and every row."""
        return displays.display(self.headline(), displays.bar(self.parts), self._facts())

    def _own_rows(self) -> list[Row]:
        """Rows that only a forecast, or only a measurement, has."""
        return []

    def _time_rows(self) -> list[Row]:
        interval = f"{units.show(self.low_seconds, 's')} to {units.show(self.high_seconds, 's')}"
        rate = f"{units.digits(self.examples_per_second)} examples/s"
        title = "latency" if self.strategy.get("inference") else "step"
        rows = [(title, f"{units.show(self.step_seconds, 's')}  ({interval}), {rate}")]
        if self.epoch_seconds is not None:
            rows.append(
                ("epoch", f"{units.show(self.epoch_seconds, 's')} for {self.examples:,} examples"),
            )
        return [
            *rows,
            ("bound by", f"{self.bound_by}: {BOUNDS[self.bound_by]}"),
            ("parts", _shares(self.parts, self.step_seconds, "s")),
        ]

    def _memory_rows(self) -> list[Row]:
        memory = self.memory
        capacity = f" of {units.show(memory.capacity_bytes, 'B')}" if memory.capacity_bytes else ""
        rows = [("memory", f"{units.show(memory.peak_bytes, 'B')} at the peak{capacity}")]
        return rows + ([("", _shares(memory.parts, memory.peak_bytes, "B"))] if memory.parts else [])


def in_words(strategy: Mapping[str, object]) -> str:
    """The strategy as a headline says it."""
    return ", ".join(
        _field_in_words(name, value)
        for name, value in strategy.items()
        if name != "batch" and value is not False
    )


def _field_in_words(name: str, value: object) -> str:
    if name == "precision":
        return PRECISIONS.get(str(value), f"precision {value}")
    words = name.replace("_", " ").replace("cudnn", "cuDNN")
    return words if value is True else f"{words} {value}"


def _shares(parts: Mapping[str, float], whole: float, unit: str) -> str:
    """Parts from large to small, without those below 0.05 %. A line never breaks inside of a part."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    shares = [
        f"{name} {units.show(value, unit)} ({value / whole:.0%})"
        for name, value in ordered
        if value > 0.0005 * whole
    ]
    return ", ".join(share.replace(" ", _NO_BREAK) for share in shares)


def terminal_width() -> int:
    """The width of the terminal within limits; the upper limit if the output is not a terminal."""
    columns = shutil.get_terminal_size(fallback=(_MAX_WIDTH, 24)).columns
    return max(_MIN_WIDTH, min(_MAX_WIDTH, columns))


def wrapped(title: str, text: str, width: int | None = None) -> list[str]:
    """A title and its text as lines of this width. Default: that of the terminal."""
    lines = textwrap.wrap(
        text,
        width or terminal_width(),
        initial_indent=f"  {title:9}",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
