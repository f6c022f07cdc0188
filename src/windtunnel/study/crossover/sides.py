"""The two sides of a crossover: a device of this machine, a machine of the catalogue, or a framework; how each is forecast and measured.

`cpu` and `cuda` are this machine's; without a GPU here, `cuda` is forecast on a stand-in of the catalogue. `framework:variant` runs on this
machine's CPU, `framework:variant@cuda` on its GPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windtunnel.errors import BadInput, Unavailable, UnknownName, nearest
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.machine import names as machine_names
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.store import Store
from windtunnel.strategy import Strategy
from windtunnel.study.crossover.crossing import Timing
from windtunnel.study.run.forecasts import timing_of

STAND_IN = "h200"
_JOBS = ("rnn", "fcn5", "ffn")
_OF_THIS_MACHINE = ("cpu", "here", "cuda", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Asks both sides of one job for seconds; `over` is the setting that is swept."""

    job: str
    over: str
    between: tuple[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    strategy: Strategy = field(default_factory=Strategy)
    protocol: Protocol = field(default_factory=lambda: Protocol(processes=2, most_processes=3, seconds=1.0))
    store: Store | None = None

    def check(self, value: int) -> None:
        """Say now, not in the middle of the search, that a side or a setting is unknown."""
        for side in self.between:
            if ":" in side:
                self._check_framework(side)
            elif side not in _OF_THIS_MACHINE:
                _machine(side)
        self._workload(value)

    def forecast(self, side: str, value: int) -> Timing:
        """Seconds by forecast. Of the frameworks only PyTorch and the fused engine can be forecast."""
        from windtunnel.prediction import predict

        machine, strategy, settings = self._plan(side)
        found = predict(self._workload(value, settings), machine, strategy)
        return timing_of(found, machine, self._task(side, value) if ":" in side else None)

    def measure(self, side: str, value: int, again: int) -> Timing:
        """Seconds by measurement, where the side is of this machine."""
        if ":" in side:
            return self._measure_framework(side, value, again)
        from windtunnel.measurement.measure import measure
        from windtunnel.measurement.processes import MeasureOptions

        machine = _machine(side)
        if machine.name != "here":
            why = "there is no CUDA GPU here" if side in ("cuda", "gpu") else f"{side} is not this machine"
            raise Unavailable(f"{why}; forecast on {machine.name}")
        found = measure(
            self._workload(value),
            machine,
            self.strategy,
            protocol=self.protocol,
            store=self.store,
            options=MeasureOptions(fresh=again > 0),
        )
        return Timing(
            seconds=found.step_seconds,
            low_seconds=found.low_seconds,
            high_seconds=found.high_seconds,
            origin="measured",
        )

    def _workload(self, value: int, more: Mapping[str, Any] | None = None) -> Workload:
        return Workload.named(self.job, **{**self.settings, self.over: value, **(more or {})})

    def _plan(self, side: str) -> tuple[Machine, Strategy, dict[str, Any]]:
        """The machine, strategy and further settings by which a side is forecast."""
        if ":" not in side:
            return _machine(side), self.strategy, {}
        framework, variant, device = _words(side)
        if framework not in ("torch", "fused"):
            raise Unavailable(f"{framework} cannot be forecast; only torch and fused can.")
        execution: Literal["eager", "compiled", "graph"] = (
            "compiled" if variant == "compiled" else ("graph" if variant == "graph" else "eager")
        )
        settings = (
            {"variant": {"module": "module", "epoch": "fused"}.get(variant, "loop")}
            if self.job == "rnn"
            else {}
        )
        threads = (
            (self.strategy.threads or 1) if device == "cpu" else self.strategy.threads
        )  # as it is measured
        threads = (
            1 if framework == "fused" and device == "cpu" else threads
        )  # one network on one core, however many there are
        return (
            _machine(device),
            dataclasses.replace(self.strategy, execution=execution, threads=threads),
            settings,
        )

    def _check_framework(self, side: str) -> None:
        from windtunnel.measurement import frameworks

        framework, _, _ = _words(side)
        if framework not in frameworks.names():
            raise UnknownName(
                f"No framework is called {framework!r}.", hint=nearest(framework, frameworks.names())
            )
        if self.job not in _JOBS:
            raise BadInput(
                f"Frameworks build {', '.join(_JOBS)}; {self.job} is PyTorch's alone.",
                hint="Compare devices instead, for example --between cpu,cuda",
            )
        task = self._task(side, None)
        why = frameworks.refusal(task)
        if why:
            raise Unavailable(f"{side} cannot do this: {why}.")

    def _task(self, side: str, value: int | None) -> Task:
        framework, variant, device = _words(side)
        optimizer = self.strategy.optimizer or "sgd"
        if optimizer not in ("sgd", "momentum", "adam"):
            raise BadInput(f"Frameworks have no optimiser {optimizer!r}.", hint="Use sgd, momentum or adam.")
        settings = dict(self.settings) if value is None else {**self.settings, self.over: value}
        return Task(
            framework=framework,
            variant=variant,
            job=self.job,  # type: ignore[arg-type]
            settings=settings,
            batch=self.strategy.batch or 1,
            device=device,  # type: ignore[arg-type]
            threads=self.strategy.threads or 1,
            data=self.strategy.data,
            optimizer=optimizer,
        )

    def _measure_framework(self, side: str, value: int, again: int) -> Timing:
        from windtunnel.measurement.measure import measure_task
        from windtunnel.measurement.processes import MeasureOptions

        if _words(side)[2] == "cuda" and _here().device.kind != "gpu":
            raise Unavailable(f"there is no CUDA GPU here for {side}")
        options = MeasureOptions(fresh=again > 0)
        found = measure_task(self._task(side, value), self.protocol, self.store or Store(), options)
        return Timing(seconds=found.median, low_seconds=found.low, high_seconds=found.high, origin="measured")


def _words(side: str) -> tuple[str, str, str]:
    """framework, way and device of `framework:variant@device`."""
    label, _, device = side.partition("@")
    framework, _, variant = label.partition(":")
    if device not in ("", "cpu", "cuda") or not framework or not variant:
        raise BadInput(
            f"{side!r} is not a framework and its way.", hint="Write it like torch:loop or jax:scan@cuda"
        )
    return framework, variant, device or "cpu"


@functools.cache
def _here() -> Machine:
    return Machine.here()


@functools.cache
def _machine(side: str) -> Machine:
    if side in ("cpu", "here"):
        return _here().with_cpu_only() if side == "cpu" else _here()
    if side in ("cuda", "gpu"):
        return _here() if _here().device.kind == "gpu" else Machine.named(STAND_IN)
    try:
        return Machine.named(side)
    except UnknownName as error:
        known = [*machine_names(), "cpu", "cuda"]
        raise UnknownName(
            f"{side!r} is neither cpu, cuda, a machine of the catalogue nor framework:variant.",
            hint=nearest(side, known),
        ) from error
