"""Forecasts of a study's cells, kept in its store: for time left, for a dry run, and in place of a device that is not here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import windtunnel
from windtunnel.errors import WindtunnelError
from windtunnel.machine.machine import Machine
from windtunnel.measurement.frameworks.task import Task
from windtunnel.study.crossover.crossing import Timing
from windtunnel.study.run.store import StudyStore, dump

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast

HERE, ABSENT_GPU = "here", "h200"
FUSED = "fused:epoch"
_EXECUTIONS = {
    "torch:loop": "eager",
    "torch:module": "eager",
    "torch:compiled": "compiled",
    "torch:graph": "graph",
    FUSED: "eager",
}
_VARIANTS = {
    "torch:module": "module",
    FUSED: "fused",
}  # how the recurrent job calls them; the others are its loop
_EPOCH_DOUBT = 1.3  # activations, optimisers and silent units are not told apart
Found = Mapping[str, Any]


def can_be_forecast(task: Task) -> bool:
    """PyTorch's variants are traced, and the fused engine's where it has one; nothing is guessed for other frameworks."""
    from windtunnel.measurement import frameworks

    return task.label in _EXECUTIONS and (task.label != FUSED or frameworks.refusal(task) is None)


def timing_of(found: Forecast, machine: Machine, task: Task | None) -> Timing:
    """The seconds that a forecast tells of a framework's variant, or of no framework in particular."""
    if task is not None and task.label == FUSED:
        return _whole_epochs(found, machine, task)
    return Timing(seconds=found.step_seconds, low_seconds=found.low_seconds, high_seconds=found.high_seconds)


def _whole_epochs(found: Forecast, machine: Machine, task: Task) -> Timing:
    """A step among many in one call. What is traced is FusedRNN under PyTorch's optimiser, whose step waits for the host to launch its
    calls; the engine that trains whole epochs launches none, and was timed by itself where a probe knows its width."""
    from windtunnel.forecast.price import roofline_of
    from windtunnel.forecast.uncertainty import spreads_of
    from windtunnel.machine.profiles import profile_for
    from windtunnel.measurement.frameworks import base

    profile, job = profile_for(machine), base.settings_of(task)
    assert isinstance(job, base.RnnSettings)
    doubt, least = (
        spreads_of(machine, profile).device,
        found.flop / roofline_of(machine, profile, 1).flop_rates["fp32"],
    )
    timed = profile.epoch_seconds(job.n_rec, job.n_in + job.n_out, job.n_steps * task.batch)
    if timed is None and machine.device.kind == "gpu":  # a captured graph is busy with what is traced
        timed = found.device_seconds or found.step_seconds
    if timed is not None:
        own, doubt = max(timed, least), doubt * _EPOCH_DOUBT
        return Timing(seconds=own, low_seconds=own / doubt, high_seconds=own * doubt)
    # On a CPU a probe times the ops with the call from PyTorch, which is then taken off; of a small network nothing is left, so that
    # no less counts than its arithmetic on one core at the specified rate, and no more with the call.
    own = max(found.families.get("fused", 0.0), least)
    return Timing(seconds=own, low_seconds=least, high_seconds=(own + (found.host_seconds or 0.0)) * doubt)


def machine_for(task: Task, has_gpu: bool) -> str:
    """This machine, or a well-known GPU where a task needs one and there is none."""
    return HERE if task.device == "cpu" or has_gpu else ABSENT_GPU


class Forecasts:
    """Looks up what was forecast before; forecasts what was not, as long as its time lasts."""

    def __init__(self, store: StudyStore, has_gpu: bool) -> None:
        self.store, self.has_gpu = store, has_gpu
        self.program = windtunnel.__version__
        self.known = dict(store.forecasts(self.program))
        self._machines: dict[str, Machine] = {}

    def get(self, task: Task) -> Found | None:
        return self.known.get((dump(task), machine_for(task, self.has_gpu)))

    def step_seconds(self, task: Task) -> float | None:
        found = self.get(task)
        return None if found is None else found.get("step_seconds")

    def make(
        self,
        tasks: Iterable[Task],
        *,
        seconds: float = 120.0,
        tell: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Forecast these tasks where that can be done; gives how many there was no time for. What is found is stored."""
        missing = [task for task in tasks if can_be_forecast(task) and self.get(task) is None]
        end, made = time.monotonic() + seconds, dict[tuple[str, str], Found]()
        for task in missing:
            if time.monotonic() > end:
                break
            made[dump(task), machine_for(task, self.has_gpu)] = self._forecast(task)
            tell(len(made))
        self.known |= made
        if made:
            self.store.add_forecasts(self.program, made)
        return len(missing) - len(made)

    def _forecast(self, task: Task) -> Found:
        from windtunnel.job.workload import Workload
        from windtunnel.prediction import predict
        from windtunnel.strategy import Strategy

        settings = (
            {**task.settings, "variant": _VARIANTS.get(task.label, "loop")}
            if task.job == "rnn"
            else dict(task.settings)
        )
        try:
            machine = self._machine(task)
            strategy = Strategy.read(
                {
                    "batch": task.batch,
                    "execution": _EXECUTIONS[task.label],
                    "data": task.data,
                    "optimizer": task.optimizer,
                }
                | ({"threads": task.threads} if task.device == "cpu" else {})
            )
            found = predict(Workload.named(task.job, **settings), machine, strategy)
        except WindtunnelError as error:
            return {"none": error.message}
        timing = timing_of(found, machine, task)
        return {
            "step_seconds": timing.seconds,
            "low_seconds": timing.low_seconds,
            "high_seconds": timing.high_seconds,
            "peak_bytes": found.memory.peak_bytes,
            "device_name": machine.device.model,
        }

    def _machine(self, task: Task) -> Machine:
        name = machine_for(task, self.has_gpu)
        kind = f"{name} {task.device}"
        if kind not in self._machines:
            found = Machine.here() if name == HERE else Machine.named(name)
            self._machines[kind] = (
                found.with_cpu_only() if task.device == "cpu" and found.device.kind == "gpu" else found
            )
        return self._machines[kind]
