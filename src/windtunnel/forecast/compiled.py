"""What a compiler makes of a step: an eager trace in, the trace of the same step under torch.compile out.

A first model of Inductor, data to data:

- Ops that go element by element or reduce (streaming, reductions, normalisation, softmax, random numbers) and follow each other
  in one phase become one kernel, named "fused". It reads what comes from outside once, writes what is used after it, and keeps
  the rest in registers: what is born and dead inside moves no bytes and takes no memory. At most 64 ops make a kernel.
- A trace does not name what an op reads, so this is inferred: an op reads what dies at it, and the largest newborn of the op
  before it; an op forward that gives birth to nothing works in place on that newborn. What lives on, such as an activation
  kept for backward, is still written.
- Products, convolutions, attention, recurrent calls, lookups, pooling and unknown ops stay calls of a library.
- Views and bare allocations are decided when compiling and vanish; what they gave birth to is born in the next op.
- One graph forward and one backward: the host calls one module and autograd visits one node for each, and one more for every
  weight whose gradient it adds up. The update stays eager.

Not modelled: CUDA-graph trees and max-autotune (other modes than the default), recomputing cheap activations rather than keeping
them (so memory errs on the safe side), reuse of buffers in place, fusing across library calls or side by side, epilogues fused
into products, graph breaks, and a second pass over data too large for one block that both reduces and reads again.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from windtunnel.families import FAMILIES
from windtunnel.trace import Allocation, Op, Trace

FUSED = "fused"
FUSIBLE = frozenset(family.name for family in FAMILIES if family.is_fusible)
_MOST_FUSED = 64
_OVERWRITING = (".copy_", ".fill_", ".zero_")  # in place, but on something else than what came before


def fuse(trace: Trace) -> Trace:
    """The same step compiled: the same arithmetic, fewer ops, never more bytes."""
    ops: list[Op] = []
    early: list[int] = []  # born in views that vanished, and not yet in any op
    late: list[int] = []  # dead in views that vanished before there was an op that could say so
    for run in _runs(trace.ops):
        if any(op.family != "view" or op.phase == "update" for op in run):
            merged = (
                _merge(run, early, trace.allocations)
                if _vanishes(run[0])
                else dataclasses.replace(run[0], born=(*early, *run[0].born))
            )
            ops.append(dataclasses.replace(merged, dead=(*late, *merged.dead)))
            early, late = [], []
            continue
        early += [name for op in run for name in op.born]
        dead = {name for op in run for name in op.dead}
        gone = [name for name in dead if name not in early]
        early = [name for name in early if name not in dead]
        if ops and ops[-1].phase != "update":
            ops[-1] = dataclasses.replace(ops[-1], dead=(*ops[-1].dead, *gone))
        else:
            late += gone
    if ops and (early or late):
        ops[-1] = dataclasses.replace(ops[-1], born=(*ops[-1].born, *early), dead=(*ops[-1].dead, *late))
    return dataclasses.replace(
        trace, ops=tuple(ops), allocations=_kept(trace, ops), module_calls=_graphs(trace), nodes=_nodes(trace)
    )


def _runs(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Neighbours that can share a kernel, with the views among them; any other op is alone."""
    run: list[Op] = []
    for op in ops:
        full = sum(other.family != "view" for other in run) >= _MOST_FUSED
        if run and (full or run[0].phase != op.phase or not _vanishes(op)):
            yield run
            run = []
        if _vanishes(op):
            run.append(op)
        else:
            yield [op]
    if run:
        yield run


def _vanishes(op: Op) -> bool:
    """Whether the compiler makes code of its own for this op, or none at all."""
    return op.phase != "update" and (op.family == "view" or op.family in FUSIBLE)


def _merge(run: Sequence[Op], early: Sequence[int], allocations: Mapping[int, Allocation]) -> Op:
    """One op for all of a run."""
    work = [op for op in run if op.family != "view"]
    born = [*early, *(name for op in run for name in op.born)]
    dead = [name for op in run for name in op.dead]
    inside = set(born) & set(dead)
    read, written = _traffic(run, early, inside, {name: allocations[name].bytes for name in born})
    largest = max(work, key=lambda op: op.read_bytes + op.written_bytes)
    return dataclasses.replace(
        largest,
        name=FUSED,
        family="streaming",
        flop=sum(op.flop for op in work),
        read_bytes=read,
        written_bytes=written,
        shape=_shape(work),
        calls=1,
        module=_common(op.module for op in work),
        born=tuple(name for name in born if name not in inside),
        dead=tuple(name for name in dead if name not in inside),
    )


def _traffic(
    run: Sequence[Op], early: Sequence[int], inside: set[int], sizes: Mapping[int, float]
) -> tuple[float, float]:
    """Bytes that a fused run still reads from memory and writes to it; `inside` never get there."""
    read = written = 0.0
    filled = dict.fromkeys(early, False)  # newborns, and whether anything was written to them
    last: int | None = None  # what the op before most likely hands on
    for op in run:
        filled |= dict.fromkeys(op.born, op.written_bytes > 0)
        if op.family == "view":
            continue
        handed = {name for name in op.dead if filled.get(name) and name not in op.born} | (
            {last} if last is not None else set()
        )
        read += max(0.0, op.read_bytes - sum(sizes[name] for name in handed))
        if op.born:
            written += max(0.0, op.written_bytes - sum(sizes[name] for name in op.born if name in inside))
            last = max(op.born, key=lambda name: sizes[name])
        else:
            target = _target(op, last, filled, sizes)
            if target is None or (not filled[target] and target not in inside):
                written += op.written_bytes
            if target is not None:
                filled[target], last = True, target
        if last in op.dead:
            last = None
    return read, written


def _target(op: Op, last: int | None, filled: Mapping[int, bool], sizes: Mapping[int, float]) -> int | None:
    """The newborn that an op without births of its own writes to, if it is one: an empty one that has the size, else the last."""
    empty = next(
        (name for name, full in filled.items() if not full and sizes[name] == op.written_bytes), None
    )
    if empty is not None or last is None:
        return empty
    # Going back, autograd adds to gradients in place, which are no newborns.
    in_place = (
        op.phase == "forward" and not op.name.endswith(_OVERWRITING) and sizes[last] >= op.written_bytes
    )
    return last if in_place else None


def _shape(work: Sequence[Op]) -> tuple[int, ...]:
    """Elements, layout and tensors read, as for any streaming op; the widest op of the run counts.

    Empty if the sizes of one op are unknown, so that the pricer can say so.
    """
    if not all(op.shape for op in work):
        return ()
    streams = [op.shape for op in work if op.family == "streaming" and len(op.shape) == 3]
    elements = max(
        (math.prod(op.shape[:1] if op.family in ("streaming", "random") else op.shape[:3]) for op in work),
        default=0,
    )
    return (
        elements,
        max((shape[1] for shape in streams), default=0),
        max((shape[2] for shape in streams), default=1),
    )


def _common(modules: Iterable[str]) -> str:
    """The path of the module that holds all of them."""
    shared = [
        pieces[0]
        for pieces in itertools.takewhile(
            lambda pieces: len(set(pieces)) == 1, zip(*(m.split(".") for m in modules), strict=False)
        )
    ]
    return ".".join(shared)


def _kept(trace: Trace, ops: Sequence[Op]) -> dict[int, Allocation]:
    alive = {*trace.held, *(name for op in ops for name in op.born)}
    return {name: allocation for name, allocation in trace.allocations.items() if name in alive}


def _graphs(trace: Trace) -> int:
    """A compiled graph is one call for the host; each backward has one before it."""
    return min(trace.module_calls, max(1, trace.backward_calls))


def _nodes(trace: Trace) -> int:
    """A compiled graph is one node for autograd, which then still adds up each weight's gradient."""
    gradients = sum(allocation.part == "gradients" for allocation in trace.allocations.values())
    return min(trace.nodes, trace.backward_calls * (1 + gradients))
