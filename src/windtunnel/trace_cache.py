"""A cache of traces: strategies whose workers run the same ops share one."""

from __future__ import annotations

import dataclasses

from windtunnel import prediction
from windtunnel.forecast.forms import has_own_exchange
from windtunnel.forecast.parallel import MOST_TRACED
from windtunnel.job.workload import Workload
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


class TraceCache:
    """The traces of one job for one kind of device, "cpu" or "gpu"."""

    def __init__(self, workload: Workload, target: str) -> None:
        self.workload, self._target = workload, target
        self._kept: dict[Strategy, Trace] = {}
        self._is_alone = True  # the job's own code does not ask how many workers there are

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, strategy: Strategy) -> Trace:
        """What `prediction.trace` records for a strategy whose degrees are known."""
        batch = strategy.batch or self.workload.default_batch * (strategy.data_parallel or 1)
        whole = dataclasses.replace(strategy, batch=batch)
        key = shared(whole) if strategy.is_parallel and self._is_alone else whole
        if key not in self._kept:
            found = prediction.trace(self.workload, key, self._target)
            if key != whole and has_own_exchange(found):
                self._is_alone = False
                return self.of(strategy)
            self._kept[key] = found
        return dataclasses.replace(self._kept[key], batch=batch)


def shared(strategy: Strategy) -> Strategy:
    """The strategy that represents all strategies whose workers run the same ops.

    What data-parallel workers exchange, and which blocks a stage has, is added to a trace later.
    """
    assert strategy.batch is not None
    traced, data = min(strategy.accumulate, MOST_TRACED), strategy.data_parallel or 1
    return dataclasses.replace(
        strategy,
        batch=strategy.batch // data // strategy.accumulate * traced * 2,
        accumulate=traced,
        data_parallel=2,
        pipeline_parallel=1,
        pipeline_schedule="1f1b",
        virtual_stages=1,
        shard="none",
        exchange="buckets",
    )
