"""Measure whole training steps within a probe, and forecast the same steps by any machine and profile."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from windtunnel.forecast.forecast import Forecast, forecast_step
from windtunnel.forecast.profile import Profile
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine, torch_device
from windtunnel.measurement import job
from windtunnel.measurement.report import ProcessReport, ReferenceLoop, Samples
from windtunnel.measurement.sampler import Sampler, sample_seconds
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.windows import keep_quiet
from windtunnel.prediction import trace
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

_WARM_SHARE = 0.3  # share of a step's timing that is for warming up


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A step that was timed here; `recorded` is what it does."""

    name: str
    strategy: Strategy
    seconds: float
    recorded: Trace

    def forecast(self, machine: Machine, profile: Profile) -> Forecast:
        return forecast_step(self.recorded, machine, self.strategy, profile).forecast


def real_workloads() -> list[Workload]:
    """Five small networks. None of them is in a truth table, since profiles are chosen by them."""
    return [
        Workload.named("dcn", size=16, widths=(16, 32, 64)),
        _transformer(),
        Workload.named("autoencoder", inputs=784, hidden=256),
        Workload.named("unet", size=32, padded=True, width=8),
        Workload.named("resnet50", size=32, width=16, classes=100),
    ]


_BATCHES = (32, 8, 64, 2, 4)

Job = tuple[Workload, Strategy]


def real_jobs(kind: str, cores: int) -> list[Job]:
    """The five networks, in turn with all cores and with one."""
    threads = [cores if number % 2 == 0 else 1 for number in range(len(_BATCHES))]
    strategies = [
        Strategy(batch=batch, threads=count if kind == "cpu" else None)
        for batch, count in zip(_BATCHES, threads, strict=True)
    ]
    return list(zip(real_workloads(), strategies, strict=True))


class StepTimer:
    """Times the steps of several jobs in rounds.

    On a CPU the lowest time of all rounds counts: other programs only add time, and a round some minutes
    later may be free of them. On a GPU the median counts: launch costs vary by a quarter from one second to
    the next, and a training run gets their average.
    """

    def __init__(self, jobs: Sequence[Job], kind: str) -> None:
        self._jobs, self._kind = list(jobs), kind
        device = torch_device(kind)
        self._watches = [_prepare(workload, strategy, device) for workload, strategy in self._jobs]
        self._rounds: list[list[float]] = [[] for _ in self._jobs]

    def __len__(self) -> int:
        return len(self._jobs)

    def time(self, seconds: float) -> None:
        """One round, with `seconds` for each job."""
        before = torch.get_num_threads()
        try:
            for times, watch in zip(self._rounds, self._watches, strict=True):
                times.append(watch(seconds))
        finally:
            torch.set_num_threads(before)

    def seconds(self) -> list[float]:
        """The seconds of each job's step."""
        return [min(times) if self._kind == "cpu" else statistics.median(times) for times in self._rounds]

    def steps(self) -> list[TimedStep]:
        """The jobs with their times and with what they do, which is the same for every number of threads."""
        unique = {workload.name: (workload, strategy) for workload, strategy in self._jobs}
        recorded = {
            name: trace(workload, strategy, self._kind) for name, (workload, strategy) in unique.items()
        }
        return [
            TimedStep(
                name=workload.name, strategy=strategy, seconds=seconds, recorded=recorded[workload.name]
            )
            for (workload, strategy), seconds in zip(self._jobs, self.seconds(), strict=True)
        ]


def _prepare(workload: Workload, strategy: Strategy, device: str) -> Callable[[float], float]:
    """A function that times the step for a number of seconds."""
    torch.manual_seed(0)
    step, sync = job.make_step(torch, workload, strategy, device)
    return functools.partial(_time, step, sync, strategy, device)


def _time(
    step: Callable[[], Any], sync: Callable[[], None], strategy: Strategy, device: str, seconds: float
) -> float:
    """Seconds of a steady step: the median on a GPU; on a CPU, which other programs disturb, the lower
    quartile over quiet moments."""
    job.set_up(torch, strategy, strategy.threads or torch.get_num_threads(), device)
    sampler = Sampler(step, sync, sample_seconds(device), lambda _: None, watches=device == "cpu")
    sampler.first()
    sampler.warm_up(_WARM_SHARE * seconds)
    sampler.steady(Protocol(seconds=(1 - _WARM_SHARE) * seconds, precision=1e-9))
    report = ProcessReport(
        samples={"steady": Samples(seconds=tuple(sampler.seconds))},
        reference_loop=ReferenceLoop(readings=tuple(sampler.readings)),
    )
    quiet = keep_quiet(report).steady
    return statistics.median(quiet) if device != "cpu" else statistics.quantiles(quiet, n=4)[0]


def _transformer() -> Workload:
    """Four of PyTorch's own encoder layers over 64 positions."""
    width, positions = 128, 64

    def model() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))

    def loss(net: nn.Module, states: Tensor) -> Tensor:
        squared: Tensor = net(states).square().mean()
        return squared

    return Workload(
        name="transformer encoder",
        model=model,
        batch=lambda n: torch.ones(n, positions, width),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    )
