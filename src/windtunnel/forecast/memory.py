"""Bytes alive over the step: the third reading of the trace. Errs on the safe side."""

from __future__ import annotations

import math

from windtunnel.machine import Machine
from windtunnel.results import Memory
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace
from windtunnel.units import MIB

_ROUND = {"cpu": 64, "gpu": 512}
_SEGMENT = 2 * MIB
# cuBLAS keeps a workspace for each thread that calls it, and backward has a thread of its own: 32 MiB each on Hopper and
# later, less before. A captured step was warmed up and captured on streams of their own, which keep theirs.
_MATRIX_WORKSPACE = {"eager": 2 * 32 * MIB, "graph": 4 * 32 * MIB}
# What the driver and the framework's kernels take before the first tensor.
_CONTEXT = 700 * MIB
# For "does it fit" only, on the safe side: the allocator's caches are fuller than the tensors in them, and convolutions take
# workspace that depends on the algorithm chosen (up to three times what the largest one moves, in VGG-16 on an H200).
_SLACK = 1.1
_CONVOLUTION_WORKSPACE = 3.0


def account(trace: Trace, machine: Machine, strategy: Strategy) -> Memory:
    """The fullest moment of the step and what fills it, batches fetched ahead included."""
    gpu = machine.unit.kind == "gpu"
    sizes = {name: _rounded(a.bytes, _ROUND[trace.target]) for name, a in trace.allocations.items()}
    alive = set(trace.held)
    total = peak = sum(sizes[name] for name in alive)
    fullest = -1
    for index, op in enumerate(trace.ops):
        total += sum(sizes[name] for name in op.born)
        if total > peak:
            peak, fullest = total, index
        total -= sum(sizes[name] for name in op.dead)
    parts = _parts_at(trace, sizes, fullest)
    if gpu and any(op.family == "matmul" for op in trace.ops):
        parts["workspace"] = float(_MATRIX_WORKSPACE[strategy.execution])
    if gpu and strategy.data == "streamed":
        parts["data"] = parts.get("data", 0.0) + strategy.prefetch * trace.batch_bytes
    whole = sum(parts.values())
    return Memory(
        peak_bytes=whole,
        parts=parts,
        reserved_bytes=_rounded(whole * _SLACK + _convolution_room(trace), _SEGMENT) if gpu else None,
        context_bytes=float(_CONTEXT) if gpu else 0.0,
        capacity_bytes=machine.unit.memory_bytes,
    )


def _convolution_room(trace: Trace) -> float:
    moved = (op.read_bytes + op.written_bytes for op in trace.ops if op.family == "convolution")
    return _CONVOLUTION_WORKSPACE * max(moved, default=0.0)


def _parts_at(trace: Trace, sizes: dict[int, float], fullest: int) -> dict[str, float]:
    """What is alive while op `fullest` runs, by what it is for."""
    alive = set(trace.held)
    for index, op in enumerate(trace.ops[: fullest + 1]):
        alive.update(op.born)
        if index < fullest:
            alive.difference_update(op.dead)
    parts: dict[str, float] = {}
    for name in alive:
        part = trace.allocations[name].part
        parts[part] = parts.get(part, 0.0) + sizes[name]
    return parts


def _rounded(size: float, step: int) -> float:
    return float(math.ceil(size / step) * step)
