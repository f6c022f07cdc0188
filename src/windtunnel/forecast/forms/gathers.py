"""Weights divided among data-parallel workers (ZeRO-3, FSDP): gathered when a block needs them.

As PyTorch's `fully_shard` on every block and on the whole: the weights of a block are gathered before its
forward and again before its backward, those outside of blocks once. The next block's are gathered while one
computes; at most two blocks are gathered at a time. After a block's backward its gradients are summed, and
each worker keeps its share. With several micro-batches this happens for each of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from windtunnel.forecast.forms.exchange import shared, weight_bytes
from windtunnel.forecast.forms.insertions import Insertions, collective, join, streaming
from windtunnel.forecast.forms.memory import DIVIDED, divided
from windtunnel.trace import BEFORE, Allocation, Op, Part, Phase, Trace


class _Visit(NamedTuple):
    """A block's ops in one phase of one micro-batch: positions of the first and the last."""

    block: int
    phase: Phase
    first: int
    last: int


def gather_weights(trace: Trace, workers: int) -> Trace:
    """The step with gathers of weights and sums of gradients by block."""
    memory = _Memory(divided(trace, DIVIDED["weights"], 1 / workers))
    ops = tuple(shared(op, workers) for op in _gathering(trace, memory))
    return dataclasses.replace(trace, ops=ops, allocations=memory.allocations)


class _Memory:
    """Numbers for the memory that gathers and sums need beside the tensors of the trace."""

    def __init__(self, allocations: dict[int, Allocation]) -> None:
        self.allocations = allocations
        self._numbers = itertools.count(max(allocations, default=-1) + 1)

    def take(self, size: float, part: Part) -> int:
        name = next(self._numbers)
        self.allocations[name] = Allocation(bytes=size, part=part)
        return name


def _gathering(trace: Trace, memory: _Memory) -> tuple[Op, ...]:
    weights, gradients = _sizes_by_block(trace)
    added = Insertions(trace.ops)
    outside = range(trace.blocks)
    marks: list[str] = []
    for number, passes in enumerate(_micro_batches(trace.ops)):
        root = f"gather outside {number}"
        if weights.get(BEFORE):
            position = passes[0].first
            gather, copy = _gather(weights[BEFORE], root, "forward", (), memory)
            added.before(position, gather, copy)
            added.free(passes[-1].last, gather.allocated[0])
        visits = [visit for visit in passes if visit.block in outside and weights.get(visit.block)]
        done = [added.mark(visit.last, f"done {number} {order}") for order, visit in enumerate(visits)]
        for order, visit in enumerate(visits):
            mark = f"gather {number} {order}"
            # The memory of the block before the last one is free when its kernels have ended.
            waits = tuple(done[order - 2 : order - 1]) if order >= 2 else ()
            gather, copy = _gather(weights[visit.block], mark, visit.phase, waits, memory)
            added.before(_called_at(visits, order), gather)
            added.before(visit.first, copy)
            added.free(visit.last, gather.allocated[0])
            if visit.phase == "backward":
                # The whole gradients of a block, until they are summed; then a share is kept.
                added.allocate(visit.first, own := memory.take(gradients[visit.block], "gradients"))
                added.free(visit.last, own)
                marks.append(f"sum {number} {visit.block}")
                added.behind(visit.last, *_scatter(gradients[visit.block], marks[-1], memory))
        if gradients.get(BEFORE):
            marks.append(f"sum outside {number}")
            added.behind(passes[-1].last, *_scatter(gradients[BEFORE], marks[-1], memory))
    end = next((i for i, op in enumerate(trace.ops) if op.phase == "update"), len(trace.ops))
    added.before(end, join(*marks, phase="backward"))
    return added.build()


def _called_at(visits: Sequence[_Visit], order: int) -> int:
    """Where the gather for a visit is called: in backward, before the block that is computed before it."""
    before = visits[order - 1] if order else None
    is_ahead = before is not None and before.phase == visits[order].phase == "backward"
    return visits[order - 1].first if is_ahead else visits[order].first


def _gather(size: float, mark: str, phase: Phase, waits: tuple[str, ...], memory: _Memory) -> tuple[Op, Op]:
    """The gather in its own stream, and the copy that puts the pieces of each weight together."""
    gather = collective("all_gather", size, mark, phase=phase, follows=False, waits=waits)
    copy = streaming("aten.copy_", size / 4, size, size, phase)
    name = memory.take(size, "gathered weights")
    return dataclasses.replace(gather, allocated=(name,)), dataclasses.replace(copy, waits=(mark,))


def _scatter(size: float, mark: str, memory: _Memory) -> Iterator[Op]:
    """Copy the gradients together, then sum them; each worker gets its share."""
    name = memory.take(size, "buckets")
    yield dataclasses.replace(streaming("aten.copy_", size / 4, size, size), allocated=(name,))
    yield dataclasses.replace(collective("reduce_scatter", size, mark), freed=(name,))


def _sizes_by_block(trace: Trace) -> tuple[dict[int, float], dict[int, float]]:
    weights: dict[int, float] = {}
    gradients: dict[int, float] = {}
    for gradient, size in zip(trace.gradients, weight_bytes(trace), strict=True):
        weights[gradient.block] = weights.get(gradient.block, 0.0) + size
        gradients[gradient.block] = gradients.get(gradient.block, 0.0) + gradient.bytes
    return weights, gradients


def _micro_batches(ops: Sequence[Op]) -> list[list[_Visit]]:
    """The visits of blocks in order, for each micro-batch: forward, then backward."""
    batches: list[list[_Visit]] = [[]]
    for position, op in enumerate(ops):
        if op.phase == "update" or op.block is None:
            continue
        last = batches[-1][-1] if batches[-1] else None
        if last is not None and last.phase == "backward" and op.phase == "forward":
            batches.append([])
            last = None
        if last is None or (last.block, last.phase) != (op.block, op.phase):
            batches[-1].append(_Visit(op.block, op.phase, position, position))
        else:
            batches[-1][-1] = last._replace(last=position)
    return batches
