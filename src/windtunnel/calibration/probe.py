"""Time synthetic ops on this machine within a budget of seconds; the result is rows."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from windtunnel import families
from windtunnel.calibration import clock
from windtunnel.calibration.case_sampler import CaseSampler, even_weights
from windtunnel.families.drawing import Limits, ProbeCase
from windtunnel.measurement.sampler import reference_loop
from windtunnel.trace import Op
from windtunnel.trace.record import Observer

GPU_LIMITS = Limits(flop=6e11, elements=700_000_000, precisions=("fp32", "tf32", "bf16"), target="gpu")
CPU_LIMITS = Limits(flop=2e9, elements=16_000_000, precisions=("fp32",))
_GPU_GROUP = 60
# Most cases that take longer than this on one core are dropped, the longest most often: in the time of one of
# them, dozens of cheap ones improve the fit more.
_CHEAP_SECONDS, _THINNING = 0.001, 0.7
_DISTURBED = 1.2  # the reference loop is this much slower than at its best: another program is running
_SETTLE_SECONDS = 0.0015
# Of a GPU: the share of a timing that other ops than the main one may have, the shortest kernel (H200), and
# the memory rate of the fastest GPU of the catalogue in bytes a second.
_MOST_BESIDE, _SHORTEST_KERNEL_SECONDS, _FASTEST_MEMORY = 0.1, 1.5e-6, 8e12
_CASES_BEFORE_RETRY = 20  # number of cases that are timed before a disturbed one is timed again

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
    budget: float,
    seed: int = 0,
    progress: Share | None = None,
    weights: Mapping[str, int] | None = None,
    wanted: Callable[[ProbeCase], bool] = lambda _: True,
) -> list[ProbeRow]:
    """Time random ops on the GPU for `budget` seconds. `weights`: how often each is sampled. `wanted`: which
    of the sampled cases are timed."""
    rows = list[ProbeRow]()
    watch = clock.GpuClock(GPU_LIMITS.elements)
    cases = filter(wanted, CaseSampler(GPU_LIMITS, seed).draw_all(weights))
    with Observer("gpu") as observer:
        for _ in _rounds(budget, progress):
            group = list(itertools.islice(cases, _GPU_GROUP))
            for case, timings in zip(group, watch.time(group), strict=True):
                rows += rows_of(observer, case, timings, 1)
    return rows


def probe_cpu(
    budget: float,
    threads: Sequence[int],
    seed: int = 0,
    progress: Share | None = None,
    weights: Mapping[str, int] | None = None,
) -> list[ProbeRow]:
    """The same on the CPU, each case with every number of threads, for `budget` seconds.

    A case that was timed while another program slowed the machine is timed again a little later, and the
    lower time counts.
    """
    session = _CpuSession(tuple(threads), seed)
    cases = CaseSampler(CPU_LIMITS, seed).draw_all(even_weights() if weights is None else weights)
    before = torch.get_num_threads()
    try:
        with Observer("cpu") as observer:
            for _ in _rounds(budget, progress):
                session.time_next(cases, observer)
            return session.rows()
    except KeyboardInterrupt:  # keep what was timed so far
        return session.rows()
    finally:
        torch.set_num_threads(before)


class _TimedCase:
    """A case with its ops (forward, backward) and the lowest times of all tries, by number of threads."""

    def __init__(self, case: ProbeCase, ops: tuple[Op | None, Op | None]) -> None:
        self.case, self.ops = case, ops
        self.lowest: list[clock.Timings] = []

    def add(self, timings: Sequence[clock.Timings]) -> None:
        pairs = zip(self.lowest, timings, strict=True) if self.lowest else ((t, t) for t in timings)
        self.lowest = [(_lower([old[0], new[0]]), _lower([old[1], new[1]])) for old, new in pairs]


class _CpuSession:
    """Samples, describes and times cases; repeats those that were disturbed."""

    def __init__(self, threads: tuple[int, ...], seed: int) -> None:
        self.threads, self.rng = threads, random.Random(seed)
        self.watch = clock.CpuClock(CPU_LIMITS.elements)
        self.timed: list[_TimedCase] = []
        self.again: deque[_TimedCase] = deque()
        self.best = min(reference_loop() for _ in range(20))

    def time_next(self, cases: Iterator[ProbeCase], observer: Observer) -> None:
        """Time a new case, and one of those to be timed again if there are several."""
        if len(self.again) > _CASES_BEFORE_RETRY:
            self._time(self.again.popleft())
        described = self._describe(next(cases), observer)
        if described is None:
            return
        if self._time(described):
            self.timed.append(described)
            if self._is_disturbed():
                self.again.append(described)

    def rows(self) -> list[ProbeRow]:
        return [
            row_of(op, timing, each.case.precision, count)
            for each in self.timed
            for count, timings in zip(self.threads, each.lowest, strict=True)
            for op, timing in zip(each.ops, timings, strict=True)
            if op is not None and timing is not None
        ]

    def _describe(self, case: ProbeCase, observer: Observer) -> _TimedCase | None:
        """None for a case without a known op, and for most of the expensive ones."""
        ops = observer.ops_of(lambda: clock.make_empty(case.tensors), case.call)
        forward, backward = (
            main_op(case, [op for op in ops if (op.phase == "backward") == is_backward])
            for is_backward in (False, True)
        )
        seconds = sum(_expected_seconds(op) for op in (forward, backward) if op is not None)
        is_cheap = self.rng.random() < (_CHEAP_SECONDS / max(seconds, _CHEAP_SECONDS)) ** _THINNING
        return _TimedCase(case, (forward, backward)) if is_cheap and (forward or backward) else None

    def _time(self, described: _TimedCase) -> bool:
        timings = self.watch.time(described.case, self.threads)
        if timings[0][0] is None:
            return False
        described.add(timings)
        return True

    def _is_disturbed(self) -> bool:
        """Whether another program slows this core now. A core that ran wide vector code is slow for a
        millisecond, so the first loops do not count."""
        settled = time.perf_counter() + _SETTLE_SECONDS
        while time.perf_counter() < settled:
            reference_loop()
        now = reference_loop()
        self.best = min(self.best, now)
        return now > _DISTURBED * self.best


def _expected_seconds(op: Op) -> float:
    """A rough estimate of an op's seconds on one core of a usual CPU."""
    return op.flop / 5e10 + (op.read_bytes + op.written_bytes) / 1e10


def _rounds(budget: float, progress: Share | None) -> Iterator[None]:
    """One round after another until the budget of seconds is used."""
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < budget:
        if progress is not None:
            progress(elapsed / budget)
        yield


def _lower(timings: Sequence[clock.OpTiming | None]) -> clock.OpTiming | None:
    return min((t for t in timings if t is not None), key=lambda t: t.seconds, default=None)


def rows_of(observer: Observer, case: ProbeCase, timings: clock.Timings, threads: int) -> Iterator[ProbeRow]:
    """Rows of a case that was timed on a GPU. A phase is left out if ops beside its main one took a good part
    of its time: a trace prices them by themselves."""
    if timings[0] is None:
        return
    ops = observer.ops_of(lambda: clock.make_empty(case.tensors), case.call)
    for timing, backward in zip(timings, (False, True), strict=True):
        own = [op for op in ops if (op.phase == "backward") == backward]
        op = main_op(case, own)
        if timing is None or op is None:
            continue
        if least_seconds([other for other in own if other is not op]) <= _MOST_BESIDE * timing.seconds:
            yield row_of(op, timing, case.precision, threads)


def least_seconds(ops: Sequence[Op]) -> float:
    """The shortest time that any GPU takes to move the bytes of these ops."""
    moved = [op.read_bytes + op.written_bytes for op in ops if op.family not in families.NOT_ON_DEVICE]
    return sum(_SHORTEST_KERNEL_SECONDS + each / _FASTEST_MEMORY for each in moved)


def main_op(case: ProbeCase, ops: Sequence[Op]) -> Op | None:
    """The op that a case is about; other ops, such as zeroing a state, may come before it.

    None if the device runs the case as many ops, or if the op's sizes are unknown.
    """
    own = [op for op in ops if op.family == case.family]
    main = max(own or ops, key=lambda op: op.flop, default=None)
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
