"""Forecasts of a study's cells, kept in its store: for the time left, a dry run, and missing devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import windtunnel
from windtunnel.errors import WindtunnelError
from windtunnel.machine.machine import Machine
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.store import Store, dump
from windtunnel.records import Plain
from windtunnel.study.crossover.crossing import StepTiming

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.measurement.frameworks.base import EpochShape

HERE, ABSENT_GPU = "here", "h200"
_EPOCH_DOUBT = 1.3  # a probe does not vary activations, optimisers or the share of inactive neurons
StoredForecast = Plain


def can_be_forecast(task: Task) -> bool:
    """Whether the framework's file names a step of PyTorch to trace for it.

    Nothing is guessed for the others.
    """
    from windtunnel.measurement import frameworks

    return frameworks.traced(task) is not None and frameworks.refusal(task) is None


def timing_of(forecast: Forecast, machine: Machine, epoch: EpochShape | None = None) -> StepTiming:
    """Seconds of one step by a forecast; with `epoch`, of a step among many in one call of the framework."""
    if epoch is not None:
        return _in_whole_epochs(forecast, machine, epoch)
    return StepTiming(
        seconds=forecast.step_seconds, low_seconds=forecast.low_seconds, high_seconds=forecast.high_seconds
    )


def _in_whole_epochs(forecast: Forecast, machine: Machine, epoch: EpochShape) -> StepTiming:
    """The forecast traces FusedRNN under PyTorch's optimiser, whose step waits for launches from the host.

    The engine that trains whole epochs launches nothing per step. A probe times it for some widths.
    """
    from windtunnel.families import registry
    from windtunnel.forecast.price import roofline_of
    from windtunnel.forecast.uncertainty import spreads_of
    from windtunnel.machine.profiles import profile_for

    profile = profile_for(machine)
    doubt = spreads_of(machine, profile).device
    least = forecast.flop / roofline_of(machine, profile, 1).flop_rates["fp32"]
    timed = profile.epoch_seconds(epoch.n_rec, epoch.ends, epoch.timesteps)
    if timed is None and machine.device.kind == "gpu":
        # The step is then a captured graph, which keeps the device busy with the traced kernels.
        timed = forecast.device_seconds or forecast.step_seconds
    if timed is not None:
        seconds, doubt = max(timed, least), doubt * _EPOCH_DOUBT
        return StepTiming(seconds=seconds, low_seconds=seconds / doubt, high_seconds=seconds * doubt)
    # On a CPU the probe times the ops with PyTorch's call, which is then subtracted. For a small network
    # nothing remains. The lower end is its arithmetic on one core at the specified rate; the upper end
    # includes the call.
    ops = sum(forecast.families.get(family.name, 0.0) for family in registry if family.trains_epochs)
    seconds = max(ops, least)
    high_seconds = (seconds + (forecast.host_seconds or 0.0)) * doubt
    return StepTiming(seconds=seconds, low_seconds=least, high_seconds=high_seconds)


def machine_for(task: Task, has_gpu: bool) -> str:
    """This machine, or a well-known GPU where a task needs one and this machine has none."""
    return HERE if task.device == "cpu" or has_gpu else ABSENT_GPU


class Forecasts:
    """Looks up stored forecasts, and makes the missing ones within a time limit."""

    def __init__(self, store: Store, has_gpu: bool) -> None:
        self.store, self.has_gpu = store, has_gpu
        self.program = windtunnel.__version__
        self.known = dict(store.forecasts(self.program))
        self._machines: dict[str, Machine] = {}

    def get(self, task: Task) -> StoredForecast | None:
        return self.known.get((dump(task), machine_for(task, self.has_gpu)))

    def step_seconds(self, task: Task) -> float | None:
        forecast = self.get(task)
        return None if forecast is None else forecast.get("step_seconds")

    def make(
        self,
        tasks: Iterable[Task],
        *,
        seconds: float = 120.0,
        tell: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Forecast these tasks where possible and store the results; returns how many are left over."""
        missing = [task for task in tasks if can_be_forecast(task) and self.get(task) is None]
        end, made = time.monotonic() + seconds, dict[tuple[str, str], StoredForecast]()
        for task in missing:
            if time.monotonic() > end:
                break
            made[dump(task), machine_for(task, self.has_gpu)] = self._forecast(task)
            tell(len(made))
        self.known |= made
        if made:
            self.store.add_forecasts(self.program, made)
        return len(missing) - len(made)

    def _forecast(self, task: Task) -> StoredForecast:
        from windtunnel.job.workload import Workload
        from windtunnel.measurement import frameworks
        from windtunnel.prediction import predict
        from windtunnel.strategy import Strategy

        step = frameworks.traced(task)
        assert step is not None
        options: Plain = {"batch": task.batch, "execution": step.execution}
        # Frameworks compute strictly in fp32, so that all of them can be compared.
        options |= {"data": task.data, "optimizer": task.optimizer, "precision": "fp32"}
        if step.threads is not None:
            options["threads"] = step.threads
        try:
            machine = self._machine(task)
            forecast = predict(Workload.named(task.job, **step.settings), machine, Strategy.read(options))
        except WindtunnelError as error:
            return {"none": error.message}
        timing = timing_of(forecast, machine, step.epoch)
        return {
            "step_seconds": timing.seconds,
            "low_seconds": timing.low_seconds,
            "high_seconds": timing.high_seconds,
            "peak_bytes": forecast.memory.peak_bytes,
            "device_name": machine.device.model,
        }

    def _machine(self, task: Task) -> Machine:
        name = machine_for(task, self.has_gpu)
        key = f"{name} {task.device}"
        if key not in self._machines:
            machine = Machine.find(name)
            self._machines[key] = machine.with_cpu_only() if task.device == "cpu" else machine
        return self._machines[key]
