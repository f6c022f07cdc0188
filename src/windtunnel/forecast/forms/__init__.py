"""Forms of parallelism: what each adds to the ops of one worker's step. One file for each form.

A form takes the ops of a traced step and returns them with its collectives, copies and waits, in the order in
which PyTorch's own code issues them. It computes no times: links and the schedule do that. The tests hold the
collectives equal to those that PyTorch's own code calls under the `fake` process group.
"""

from __future__ import annotations

import dataclasses

from windtunnel.forecast.forms import exchange, gathers, memory
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


def applied(trace: Trace, strategy: Strategy) -> Trace:
    """The step of one worker of a data-parallel group, with its exchanges with the other workers."""
    workers = strategy.data_parallel or 1
    is_alone = workers == 1 and not strategy.exchange.startswith("server")
    if is_alone or not trace.gradients or has_own_exchange(trace):
        return trace
    if strategy.shard == "weights":
        return gathers.gather_weights(trace, workers)
    return exchange.exchange_gradients(trace, strategy, workers)


def divided(trace: Trace, strategy: Strategy) -> Trace:
    """What one worker of a pipeline keeps, without what it exchanges: stages exchange when all have ended.

    Divided weights are gathered once and stay until the last backward, as in PyTorch's pipelines of
    `fully_shard`: to gather them for each micro-batch would take longer than the micro-batch.
    """
    workers = strategy.data_parallel or 1
    if workers == 1:
        return trace
    allocations = memory.divided(trace, memory.DIVIDED_IN_STAGES[strategy.shard], 1 / workers)
    kept = dataclasses.replace(trace, allocations=allocations)
    if strategy.shard == "weights":
        return memory.with_gathered(kept, 1 / workers)
    gradients = sum(gradient.bytes for gradient in trace.gradients)
    has_buckets = strategy.shard == "none" and not exchange.keeps_gradients(trace)
    return memory.with_held(kept, gradients if has_buckets else 0.0, "buckets")


def has_own_exchange(trace: Trace) -> bool:
    """Whether the job's own code calls collectives of all workers."""
    return any(op.collective is not None and op.collective.axis == "world" for op in trace.ops)
