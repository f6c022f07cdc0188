"""Figures of docs/findings.md that are forecasts: tables of several devices and of data flow."""

from __future__ import annotations

from collections.abc import Iterable

from windtunnel import units
from windtunnel.reports.text import explained_words
from windtunnel.study.rows import StudyForecasts, StudyRow

_DOUBLINGS = ((1, 2), (2, 4))


def grid(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    rows = ["| " + " | ".join(row) + " |" for row in (heads, *map(list, lines))]
    return "\n".join([rows[0], "|---" * len(heads) + "|", *rows[1:]])


class ForecastFigures:
    """The committed forecasts of a study, as tables and numbers."""

    def __init__(self, forecasts: StudyForecasts) -> None:
        self.forecasts = forecasts

    def count(self) -> int:
        return sum(row.state == "done" for row in self.forecasts.rows)

    def _case(self, figure: str, case: str, exchange: str = "") -> dict[int, StudyRow]:
        """The rows of one line by their number of devices."""
        return {
            row.devices: row
            for row in self.forecasts.rows
            if (row.figure, row.case) == (figure, case)
            and (not exchange or row.strategy.get("exchange") == exchange)
        }

    def cases(self, figure: str) -> list[str]:
        return list(dict.fromkeys(row.case for row in self.forecasts.rows if row.figure == figure))

    def saved(self, figure: str, case: str, few: int, many: int, exchange: str = "") -> str:
        """The share of the time that more devices save."""
        at = self._case(figure, case, exchange)
        return f"{1 - _seconds(at[many]) / _seconds(at[few]):.0%}"

    def gain(self, figure: str, case: str, few: int, many: int) -> str:
        at = self._case(figure, case)
        return f"{_seconds(at[few]) / _seconds(at[many]):.2f}x"

    def gains_table(self, stated: dict[str, float]) -> str:
        """Each framework: the share saved by a doubling as stated, and as forecast."""
        lines = [
            [name, f"{stated[name]:.0%}", *(self.saved("multi-gpu", name, a, b) for a, b in _DOUBLINGS)]
            for name in self.cases("multi-gpu")
        ]
        heads = ["framework", "stated", *(f"forecast, {a} to {b} GPUs" for a, b in _DOUBLINGS)]
        return grid(heads, lines)

    def explained_table(self) -> str:
        heads = [
            *("gain of", "network, GPU", "efficiency stated", "forecast, after backward"),
            *("forecast, overlapped", "link, after backward", "link, overlapped", "host, each step"),
        ]
        return grid(heads, [explained_words(gain) for gain in self.forecasts.explained])

    def link(self, name: str, place: int) -> str:
        """What one factor would have to be for a stated gain of the FCN-5 on two K80 dies, in words."""
        gain = next(g for g in self.forecasts.explained if (g.case, g.name) == ("FCN-5, K80", name))
        factor = gain.factors[place]
        return "none" if factor.value is None else units.show(factor.value, factor.unit)

    def steps_table(self, figure: str, unit: str = "ms") -> str:
        """The step of each case over the number of devices."""
        counts = sorted({row.devices for row in self.forecasts.rows if row.figure == figure})
        scale = 1e3 if unit == "ms" else 1.0
        lines = []
        for case in self.cases(figure):
            at = self._case(figure, case)
            lines.append([case, *(_digits(scale * _seconds(at[n])) for n in counts)])
        return grid([f"step in {unit}, by GPUs", *map(str, counts)], lines)

    def busy(self, case: str, devices: int) -> str:
        """The share of the time in which the GPUs of the data-flow example compute."""
        row = self._case("data-flow", case)[devices]
        return f"{100 * float(row.environment['utilisation']):.2f} %"


def _digits(value: float) -> str:
    """Three digits; whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(row: StudyRow) -> float:
    assert row.step_seconds is not None, f"{row.figure}: {row.case} on {row.devices} devices: {row.error}"
    return row.step_seconds
