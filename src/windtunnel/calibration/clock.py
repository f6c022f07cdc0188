"""Time single calls: on a GPU by its own record of kernels, on a CPU by the clock.

Kernels are told apart by marks: a tiny kernel of another name is queued before and after each timed call, so that what lies
between two marks belongs to one call however many kernels it has. The host's cost never shows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from windtunnel.calibration.cases import Case, Spec
from windtunnel.measurement.environment import QuietMoments

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_REPEATS = 3
_MARK = "spin_kernel"
_PATIENCE = 0.25  # seconds a case on a CPU waits for a calm moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call, its number of kernels, and the bytes it took for a while beside its results."""

    seconds: float
    kernels: float = 0.0
    workspace_bytes: float = 0.0


class Pool:
    """Random numbers made once, from which tensors are cut one behind the other: making a case costs nothing."""

    def __init__(self, device: str, elements: int) -> None:
        self.device = device
        self._numbers = {
            dtype: torch.randn(elements, device=device, dtype=dtype)
            for dtype in {torch.float32, torch.bfloat16, torch.float16}
        }
        self._used = 0

    def make(self, case: Case) -> list[Tensor]:
        self._used = 0
        tensors = [self._cut(spec) for spec in case.tensors]
        if case.prepare is not None:
            case.prepare(tensors)
        return tensors

    def _cut(self, spec: Spec) -> Tensor:
        if spec.high:
            return torch.randint(spec.high, spec.shape, device=self.device)
        source = self._numbers[DTYPES[spec.dtype]]
        begin, self._used = self._used, self._used + -(-spec.elements // 256) * 256
        tensor = spec.view(source[begin : begin + spec.elements].view(spec.whole))
        return tensor.requires_grad_() if spec.grad else tensor


def make_empty(specs: Sequence[Spec]) -> list[Tensor]:
    """The same tensors without numbers, for describing."""
    tensors = []
    for spec in specs:
        dtype = torch.int64 if spec.high else DTYPES[spec.dtype]
        tensor = spec.view(torch.empty(spec.whole, dtype=dtype))
        tensors.append(tensor.requires_grad_() if spec.grad else tensor)
    return tensors


def set_precision(precision: str) -> None:
    """fp32 products are really fp32 unless tf32 is asked for."""
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


class GpuClock:
    """Times a handful of cases under one profile."""

    def __init__(self, elements: int) -> None:
        self.pool = Pool("cuda", elements)

    def time(self, cases: Sequence[Case]) -> list[tuple[Timing | None, Timing | None]]:
        """Forward and backward of each case; None where it could not run or has no backward."""
        from torch.profiler import ProfilerActivity, profile

        runs = [self._warm(case) for case in cases]
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            done = [
                self._repeat(case) if run is not None else 0 for case, run in zip(cases, runs, strict=True)
            ]
            torch.cuda.synchronize()
        segments = _segments(recorded)
        results: list[tuple[Timing | None, Timing | None]] = []
        for case, run, marks in zip(cases, runs, done, strict=True):
            own = [next(segments, (0.0, 0)) for _ in range(marks)]
            if run is None or marks != _marks(case):
                results.append((None, None))
                continue
            step = 2 if case.backward else 1
            forward = _median(own[0:-1:step], run[0])
            results.append((forward, _median(own[1:-1:step], run[1]) if case.backward else None))
        return results

    def _warm(self, case: Case) -> tuple[float, float] | None:
        """Once untimed, for plans and caches; tells the workspace of each direction."""
        try:
            set_precision(case.precision)
            tensors = self.pool.make(case)
            result, forward = _with_workspace(lambda: case.call(tensors))
            if not case.backward:
                return forward, 0.0
            seed = torch.ones_like(result)
            _, backward = _with_workspace(
                lambda: torch.autograd.grad(
                    result, [t for t in tensors if t.requires_grad], seed, retain_graph=True
                )
            )
            return forward, backward
        except (RuntimeError, NotImplementedError):
            torch.cuda.empty_cache()
            return None

    def _repeat(self, case: Case) -> int:
        """Queue the timed calls; the number of marks that were queued tells whether all went well."""
        marks = 0
        try:
            set_precision(case.precision)
            tensors = self.pool.make(case)
            wanted = [t for t in tensors if t.requires_grad]
            seed: Tensor | None = None
            for _ in range(_REPEATS):
                marks += _mark()
                result = case.call(tensors)
                if wanted:
                    if (
                        seed is None
                    ):  # made between marks once: that segment is the slowest and the median drops it
                        seed = torch.ones_like(result)
                    marks += _mark()
                    torch.autograd.grad(result, wanted, seed)
            marks += _mark()
        except (RuntimeError, NotImplementedError):
            torch.cuda.empty_cache()
        return marks


def _mark() -> int:
    torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
    return 1


def _marks(case: Case) -> int:
    return _REPEATS * (2 if case.backward else 1) + 1


def _with_workspace(call: Any) -> tuple[Any, float]:
    """What the call returns, and the most it held beside that while it ran."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    kept = torch.cuda.memory_allocated() - before
    return result, float(max(0, torch.cuda.max_memory_allocated() - before - kept))


def _segments(recorded: Any) -> Iterator[tuple[float, int]]:
    """Seconds and kernels between each mark and the next, in the order of time."""
    on_device = [e for e in recorded.profiler.kineto_results.events() if e.device_type() == DeviceType.CUDA]
    on_device.sort(key=lambda e: e.start_ns())
    seconds, kernels, begun = 0.0, 0, False
    for event in on_device:
        if _MARK in event.name():
            if begun:
                yield seconds, kernels
            seconds, kernels, begun = 0.0, 0, True
        else:
            seconds, kernels = seconds + event.duration_ns() / 1e9, kernels + 1
    if begun:
        yield seconds, kernels


def _median(segments: Sequence[tuple[float, int]], workspace: float) -> Timing | None:
    seconds = statistics.median(s for s, _ in segments)
    kernels = statistics.median(k for _, k in segments)
    return Timing(seconds=seconds, kernels=kernels, workspace_bytes=workspace) if seconds > 0 else None


class CpuClock:
    """Times one case after another; a call too short for the clock is repeated."""

    def __init__(self, elements: int, least_seconds: float = 0.002, most_seconds: float = 0.25) -> None:
        self.pool = Pool("cpu", elements)
        self.least, self.most = least_seconds, most_seconds
        self.calm = QuietMoments()
        self._grad_seconds = self._engine()

    def _engine(self) -> float:
        """What asking autograd for any gradient costs, to be taken off: in a step it is asked once for all."""
        x = torch.ones(1, requires_grad=True)
        y = x.view(1)
        seed = torch.ones(1)
        torch.autograd.grad(
            y, x, seed, retain_graph=True
        )  # the engine starts its threads when it is first asked
        return self._clock(lambda: torch.autograd.grad(y, x, seed, retain_graph=True))

    def time(self, case: Case) -> tuple[Timing | None, Timing | None]:
        try:
            tensors = self.pool.make(case)
            forward = self._clock(lambda: case.call(tensors))
            if not case.backward:
                return Timing(seconds=forward), None
            result = case.call(tensors)
            seed, wanted = torch.ones_like(result), [t for t in tensors if t.requires_grad]
            whole = self._clock(lambda: torch.autograd.grad(result, wanted, seed, retain_graph=True))
            return Timing(seconds=forward), Timing(seconds=max(whole - self._grad_seconds, 1e-7))
        except (RuntimeError, NotImplementedError):
            return None, None

    def _clock(self, call: Any) -> float:
        """The quickest of a few tries in a calm moment: a neighbour only ever adds time."""
        self.calm.wait(_PATIENCE)
        begin = time.perf_counter()
        call()
        once = time.perf_counter() - begin
        if once > self.most:
            return once
        times = max(1, min(200, round(self.least / max(once, 1e-7))))
        samples = []
        for _ in range(3):
            begin = time.perf_counter()
            for _ in range(times):
                call()
            samples.append((time.perf_counter() - begin) / times)
        return min(samples)
