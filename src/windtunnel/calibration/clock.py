"""Time single calls: on a GPU by the profiler's record of kernels, on a CPU by the clock.

On a GPU, a tiny marker kernel is queued before and after each timed call. All kernels between two markers
belong to one call, however many there are. The host's cost is not in the times.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from windtunnel.families.drawing import ProbeCase, TensorSpec

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_REPEATS = 3
_MARKER = "spin_kernel"
# On a CPU: a group of calls is about this long, an op gets this many groups and about this many seconds. A
# call above the last figure is not repeated further. Short timings allow thousands of ops in a probe, and the
# fit takes medians: many ops with short timings give a better fit than few ops with exact ones.
_GROUP_SECONDS, _GROUPS, _MOST_SECONDS, _LONG_SECONDS = 0.0004, 6, 0.006, 0.03
_MOST_CALLS = 100
# The sets of tensors that a CPU's calls go through: their bytes, which exceed the caches of one core, and
# their number, forward and backward.
_SETS_BYTES, _MOST_SETS, _MOST_BACKWARD_SETS = 32 * 2**20, 32, 8

Timings = tuple["OpTiming | None", "OpTiming | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTiming:
    """Seconds of one call, its number of kernels, and its workspace (memory in addition to its results)."""

    seconds: float
    kernels: float = 0.0
    workspace_bytes: float = 0.0


class Pool:
    """Random numbers that are drawn once. Tensors are slices of them, so that making a case costs nothing."""

    def __init__(self, device: str, elements: int) -> None:
        self.device = device
        self._numbers = {
            dtype: torch.randn(elements, device=device, dtype=dtype)
            for dtype in {torch.float32, torch.bfloat16, torch.float16}
        }
        self._used = 0

    def make(self, case: ProbeCase, begin: int = 0) -> list[Tensor]:
        """The tensors of a case, cut from the numbers from `begin` on."""
        self._used = begin
        tensors = [self._cut(spec) for spec in case.tensors]
        if case.prepare is not None:
            case.prepare(tensors)
        return tensors

    def _cut(self, spec: TensorSpec) -> Tensor:
        if spec.step:
            return torch.arange(0, spec.elements * spec.step, spec.step, device=self.device).view(spec.shape)
        if spec.high:
            return torch.randint(spec.high, spec.shape, device=self.device)
        source = self._numbers[DTYPES[spec.dtype]]
        begin, self._used = self._used, self._used + _rounded(spec)
        tensor = spec.view(source[begin : begin + spec.elements].view(spec.whole))
        return tensor.requires_grad_() if spec.grad else tensor


def _rounded(spec: TensorSpec) -> int:
    """Elements that a tensor takes of the pool."""
    return -(-spec.elements // 256) * 256


def make_empty(specs: Sequence[TensorSpec]) -> list[Tensor]:
    """The same tensors without numbers, to describe a call."""
    tensors = []
    for spec in specs:
        dtype = torch.int64 if spec.is_index else DTYPES[spec.dtype]
        tensor = spec.view(torch.empty(spec.whole, dtype=dtype))
        tensors.append(tensor.requires_grad_() if spec.grad else tensor)
    return tensors


def set_precision(precision: str) -> None:
    """Compute fp32 products in fp32, unless the precision is tf32."""
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


class GpuClock:
    """Times a group of cases under one run of the profiler."""

    def __init__(self, elements: int) -> None:
        self.pool = Pool("cuda", elements)

    def time(self, cases: Sequence[ProbeCase]) -> list[Timings]:
        """Forward and backward of each case; None if it could not run or has no backward."""
        from torch.profiler import ProfilerActivity, profile

        runs = [self._warm(case) for case in cases]
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            queued = [
                self._repeat(case) if run is not None else 0 for case, run in zip(cases, runs, strict=True)
            ]
            torch.cuda.synchronize()
        segments = _segments(recorded)
        results: list[Timings] = []
        for case, run, markers in zip(cases, runs, queued, strict=True):
            own = [next(segments, (0.0, 0)) for _ in range(markers)]
            if run is None or markers != _marker_count(case):
                results.append((None, None))
                continue
            step = 2 if case.has_backward else 1
            forward = _median(own[0:-1:step], run[0])
            results.append((forward, _median(own[1:-1:step], run[1]) if case.has_backward else None))
        return results

    def _warm(self, case: ProbeCase) -> tuple[float, float] | None:
        """Run once untimed, for plans and caches; returns the workspace forward and backward."""
        try:
            set_precision(case.precision)
            tensors = self.pool.make(case)
            result, forward = _with_workspace(lambda: case.call(tensors))
            if not case.has_backward:
                return forward, 0.0
            seed, wanted = torch.ones_like(result), [t for t in tensors if t.requires_grad]
            _, backward = _with_workspace(
                lambda: torch.autograd.grad(result, wanted, seed, retain_graph=True)
            )
            return forward, backward
        except (RuntimeError, NotImplementedError):
            torch.cuda.empty_cache()
            return None

    def _repeat(self, case: ProbeCase) -> int:
        """Queue the timed calls; returns the number of queued markers, which shows whether all calls ran."""
        markers = 0
        try:
            set_precision(case.precision)
            tensors = self.pool.make(case)
            wanted = [t for t in tensors if t.requires_grad]
            seed: Tensor | None = None
            for _ in range(_REPEATS):
                markers += _mark()
                result = case.call(tensors)
                if wanted:
                    if seed is None:  # made between markers once: the median drops that segment, the slowest
                        seed = torch.ones_like(result)
                    markers += _mark()
                    torch.autograd.grad(result, wanted, seed)
            markers += _mark()
        except (RuntimeError, NotImplementedError):
            torch.cuda.empty_cache()
        return markers


def _mark() -> int:
    torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
    return 1


def _marker_count(case: ProbeCase) -> int:
    return _REPEATS * (2 if case.has_backward else 1) + 1


def _with_workspace(call: Any) -> tuple[Any, float]:
    """The result of a call, and the most memory that it held in addition to its result."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    result_bytes = torch.cuda.memory_allocated() - before
    return result, float(max(0, torch.cuda.max_memory_allocated() - before - result_bytes))


def _segments(recorded: Any) -> Iterator[tuple[float, int]]:
    """Busy seconds and kernels between each marker and the next, in the order of time.

    Libraries run some kernels side by side on several streams, such as the directions of a recurrent layer.
    Time in which two kernels run counts once.
    """
    on_device = [e for e in recorded.profiler.kineto_results.events() if e.device_type() == DeviceType.CUDA]
    on_device.sort(key=lambda e: e.start_ns())
    busy, kernels, last, begun = 0, 0, 0, False
    for event in on_device:
        begin, end = event.start_ns(), event.start_ns() + event.duration_ns()
        if _MARKER in event.name():
            if begun:
                yield busy / 1e9, kernels
            busy, kernels, last, begun = 0, 0, end, True
        else:
            busy, kernels, last = busy + max(0, end - max(begin, last)), kernels + 1, max(last, end)
    if begun:
        yield busy / 1e9, kernels


def _median(segments: Sequence[tuple[float, int]], workspace: float) -> OpTiming | None:
    seconds = statistics.median(s for s, _ in segments)
    kernels = statistics.median(k for _, k in segments)
    if seconds <= 0:
        return None
    return OpTiming(seconds=seconds, kernels=kernels, workspace_bytes=workspace)


class CpuClock:
    """Times one case after another, a few milliseconds each: the lowest of several groups of calls, because
    other programs only add time.

    Every call gets the next of several equal sets of tensors, and results stay alive as long. So the data of
    an op are where a training step leaves them: not in the first-level caches, in which tensors would stay
    that are used again and again.
    """

    def __init__(self, elements: int) -> None:
        self.pool, self._elements = Pool("cpu", elements), elements
        self._grad_seconds = self._engine()

    def _engine(self) -> float:
        """The cost of calling autograd at all, which is subtracted: a step calls it once for all its ops."""
        x = torch.ones(1, requires_grad=True)
        y = x.view(1)
        seed = torch.ones(1)
        torch.autograd.grad(y, x, seed, retain_graph=True)  # the first call starts the engine's threads
        return least_seconds(lambda: torch.autograd.grad(y, x, seed, retain_graph=True))

    def time(self, case: ProbeCase, threads: Sequence[int] = (1,)) -> list[Timings]:
        """Forward and backward with each number of threads; None if it cannot run or has no backward."""
        try:
            sets = self._sets(case)
            return [self._time_on(count, case, sets) for count in threads]
        except (RuntimeError, NotImplementedError):
            return [(None, None) for _ in threads]

    def _sets(self, case: ProbeCase) -> list[list[Tensor]]:
        """Equal sets of tensors, enough to exceed the caches of a core together."""
        elements = max(1, sum(map(_rounded, case.tensors)))
        count = min(_MOST_SETS, -(-_SETS_BYTES // (4 * elements)), self._elements // elements)
        return [self.pool.make(case, number * elements) for number in range(max(1, count))]

    def _time_on(self, threads: int, case: ProbeCase, sets: Sequence[list[Tensor]]) -> Timings:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        forward = OpTiming(seconds=least_seconds(_in_turn(case.call, sets)))
        if not case.has_backward:
            return forward, None
        results = [
            (case.call(tensors), [t for t in tensors if t.requires_grad])
            for tensors in sets[:_MOST_BACKWARD_SETS]
        ]
        seed = torch.ones_like(results[0][0])
        whole = least_seconds(
            _in_turn(lambda one: torch.autograd.grad(one[0], one[1], seed, retain_graph=True), results)
        )
        return forward, OpTiming(seconds=max(whole - self._grad_seconds, 1e-7))


def _in_turn(call: Callable[[Any], Any], arguments: Sequence[Any]) -> Callable[[], None]:
    """A function that calls with the next argument and keeps as many results as there are arguments."""
    endless, kept = itertools.cycle(arguments), deque[Any](maxlen=len(arguments))
    return lambda: kept.append(call(next(endless)))


def least_seconds(call: Any) -> float:
    """Seconds of a call: the lowest of a few groups of calls, each long enough for the clock.

    The first call is not counted: libraries make their plans in it. A long call is timed once or twice.
    """
    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    if first > _LONG_SECONDS:
        return min(first, _group_seconds(call, 1))
    once = _group_seconds(call, 1)
    times = max(1, min(_MOST_CALLS, round(_GROUP_SECONDS / max(once, 1e-7))))
    samples, end = [once] if times == 1 else [], time.perf_counter() + _MOST_SECONDS
    while len(samples) < _GROUPS and (not samples or time.perf_counter() < end):
        samples.append(_group_seconds(call, times))
    return min(samples)


def _group_seconds(call: Any, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times
