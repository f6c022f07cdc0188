"""Time synthetic ops on this machine within a budget of seconds; the result is rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from windtunnel import families
from windtunnel.calibration import clock
from windtunnel.calibration.drawer import Drawer
from windtunnel.families.drawing import Limits, ProbeCase
from windtunnel.trace import Op
from windtunnel.trace.record import Observer

GPU_LIMITS = Limits(flop=6e11, elements=700_000_000, precisions=("fp32", "tf32", "bf16"), target="gpu")
CPU_LIMITS = Limits(flop=2e9, elements=16_000_000, precisions=("fp32",))
_GPU_GROUP = 60
_CPU_GROUP, _CPU_ROUNDS = 12, 2

Share = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One op as it was timed: how it is described, then what it took."""

    name: str
    family: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    calls: int
    flop: float
    read_bytes: float
    written_bytes: float
    seconds: float
    kernels: float = 0.0
    workspace_bytes: float = 0.0
    threads: int = 1


def probe_gpu(
    budget: float, seed: int = 0, progress: Share | None = None, weights: Mapping[str, int] | None = None
) -> list[ProbeRow]:
    """Time random ops on the GPU for so many seconds; `weights` says how often each is drawn."""
    rows = list[ProbeRow]()
    watch = clock.GpuClock(GPU_LIMITS.elements)
    cases = Drawer(GPU_LIMITS, seed).draw_all(weights)
    with Observer("gpu") as observer:
        for _ in _rounds(budget, progress):
            group = list(itertools.islice(cases, _GPU_GROUP))
            for case, timings in zip(group, watch.time(group), strict=True):
                rows += _rows_of(observer, case, timings, 1)
    return rows


def probe_cpu(
    budget: float,
    threads: Sequence[int],
    seed: int = 0,
    progress: Share | None = None,
    weights: Mapping[str, int] | None = None,
) -> list[ProbeRow]:
    """The same on the CPU, each case with every number of threads.

    Every group of cases is timed twice and the lower time counts, because other programs only add time.
    """
    rows = list[ProbeRow]()
    watch = clock.CpuClock(CPU_LIMITS.elements)
    cases = Drawer(CPU_LIMITS, seed).draw_all(weights)
    before = torch.get_num_threads()
    try:
        with Observer("cpu") as observer:
            for _ in _rounds(budget, progress):
                group = list(itertools.islice(cases, _CPU_GROUP))
                rounds = [[_time_on(watch, case, threads) for case in group] for _ in range(_CPU_ROUNDS)]
                for case, *tries in zip(group, *rounds, strict=True):
                    for count, *timings in zip(threads, *tries, strict=True):
                        lower = _lower([t[0] for t in timings]), _lower([t[1] for t in timings])
                        rows += _rows_of(observer, case, lower, count)
    finally:
        torch.set_num_threads(before)
    return rows


def _rounds(budget: float, progress: Share | None) -> Iterator[None]:
    """One round after another until the budget of seconds is used."""
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < budget:
        if progress is not None:
            progress(elapsed / budget)
        yield


def _time_on(watch: clock.CpuClock, case: ProbeCase, threads: Sequence[int]) -> list[clock.Timings]:
    timings = []
    for count in threads:
        torch.set_num_threads(count)
        timings.append(watch.time(case))
    return timings


def _lower(timings: Sequence[clock.OpTiming | None]) -> clock.OpTiming | None:
    return min((t for t in timings if t is not None), key=lambda t: t.seconds, default=None)


def _rows_of(observer: Observer, case: ProbeCase, timings: clock.Timings, threads: int) -> Iterator[ProbeRow]:
    if timings[0] is None:
        return
    ops = observer.ops_of(lambda: clock.make_empty(case.tensors), case.call)
    for timing, backward in zip(timings, (False, True), strict=True):
        op = main_op(case, [op for op in ops if (op.phase == "backward") == backward])
        if timing is not None and op is not None:
            yield row_of(op, timing, case.precision, threads)


def main_op(case: ProbeCase, ops: Sequence[Op]) -> Op | None:
    """The op that a case is about; other ops, such as zeroing a state, may come before it.

    None if the device runs the case as many ops, or if the op's sizes are unknown.
    """
    main = max(ops, key=lambda op: op.flop, default=None)
    if main is None or not families.has_known_sizes(main):
        return None
    family = families.registry.get(case.family)
    is_split = family is not None and family.is_sequence and main.family != case.family
    return None if is_split else main


def row_of(op: Op, timing: clock.OpTiming, precision: str, threads: int) -> ProbeRow:
    family = families.registry.get(op.family)
    uses_tf32 = family is not None and family.uses_tensor_cores and precision == "tf32"
    return ProbeRow(
        name=op.name,
        family=op.family,
        phase=op.phase,
        dtype="tf32" if uses_tf32 and op.dtype == "fp32" else op.dtype,
        shape=op.shape,
        calls=op.calls,
        flop=op.flop,
        read_bytes=op.read_bytes,
        written_bytes=op.written_bytes,
        seconds=timing.seconds,
        kernels=timing.kernels,
        workspace_bytes=timing.workspace_bytes,
        threads=threads,
    )
