"""For each number of devices, the plans that fit, in the order of their time.

A queue holds every candidate with a lower bound of its time. The candidate with the lowest bound is examined
more closely. First its bound is the arithmetic at the device's rates, or what traces of other workers tell.
Then it is traced, and the time of one micro-batch gives a higher bound. Then its memory is forecast and, if
it fits, its time. A plan that fits and is faster than every bound is the fastest. So most candidates are
never traced or forecast.
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
from windtunnel.forecast.timeline import steady_timeline
from windtunnel.machine.machine import Machine
from windtunnel.planning.bounds import Exchanges, WorkerSeconds, bound_by_other, needs_more, step_bound
from windtunnel.planning.candidates import Candidate, Space, WorkerKind
from windtunnel.planning.facts import JobFacts
from windtunnel.results import Memory
from windtunnel.strategy import Strategy
from windtunnel.trace_cache import TraceCache

_UNTRACED, _TRACED = range(2)
# No candidate is considered that could be less than this share faster than a plan that is known: forecasts
# are not more precise.
TIME_TOLERANCE = 0.02
# A pipeline takes turns steadily after as many micro-batches as it has stages. So the times of these
# multiples tell that of many more.
_FEW_ROUNDS, _MORE_ROUNDS = 2, 3
_RISE = 1e-6  # a bound that rose by less is as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What is planned: a job's traces, a machine, the fields of the strategy that stay, and facts by number
    format."""

    traces: TraceCache
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

    def may_fit(self, candidate: Candidate) -> bool:
        return self.facts[candidate.precision].least_bytes(candidate) <= self.capacity

    def forecast(self, candidate: Candidate) -> Forecast:
        """The forecast of a candidate, as `predict` makes it."""
        strategy = candidate.strategy(self.base)
        examples = self.traces.workload.examples
        trace = self.traces.of(strategy)
        return forecast_step(trace, self.machine, strategy, self.profile, examples).forecast

    def memory(self, candidate: Candidate) -> Memory:
        if candidate.devices == 1:
            return self.forecast(candidate).memory
        return memory_of_workers(self.step(candidate))

    def fits(self, candidate: Candidate) -> bool:
        if candidate.devices == 1:
            return self.forecast(candidate).memory.fits is not False
        return workers_fit(self.step(candidate))

    def step(self, candidate: Candidate) -> ParallelStep:
        """The step of one worker. The last one is kept: its memory is asked for first, then its time."""
        if candidate not in self._last:
            machine = with_network_launch_costs(self.machine, self.profile)
            strategy = candidate.strategy(self.base)
            self._last.clear()
            self._last[candidate] = step_of_workers(self.traces.of(strategy), machine, strategy, self.profile)
        return self._last[candidate]

    def worker_seconds(self, candidate: Candidate) -> WorkerSeconds:
        """A micro-batch and the update of a worker that exchanges nothing with data-parallel others."""
        machine = with_network_launch_costs(self.machine, self.profile)
        machine = machine.with_busy_boards(min(candidate.devices, machine.devices))
        share = candidate.micro_batch * candidate.accumulate
        alone = candidate._replace(
            batch=share, data=1, pipeline=1, groups=1, shard="none", exchange="buckets"
        )
        # One alone is traced as if it were one of two.
        two = candidate if candidate.devices > 1 else candidate._replace(data=2, batch=2 * candidate.batch)
        trace = self.traces.of(two.strategy(self.base))
        step = parallel_step(trace, machine, alone.strategy(self.base), self.profile)
        one = step.micro_batch()
        exchanging = sum(seconds for (part, _), seconds in one.path.items() if part == "communication")
        return WorkerSeconds(one.seconds, step.update_seconds(), exchanging)


class TimedCandidate(NamedTuple):
    """A candidate that fits, and its time: forecast, or first an estimate from forecasts of fewer
    micro-batches."""

    candidate: Candidate
    step_seconds: float
    is_exact: bool = True

    @property
    def example_seconds(self) -> float:
        return self.step_seconds / self.candidate.batch


class _Entry(NamedTuple):
    """A candidate in the queue. Of equal bounds, that of the least divided network and the largest
    micro-batch is looked at first: its trace bounds those of the others."""

    example_seconds: float
    level: int
    tensor: int
    negative_micro_batch: int
    number: int
    candidate: Candidate


class Search:
    """Finds plans for numbers of devices. What one search has traced helps the next."""

    def __init__(self, subject: PlannedJob, space: Space) -> None:
        self.subject, self.space = subject, space
        self.candidates = self.too_large = self.forecasts = self.unfit = 0
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
        candidates = list(space.candidates(machine.devices * machine.nodes))
        candidates += [smaller for candidate in candidates for smaller in space.with_less_memory(candidate)]
        return max(
            (candidate.micro_batch for candidate in candidates if self.subject.may_fit(candidate)), default=1
        )

    def ranked(self, count: int) -> Iterator[TimedCandidate]:
        """Plans on this many devices that fit, the fastest first; `TIME_TOLERANCE` says how sure that order
        is."""
        queue: list[_Entry] = []
        seen: set[Candidate] = set()
        fitting: list[TimedCandidate] = []
        for candidate in self.space.candidates(count):
            self._admit(queue, seen, candidate)
        while queue or fitting:
            best = min(fitting, key=_by_time) if fitting else None
            if best is None or (
                queue and queue[0].example_seconds < best.example_seconds * (1 - TIME_TOLERANCE)
            ):
                found = self._refine(queue, seen, heapq.heappop(queue))
                fitting += [found] if found else []
                continue
            fitting.remove(best)
            if best.is_exact:
                yield best
            else:
                fitting.append(TimedCandidate(best.candidate, self._step_seconds(best.candidate)))

    def _admit(self, queue: list[_Entry], seen: set[Candidate], candidate: Candidate) -> None:
        """Put a candidate into the queue, or those that need less memory if it cannot fit."""
        if candidate in seen:
            return
        seen.add(candidate)
        self.candidates += 1
        if not self.subject.may_fit(candidate):
            self.too_large += 1
            self._admit_with_less_memory(queue, seen, candidate)
        else:
            self._push(queue, candidate, _UNTRACED, self._least_seconds(candidate))

    def _admit_with_less_memory(
        self, queue: list[_Entry], seen: set[Candidate], candidate: Candidate
    ) -> None:
        for smaller in self.space.with_less_memory(candidate):
            self._admit(queue, seen, smaller)

    def _push(self, queue: list[_Entry], candidate: Candidate, level: int, seconds: float) -> None:
        self._number += 1
        entry = _Entry(
            seconds / candidate.batch,
            level,
            candidate.tensor,
            -candidate.micro_batch,
            self._number,
            candidate,
        )
        heapq.heappush(queue, entry)

    def _refine(self, queue: list[_Entry], seen: set[Candidate], entry: _Entry) -> TimedCandidate | None:
        """Raise the bound of a candidate, or forecast it. It is returned if it fits."""
        candidate = entry.candidate
        reason = self._why_not(candidate)
        if reason:
            self.banned[reason] += 1
            if (
                candidate.sequence
                and candidate.recompute == "none"
                and (candidate.tensor, True) in self._impossible
            ):
                self._admit(queue, seen, candidate._replace(sequence=False))
        elif entry.level == _TRACED:
            if self._fits(candidate):
                self.forecasts += 1
                return TimedCandidate(candidate, self._estimated_seconds(candidate), not _is_long(candidate))
            self._admit_with_less_memory(queue, seen, candidate)
        elif (bound := self._least_seconds(candidate)) > entry.example_seconds * candidate.batch * (
            1 + _RISE
        ):
            self._push(queue, candidate, _UNTRACED, bound)
        elif self._trace(self._widest(candidate)) and (wider := self._least_seconds(candidate)) > bound * (
            1 + _RISE
        ):
            self._push(queue, candidate, _UNTRACED, wider)
        elif self._trace(candidate):
            self._push(queue, candidate, _TRACED, self._step_bound(candidate, self._known[candidate.kind]))
        else:
            return self._refine(queue, seen, entry)  # says why not
        return None

    def _widest(self, candidate: Candidate) -> Candidate:
        """A candidate whose trace bounds all of the same form: the largest micro-batch, on at most two
        workers that divide a layer, which shows what they exchange."""
        tensor = min(candidate.tensor, 2)
        micro_batch = max(self._largest, candidate.micro_batch)
        return candidate._replace(
            batch=micro_batch * candidate.data,
            accumulate=1,
            tensor=tensor,
            sequence=candidate.sequence and tensor > 1,
        )

    def _least_seconds(self, candidate: Candidate) -> float:
        """A bound of the step from the rates, and from traces of others."""
        kind = candidate.kind
        micro_batch = self.subject.facts[candidate.precision].least_seconds(candidate)
        kept = self._exchanges.kept_of_two(candidate.tensor) if candidate.tensor > 1 else 1.0
        for other, seconds in self._known.items():
            micro_batch = max(micro_batch, bound_by_other(kind, other, seconds, kept))
        return self._step_bound(candidate, WorkerSeconds(micro_batch, 0.0))

    def _step_bound(self, candidate: Candidate, seconds: WorkerSeconds) -> float:
        return step_bound(candidate, seconds, self._exchanges.of(candidate))

    def _trace(self, candidate: Candidate) -> bool:
        """Trace the kind of worker and time its micro-batch; False if the job does not allow it."""
        if candidate.kind in self._known:
            return True
        try:
            self._known[candidate.kind] = self.subject.worker_seconds(candidate)
        except WindtunnelError as error:
            key, words = _rejected_degree(candidate)
            self._impossible[key] = f"{words}: {error.message.splitlines()[0]}"
            return False
        return True

    def _why_not(self, candidate: Candidate) -> str:
        """Why the job does not allow this; empty if nothing is known against it."""
        for key in (
            (candidate.tensor, candidate.sequence),
            candidate.recompute,
            candidate.expert,
            candidate.kind,
        ):
            if key in self._impossible:
                return self._impossible[key]
        return ""

    def _estimated_seconds(self, candidate: Candidate) -> float:
        """The forecast of the step; for a pipeline with many micro-batches, from forecasts with fewer."""
        if not _is_long(candidate):
            return self._step_seconds(candidate)
        few, more = (
            _with_micro_batches(candidate, candidate.pipeline * n) for n in (_FEW_ROUNDS, _MORE_ROUNDS)
        )
        least, most = self._step_seconds(few), self._step_seconds(more)
        each = (most - least) / (more.accumulate - few.accumulate)
        return most + (candidate.accumulate - more.accumulate) * each

    def _step_seconds(self, candidate: Candidate) -> float:
        if candidate not in self._timed and candidate.devices == 1:
            self._timed[candidate] = self.subject.forecast(candidate).step_seconds
        elif candidate not in self._timed:
            self._timed[candidate] = steady_timeline(
                build_step(self.subject.step(candidate).contributors())
            ).step_seconds
        return self._timed[candidate]

    def _fits(self, candidate: Candidate) -> bool:
        if candidate not in self._fitting:
            plain = candidate._replace(groups=1)  # whose memory is computed once for all numbers of groups
            fits = not any(needs_more(candidate, other) for other in self._too_large)
            fits = fits and (plain == candidate or self._fits(plain))
            fits = fits and self.subject.fits(candidate)
            self._fitting[candidate] = fits
            if not fits:
                self.unfit += 1
                self._too_large.append(candidate)
        return self._fitting[candidate]

    def least_memory(self, count: int) -> list[Candidate]:
        """The candidates on this many devices that need least memory by the bound, in that order."""
        candidates = set(self.space.candidates(count))
        candidates |= {
            smaller for candidate in candidates for smaller in self.space.with_less_memory(candidate)
        }
        allowed = [candidate for candidate in candidates if not self._why_not(candidate)]
        return sorted(
            allowed,
            key=lambda candidate: (self.subject.facts[candidate.precision].least_bytes(candidate), candidate),
        )


def _by_time(found: TimedCandidate) -> tuple[float, Candidate]:
    return found.example_seconds, found.candidate


def _is_long(candidate: Candidate) -> bool:
    return candidate.pipeline > 1 and candidate.accumulate > 2 * _MORE_ROUNDS * candidate.pipeline


def _with_micro_batches(candidate: Candidate, number: int) -> Candidate:
    return candidate._replace(accumulate=number, batch=candidate.micro_batch * candidate.data * number)


def _rejected_degree(candidate: Candidate) -> tuple[object, str]:
    """What the job does not allow, where a trace of it failed and simpler ones did not; and in words."""
    if candidate.recompute != "none":
        return candidate.recompute, "recomputation"
    if candidate.expert > 1:
        return candidate.expert, f"expert_parallel {candidate.expert}"
    if candidate.tensor > 1:
        return (candidate.tensor, candidate.sequence), f"tensor_parallel {candidate.tensor}"
    return candidate.kind, f"micro-batches of {candidate.micro_batch}"
