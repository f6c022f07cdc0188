"""Everything that a report of a job on some machines shows, computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from windtunnel.advice.engine import AdviceOptions, advise
from windtunnel.advice.result import Advice
from windtunnel.errors import WindtunnelError
from windtunnel.feed.remedies import RemedyTable, compare_remedies
from windtunnel.influence.result import Influence
from windtunnel.influence.scaling import ScalingCurve, scaling_curve
from windtunnel.influence.survey import factors
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.reports.forecast.measured import Beside
from windtunnel.reports.forecast.view import ForecastView, view_of
from windtunnel.strategy import Strategy

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """A job on some machines. A text instead of a result says why there is none.

    `advice`, `scaling` and `influence` are those of the first machine; None: they were not asked for.
    `feeds` has one entry for each machine; None where the data lies in device memory. `measured` are steps
    that really ran, beside their forecasts.
    """

    job: str
    command: str
    settings: str = ""
    views: tuple[ForecastView, ...] = ()
    feeds: tuple[RemedyTable | None, ...] = ()
    advice: Advice | str | None = None
    scaling: ScalingCurve | str | None = None
    influence: Influence | str | None = None
    measured: tuple[Beside, ...] = ()


def gather(
    workload: Workload,
    machines: Sequence[tuple[str, Machine]],
    strategy: Strategy,
    command: str = "",
    brief: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> ForecastReport:
    """Forecast the job on each machine; unless `brief`, also advice, scaling and factors on the first.

    An error of a forecast itself is raised. What is beside it may fail, and then says why.
    """
    views = []
    for on, machine in machines:
        progress(f"forecasting {workload.name} on {on}")
        views.append(view_of(workload, machine, strategy, on))
    feeds = [_feed(workload, view) for view in views]
    settings = workload.origin.settings if workload.origin else {}
    report = ForecastReport(
        job=workload.name,
        settings=", ".join(f"{name}={value}" for name, value in settings.items()),
        command=command,
        views=tuple(views),
        feeds=tuple(feeds),
    )
    if brief:
        return report
    on, machine = machines[0]
    options = AdviceOptions(on=on, progress=progress)
    return dataclasses.replace(
        report,
        advice=_or_reason(lambda: advise(workload, machine, strategy, options=options)),
        scaling=_or_reason(lambda: scaling_curve(workload, machine, strategy, progress=progress)),
        influence=_or_reason(lambda: factors(workload, machine, strategy, progress=progress)),
    )


def _feed(workload: Workload, view: ForecastView) -> RemedyTable | None:
    if view.strategy.data == "resident":
        return None
    found = _or_reason(lambda: compare_remedies(workload, view.machine, view.strategy))
    return None if isinstance(found, str) else found


def _or_reason(compute: Callable[[], R]) -> R | str:
    try:
        return compute()
    except WindtunnelError as error:
        return error.message
