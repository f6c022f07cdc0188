"""For each number of devices, the plans that fit, in the order of their time.

A queue holds every way with a lower bound of its time. The way with the lowest bound is looked at more
closely. First its bound is the arithmetic at the device's rates, or what traces of other workers tell. Then
it is traced, and the time of one micro-batch gives a higher bound. Then its memory is forecast and, if it
fits, its time. A plan that fits and is faster than every bound is the fastest. So most ways are never traced
or forecast.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.errors import WindtunnelError
from windtunnel.forecast import memory
from windtunnel.forecast.contributors import build_step
from windtunnel.forecast.forecast import (
    Forecast,
    forecast_step,
    memory_of_workers,
    step_of_workers,
    with_network_launch_costs,
    workers_fit,
)
from windtunnel.forecast.parallel import ParallelStep, parallel_step
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import lay_out
from windtunnel.kept_traces import KeptTraces
from windtunnel.machine.machine import Machine
from windtunnel.planning.bounds import Exchanges, WorkerSeconds, bound_by_other, needs_more, step_bound
from windtunnel.planning.candidates import Candidate, Space, WorkerKind
from windtunnel.planning.facts import JobFacts
from windtunnel.results import Memory
from windtunnel.strategy import Strategy

_UNTRACED, _TRACED = range(2)
# No way is looked at that could be less than this share faster than a plan that is known: forecasts are not
# more precise.
SLACK = 0.02
# A pipeline takes turns steadily after as many micro-batches as it has stages. So the times of these
# multiples tell that of many more.
_FEW_ROUNDS, _MORE_ROUNDS = 2, 3
_RISE = 1e-6  # a bound that rose by less is as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What is planned: a job's traces, a machine, the fields of the strategy that stay, and facts by number
    format."""

    traces: KeptTraces
    machine: Machine
    base: Strategy
    profile: Profile
    facts: Mapping[str, JobFacts]
    _last: dict[Candidate, ParallelStep] = field(default_factory=dict, compare=False)

    @property
    def capacity(self) -> float:
        """Bytes of a device that a step can use."""
        size = self.machine.device.memory_bytes
        return math.inf if size is None else (size - memory.CONTEXT) / (1 + memory.SPARE)

    def may_fit(self, way: Candidate) -> bool:
        return self.facts[way.precision].least_bytes(way) <= self.capacity

    def forecast(self, way: Candidate) -> Forecast:
        """The forecast of a way, as `predict` makes it."""
        strategy = way.strategy(self.base)
        examples = self.traces.workload.examples
        trace = self.traces.of(strategy)
        return forecast_step(trace, self.machine, strategy, self.profile, examples).forecast

    def memory(self, way: Candidate) -> Memory:
        if way.devices == 1:
            return self.forecast(way).memory
        return memory_of_workers(self.step(way))

    def fits(self, way: Candidate) -> bool:
        if way.devices == 1:
            return self.forecast(way).memory.fits is not False
        return workers_fit(self.step(way))

    def step(self, way: Candidate) -> ParallelStep:
        """The step of one worker. The last one is kept: its memory is asked for first, then its time."""
        if way not in self._last:
            machine = with_network_launch_costs(self.machine, self.profile)
            strategy = way.strategy(self.base)
            self._last.clear()
            self._last[way] = step_of_workers(self.traces.of(strategy), machine, strategy, self.profile)
        return self._last[way]

    def worker_seconds(self, way: Candidate) -> WorkerSeconds:
        """A micro-batch and the update of a worker that exchanges nothing with data-parallel others."""
        machine = with_network_launch_costs(self.machine, self.profile)
        machine = machine.with_busy_boards(min(way.devices, machine.devices))
        share = way.micro_batch * way.accumulate
        alone = way._replace(batch=share, data=1, pipeline=1, groups=1, shard="none", exchange="buckets")
        # One alone is traced as if it were one of two.
        two = way if way.devices > 1 else way._replace(data=2, batch=2 * way.batch)
        trace = self.traces.of(two.strategy(self.base))
        step = parallel_step(trace, machine, alone.strategy(self.base), self.profile)
        one = step.micro_batch()
        exchanging = sum(seconds for (part, _), seconds in one.path.items() if part == "communication")
        return WorkerSeconds(one.seconds, step.update_seconds(), exchanging)


class TimedWay(NamedTuple):
    """A way that fits, and its time: forecast, or first an estimate from forecasts of fewer micro-batches."""

    way: Candidate
    step_seconds: float
    is_exact: bool = True

    @property
    def example_seconds(self) -> float:
        return self.step_seconds / self.way.batch


class _Entry(NamedTuple):
    """A way in the queue. Of equal bounds, that of the least divided network and the largest micro-batch is
    looked at first: its trace bounds those of the others."""

    example_seconds: float
    level: int
    tensor: int
    negative_micro_batch: int
    number: int
    way: Candidate


class Search:
    """Finds plans for numbers of devices. What one search has traced helps the next."""

    def __init__(self, subject: PlannedJob, space: Space) -> None:
        self.subject, self.space = subject, space
        self.ways = self.too_large = self.forecasts = self.unfit = 0
        self.banned: Counter[str] = Counter()
        self._known: dict[WorkerKind, WorkerSeconds] = {}
        self._exchanges = Exchanges(subject.machine, subject.facts)
        self._impossible: dict[object, str] = {}
        self._fitting: dict[Candidate, bool] = {}
        self._too_large: list[Candidate] = []
        self._timed: dict[Candidate, float] = {}
        self._number = 0

    @functools.cached_property
    def _largest(self) -> int:
        """The largest micro-batch that may fit on all devices, on which the network is divided most."""
        machine, space = self.subject.machine, dataclasses.replace(self.space, refused=Counter())
        ways = list(space.ways(machine.devices * machine.nodes))
        ways += [leaner for way in ways for leaner in space.leaner(way)]
        return max((way.micro_batch for way in ways if self.subject.may_fit(way)), default=1)

    def ranked(self, count: int) -> Iterator[TimedWay]:
        """Plans on this many devices that fit, the fastest first; `SLACK` says how sure that order is."""
        queue: list[_Entry] = []
        seen: set[Candidate] = set()
        fitting: list[TimedWay] = []
        for way in self.space.ways(count):
            self._admit(queue, seen, way)
        while queue or fitting:
            best = min(fitting, key=_by_time) if fitting else None
            if best is None or (queue and queue[0].example_seconds < best.example_seconds * (1 - SLACK)):
                found = self._look_closer(queue, seen, heapq.heappop(queue))
                fitting += [found] if found else []
                continue
            fitting.remove(best)
            if best.is_exact:
                yield best
            else:
                fitting.append(TimedWay(best.way, self._step_seconds(best.way)))

    def _admit(self, queue: list[_Entry], seen: set[Candidate], way: Candidate) -> None:
        """Put a way into the queue, or those that need less memory if it cannot fit."""
        if way in seen:
            return
        seen.add(way)
        self.ways += 1
        if not self.subject.may_fit(way):
            self.too_large += 1
            self._admit_leaner(queue, seen, way)
        else:
            self._push(queue, way, _UNTRACED, self._least_seconds(way))

    def _admit_leaner(self, queue: list[_Entry], seen: set[Candidate], way: Candidate) -> None:
        for leaner in self.space.leaner(way):
            self._admit(queue, seen, leaner)

    def _push(self, queue: list[_Entry], way: Candidate, level: int, seconds: float) -> None:
        self._number += 1
        entry = _Entry(seconds / way.batch, level, way.tensor, -way.micro_batch, self._number, way)
        heapq.heappush(queue, entry)

    def _look_closer(self, queue: list[_Entry], seen: set[Candidate], entry: _Entry) -> TimedWay | None:
        """Raise the bound of a way, or forecast it. It is returned if it fits."""
        way = entry.way
        reason = self._why_not(way)
        if reason:
            self.banned[reason] += 1
            if way.sequence and way.recompute == "none" and (way.tensor, True) in self._impossible:
                self._admit(queue, seen, way._replace(sequence=False))
        elif entry.level == _TRACED:
            if self._fits(way):
                self.forecasts += 1
                return TimedWay(way, self._estimated_seconds(way), not _is_long(way))
            self._admit_leaner(queue, seen, way)
        elif (bound := self._least_seconds(way)) > entry.example_seconds * way.batch * (1 + _RISE):
            self._push(queue, way, _UNTRACED, bound)
        elif self._trace(self._widest(way)) and (wider := self._least_seconds(way)) > bound * (1 + _RISE):
            self._push(queue, way, _UNTRACED, wider)
        elif self._trace(way):
            self._push(queue, way, _TRACED, self._step_bound(way, self._known[way.kind]))
        else:
            return self._look_closer(queue, seen, entry)  # says why not
        return None

    def _widest(self, way: Candidate) -> Candidate:
        """A way whose trace bounds all of the same form: the largest micro-batch, on at most two workers that
        divide a layer, which shows what they exchange."""
        tensor = min(way.tensor, 2)
        micro_batch = max(self._largest, way.micro_batch)
        return way._replace(
            batch=micro_batch * way.data, accumulate=1, tensor=tensor, sequence=way.sequence and tensor > 1
        )

    def _least_seconds(self, way: Candidate) -> float:
        """A bound of the step from the rates, and from traces of others."""
        kind = way.kind
        micro_batch = self.subject.facts[way.precision].least_seconds(way)
        kept = self._exchanges.kept_of_two(way.tensor) if way.tensor > 1 else 1.0
        for other, seconds in self._known.items():
            micro_batch = max(micro_batch, bound_by_other(kind, other, seconds, kept))
        return self._step_bound(way, WorkerSeconds(micro_batch, 0.0))

    def _step_bound(self, way: Candidate, seconds: WorkerSeconds) -> float:
        return step_bound(way, seconds, self._exchanges.of(way))

    def _trace(self, way: Candidate) -> bool:
        """Trace the kind of worker and time its micro-batch; False if the job does not allow it."""
        if way.kind in self._known:
            return True
        try:
            self._known[way.kind] = self.subject.worker_seconds(way)
        except WindtunnelError as error:
            key, words = _culprit(way)
            self._impossible[key] = f"{words}: {error.message.splitlines()[0]}"
            return False
        return True

    def _why_not(self, way: Candidate) -> str:
        """Why the job does not allow this; empty if nothing is known against it."""
        for key in ((way.tensor, way.sequence), way.recompute, way.expert, way.kind):
            if key in self._impossible:
                return self._impossible[key]
        return ""

    def _estimated_seconds(self, way: Candidate) -> float:
        """The forecast of the step; for a pipeline with many micro-batches, from forecasts with fewer."""
        if not _is_long(way):
            return self._step_seconds(way)
        few, more = (_with_micro_batches(way, way.pipeline * n) for n in (_FEW_ROUNDS, _MORE_ROUNDS))
        least, most = self._step_seconds(few), self._step_seconds(more)
        each = (most - least) / (more.accumulate - few.accumulate)
        return most + (way.accumulate - more.accumulate) * each

    def _step_seconds(self, way: Candidate) -> float:
        if way not in self._timed and way.devices == 1:
            self._timed[way] = self.subject.forecast(way).step_seconds
        elif way not in self._timed:
            self._timed[way] = lay_out(build_step(self.subject.step(way).contributors())).step_seconds
        return self._timed[way]

    def _fits(self, way: Candidate) -> bool:
        if way not in self._fitting:
            plain = way._replace(groups=1)  # whose memory is computed once for all numbers of groups
            fits = not any(needs_more(way, other) for other in self._too_large)
            fits = fits and (plain == way or self._fits(plain))
            fits = fits and self.subject.fits(way)
            self._fitting[way] = fits
            if not fits:
                self.unfit += 1
                self._too_large.append(way)
        return self._fitting[way]

    def frugal(self, count: int) -> list[Candidate]:
        """The ways on this many devices that need least memory by the bound, the leanest first."""
        ways = set(self.space.ways(count))
        ways |= {leaner for way in ways for leaner in self.space.leaner(way)}
        allowed = [way for way in ways if not self._why_not(way)]
        return sorted(allowed, key=lambda way: (self.subject.facts[way.precision].least_bytes(way), way))


def _by_time(found: TimedWay) -> tuple[float, Candidate]:
    return found.example_seconds, found.way


def _is_long(way: Candidate) -> bool:
    return way.pipeline > 1 and way.accumulate > 2 * _MORE_ROUNDS * way.pipeline


def _with_micro_batches(way: Candidate, number: int) -> Candidate:
    return way._replace(accumulate=number, batch=way.micro_batch * way.data * number)


def _culprit(way: Candidate) -> tuple[object, str]:
    """What the job does not allow, where a trace of it failed and simpler ones did not; and in words."""
    if way.recompute != "none":
        return way.recompute, "recomputation"
    if way.expert > 1:
        return way.expert, f"expert_parallel {way.expert}"
    if way.tensor > 1:
        return (way.tensor, way.sequence), f"tensor_parallel {way.tensor}"
    return way.kind, f"micro-batches of {way.micro_batch}"
