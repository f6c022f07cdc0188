"""Regret: how much slower the run that forecasts rank first was than the fastest of the measured runs.

Runs that train the same network with the same batch on as many devices are one group. Of each group the run
with the shortest forecast is chosen, among those that are forecast to fit. Nothing is fitted to these rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from windtunnel import records
from windtunnel.agreement import quantile
from windtunnel.displays import Displayed


class MeasuredStrategy(NamedTuple):
    """A measured run, its forecast, and what the simple rule would sort it by."""

    case: str
    measured_seconds: float
    predicted_seconds: float
    fits: bool
    simple_order: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretRow:
    """One group. Regrets are measured / fastest measured - 1: of the run that the forecast, or the simple
    rule, chooses, and the median of all runs (a random choice)."""

    series: str
    group: str
    runs: int
    chosen: str
    regret: float
    simple: float
    random: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretValidation(Displayed):
    """The regret of a set of published runs. Prints itself. `most`: the median regret allowed in a series."""

    title: str
    use: str
    simple_rule: str
    rows: tuple[RegretRow, ...]
    most: float = 0.05
    left_out: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """The broken limits in words. A choice that is worse than the simple rule's is one, too."""
        broken = []
        for name in self._series():
            found = self._summary(name)
            if found["median"] > self.most:
                broken.append(f"{name}: median regret {found['median']:.1%}, limit {self.most:.0%}")
            if found["mean"] > found["simple_mean"] + 1e-9:
                broken.append(
                    f"{name}: mean regret {found['mean']:.1%}, simple rule {found['simple_mean']:.1%}"
                )
        return tuple(broken) if self.rows else ("no rows",)

    def plain(self, rows: bool = False) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            "use": self.use,
            "simple_rule": self.simple_rule,
            "series": {name: self._summary(name) for name in self._series()},
            "limit": self.most,
            "left_out": list(self.left_out),
            "failures": list(self.failures),
            **({"rows": [records.plain(row) for row in self.rows]} if rows else {}),
        }

    def text(self, rows: bool = False) -> str:
        heads = f"{'':30} {'groups':>6} {'median':>7} {'90th':>7} {'worst':>7} {'mean':>7}"
        lines = [self.title, self.use, f"Simple rule: {self.simple_rule}. Random: the median run.", "", heads]
        for name in self._series():
            lines += self._lines(name)
        if rows:
            lines += ["", *(_row_text(row) for row in self.rows)]
        lines += [f"left out: {text}" for text in self.left_out]
        verdict = [f"NOT MET: {text}" for text in self.failures] or [
            f"Met: median regret at most {self.most:.0%}, mean not above the simple rule's."
        ]
        return "\n".join([*lines, "", *verdict])

    def __str__(self) -> str:
        return self.text()

    def _series(self) -> list[str]:
        return list(dict.fromkeys(row.series for row in self.rows))

    def _summary(self, series: str) -> dict[str, float]:
        rows = [row for row in self.rows if row.series == series]
        found: dict[str, float] = {"groups": len(rows)}
        for prefix, name in (("", "regret"), ("simple_", "simple"), ("random_", "random")):
            values = sorted(getattr(row, name) for row in rows)
            found[f"{prefix}median"] = statistics.median(values)
            found[f"{prefix}p90"] = quantile(values, 0.9)
            found[f"{prefix}worst"] = values[-1]
            found[f"{prefix}mean"] = statistics.fmean(values)
        return found

    def _lines(self, series: str) -> list[str]:
        found = self._summary(series)
        lines = [f"{series:30} {found['groups']:>6.0f}{_figures(found, '')}"]
        for words, prefix in (("simple rule", "simple_"), ("random", "random_")):
            lines.append(f"{f'  {words}':30} {'':>6}{_figures(found, prefix)}")
        return lines


def regret_rows(series: str, groups: Mapping[str, Sequence[MeasuredStrategy]]) -> list[RegretRow]:
    """A row for each group with a choice."""
    return [_row(series, name, ways) for name, ways in groups.items() if len(ways) > 1]


def grouped(ways: Iterable[tuple[str, MeasuredStrategy]]) -> dict[str, list[MeasuredStrategy]]:
    """Runs by the key beside them."""
    groups: dict[str, list[MeasuredStrategy]] = {}
    for key, way in ways:
        groups.setdefault(key, []).append(way)
    return groups


def _row(series: str, group: str, ways: Sequence[MeasuredStrategy]) -> RegretRow:
    fastest = min(way.measured_seconds for way in ways)

    def regret(way: MeasuredStrategy) -> float:
        return way.measured_seconds / fastest - 1

    chosen = min([way for way in ways if way.fits] or ways, key=lambda way: way.predicted_seconds)
    simple = min(ways, key=lambda way: way.simple_order)
    return RegretRow(
        series=series,
        group=group,
        runs=len(ways),
        chosen=chosen.case,
        regret=regret(chosen),
        simple=regret(simple),
        random=statistics.median(map(regret, ways)),
    )


def _figures(found: Mapping[str, float], prefix: str) -> str:
    return "".join(f" {found[f'{prefix}{name}']:>7.1%}" for name in ("median", "p90", "worst", "mean"))


def _row_text(row: RegretRow) -> str:
    beside = f"simple rule {row.simple:.1%}, random {row.random:.1%}"
    return f"{row.series}, {row.group}: {row.regret:.1%} of {row.runs} runs ({row.chosen}); {beside}"
