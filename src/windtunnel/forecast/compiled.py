"""An estimate of torch.compile without PyTorch's compiler: from the trace of an eager step to that of the
compiled step.

It is used for CPUs, for steps that PyTorch's compiler cannot trace here, and for advice, which cannot wait
for the compiler. In all other cases on a GPU, `trace.compiled` runs the compiler itself.

- Consecutive pointwise ops and reductions of one phase (streaming, reduction, normalisation, softmax, random)
  become one kernel, named "fused", of at most 64 ops. It reads its inputs once and writes only what is used
  after it. Tensors that are allocated and freed inside stay in registers: no bytes, no memory.
- A trace does not name the inputs of an op, so they are inferred. An op reads the tensors that are freed
  after it, and the largest tensor that the op before it allocated. A forward op that allocates nothing works
  in place on that tensor. Tensors that live on, such as activations for backward, are still written.
- Matrix products, convolutions, attention, recurrent calls, lookups, pooling and unknown ops stay library
  calls.
- Views and bare allocations are resolved at compile time and vanish. The next op allocates in their place.
- For a GPU, the kernels of a group are counted as Inductor makes them (`forecast.generated_kernels`).
- Forward and backward are one graph each: one module call and one autograd node for each, and one more node
  for every weight whose gradient is accumulated. The update stays eager.

Not modelled: CUDA graphs and max-autotune, recomputation of cheap activations (so memory is rather
overestimated), reuse of buffers, horizontal fusion, epilogues fused into matrix products, graph breaks, and a
second pass over data that is too large for one block.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from windtunnel.families import FAMILIES
from windtunnel.forecast.generated_kernels import as_generated
from windtunnel.trace import Allocation, Compilation, Op, Trace

FUSED = "fused"
# Seconds of the first step with empty caches: a fixed part (a guess), and a part for each generated kernel.
# The latter is from the one tuning row that was timed with empty caches: ResNet-34, 42.6 s and 386 kernels,
# on an H200's host with 16 cores.
_FIRST_SECONDS, _SECONDS_OF_KERNEL = 5.0, 0.097
FUSIBLE = frozenset(family.name for family in FAMILIES if family.is_fusible)
_MOST_FUSED = 64
_ASSUMED = Compilation(graphs=2, breaks=0, nodes=0, inputs=0, is_assumed=True)
_OVERWRITING = (".copy_", ".fill_", ".zero_")  # in place, but not on the result of the previous op


def first_step_seconds(generated: int) -> float:
    """About how long the first compiled step takes, by the number of kernels to generate."""
    return _FIRST_SECONDS + _SECONDS_OF_KERNEL * generated


def fuse(trace: Trace, *, for_gpu: bool = False) -> Trace:
    """The trace of the compiled step: the same arithmetic, fewer ops, on a CPU never more bytes."""
    ops: list[Op] = []
    early: list[int] = []  # allocated by views that vanished: the next op allocates them
    late: list[int] = []  # freed by views that vanished before the first op
    for run in _runs(trace.ops):
        if any(op.family != "view" or op.phase == "update" for op in run):
            merged = (
                _merge(run, early, trace.allocations, for_gpu)
                if _is_fused_or_dropped(run[0])
                else dataclasses.replace(run[0], allocated=(*early, *run[0].allocated))
            )
            ops.append(dataclasses.replace(merged, freed=(*late, *merged.freed)))
            early, late = [], []
            continue
        early += [name for op in run for name in op.allocated]
        freed = {name for op in run for name in op.freed}
        gone = [name for name in freed if name not in early]
        early = [name for name in early if name not in freed]
        if ops and ops[-1].phase != "update":
            ops[-1] = dataclasses.replace(ops[-1], freed=(*ops[-1].freed, *gone))
        else:
            late += gone
    if ops and (early or late):
        ops[-1] = dataclasses.replace(
            ops[-1], allocated=(*ops[-1].allocated, *early), freed=(*ops[-1].freed, *late)
        )
    return dataclasses.replace(
        trace,
        ops=tuple(ops),
        allocations=_allocations(trace, ops),
        module_calls=_graphs(trace),
        nodes=_nodes(trace),
        compilation=_ASSUMED if for_gpu else None,
    )


def _runs(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Groups of consecutive ops that can share a kernel, with the views among them; other ops are alone."""
    run: list[Op] = []
    for op in ops:
        full = sum(other.family != "view" for other in run) >= _MOST_FUSED
        if run and (full or run[0].phase != op.phase or not _is_fused_or_dropped(op)):
            yield run
            run = []
        if _is_fused_or_dropped(op):
            run.append(op)
        else:
            yield [op]
    if run:
        yield run


def _is_fused_or_dropped(op: Op) -> bool:
    """Whether the compiler generates code for this op, or drops it, instead of calling a library."""
    return op.phase != "update" and (op.family == "view" or op.family in FUSIBLE)


def _merge(
    run: Sequence[Op], early: Sequence[int], allocations: Mapping[int, Allocation], for_gpu: bool
) -> Op:
    """The fused op of a group."""
    work = [op for op in run if op.family != "view"]
    allocated = [*early, *(name for op in run for name in op.allocated)]
    freed = [name for op in run for name in op.freed]
    inside = set(allocated) & set(freed)
    read, written = _traffic(run, early, inside, {name: allocations[name].bytes for name in allocated})
    largest = max(work, key=lambda op: op.read_bytes + op.written_bytes)
    merged = dataclasses.replace(
        largest,
        name=FUSED,
        family="streaming",
        flop=sum(op.flop for op in work),
        read_bytes=read,
        written_bytes=written,
        shape=_shape(work),
        calls=1,
        module=_common(op.module for op in work),
        allocated=tuple(name for name in allocated if name not in inside),
        freed=tuple(name for name in freed if name not in inside),
    )
    return as_generated(merged, work) if for_gpu else merged


def _traffic(
    run: Sequence[Op], early: Sequence[int], inside: set[int], sizes: Mapping[int, float]
) -> tuple[float, float]:
    """Bytes that a fused group reads and writes. Tensors in `inside` stay in registers."""
    read = written = 0.0
    filled = dict.fromkeys(early, False)  # tensors of the group, and whether they were written to
    last: int | None = None  # the result of the op before
    for op in run:
        filled |= dict.fromkeys(op.allocated, op.written_bytes > 0)
        if op.family == "view":
            continue
        handed = {name for name in op.freed if filled.get(name) and name not in op.allocated} | (
            {last} if last is not None else set()
        )
        read += max(0.0, op.read_bytes - sum(sizes[name] for name in handed))
        if op.allocated:
            written += max(
                0.0, op.written_bytes - sum(sizes[name] for name in op.allocated if name in inside)
            )
            last = max(op.allocated, key=lambda name: sizes[name])
        else:
            target = _target(op, last, filled, sizes)
            if target is None or (not filled[target] and target not in inside):
                written += op.written_bytes
            if target is not None:
                filled[target], last = True, target
        if last in op.freed:
            last = None
    return read, written


def _target(op: Op, last: int | None, filled: Mapping[int, bool], sizes: Mapping[int, float]) -> int | None:
    """The tensor of the group that an op without a new result writes to: an empty one of its size, else the
    last."""
    empty = next(
        (name for name, full in filled.items() if not full and sizes[name] == op.written_bytes), None
    )
    if empty is not None or last is None:
        return empty
    # In backward, autograd accumulates gradients in place, and these are not tensors of the group.
    in_place = (
        op.phase == "forward" and not op.name.endswith(_OVERWRITING) and sizes[last] >= op.written_bytes
    )
    return last if in_place else None


def _shape(work: Sequence[Op]) -> tuple[int, ...]:
    """Elements, layout and number of inputs, as of any streaming op: the largest of the group.

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
    """The path of the innermost module that contains all of them."""
    shared = [
        pieces[0]
        for pieces in itertools.takewhile(
            lambda pieces: len(set(pieces)) == 1, zip(*(m.split(".") for m in modules), strict=False)
        )
    ]
    return ".".join(shared)


def _allocations(trace: Trace, ops: Sequence[Op]) -> dict[int, Allocation]:
    alive = {*trace.held, *(name for op in ops for name in op.allocated)}
    return {name: allocation for name, allocation in trace.allocations.items() if name in alive}


def _graphs(trace: Trace) -> int:
    """Module calls: one compiled graph before each backward."""
    return min(trace.module_calls, max(1, trace.backward_calls))


def _nodes(trace: Trace) -> int:
    """Autograd nodes: one for the compiled graph and one for each weight whose gradient is accumulated."""
    gradients = sum(allocation.part == "gradients" for allocation in trace.allocations.values())
    return min(trace.nodes, trace.backward_calls * (1 + gradients))
