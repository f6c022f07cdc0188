"""The two sides of a crossover: this machine's CPU or GPU, a machine of the catalogue, or a framework.

`cpu` and `cuda` are devices of this machine. Without a GPU here, `cuda` is forecast on one of the catalogue.
`framework:variant` runs on this machine's CPU, `framework:variant@cuda` on its GPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.errors import BadInput, Unavailable, UnknownName, nearest
from windtunnel.isolation.jobs import rest
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import DeviceKind, Machine, device_kind
from windtunnel.machine.machine import names as machine_names
from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.store import Store
from windtunnel.strategy import Strategy
from windtunnel.study.crossover.crossing import StepTiming
from windtunnel.study.run.forecasts import ABSENT_GPU, timing_of

if TYPE_CHECKING:
    from windtunnel.measurement.frameworks.base import TracedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSide:
    """A side that is a framework: `framework:variant@device`."""

    framework: str
    variant: str
    device: DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Forecasts and measures both sides of one job; `over` is the setting that is swept."""

    job: str
    over: str
    between: tuple[str, str]
    settings: Mapping[str, object] = field(default_factory=dict)
    strategy: Strategy = field(default_factory=Strategy)
    protocol: Protocol = field(default_factory=lambda: Protocol(processes=2, most_processes=3, seconds=1.0))
    store: Store | None = None

    def check(self, value: int) -> None:
        """Refuse an unknown side or setting before the search begins."""
        for side in self.between:
            if ":" in side:
                self._check_framework(side, value)
            else:
                _machine(side)
        self._workload(value)

    def forecast(self, side: str, value: int) -> StepTiming:
        """Seconds by forecast, of a machine or of a framework whose file says how it is traced."""
        from windtunnel.prediction import predict

        if ":" not in side:
            machine = _machine(side)
            return timing_of(predict(self._workload(value), machine, self.strategy), machine)
        step, device = self._traced(side, value), _framework_side(side).device
        machine = _machine(device)
        threads = step.threads if device == "cpu" else self.strategy.threads
        strategy = dataclasses.replace(
            self.strategy, execution=step.execution, threads=threads, precision="fp32"
        )
        workload = Workload.named(self.job, **step.settings)
        return timing_of(predict(workload, machine, strategy), machine, step.epoch)

    def measure(self, side: str, value: int, again: int) -> StepTiming:
        """Seconds by measurement on this machine. `again` counts earlier measurements of this value."""
        if ":" in side:
            return self._measure_framework(side, value, again)
        from windtunnel.measurement.measure import measure
        from windtunnel.measurement.processes import MeasureOptions

        machine = _machine(side)
        if machine.name != "here":
            reason = "there is no CUDA GPU here" if side in ("cuda", "gpu") else f"{side} is not this machine"
            raise Unavailable(f"{reason}; forecast on {machine.name}")
        workload = self._workload(value)
        rest(workload)
        measurement = measure(
            workload,
            machine,
            self.strategy,
            protocol=self.protocol,
            store=self.store,
            options=MeasureOptions(fresh=again > 0),
        )
        return StepTiming(
            seconds=measurement.step_seconds,
            low_seconds=measurement.low_seconds,
            high_seconds=measurement.high_seconds,
            origin="measured",
        )

    def _workload(self, value: int) -> Workload:
        return Workload.named(self.job, **{**self.settings, self.over: value})

    def _check_framework(self, side: str, value: int) -> None:
        name = _framework_side(side).framework
        if name not in frameworks.names():
            raise UnknownName(f"No framework is called {name!r}.", hint=nearest(name, frameworks.names()))
        if self.job not in frameworks.jobs():
            raise BadInput(
                f"Frameworks build {', '.join(frameworks.jobs())}; {self.job} is PyTorch's alone.",
                hint="Compare devices instead, for example --between cpu,cuda",
            )
        reason = frameworks.refusal(self._task(side, value))
        if reason:
            raise Unavailable(f"{side} cannot run this: {reason}.")

    def _traced(self, side: str, value: int) -> TracedStep:
        step = frameworks.traced(self._task(side, value))
        if step is None:
            name, known = _framework_side(side).framework, " and ".join(frameworks.forecast_names())
            raise Unavailable(f"{name} cannot be forecast; only {known} can.")
        return step

    def _task(self, side: str, value: int) -> Task:
        optimizer = self.strategy.optimizer or "sgd"
        if optimizer not in ("sgd", "momentum", "adam"):
            raise BadInput(f"Frameworks have no optimiser {optimizer!r}.", hint="Use sgd, momentum or adam.")
        chosen = _framework_side(side)
        return Task(
            framework=chosen.framework,
            variant=chosen.variant,
            job=self.job,
            settings={**self.settings, self.over: value},
            batch=self.strategy.batch or self._workload(value).default_batch,
            device=chosen.device,
            threads=self.strategy.threads or 1,
            data=self.strategy.in_memory(),
            optimizer=optimizer,
        )

    def _measure_framework(self, side: str, value: int, again: int) -> StepTiming:
        from windtunnel.measurement.measure import measure_task
        from windtunnel.measurement.processes import MeasureOptions

        if _framework_side(side).device == "gpu" and _here().device.kind != "gpu":
            raise Unavailable(f"there is no CUDA GPU here for {side}")
        options = MeasureOptions(fresh=again > 0)
        whole = measure_task(self._task(side, value), self.protocol, self.store or Store(), options)
        return StepTiming(
            seconds=whole.median, low_seconds=whole.low, high_seconds=whole.high, origin="measured"
        )


def _framework_side(side: str) -> FrameworkSide:
    label, _, device = side.partition("@")
    framework, _, variant = label.partition(":")
    if not framework or not variant:
        raise BadInput(
            f"{side!r} is not a framework and its variant.", hint="Write it like torch:loop or jax:scan@cuda"
        )
    return FrameworkSide(framework=framework, variant=variant, device=device_kind(device or "cpu"))


@functools.cache
def _here() -> Machine:
    return Machine.here()


@functools.cache
def _machine(side: str) -> Machine:
    try:
        return Machine.find(side)
    except Unavailable:
        return Machine.named(ABSENT_GPU)
    except UnknownName as error:
        known = [*machine_names(), "cpu", "cuda"]
        raise UnknownName(
            f"{side!r} is neither cpu, cuda, a machine of the catalogue nor framework:variant.",
            hint=nearest(side, known),
        ) from error
