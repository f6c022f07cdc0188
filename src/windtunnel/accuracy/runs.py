"""Forecasts against published runs of many GPUs: rows, errors beside a baseline, limits that can fail.

Each set is a module with `validate(folder)`. It says what its file was used for. None of the sets comes with
the package.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from windtunnel import records, units
from windtunnel.agreement import error_of, quantile
from windtunnel.displays import Displayed
from windtunnel.errors import WindtunnelError
from windtunnel.forecast.forecast import Forecast, ForecastStep, forecast_step
from windtunnel.forecast.workers import spread_over
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.strategy import Strategy
from windtunnel.trace_cache import TraceCache

INSIDE = (0.70, 0.90)  # the share of rows that should lie in their 80 % interval
# A host factor that was chosen on whole steps of the same program is known better than one of a probe: four
# of five host-bound steps that it was chosen on are within this factor (122 of small GPT, 8 of Llama).
STEPS_SPREAD = 1.11


class Runs:
    """Forecasts runs, and caches the traces of workers that run the same ops."""

    def __init__(self) -> None:
        self._traces: dict[object, TraceCache] = {}

    def forecast(
        self, job: str, settings: Mapping[str, object], machine: Machine, strategy: Strategy
    ) -> Forecast:
        """The forecast of a run, whether it fits or not."""
        return self.step(job, settings, machine, strategy).forecast

    def step(
        self, job: str, settings: Mapping[str, object], machine: Machine, strategy: Strategy
    ) -> ForecastStep:
        """The forecast with the schedule behind it."""
        strategy = spread_over(strategy, machine)
        key = (job, tuple(sorted(settings.items())), machine.device.kind)
        if key not in self._traces:
            workload = Workload.named(job, **{name: str(value) for name, value in settings.items()})
            self._traces[key] = TraceCache(workload, machine.device.kind)
        trace = self._traces[key].of(strategy)
        return forecast_step(trace, machine, strategy, profile_for(machine))


class Added(NamedTuple):
    """What workers add to the step of one, in seconds, with an interval."""

    seconds: float
    low: float
    high: float


def added_by_workers(one: ForecastStep, many: ForecastStep) -> Added:
    """What the step of several workers takes longer than that of one, whose time is known.

    Each lane's share of the difference is uncertain by the spread of that lane. Links hide work of other
    lanes, so these shares may be negative: a faster device hides less. As in any step, the shifts add.
    """
    alone, together = one.timeline.critical_path(), many.timeline.critical_path()
    spreads = {**one.timeline.spreads, **many.timeline.spreads}
    lanes: dict[str, float] = {}
    for path, sign in ((together, 1), (alone, -1)):
        for (_, lane), seconds in path.items():
            lanes[lane] = lanes.get(lane, 0.0) + sign * seconds
    added = many.forecast.step_seconds - one.forecast.step_seconds
    longer = sum(max(s * (spreads[lane] - 1), s * (1 / spreads[lane] - 1)) for lane, s in lanes.items())
    shorter = sum(max(s * (1 - spreads[lane]), s * (1 - 1 / spreads[lane])) for lane, s in lanes.items())
    return Added(added, added - shorter, added + longer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published run and its forecast. Values are seconds, bytes or a share, as `unit` says.

    `series` is the quantity that is judged. `low` and `high` are the ends of the forecast's interval. Rows
    that a constant was chosen on are not judged.
    """

    series: str
    case: str
    measured: float
    predicted: float
    baseline: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "s"
    is_judged: bool = True

    @property
    def error(self) -> float:
        """Relative; of shares (efficiencies) the difference."""
        if self.unit == "share":
            return self.predicted - self.measured
        return error_of(self.predicted, self.measured)

    @property
    def baseline_error(self) -> float | None:
        if self.baseline is None:
            return None
        return dataclasses.replace(self, predicted=self.baseline, baseline=None).error

    @property
    def is_inside(self) -> bool | None:
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


class Limit(NamedTuple):
    """The most that a statistic ("mean", "median", "p90", "worst") of a series may be."""

    series: str
    statistic: str
    most: float


_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "p90": lambda sizes: quantile(sorted(sizes), 0.9),
    "worst": max,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsValidation(Displayed):
    """How far forecasts are from a set of published runs. Prints itself.

    use       what the file was used for: judging, or choosing constants
    baseline  the simplest forecast of these rows, in words
    shares    further shares that are limited: a name, the count, of how many, the most allowed
    """

    title: str
    use: str
    baseline: str
    rows: tuple[Row, ...]
    limits: tuple[Limit, ...]
    shares: tuple[tuple[str, int, int, float], ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """The broken limits in words; empty where all are met."""
        broken = [self._limit_text(limit) for limit in self.limits if self._value(limit) > limit.most]
        broken += [self._share_text(each) for each in self.shares if each[1] > each[3] * each[2]]
        inside = self.inside
        if inside is not None and not INSIDE[0] <= inside <= INSIDE[1]:
            broken.append(f"{inside:.0%} of rows inside of their 80 % interval")
        return tuple(broken) if self.rows else ("no rows",)

    @property
    def inside(self) -> float | None:
        """The share of rows inside of their interval."""
        known = [row.is_inside for row in self.rows if row.is_judged and row.is_inside is not None]
        return sum(known) / len(known) if known else None

    def plain(self, rows: bool = False) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            "use": self.use,
            "baseline": self.baseline,
            "series": {name: self._summary(name) for name in self._series()},
            "inside": self.inside,
            "shares": [list(each) for each in self.shares],
            "left_out": list(self.left_out),
            "failures": list(self.failures),
            **({"rows": [records.plain(row) for row in self.rows]} if rows else {}),
        }

    def text(self, rows: bool = False) -> str:
        lines = [self.title, self.use, f"Baseline: {self.baseline}.", ""]
        for name in self._series():
            lines += [f"{name}: {len(self._of(name))} rows", *self._summary_lines(name)]
        if self.inside is not None:
            lines.append(f"inside of the 80 % interval: {self.inside:.0%}")
        lines += [self._share_text(each) for each in self.shares]
        if rows:
            lines += ["", *(_row_text(row) for row in self.rows)]
        lines += [f"left out: {text}" for text in self.left_out]
        verdict = [f"NOT MET: {text}" for text in self.failures] or ["All limits are met."]
        return "\n".join([*lines, "", *verdict])

    def __str__(self) -> str:
        return self.text()

    def _series(self) -> list[str]:
        return list(dict.fromkeys(row.series for row in self.rows))

    def _of(self, series: str) -> list[Row]:
        return [row for row in self.rows if row.series == series and row.is_judged]

    def _value(self, limit: Limit) -> float:
        sizes = [abs(row.error) for row in self._of(limit.series)]
        return _STATISTICS[limit.statistic](sizes) if sizes else 0.0

    def _summary(self, series: str) -> dict[str, object]:
        rows = self._of(series)
        errors = [row.error for row in rows]
        baseline = [row.baseline_error for row in rows if row.baseline_error is not None]
        found: dict[str, object] = {"rows": len(rows), "bias": statistics.median(errors)}
        for name, compute in _STATISTICS.items():
            found[name] = compute([abs(error) for error in errors])
            if baseline:
                found[f"baseline_{name}"] = compute([abs(error) for error in baseline])
        return found

    def _summary_lines(self, series: str) -> list[str]:
        summary = self._summary(series)
        lines = []
        for name in _STATISTICS:
            limit = next((x for x in self.limits if x.series == series and x.statistic == name), None)
            most = f"   limit {limit.most:.0%}" if limit else ""
            baseline = summary.get(f"baseline_{name}")
            beside = f"   baseline {baseline:.1%}" if baseline is not None else ""
            lines.append(f"  {name:7} {summary[name]:6.1%}{beside}{most}")
        return [*lines, f"  bias    {summary['bias']:+6.1%}"]

    def _limit_text(self, limit: Limit) -> str:
        return f"{limit.series}: {limit.statistic} {self._value(limit):.1%}, limit {limit.most:.0%}"

    @staticmethod
    def _share_text(share: tuple[str, int, int, float]) -> str:
        name, count, of, most = share
        return f"{name}: {count} of {of} ({count / max(of, 1):.1%}), limit {most:.0%}"


def _row_text(row: Row) -> str:
    if row.unit == "share":
        values = f"{row.predicted:.1%} / {row.measured:.1%}"
    else:
        values = f"{units.show(row.predicted, row.unit)} / {units.show(row.measured, row.unit)}"
    baseline = "" if row.baseline_error is None else f"  baseline {row.baseline_error:+.1%}"
    inside = {True: "", False: "  outside", None: ""}[row.is_inside]
    return f"{row.series:8.8} {row.case:48.48} {values:>24} {row.error:+7.1%}{baseline}{inside}"


def unless_refused(make: Callable[[], Row | None]) -> Row | str | None:
    """The row, or the reason why there is no forecast."""
    try:
        return make()
    except WindtunnelError as error:
        return error.message.splitlines()[0]
