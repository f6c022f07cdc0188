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
    """The memory of one worker's share, without exchanges: stages of a pipeline exchange after all have
    ended."""
    workers = strategy.data_parallel or 1
    if workers == 1:
        return trace
    allocations = memory.divided(trace, memory.DIVIDED[strategy.shard], 1 / workers)
    whole = dataclasses.replace(trace, allocations=allocations)
    gradients = sum(gradient.bytes for gradient in trace.gradients)
    has_buckets = strategy.shard == "none" and not exchange.keeps_gradients(trace)
    return memory.with_held(whole, gradients if has_buckets else 0.0, "buckets")


def has_own_exchange(trace: Trace) -> bool:
    """Whether the job's own code calls collectives of all workers."""
    return any(op.collective is not None and op.collective.axis == "world" for op in trace.ops)
