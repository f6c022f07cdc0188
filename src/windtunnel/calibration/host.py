"""Time microbenchmarks and latencies on this host, to measure launch costs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.utils import _pytree as pytree

from windtunnel.calibration import microbenchmarks
from windtunnel.job.trainer import Trainer
from windtunnel.job.workload import Workload
from windtunnel.measurement.environment import QuietMoments
from windtunnel.strategy import Strategy

_WARM_STEPS = 5
_PATIENCE = 0.1  # seconds that a microbenchmark waits for a quiet moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbenchmark:
    """A synthetic network and the seconds of its steady step."""

    name: str
    seconds: float


def run_microbenchmarks(
    device: str, count: int, seconds: float = 0.15, rounds: int = 2, most_seconds: float = math.inf
) -> list[Microbenchmark]:
    """Time all microbenchmarks in turn, several times, so that a slow moment does not affect only one kind.

    The lowest of a microbenchmark's times counts: it shows what its ops cost. On a CPU, one thread is used:
    their ops are too small to be divided. After `most_seconds`, no further round begins.
    """
    workloads, before = microbenchmarks.draw(count), torch.get_num_threads()
    begin, times = time.perf_counter(), list[list[float]]()
    try:
        if device == "cpu":
            torch.set_num_threads(1)
        steps = [_make_step(workload, device) for workload in workloads]
        sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)
        quiet_moments = QuietMoments()
        while not times or (len(times) < rounds and time.perf_counter() - begin < most_seconds):
            times.append([_time(step, sync, seconds / rounds, quiet_moments) for step in steps])
    finally:
        torch.set_num_threads(before)
    return [
        Microbenchmark(name=w.name, seconds=min(samples))
        for w, *samples in zip(workloads, *times, strict=True)
    ]


def _make_step(workload: Workload, device: str) -> Callable[[], Any]:
    torch.manual_seed(0)
    trainer = Trainer(workload, workload.model().to(device), Strategy(), device)
    batch = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), workload.batch(workload.default_batch))
    return lambda: trainer.step(batch)


def _time(step: Callable[[], Any], sync: Callable[[], Any], cap: float, quiet_moments: QuietMoments) -> float:
    """The median over groups of steps, started in a quiet moment."""
    quiet_moments.wait(_PATIENCE)
    for _ in range(_WARM_STEPS):
        step()
    sync()
    samples, begin = list[float](), time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - begin < cap:
        start = time.perf_counter()
        for _ in range(3):
            step()
        sync()
        samples.append((time.perf_counter() - start) / 3)
    return statistics.median(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """In seconds: the gap between two queued kernels, the shortest kernel, the launch of a captured graph,
    the gap between two kernels in it, and the host's cost of each kernel that a library starts within one
    call."""

    gap_seconds: float
    kernel_seconds: float
    graph_seconds: float
    node_seconds: float
    launch_seconds: float


def measure_latencies(kernels: int = 400) -> Latencies:
    """Time a chain of tiny kernels: queued behind a long one, then as a captured graph."""
    x = torch.rand(8, 8, device="cuda")

    def chain() -> None:
        y = x
        for _ in range(kernels):
            y = y * 1.01

    queued = statistics.median(_queued(chain) for _ in range(9)) / kernels
    kernel = _kernel_seconds(chain)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    torch.cuda.synchronize()
    node = statistics.median(_queued(graph.replay) for _ in range(9)) / kernels
    launches = []
    for _ in range(20):
        start = time.perf_counter()
        graph.replay()
        launches.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return Latencies(
        gap_seconds=max(0.0, queued - kernel),
        kernel_seconds=kernel,
        graph_seconds=statistics.median(launches),
        node_seconds=max(0.0, node - kernel),
        launch_seconds=_launch_seconds(),
    )


def _launch_seconds() -> float:
    """Recurrent calls over few timesteps and over many: the host's extra seconds per extra kernel."""
    return statistics.median(
        _seconds_per_kernel(kind) for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)
    )


def _seconds_per_kernel(kind: Callable[..., torch.nn.Module], few: int = 20, many: int = 120) -> float:
    layer = kind(256, 512).cuda()

    def run(steps: int) -> tuple[float, int]:
        x = torch.rand(steps, 64, 256, device="cuda")
        samples = []
        for _ in range(9):
            torch.cuda.synchronize()
            start = time.perf_counter()
            layer(x)
            samples.append(time.perf_counter() - start)
        return statistics.median(samples), _kernels(lambda: layer(x))

    (short, before), (long, after) = run(few), run(many)
    return max(0.0, long - short) / max(after - before, 1)


def _kernels(call: Callable[[], Any]) -> int:
    return len(_kernel_events(call))


def _queued(call: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(30_000_000)  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _kernel_seconds(chain: Callable[[], Any]) -> float:
    return statistics.median(float(e.duration_ns()) for e in _kernel_events(chain)) / 1e9


def _kernel_events(call: Callable[[], Any]) -> list[Any]:
    """The kernels of a call, by the device's own record."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    results: Any = recorded.profiler
    return [e for e in results.kineto_results.events() if e.device_type() == DeviceType.CUDA]
