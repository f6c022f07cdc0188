"""What a page shows of one job on one machine: the forecast, its timeline and its memory, from one trace."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel import prediction
from windtunnel.forecast.forecast import Forecast
from windtunnel.forecast.memory_curve import MemoryCurve, memory_curve
from windtunnel.forecast.timeline import Timeline
from windtunnel.forecast.workers import spread_over
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastView:
    """A forecast with what its charts draw. `on` is the machine as the user names it."""

    machine: Machine
    strategy: Strategy
    forecast: Forecast
    timeline: Timeline
    memory: MemoryCurve
    on: str = ""

    @property
    def name(self) -> str:
        return self.on or self.machine.name

    @property
    def fits(self) -> bool:
        return self.forecast.memory.fits is not False


def view_of(
    workload: Workload, machine: Machine, strategy: Strategy | None = None, on: str = ""
) -> ForecastView:
    """Trace the step and forecast it. A step that does not fit has a view too: its memory says so."""
    strategy = spread_over(strategy or Strategy(), machine)
    recorded = prediction.trace(workload, strategy, machine.device.kind)
    return view_of_trace(recorded, workload, machine, strategy, on)


def view_of_trace(
    recorded: Trace, workload: Workload, machine: Machine, strategy: Strategy, on: str = ""
) -> ForecastView:
    """Forecast a recorded step. The strategy's degrees are known (`spread_over`)."""
    step = prediction.forecast_any(recorded, workload, machine, strategy)
    return ForecastView(
        machine=machine,
        strategy=strategy,
        forecast=step.forecast,
        timeline=step.timeline,
        memory=memory_curve(recorded, machine, strategy, profile_for(machine)),
        on=on,
    )
