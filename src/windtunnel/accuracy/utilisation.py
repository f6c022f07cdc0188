"""Forecast utilisations beside published ones, in points."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import records
from windtunnel.agreement import agree
from windtunnel.displays import Displayed


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedUtilisation:
    """A published utilisation beside its forecast and that of a constant; errors are differences."""

    series: str
    case: str
    measured: float
    predicted: float
    constant: float

    @property
    def error(self) -> float:
        return self.predicted - self.measured

    @property
    def constant_error(self) -> float:
        return self.constant - self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationValidation(Displayed):
    """How far forecast utilisations are from published ones, in points. Prints itself.

    limited      the series whose errors are limited
    most_points  the largest error that is allowed in them, as a share
    """

    title: str
    use: str
    rows: tuple[JudgedUtilisation, ...]
    limited: tuple[str, ...]
    most_points: float

    @property
    def failures(self) -> tuple[str, ...]:
        """The broken limit in words; empty where it is met."""
        rows = [row for row in self.rows if row.series in self.limited]
        worst = max((abs(row.error) for row in rows), default=None)
        if worst is None:
            return ("no rows",)
        limit = f"limit {self.most_points * 100:.0f} points"
        return () if worst <= self.most_points else (f"worst error {worst * 100:.1f} points, {limit}",)

    def plain(self, rows: bool = False) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            "use": self.use,
            "series": {
                name: {
                    "errors": records.plain(agree([row.error for row in self._of(name)])),
                    "constant": records.plain(agree([row.constant_error for row in self._of(name)])),
                }
                for name in self._series()
            },
            "most_points": self.most_points,
            "failures": list(self.failures),
            **({"rows": [records.plain(row) for row in self.rows]} if rows else {}),
        }

    def text(self, rows: bool = False) -> str:
        lines = [
            self.title,
            self.use,
            "Errors are points of utilisation. Baseline: a constant, the mean utilisation of all rows.",
            "",
            f"{'':44} {'rows':>5} {'mean':>6} {'worst':>7} {'bias':>7} {'baseline: mean':>15} {'worst':>7}",
        ]
        for series in self._series():
            chosen = self._of(series)
            lines.append(_line(series, chosen))
            for name in dict.fromkeys(row.case.split()[0] for row in chosen):
                lines.append(_line(f"  {name}", [row for row in chosen if row.case.split()[0] == name]))
        if rows:
            lines += ["", *(_row_text(row) for row in self.rows)]
        verdict = [f"NOT MET: {text}" for text in self.failures]
        met = f"met: worst error within {self.most_points * 100:.0f} points ({', '.join(self.limited)})"
        return "\n".join([*lines, "", *(verdict or [met])])

    def __str__(self) -> str:
        return self.text()

    def _series(self) -> list[str]:
        return list(dict.fromkeys(row.series for row in self.rows))

    def _of(self, series: str) -> list[JudgedUtilisation]:
        return [row for row in self.rows if row.series == series]


def _line(name: str, rows: Sequence[JudgedUtilisation]) -> str:
    errors, constant = agree([row.error for row in rows]), agree([row.constant_error for row in rows])
    mean, other = (statistics.fmean(abs(e) for e in each) for each in _errors(rows))
    return (
        f"  {name:42} {errors.rows:>5} {mean * 100:>6.1f} {errors.worst * 100:>+7.1f} "
        f"{errors.bias * 100:>+7.1f} {other * 100:>15.1f} {constant.worst * 100:>+7.1f}"
    )


def _errors(rows: Sequence[JudgedUtilisation]) -> tuple[list[float], list[float]]:
    return [row.error for row in rows], [row.constant_error for row in rows]


def _row_text(row: JudgedUtilisation) -> str:
    values = f"{row.predicted:.1%} / {row.measured:.1%}"
    return f"{row.case:80.80} {values:>16} {row.error * 100:+6.1f} points"
