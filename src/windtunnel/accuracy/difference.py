"""Which part of a forecast is off: predicted and measured seconds side by side, by family of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import records, units
from windtunnel.displays import Displayed

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.measurement.measure import Measurement

_OUTSIDE = ("copy", "feed", "communication")  # parts of a step in which neither device nor host computes
_SMALL = 0.0005
_SAME = 0.01  # steps that differ by a smaller share agree
_CPU_NOTE = (
    "On a CPU the host itself runs the ops: time inside ops, launch costs included, counts as the device's,\n"
    "  and only time outside of them as the host's."
)
_GPU_NOTE = "Host and device work in parallel: only the time in which the device waits lengthens the step."


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDifference:
    """One part of the step in seconds, mostly a family of ops. None: that side does not know it."""

    name: str
    predicted: float | None
    measured: float | None

    @property
    def seconds(self) -> float:
        """Measured minus predicted."""
        return (self.measured or 0.0) - (self.predicted or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Displayed):
    """A measured step minus the predicted one.

    `rows` sum to both steps; `beside` are times that overlap with them.
    """

    predicted: float
    measured: float
    rows: tuple[FamilyDifference, ...]
    beside: tuple[FamilyDifference, ...] = ()
    note: str = ""

    @property
    def seconds(self) -> float:
        return self.measured - self.predicted

    @property
    def largest(self) -> FamilyDifference:
        return max(self.rows, key=lambda row: abs(row.seconds))

    def share(self, row: FamilyDifference) -> float:
        """The row's part of all differences, without signs, since some cancel."""
        whole = sum(abs(other.seconds) for other in self.rows)
        return abs(row.seconds) / whole if whole else 0.0

    def plain(self) -> dict[str, object]:
        """Plain data in seconds, for JSON."""
        return {
            "seconds": self.seconds,
            "rows": [
                {**records.plain(row), "difference": row.seconds, "share": self.share(row)}
                for row in self.rows
            ],
            "beside": [{**records.plain(row), "difference": row.seconds} for row in self.beside],
            "largest": self.largest.name,
            "note": self.note,
        }

    def sentence(self) -> str:
        """The largest difference in words."""
        row = self.largest
        values = f"{_show(row.measured)} measured, {_show(row.predicted)} predicted"
        if abs(self.seconds) <= _SAME * self.measured:
            share = abs(self.seconds) / self.measured
            return (
                f"The steps agree to {share:.1%}; the largest difference within them is {row.name}: {values}."
            )
        return f"The largest difference is {row.name}: {values}, {self.share(row):.0%} of all differences."

    def __str__(self) -> str:
        whole = FamilyDifference(name="whole step", predicted=self.predicted, measured=self.measured)
        cells = [("", "predicted", "measured", "difference", "share")]
        cells += [(*_cells(row), f"{self.share(row):.0%}") for row in self.rows]
        cells += [(*_cells(row), "") for row in (whole, *self.beside)]
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        table = [
            f"  {line[0]:<{widths[0]}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
            for line in cells
        ]
        head = "difference: measured minus predicted"
        return "\n".join([head, *(line.rstrip() for line in table), f"  {self.sentence()}", f"  {self.note}"])


def explain(forecast: Forecast, measured: Measurement) -> Difference:
    """The two steps side by side, part by part, the largest difference first."""
    on_cpu = measured.kernels is None
    host = FamilyDifference(name="host busy", predicted=forecast.host_seconds, measured=measured.host_seconds)
    rows = _rows(forecast, measured, "host" if on_cpu else "device waiting")
    return Difference(
        predicted=forecast.step_seconds,
        measured=measured.step_seconds,
        rows=_gather_small(rows, max(forecast.step_seconds, measured.step_seconds)),
        beside=() if on_cpu else (host,),
        note=_CPU_NOTE if on_cpu else _GPU_NOTE,
    )


def _rows(forecast: Forecast, measured: Measurement, rest: str) -> list[FamilyDifference]:
    """The device by family, the parts outside of device and host, and the `rest` of each step."""
    ours = {**forecast.families, **{part: forecast.parts.get(part, 0.0) for part in _OUTSIDE}}
    theirs = {**measured.families, **{part: measured.parts.get(part, 0.0) for part in _OUTSIDE}}
    rows = [
        FamilyDifference(name=name, predicted=ours.get(name, 0.0), measured=theirs.get(name, 0.0))
        for name in dict.fromkeys((*ours, *theirs))
    ]
    left = FamilyDifference(
        name=rest,
        predicted=forecast.step_seconds - sum(ours.values()),
        measured=measured.step_seconds - sum(theirs.values()),
    )
    return sorted([*rows, left], key=lambda row: -abs(row.seconds))


def _gather_small(rows: Sequence[FamilyDifference], whole: float) -> tuple[FamilyDifference, ...]:
    """Rows that would be shown as nothing become one at the end."""
    small = [
        row for row in rows if max(abs(row.predicted or 0.0), abs(row.measured or 0.0)) <= _SMALL * whole
    ]
    shown = [row for row in rows if row not in small]
    if any(row.predicted or row.measured for row in small):
        shown.append(
            FamilyDifference(
                name="all others",
                predicted=sum(row.predicted or 0.0 for row in small),
                measured=sum(row.measured or 0.0 for row in small),
            )
        )
    return tuple(shown)


def _cells(row: FamilyDifference) -> tuple[str, str, str, str]:
    sign = "+" if row.seconds >= 0 else "-"
    return row.name, _show(row.predicted), _show(row.measured), f"{sign}{units.show(abs(row.seconds), 's')}"


def _show(seconds: float | None) -> str:
    return "unknown" if seconds is None else units.show(seconds, "s")
