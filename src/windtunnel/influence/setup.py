"""A setup: a job on a machine under a strategy. Factors change one thing of it; forecasts share traces."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from windtunnel.errors import BadInput, WindtunnelError
from windtunnel.forecast.forecast import Forecast
from windtunnel.forecast.workers import spread_over
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.prediction import forecast_any, trace
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedSetup:
    """What is forecast: a job on a machine under a strategy."""

    job: Workload
    machine: Machine
    strategy: Strategy

    @property
    def batch(self) -> int:
        """Examples in a step of all devices."""
        data = spread_over(self.strategy, self.machine).data_parallel or 1
        return self.strategy.batch or self.job.default_batch * data

    def with_settings(self, **settings: object) -> VariedSetup:
        """The same job with other settings; its stored data stay."""
        if self.job.origin is None:
            raise BadInput(f"{self.job.name} was made in Python: its settings are not known.")
        changed = Workload.named(self.job.origin.job, **{**self.job.origin.settings, **settings})
        return dataclasses.replace(self, job=dataclasses.replace(changed, data=self.job.data))

    def with_strategy(self, **fields: object) -> VariedSetup:
        return dataclasses.replace(self, strategy=dataclasses.replace(self.strategy, **fields))  # type: ignore[arg-type]

    def on(self, machine: Machine) -> VariedSetup:
        """The same job on another machine, without options that its device does not have."""
        strategy = self.strategy
        if machine.device.kind == "cpu":
            only_gpu: dict[str, object] = {"prefetch": 0, "pinned": None, "direct": False}
            only_gpu |= {"cudnn_benchmark": False, "expandable_segments": False}
            only_gpu |= {"execution": "eager"} if strategy.execution == "graph" else {}
            strategy = dataclasses.replace(strategy, **only_gpu)  # type: ignore[arg-type]
        return dataclasses.replace(self, machine=machine, strategy=strategy)


@dataclass(slots=True, kw_only=True)
class VariedForecasts:
    """Forecasts setups and keeps their traces; machines with the same kind of device share one."""

    traces: dict[object, Trace] = field(default_factory=dict)
    known: dict[object, Forecast] = field(default_factory=dict)

    def forecast(self, setup: VariedSetup) -> Forecast:
        """The forecast of a setup; one that does not fit has `memory.fits` False."""
        strategy = spread_over(setup.strategy, setup.machine)
        key = (_job_key(setup.job), setup.machine.name, strategy, _fed(setup.job), _own(setup.machine))
        if key not in self.known:
            recorded = self.trace_of(setup)
            self.known[key] = forecast_any(recorded, setup.job, setup.machine, strategy).forecast
        return self.known[key]

    def trace_of(self, setup: VariedSetup) -> Trace:
        strategy, kind = spread_over(setup.strategy, setup.machine), setup.machine.device.kind
        shared = strategy.as_traced()
        if not strategy.compiles:
            shared = dataclasses.replace(shared, execution="eager")
        if not strategy.exchange.startswith("server"):  # a single worker is traced as one that exchanges
            shared = dataclasses.replace(shared, exchange="buckets")
        key = (_job_key(setup.job), shared, kind)
        if key not in self.traces:
            self.traces[key] = trace(setup.job, shared, kind)
        return self.traces[key]


def why_not(error: WindtunnelError) -> str:
    """The first line of an error, as a reason in a table."""
    return error.message.splitlines()[0].rstrip(".")


def _job_key(job: Workload) -> object:
    if job.origin is None:
        return id(job)
    return job.origin.job, tuple(sorted((key, str(value)) for key, value in job.origin.settings.items()))


def _fed(job: Workload) -> object:
    return None if job.data is None else (job.data.example_bytes, job.data.decode_seconds, job.data.examples)


def _own(machine: Machine) -> object:
    """The properties of a machine that factors change without changing its name."""
    storage = machine.storage
    return machine.devices, machine.nodes, storage and storage.name, machine.topology, machine.host_factor
