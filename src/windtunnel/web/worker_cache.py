"""Jobs and traces that a worker keeps: a step that was traced once is only priced again.

Which fields of a strategy need another trace says `Strategy.as_traced`: batch, number format, execution,
recomputation, optimizer, layout, training or inference. Machines with the same kind of device, any number of
equal workers, and every kind of data feed share one.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import NoReturn

from windtunnel.errors import BadInput
from windtunnel.forecast.workers import share_of_batch
from windtunnel.isolation.cache import AnswerCache
from windtunnel.isolation.contained import Answer
from windtunnel.isolation.jobs import Containment
from windtunnel.job.workload import Workload
from windtunnel.records import Plain
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace
from windtunnel.trace_cache import TraceCache
from windtunnel.web.allowed import AllowedJobs
from windtunnel.web.state import PageState

_MOST_JOBS = 64
_MOST_TRACES = 96  # each some 2 MiB
_MOST_OPS = 60_000  # of a step: pricing and scheduling so many takes some seconds
_WITHOUT_AUTOCAST = ("pytorch", "fp32", "tf32")  # which of them is the pricer's matter


class NeedsTrace(Exception):
    """The step was not traced yet, and this worker traces none."""


class KeptOnly(Containment):
    """Opens only jobs whose answers are kept on disk: whatever else is asked needs a worker that traces."""

    def __init__(self, cache: AnswerCache) -> None:
        super().__init__(cache=cache)

    def _ask(self, request: Plain, name: str) -> Answer:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NeedsTrace


class WorkerCache:
    """The jobs and traces of one worker. A changed file of the user's is another job."""

    def __init__(self, allowed: AllowedJobs, containment: Containment) -> None:
        self.allowed, self.containment = allowed, containment
        self._jobs: OrderedDict[object, Workload] = OrderedDict()
        self._traces: OrderedDict[object, TraceCache] = OrderedDict()
        self._stamps: dict[str, str] = {}

    def job(self, state: PageState) -> Workload:
        """The job of a state."""
        key = self._key(state)
        if key not in self._jobs:
            self._jobs[key] = state.workload(self.allowed)
            while len(self._jobs) > _MOST_JOBS:
                self._jobs.popitem(last=False)
        self._jobs.move_to_end(key)
        return self._jobs[key]

    def trace(self, state: PageState, strategy: Strategy, target: str) -> Trace:
        """The step of a strategy whose degrees are known."""
        batch = strategy.batch or self.job(state).default_batch * (strategy.data_parallel or 1)
        share_of_batch(strategy, batch)  # an error if the workers cannot share it
        key = (*self._key(state), target)
        if key not in self._traces:
            self._traces[key] = TraceCache(self.job(state), target)
        self._traces.move_to_end(key)
        traced = strategy.as_traced()
        if not strategy.compiles and strategy.precision in _WITHOUT_AUTOCAST:
            traced = dataclasses.replace(traced, precision="pytorch")
        found = self._traces[key].of(traced)
        self._prune()
        if len(found.ops) > _MOST_OPS:
            raise BadInput(
                f"A step of this job has {len(found.ops):,} ops; the page forecasts at most {_MOST_OPS:,}.",
                hint="Use windtunnel predict on the command line, or smaller settings.",
            )
        return found

    def _key(self, state: PageState) -> tuple[object, ...]:
        stamp = self.allowed.stamp(state.job)
        if stamp and self._stamps.get(state.job, stamp) != stamp:
            self.containment.rest()  # the process has the old file
        self._stamps[state.job] = stamp
        return state.job, state.settings, stamp

    def _prune(self) -> None:
        while sum(map(len, self._traces.values())) > _MOST_TRACES and len(self._traces) > 1:
            self._traces.popitem(last=False)
        for key, kept in self._traces.items():
            if len(kept) > _MOST_TRACES:
                self._traces[key] = TraceCache(kept.workload, str(key[-1]) if isinstance(key, tuple) else "")
