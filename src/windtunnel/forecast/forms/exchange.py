"""Gradients summed over data-parallel workers in buckets, while backward still runs.

As PyTorch's DistributedDataParallel: a gradient that is complete is copied into its bucket and divided by the
number of workers; a full bucket is exchanged at once; when backward has ended, the sums are copied back. With
the optimizer's state or the gradients divided (ZeRO-1 and 2), each worker receives only its share of the
sums, updates its share of the weights, and collects the others'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from windtunnel.forecast.forms.insertions import Insertions, collective, join, streaming
from windtunnel.forecast.forms.memory import DIVIDED, divided, with_held
from windtunnel.strategy import Strategy
from windtunnel.trace import Gradient, Op, Trace
from windtunnel.units import MIB

# DistributedDataParallel: dist._DEFAULT_FIRST_BUCKET_BYTES, and bucket_cap_mb=25.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB


def buckets_of(gradients: Sequence[Gradient], weights: Sequence[float] = ()) -> list[list[Gradient]]:
    """Gradients in the buckets in which they are exchanged, the first bucket first.

    A bucket is full when it has reached its limit; `dist._compute_bucket_assignment_by_size` says the same.
    `weights`: the bytes of their weights, where gradients are added up in another number format; those count.
    """
    buckets: list[list[Gradient]] = []
    bucket: list[Gradient] = []
    filled = 0.0
    sizes = weights or [gradient.bytes for gradient in gradients]
    for gradient, size in zip(gradients, sizes, strict=True):
        bucket.append(gradient)
        filled += size
        if filled >= (BUCKET_BYTES if buckets else FIRST_BUCKET_BYTES):
            buckets.append(bucket)
            bucket, filled = [], 0.0
    return [*buckets, bucket] if bucket else buckets


def exchange_gradients(trace: Trace, strategy: Strategy, workers: int) -> Trace:
    """The step with the exchange of its gradients, and the memory of its buckets.

    DistributedDataParallel keeps all buckets; with divided state, one is filled while another is exchanged.
    """
    shard = strategy.shard
    ops = _in_buckets(trace, shard, workers) if strategy.exchange == "buckets" else _whole(trace, strategy)
    whole = dataclasses.replace(trace, ops=ops, allocations=divided(trace, DIVIDED[shard], 1 / workers))
    gradients = sum(gradient.bytes for gradient in trace.gradients)
    kept = gradients if shard == "none" else min(gradients, 2 * BUCKET_BYTES)
    has_buckets = strategy.exchange == "buckets" and not keeps_gradients(trace)
    return with_held(whole, kept if has_buckets else 0.0, "buckets")


def keeps_gradients(trace: Trace) -> bool:
    """Whether the job keeps its gradients between steps, side by side: they are exchanged where they lie."""
    return any(trace.allocations[name].part == "gradients" for name in trace.held)


def _in_buckets(trace: Trace, shard: str, workers: int) -> tuple[Op, ...]:
    ops = trace.ops
    added = Insertions(ops)
    end = last_position(ops, "backward")
    marks, copies = [], not keeps_gradients(trace)
    sizes = () if copies else weight_bytes(trace)
    for number, bucket in enumerate(buckets_of(trace.gradients, sizes)):
        for gradient in bucket if copies else ():
            added.behind(gradient.position, _into_bucket(gradient))
        size, mark = sum(gradient.bytes for gradient in bucket), f"bucket {number}"
        kind = "all_reduce" if shard == "none" else "reduce_scatter"
        added.behind(bucket[-1].position, collective(kind, size, mark))
        marks.append(mark)
        if shard == "none" and copies:
            back = (_out_of_bucket(gradient) for gradient in bucket)
            added.behind(end, *_waiting(back, mark))
    if shard == "none" and copies:
        return added.build()
    added.behind(end, join(*marks, phase="backward"))
    if shard == "none":
        return added.build()
    gathered = collective("all_gather", sum(weight_bytes(trace)), "weights", phase="update")
    added.before(len(ops), gathered, join("weights"))
    return tuple(shared(op, workers) for op in added.build())


def _whole(trace: Trace, strategy: Strategy) -> tuple[Op, ...]:
    """Gradients exchanged without buckets: each when it is complete, or all when backward has ended."""
    added, end = Insertions(trace.ops), last_position(trace.ops, "backward")
    kind = "server" if strategy.exchange.startswith("server") else "all_reduce"
    if strategy.exchange.endswith("after"):
        size = sum(gradient.bytes for gradient in trace.gradients)
        added.behind(end, collective(kind, size, "gradients"), join("gradients", phase="backward"))
        return added.build()
    marks = [f"gradient {number}" for number in range(len(trace.gradients))]
    for gradient, mark in zip(trace.gradients, marks, strict=True):
        added.behind(gradient.position, collective(kind, gradient.bytes, mark))
    added.behind(end, join(*marks, phase="backward"))
    return added.build()


def shared(op: Op, workers: int) -> Op:
    """An op of the update over a worker's share of all tensors; each tensor is divided."""
    if op.phase != "update" or op.collective is not None or not op.shape:
        return op
    first = max(1, -(-op.shape[0] // workers))
    return dataclasses.replace(
        op,
        flop=op.flop / workers,
        read_bytes=op.read_bytes / workers,
        written_bytes=op.written_bytes / workers,
        shape=(first, *op.shape[1:]),
    )


def weight_bytes(trace: Trace) -> list[float]:
    """The bytes of each weight that has a gradient, in the order of the gradients."""
    whole = sum(trace.allocations[name].bytes for name in trace.held if _is_weight(trace, name))
    elements = trace.parameters or sum(gradient.elements for gradient in trace.gradients)
    # Weights of one model share a number format; buffers are a small part of what is held.
    each = 2.0 if elements and whole / elements < 3.0 else 4.0
    return [gradient.elements * each for gradient in trace.gradients]


def last_position(ops: Sequence[Op], phase: str) -> int:
    """The position of the last op of a phase."""
    return max((position for position, op in enumerate(ops) if op.phase == phase), default=len(ops) - 1)


def _is_weight(trace: Trace, name: int) -> bool:
    return trace.allocations[name].part == "weights"


def _into_bucket(gradient: Gradient) -> Op:
    return streaming("aten.mul", gradient.elements, gradient.bytes, gradient.bytes)


def _out_of_bucket(gradient: Gradient) -> Op:
    return streaming("aten.copy_", gradient.elements, gradient.bytes, gradient.bytes)


def _waiting(ops: Iterable[Op], mark: str) -> list[Op]:
    first, *others = ops
    return [dataclasses.replace(first, waits=(mark,)), *others]
