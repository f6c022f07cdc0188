"""The fields that a forecast and a measurement share, so that the two can be compared."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel import records, units
from windtunnel.records import Plain

_WIDTH = 110
_NO_BREAK = "\0"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One steady training step: seconds with an interval and parts, memory, bottleneck and cautions."""

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

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        return [
            self.headline(),
            *self._time_lines(),
            *self._own_lines(),
            *self._memory_lines(),
            *_caution_lines(self.cautions),
        ]

    def headline(self) -> str:
        how = ", ".join(f"{key} {value}" for key, value in self.strategy.items() if key != "batch")
        return f"{self.job} on {self.machine}: batch {self.batch}, {how}"

    def _own_lines(self) -> list[str]:
        """Lines that only a forecast, or only a measurement, has."""
        return []

    def _time_lines(self) -> list[str]:
        interval = f"{units.show(self.low_seconds, 's')} to {units.show(self.high_seconds, 's')}"
        rate = f"{units.digits(self.examples_per_second)} examples/s"
        lines = [
            f"  step     {units.show(self.step_seconds, 's')}  ({interval}), {rate}",
            f"  bound by {self.bound_by}: {BOUNDS[self.bound_by]}",
            *_wrapped("parts", _shares(self.parts, self.step_seconds, "s")),
        ]
        if self.epoch_seconds is not None:
            lines.insert(
                1, f"  epoch    {units.show(self.epoch_seconds, 's')} for {self.examples:,} examples"
            )
        return lines

    def _memory_lines(self) -> list[str]:
        memory = self.memory
        capacity = f" of {units.show(memory.capacity_bytes, 'B')}" if memory.capacity_bytes else ""
        lines = [f"  memory   {units.show(memory.peak_bytes, 'B')} at the peak{capacity}"]
        return lines + (_wrapped("", _shares(memory.parts, memory.peak_bytes, "B")) if memory.parts else [])


def _shares(parts: Mapping[str, float], whole: float, unit: str) -> str:
    """Parts from large to small, without those below 0.05 %; lines never break inside of a part."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    shares = [
        f"{name} {units.show(value, unit)} ({value / whole:.0%})"
        for name, value in ordered
        if value > 0.0005 * whole
    ]
    return ", ".join(share.replace(" ", _NO_BREAK) for share in shares)


def _caution_lines(cautions: tuple[str, ...]) -> list[str]:
    return [line for caution in cautions for line in _wrapped("caution", caution)]


def _wrapped(title: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH, initial_indent=f"  {title:9}", subsequent_indent=" " * 11)
    return [line.replace(_NO_BREAK, " ") for line in lines]
