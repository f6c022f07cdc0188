"""Probe a machine: time synthetic ops and microbenchmarks within a budget of seconds; what was seen comes back as rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from windtunnel.calibration import clock
from windtunnel.calibration.cases import Case, Limits
from windtunnel.calibration.drawer import Drawer
from windtunnel.trace import Op
from windtunnel.trace.record import Observer

# How often each family is drawn: products and convolutions have the most ways to be fast or slow.
WEIGHTS = (
    ("matmul", 34),
    ("convolution", 48),
    ("depthwise", 8),
    ("grouped", 5),
    ("square", 6),
    ("gate", 2),
    ("transposed", 6),
    ("attention", 10),
    ("recurrent", 8),
    ("batch_norm", 8),
    ("layer_norm", 5),
    ("group_norm", 2),
    ("softmax", 4),
    ("reduction", 9),
    ("streaming", 18),
    ("cat", 3),
    ("random", 3),
    ("embedding", 4),
    ("loss", 2),
    ("gather", 2),
    ("pooling", 6),
    ("upsample", 2),
    ("foreach", 6),
    ("fused", 2),
    ("fused_recurrent", 4),
)
_GPU_LIMITS = Limits(flop=6e11, elements=700_000_000, precisions=("fp32", "tf32", "bf16"), target="gpu")
_CPU_LIMITS = Limits(flop=2e9, elements=16_000_000, precisions=("fp32",))
_GROUP = 60
_HANDFUL, _ROUNDS = 12, 2
_TENSOR_FAMILIES = ("matmul", "convolution", "attention", "recurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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


Progress = Callable[[float], None]


def probe_gpu(
    budget: float,
    seed: int = 0,
    progress: Progress | None = None,
    weights: Sequence[tuple[str, int]] = WEIGHTS,
) -> list[Row]:
    """Random synthetic ops until the budget of seconds is spent; `weights` says how often each family is drawn."""
    begin, rows = time.perf_counter(), list[Row]()
    watch = clock.GpuClock(_GPU_LIMITS.elements)
    cases = Drawer(_GPU_LIMITS, seed).draw_all(weights)
    with Observer("gpu") as observer:
        while (spent := time.perf_counter() - begin) < budget:
            if progress is not None:
                progress(spent / budget)
            group = [case for case, _ in zip(cases, range(_GROUP), strict=False)]
            for case, timings in zip(group, watch.time(group), strict=True):
                rows += _rows_of(observer, case, timings, 1)
    return rows


def probe_cpu(
    budget: float,
    threads: Sequence[int],
    seed: int = 0,
    progress: Progress | None = None,
    weights: Sequence[tuple[str, int]] = WEIGHTS,
) -> list[Row]:
    """The same on the CPU, each case with every number of threads in turn, and every handful of cases twice: whoever else is at work
    only ever adds time, so the lower counts."""
    begin, rows = time.perf_counter(), list[Row]()
    watch = clock.CpuClock(_CPU_LIMITS.elements)
    cases = Drawer(_CPU_LIMITS, seed).draw_all(weights)
    before = torch.get_num_threads()
    try:
        with Observer("cpu") as observer:
            while (spent := time.perf_counter() - begin) < budget:
                if progress is not None:
                    progress(spent / budget)
                handful = [case for case, _ in zip(cases, range(_HANDFUL), strict=False)]
                rounds = [[_time_on(watch, case, threads) for case in handful] for _ in range(_ROUNDS)]
                for case, *tries in zip(handful, *rounds, strict=True):
                    for count, *timings in zip(threads, *tries, strict=True):
                        rows += _rows_of(
                            observer,
                            case,
                            (_lower([t[0] for t in timings]), _lower([t[1] for t in timings])),
                            count,
                        )
    finally:
        torch.set_num_threads(before)
    return rows


Timings = tuple[clock.Timing | None, clock.Timing | None]


def _time_on(watch: clock.CpuClock, case: Case, threads: Sequence[int]) -> list[Timings]:
    found = []
    for count in threads:
        torch.set_num_threads(count)
        found.append(watch.time(case))
    return found


def _lower(timings: Sequence[clock.Timing | None]) -> clock.Timing | None:
    return min((t for t in timings if t is not None), key=lambda t: t.seconds, default=None)


def _rows_of(observer: Observer, case: Case, timings: Timings, threads: int) -> Iterator[Row]:
    if timings[0] is None:
        return
    ops = observer.ops_of(lambda: clock.make_empty(case.tensors), case.call)
    for timing, backward in zip(timings, (False, True), strict=True):
        op = _main_op(case, [op for op in ops if (op.phase == "backward") == backward])
        if timing is not None and op is not None:
            yield _row(op, timing, case.precision, threads)


def _main_op(case: Case, ops: Sequence[Op]) -> Op | None:
    """The op a case is about, where a zeroed state may go before it. A call that a CPU takes apart into many ops tells of none."""
    main = max(ops, key=lambda op: op.flop, default=None)
    if main is None or (case.family in ("recurrent", "fused") and main.family != case.family):
        return None
    return main


def _row(op: Op, timing: clock.Timing, precision: str, threads: int) -> Row:
    tf32 = precision == "tf32" and op.dtype == "fp32" and op.family in _TENSOR_FAMILIES
    return Row(
        name=op.name,
        family=op.family,
        phase=op.phase,
        dtype="tf32" if tf32 else op.dtype,
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
