"""Which part of a forecast is off, told by laying the device's seconds by family of op beside the measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import records, units

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.measurement.measure import Measurement

_BESIDE = ("copy", "feed", "communication")  # parts of a step in which neither device nor host works on it
_SMALL = 0.0005
_SAME = 0.01  # a difference of the step below this share is as good as none
_CPU_NOTE = (
    "On a CPU the host does what it launches: time measured inside an op that moves data counts as the device's, the cost of launching it\n"
    "  included, and only what lies outside such ops as the host's."
)
_GPU_NOTE = (
    "The host works beside the device, so only the time in which the device waits for it lengthens the step."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One part of the step in seconds; `predicted` and `measured` are None where that side does not know it."""

    name: str
    predicted: float | None
    measured: float | None

    @property
    def seconds(self) -> float:
        """What was measured beyond what was predicted."""
        return (self.measured or 0.0) - (self.predicted or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A measured step less the predicted one. `rows` sum to both steps; `beside` are times that overlap with them."""

    predicted: float
    measured: float
    rows: tuple[Row, ...]
    beside: tuple[Row, ...] = ()
    note: str = ""

    @property
    def seconds(self) -> float:
        return self.measured - self.predicted

    @property
    def largest(self) -> Row:
        return max(self.rows, key=lambda row: abs(row.seconds))

    def share(self, row: Row) -> float:
        """The row's part of all differences, signs left aside since some cancel."""
        whole = sum(abs(other.seconds) for other in self.rows)
        return abs(row.seconds) / whole if whole else 0.0

    def plain(self) -> dict[str, Any]:
        """Plain data in seconds, for JSON."""
        rows = [
            {**records.plain(row), "difference": row.seconds, "share": self.share(row)} for row in self.rows
        ]
        beside = [{**records.plain(row), "difference": row.seconds} for row in self.beside]
        return {
            "seconds": self.seconds,
            "rows": rows,
            "beside": beside,
            "largest": self.largest.name,
            "note": self.note,
        }

    def sentence(self) -> str:
        """The part that is most off, in words."""
        row = self.largest
        told = f"{_show(row.measured)} measured, {_show(row.predicted)} predicted"
        if abs(self.seconds) <= _SAME * self.measured:
            return f"The steps agree to {abs(self.seconds) / self.measured:.1%}; most off within them is {row.name}: {told}."
        return f"The largest difference is {row.name}: {told}, {self.share(row):.0%} of all that is off."

    def __str__(self) -> str:
        cells = [("", "predicted", "measured", "difference", "share")]
        cells += [
            (
                row.name,
                _show(row.predicted),
                _show(row.measured),
                _signed(row.seconds),
                f"{self.share(row):.0%}",
            )
            for row in self.rows
        ]
        cells.append(("whole step", _show(self.predicted), _show(self.measured), _signed(self.seconds), ""))
        cells += [
            (row.name, _show(row.predicted), _show(row.measured), _signed(row.seconds), "")
            for row in self.beside
        ]
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        lines = [
            f"  {line[0]:<{widths[0]}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
            for line in cells
        ]
        return "\n".join(
            [
                "difference: measured less predicted",
                *(line.rstrip() for line in lines),
                f"  {self.sentence()}",
                f"  {self.note}",
            ]
        )


def explain(forecast: Forecast, measured: Measurement) -> Difference:
    """Lay the two steps side by side, part by part, largest difference first."""
    on_cpu = measured.kernels is None
    return Difference(
        predicted=forecast.step_seconds,
        measured=measured.step_seconds,
        rows=_gather_small(
            _rows(forecast, measured, "host" if on_cpu else "device waiting"),
            max(forecast.step_seconds, measured.step_seconds),
        ),
        beside=()
        if on_cpu
        else (Row(name="host busy", predicted=forecast.host_seconds, measured=measured.host_seconds),),
        note=_CPU_NOTE if on_cpu else _GPU_NOTE,
    )


def _rows(forecast: Forecast, measured: Measurement, rest: str) -> list[Row]:
    """The device by family, what neither device nor host does, and the `rest` of each step."""
    predicted = {**forecast.families, **{part: forecast.parts.get(part, 0.0) for part in _BESIDE}}
    found = {**measured.families, **{part: measured.parts.get(part, 0.0) for part in _BESIDE}}
    rows = [
        Row(name=name, predicted=predicted.get(name, 0.0), measured=found.get(name, 0.0))
        for name in dict.fromkeys((*predicted, *found))
    ]
    left = Row(
        name=rest,
        predicted=forecast.step_seconds - sum(predicted.values()),
        measured=measured.step_seconds - sum(found.values()),
    )
    return sorted([*rows, left], key=lambda row: -abs(row.seconds))


def _gather_small(rows: Sequence[Row], whole: float) -> tuple[Row, ...]:
    """Rows that would round to nothing become one at the end."""
    small = [
        row for row in rows if max(abs(row.predicted or 0.0), abs(row.measured or 0.0)) <= _SMALL * whole
    ]
    shown = [row for row in rows if row not in small]
    if any(row.predicted or row.measured for row in small):
        shown.append(
            Row(
                name="all others",
                predicted=sum(r.predicted or 0.0 for r in small),
                measured=sum(r.measured or 0.0 for r in small),
            )
        )
    return tuple(shown)


def _show(seconds: float | None) -> str:
    return "unknown" if seconds is None else units.show(seconds, "s")


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{units.show(abs(seconds), 's')}"
