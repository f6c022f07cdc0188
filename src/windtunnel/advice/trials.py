"""Forecasts many setups of one job, and caches the traces that several of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel import prediction
from windtunnel.advice.setups import Setup
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.forecast import Forecast
from windtunnel.forecast.generated_kernels import computes_channels_last
from windtunnel.forecast.workers import share_of_batch, spread_over
from windtunnel.job.workload import Workload
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

_WITHOUT_AUTOCAST = ("pytorch", "fp32", "tf32")  # which of them is the pricer's matter


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTime:
    """Seconds of a step's critical path on one kind of lane, and the spread of that lane's times."""

    seconds: float
    spread: float


NO_TIME = LaneTime(seconds=0.0, spread=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedSetup:
    """A setup with its forecast.

    lanes    what its critical path consists of, by kind of lane
    host     all seconds of the host, which may be hidden behind the device
    trace    the ops that were priced; two setups with the same one share their errors
    guessed  whether torch.compile's kernels are those of a simple rule, not of PyTorch's compiler
    """

    setup: Setup
    forecast: Forecast
    lanes: Mapping[str, LaneTime]
    trace: Trace
    host: LaneTime = NO_TIME
    guessed: bool = False

    @property
    def example_seconds(self) -> float:
        """The time of an example, by which steps of different batches are compared."""
        return self.forecast.step_seconds / self.forecast.batch

    @property
    def fits(self) -> bool:
        return self.forecast.memory.fits is not False


class Forecaster:
    """Forecasts setups. A change that changes no op is priced again with the kept trace."""

    def __init__(self, *, asks_compiler: bool = True) -> None:
        """`asks_compiler`: PyTorch's compiler tells the kernels of compiled steps on a GPU; else a rule."""
        self._traces: dict[object, Trace] = {}
        self._asks_compiler = asks_compiler

    def forecast(self, setup: Setup) -> TriedSetup:
        """The forecast, also of a setup that does not fit. Raises an error if the setup is impossible."""
        strategy = spread_over(setup.strategy, setup.machine)
        recorded, guessed = self._recorded(setup, strategy)
        step = prediction.forecast_any(recorded, setup.workload, setup.machine, strategy)
        lanes: dict[str, float] = {}
        for (_, lane), seconds in step.timeline.critical_path().items():
            lanes[lane] = lanes.get(lane, 0.0) + seconds
        return TriedSetup(
            setup=setup,
            forecast=step.forecast,
            lanes={
                lane: LaneTime(seconds=s, spread=step.timeline.spreads.get(lane, 1.0))
                for lane, s in lanes.items()
            },
            trace=recorded,
            host=LaneTime(
                seconds=step.timeline.busy_seconds("host"), spread=step.timeline.spreads.get("host", 1.0)
            ),
            guessed=guessed,
        )

    def has_trace(self, setup: Setup) -> bool:
        """Whether a setup can be forecast without tracing its step."""
        strategy = spread_over(setup.strategy, setup.machine)
        return _key(setup.workload, self._traced(setup, strategy), setup.machine.device.kind) in self._traces

    def _recorded(self, setup: Setup, strategy: Strategy) -> tuple[Trace, bool]:
        """The trace of a strategy whose degrees are known, and whether its kernels are guessed."""
        kind, plain = setup.machine.device.kind, self._traced(setup, strategy)
        traced = self._kept(setup.workload, plain, kind)
        if strategy.compiles and not plain.compiles:
            if kind == "gpu" and computes_channels_last(traced):
                traced = self._kept(setup.workload, dataclasses.replace(plain, layout="channels_last"), kind)
            traced = fuse(traced, for_gpu=kind == "gpu")
        found = traced.compilation
        guessed = strategy.compiles and (found is None or found.is_assumed)
        return dataclasses.replace(traced, batch=self._batch(setup, strategy)), guessed

    def _batch(self, setup: Setup, strategy: Strategy) -> int:
        return strategy.batch or setup.workload.default_batch * (strategy.data_parallel or 1)

    def _traced(self, setup: Setup, strategy: Strategy) -> Strategy:
        """The strategy that is traced for this one: equal workers and other feeds run the same ops."""
        plain = _plain(strategy, setup)
        is_asked = self._asks_compiler and setup.machine.device.kind == "gpu"
        if strategy.compiles and is_asked and not strategy.is_parallel:
            return dataclasses.replace(plain, execution="compiled")  # by PyTorch's compiler
        if plain.precision in _WITHOUT_AUTOCAST:
            plain = dataclasses.replace(plain, precision="pytorch")
        if not strategy.is_parallel:
            return plain
        workers = strategy.data_parallel or 1
        degree = min(workers, 2)
        own = share_of_batch(strategy, self._batch(setup, strategy))
        exchange = "buckets" if degree > 1 else strategy.exchange
        return dataclasses.replace(plain, batch=own * degree, data_parallel=degree, exchange=exchange)

    def _kept(self, workload: Workload, strategy: Strategy, kind: str) -> Trace:
        key = _key(workload, strategy, kind)
        if key not in self._traces:
            self._traces[key] = prediction.trace(workload, strategy, kind)
        return self._traces[key]


def _plain(strategy: Strategy, setup: Setup) -> Strategy:
    """The strategy with defaults for fields that change no op."""
    batch = strategy.batch or setup.workload.default_batch * (strategy.data_parallel or 1)
    return dataclasses.replace(strategy.as_traced(), batch=batch, execution="eager")


def _key(workload: Workload, strategy: Strategy, kind: str) -> object:
    origin = workload.origin
    job = id(workload.model) if origin is None else (origin.job, repr(sorted(origin.settings.items())))
    return job, strategy, kind
