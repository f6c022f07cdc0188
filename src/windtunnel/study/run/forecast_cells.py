"""Forecasts the cells of a study that have several devices, and solves for quantities that would explain a
gain.

Every number comes from `forecast_step`, as in `windtunnel predict`; a stated step goes through the same
schedule. There is no separate formula for the time of a step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import windtunnel
from windtunnel import records
from windtunnel.errors import DoesNotFit, WindtunnelError
from windtunnel.records import Plain
from windtunnel.study.forecast_cases import (
    Explanation,
    ForecastCase,
    MachineChanges,
    describe,
    machine_of,
    strategy_of,
)
from windtunnel.study.rows import ExplainedGain, Factor, StudyForecasts, StudyRow
from windtunnel.study.run.cells import points

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast, ForecastStep
    from windtunnel.forecast.timeline import Timeline
    from windtunnel.machine.machine import Machine
    from windtunnel.measurement.store import Store
    from windtunnel.strategy import Strategy
    from windtunnel.study.study import Figure, Study
    from windtunnel.trace import Trace

SOURCE = f"forecast by windtunnel {windtunnel.__version__}, not measured"
_NOT_OVERLAPPED, _OVERLAPPED = "after", "buckets"
# Solving ends when the efficiency is within this of the stated one.
_NEAR = 1e-3
_MOST_STEPS = 40
_FACTORS = (1e-4, 1e4)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One cell: its machine, its strategy and what was swept."""

    case: ForecastCase
    job: str
    settings: Mapping[str, object]
    machine: Machine
    strategy: Strategy
    devices: int
    batch: int
    exchange: str


def forecasts_of(study: Study, store: Store | None = None) -> StudyForecasts:
    """The rows and explanations of a study, kept in a store until the program or the study changes.

    Those of a user's own job are not kept: its file may change at any time.
    """
    from windtunnel.measurement.store import dump

    if not any(figure.forecasts for figure in study.figures):
        return StudyForecasts()
    jobs = {case.job or figure.job for figure in study.figures for case in figure.forecasts}
    store = None if any(".py" in job for job in jobs) else store
    key = (f"several devices of {study.name}: {dump(study.figures)}", _made_by())
    known = {} if store is None else store.forecasts(windtunnel.__version__)
    if key in known:
        return records.read(StudyForecasts, known[key], "stored forecasts")
    cells = ForecastCells()
    made = StudyForecasts(rows=tuple(cells.rows(study)), explained=tuple(cells.explanations(study)))
    if store is not None:
        store.add_forecasts(windtunnel.__version__, {key: records.plain(made)})
    return made


def _made_by() -> str:
    """A key of this program's files, by size and time: forecasts of another version are not reused."""
    root = Path(windtunnel.__file__).parent
    files = sorted(
        path for path in root.rglob("*") if path.suffix in (".py", ".toml", ".json", ".gz", ".csv")
    )
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class ForecastCells:
    """Forecasts cells, and keeps the traces of workers that do the same."""

    def __init__(self) -> None:
        self._traces: dict[object, Trace] = {}
        self._known: dict[object, float] = {}

    def rows(self, study: Study) -> list[StudyRow]:
        """A row for each forecast cell of a study. A cell that cannot be forecast has the reason as its
        error."""
        return [row for figure in study.figures for row in self._figure_rows(study, figure)]

    def explanations(self, study: Study) -> list[ExplainedGain]:
        """What would explain each stated gain of a study."""
        return [
            self._explain(study, figure, stated) for figure in study.figures for stated in figure.explanations
        ]

    def _figure_rows(self, study: Study, figure: Figure) -> list[StudyRow]:
        rows = []
        for case in figure.forecasts:
            for swept in points(figure.grid):
                point = _point(figure, case, swept)
                row = _blank(study, figure, point)
                try:
                    rows.append(dataclasses.replace(row, **self._times(point)))
                except WindtunnelError as error:
                    reason = error.message.splitlines()[0]
                    rows.append(dataclasses.replace(row, state="not available", error=reason))
        return rows

    def _times(self, point: _Point) -> Plain:
        """The fields of a row from the forecast: the step, its interval, and its critical path by lane.

        The seconds of the path by lane, each with its spread, determine which errors two rows share.
        """
        timeline, forecast = self._timeline(point)
        utilisation = timeline.busy_seconds("device") / timeline.step_seconds
        times: Plain = {"step_seconds": timeline.step_seconds, "environment": {"utilisation": utilisation}}
        if forecast is None:  # its figures are stated, so nothing is uncertain
            return times
        lanes: dict[str, float] = {}
        for (_, lane), seconds in timeline.critical_path().items():
            lanes[lane] = lanes.get(lane, 0.0) + seconds
        times["environment"] |= {"path": lanes, "spread": {lane: timeline.spreads[lane] for lane in lanes}}
        ends = {"low_seconds": forecast.low_seconds, "high_seconds": forecast.high_seconds}
        return times | ends | {"peak_bytes": forecast.memory.peak_bytes}

    def _timeline(self, point: _Point) -> tuple[Timeline, Forecast | None]:
        stated = point.case.step
        if stated is not None:
            from windtunnel.feed.worked_example import schedule

            kernel, size = stated.kernel_seconds, stated.batch_bytes
            alone = dataclasses.replace(point.strategy, batch=None, data_parallel=None)
            return schedule(point.machine, alone, kernel, size), None
        step = self._forecast(point)
        if step.forecast.memory.fits is False:
            raise DoesNotFit(f"It does not fit into the memory of {point.machine.device.model}.")
        return step.timeline, step.forecast

    def _forecast(self, point: _Point) -> ForecastStep:
        from windtunnel.forecast.forecast import forecast_step
        from windtunnel.forecast.workers import spread_over
        from windtunnel.machine.profiles import profile_for

        strategy = spread_over(point.strategy, point.machine)
        trace = dataclasses.replace(self._trace(point, strategy), batch=point.batch)
        return forecast_step(trace, point.machine, strategy, profile_for(point.machine))

    def _trace(self, point: _Point, strategy: Strategy) -> Trace:
        """A worker's step, which depends on its own batch but not on the links."""
        from windtunnel import prediction
        from windtunnel.forecast.workers import share_of_batch
        from windtunnel.job.workload import Workload

        own = share_of_batch(strategy, point.batch)
        # Fields that change no op: the number of workers, exchange and feed.
        degree = 2 if strategy.is_parallel else 1
        same: Plain = {"exchange": "buckets", "data": "resident", "prefetch": 0}
        worker = dataclasses.replace(strategy, batch=own * degree, data_parallel=degree, **same)
        key = (point.job, repr(sorted(point.settings.items())), worker)
        if key not in self._traces:
            workload = Workload.named(point.job, **point.settings)
            self._traces[key] = prediction.trace(workload, worker, point.machine.device.kind)
        return self._traces[key]

    # What would explain a gain

    def _explain(self, study: Study, figure: Figure, stated: Explanation) -> ExplainedGain:
        case = next(each for each in figure.forecasts if each.name == stated.case)
        doubling = _Doubling(cells=self, figure=figure, case=case)
        link, wanted = machine_of(case, 2).link, stated.efficiency
        factors = []
        for exchange in (_NOT_OVERLAPPED, _OVERLAPPED):
            found = doubling.solve(wanted, lambda x: MachineChanges(link_factor=x), exchange)
            rate = None if found is None or link is None else found * link.rate
            factors.append(Factor(name=f"link, {exchange}", factor=found, value=rate, unit="B/s"))
        slower = doubling.solve(wanted, lambda x: MachineChanges(host_factor=x), _OVERLAPPED)
        launching = self._forecast(_point(figure, case, {"devices": 1})).forecast.host_seconds
        seconds = None if slower is None or launching is None else slower * launching
        factors.append(Factor(name=f"host, {_OVERLAPPED}", factor=slower, value=seconds, unit="s"))
        usual = MachineChanges()
        return ExplainedGain(
            study=study.name,
            figure=figure.name,
            name=stated.name,
            case=case.name,
            saved=stated.saved,
            efficiency=wanted,
            not_overlapped=doubling.efficiency(usual, _NOT_OVERLAPPED),
            overlapped=doubling.efficiency(usual, _OVERLAPPED),
            factors=tuple(factors),
            source=SOURCE,
        )

    def step_seconds(self, figure: Figure, case: ForecastCase, devices: int) -> float:
        """The step of a changed case, kept: explanations ask for the same ones again."""
        key = (figure.name, case.name, case.changes, repr(case.strategy), devices)
        if key not in self._known:
            point = _point(figure, case, {"devices": devices})
            self._known[key] = self._timeline(point)[0].step_seconds
        return self._known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubling:
    """One and two devices of a case, forecast under changes."""

    cells: ForecastCells
    figure: Figure
    case: ForecastCase

    def efficiency(self, changes: MachineChanges, exchange: str) -> float:
        """The speed-up of the second device over two."""
        alone = dataclasses.replace(changes, link_factor=1.0)  # one device exchanges nothing
        one = self.cells.step_seconds(self.figure, self._changed(alone, _OVERLAPPED), 1)
        return one / self.cells.step_seconds(self.figure, self._changed(changes, exchange), 2) / 2

    def solve(self, wanted: float, changes: Callable[[float], MachineChanges], exchange: str) -> float | None:
        return solve(lambda factor: self.efficiency(changes(factor), exchange), wanted)

    def _changed(self, changes: MachineChanges, exchange: str) -> ForecastCase:
        return dataclasses.replace(
            self.case,
            changes=_combined(self.case.changes, changes),
            strategy={**self.case.strategy, "exchange": exchange},
        )


def solve(efficiency: Callable[[float], float], wanted: float) -> float | None:
    """The factor at which the efficiency is as wanted; None where no factor between 1e-4 and 1e4 does.

    False position, as in the Illinois algorithm, in logarithms, since factors span decades.

    >>> round(solve(lambda x: x / (1 + x), 0.75), 1)
    3.0
    """
    (low, high), middle = (math.log(end) for end in _FACTORS), 0.0
    off_low, off_high = efficiency(math.exp(low)) - wanted, efficiency(math.exp(high)) - wanted
    if off_low * off_high > 0:
        return None
    for number in range(_MOST_STEPS):
        # Every third step halves: a curve that is flat at one end would be approached slowly.
        halves = number % 3 == 0
        middle = (low + high) / 2 if halves else (low * off_high - high * off_low) / (off_high - off_low)
        off = efficiency(math.exp(middle)) - wanted
        if abs(off) < _NEAR:
            break
        if off * off_high > 0:
            high, off_high, off_low = middle, off, off_low / (1 if halves else 2)
        else:
            low, off_low, off_high = middle, off, off_high / (1 if halves else 2)
    return math.exp(middle)


def _combined(first: MachineChanges, second: MachineChanges) -> MachineChanges:
    """Combine two changes, of which the second has only factors."""
    names = ("link_factor", "network_factor", "host_factor")
    product = {name: getattr(first, name) * getattr(second, name) for name in names}
    return dataclasses.replace(first, **product)


def _point(figure: Figure, case: ForecastCase, swept: Mapping[str, object]) -> _Point:
    axes = dict(swept)
    devices = int(str(axes.pop("devices", 1)))
    batch = int(str(axes.pop("batch", case.batch or figure.batch)))
    strategy = strategy_of(case, axes, batch, devices)
    return _Point(
        case=case,
        job=case.job or figure.job,
        settings=case.settings or figure.settings,
        machine=machine_of(case, devices),
        strategy=strategy,
        devices=devices,
        batch=strategy.batch or batch,
        exchange=str(axes.get("exchange", case.strategy.get("exchange", "buckets"))),
    )


def _blank(study: Study, figure: Figure, point: _Point) -> StudyRow:
    strategy = point.strategy
    return StudyRow(
        study=study.name,
        figure=figure.name,
        case=point.case.name,
        label=point.case.label,
        job=point.job,
        settings=point.settings,
        device=point.machine.device.kind,
        device_name=point.machine.device.model,
        machine=point.case.machine,
        devices=point.devices,
        strategy={**describe(point.case), "exchange": point.exchange},
        batch=point.batch,
        data=strategy.data,
        optimizer=strategy.optimizer or "sgd",
        origin="forecast",
        source=SOURCE,
    )
