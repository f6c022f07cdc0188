"""The memory of a step: the allocations of a trace replayed through a model of the allocator.

The replay runs two steps, because a warm step starts with the optimizer's state and a filled allocator cache.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.families import registry
from windtunnel.forecast.allocator import Block, Exhausted, Heap, Pools, Rounding
from windtunnel.forecast.expandable import ExpandablePools
from windtunnel.machine.machine import Machine
from windtunnel.results import Memory
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace
from windtunnel.units import MIB

# cuBLAS keeps a workspace for each thread and stream that calls it, and backward runs in its own thread.
# 32 MiB on Hopper and later, less on older GPUs.
_MATRIX_WORKSPACE = 32 * MIB
# What the CUDA context takes: 426 MiB by itself (PyTorch 2.10 with CUDA 13 on an RTX 6000 Ada, github
# unslothai/unsloth-zoo pull request 1053), and the kernels that a step loads. What the driver keeps is not
# part of a device's `memory_bytes`.
CONTEXT = 500 * MIB
# A step fits only if this share of its memory stays free, because a forecast peak may be too low by as much.
SPARE = 0.02
# The share if the workspaces of ops are unknown. A convolution's workspace depends on its algorithm: up to
# three times the bytes that the largest convolution moves (VGG-16 on an H200).
_SPARE_WITHOUT_WORKSPACES = 0.1
_CONVOLUTION_WORKSPACE = 3.0
# Shares of the peak that fragmentation may add, as they are tried first.
_FRAGMENTED_SHARES = (0.015, 0.03, 0.06, 0.12)
_FRAGMENTED_STEP = 0.015  # the precision of the share
_STEPS = 2  # the first creates the optimizer's state and fills the cache, the second is a warm step


class AllocatedMoment(NamedTuple):
    """Bytes in use while the op at this position of the trace runs, in all and by part."""

    position: int
    bytes: int
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory(Memory):
    """The memory of a forecast step.

    `reserved_bytes` is what the allocator reserves if memory is plentiful. If memory is short, PyTorch
    returns unused segments before it fails, and convolutions use less workspace. For that case,
    `scarce_parts` are the parts of the peak, and `fragmented_bytes` are lost between tensors. `spare_bytes`
    must stay free in addition.
    """

    scarce_parts: Mapping[str, float] = field(default_factory=dict)
    fragmented_bytes: float = 0.0
    spare_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """The memory of the smallest device on which the step fits."""
        return sum(self.needed_parts.values())

    @property
    def needed_parts(self) -> dict[str, float]:
        """What the step needs if memory is short: the parts of its peak, fragmentation, context and spare
        memory."""
        beside = {
            "fragmentation": self.fragmented_bytes,
            "CUDA context": self.context_bytes,
            "spare": self.spare_bytes,
        }
        parts = self.scarce_parts or self.parts
        return {**parts, **{name: size for name, size in beside.items() if size}}


def account(
    trace: Trace,
    machine: Machine,
    strategy: Strategy,
    workspace: Sequence[float] | None = None,
    rounding: Rounding | None = None,
) -> DeviceMemory:
    """Peak memory of a warm step, its parts, what the allocator reserves, and what the step needs.

    `workspace` has the bytes that each op of the trace needs while it runs, in addition to its tensors.
    """
    if machine.device.kind == "cpu":
        replay = _Replay(_script_of(trace, workspace), Heap())
        _run_eagerly(replay, 0)
        parts = replay.peak_parts()
        lost = replay.peak - sum(parts.values())
        return DeviceMemory(
            peak_bytes=float(replay.peak),
            parts={**parts, "fragmentation": lost} if lost else parts,
            capacity_bytes=machine.device.memory_bytes,
        )
    plenty, script = _pools(strategy, rounding), _script_of(trace, workspace)
    replay = _run(script, plenty, strategy)
    scarce = _run_in_least_memory(trace, script, replay, strategy, workspace)
    return DeviceMemory(
        peak_bytes=float(replay.peak),
        parts=replay.peak_parts(),
        reserved_bytes=float(plenty.most_reserved),
        context_bytes=float(CONTEXT),
        capacity_bytes=machine.device.memory_bytes,
        scarce_parts=scarce.peak_parts(),
        fragmented_bytes=float(scarce.reserved - scarce.peak),
        spare_bytes=_spare_bytes(trace, scarce.peak, workspace is not None),
    )


def follow(
    trace: Trace,
    machine: Machine,
    strategy: Strategy,
    workspace: Sequence[float] | None = None,
    rounding: Rounding | None = None,
) -> list[AllocatedMoment]:
    """The memory in use at each op of a warm step that moves memory; their peak is that of `account`."""
    on_cpu = machine.device.kind == "cpu"
    store = Heap() if on_cpu else _pools(strategy, rounding)
    replay = _Replay(_script_of(trace, workspace), store, 0 if on_cpu else _MATRIX_WORKSPACE)
    replay.moments = []
    if isinstance(store, Pools) and strategy.execution == "graph":
        _capture(replay, store)
    else:
        _run_eagerly(replay, 0 if on_cpu or strategy.data == "resident" else strategy.prefetch)
    return replay.moments


def fits(
    trace: Trace, machine: Machine, strategy: Strategy, workspace: Sequence[float], rounding: Rounding
) -> bool:
    """Whether a step fits, as `account` says. Needs fewer replays if memory is plentiful or far too small."""
    capacity = machine.device.memory_bytes
    if capacity is None:
        return True
    if machine.device.kind == "gpu":
        plenty = _run(_script_of(trace, workspace), _pools(strategy, rounding), strategy)
        if plenty.reserved * (1 + SPARE) + CONTEXT <= capacity:
            return True
        needs = _required_workspaces(trace, workspace)
        script = _script_of(trace, needs)
        least = plenty if needs == workspace else _run(script, _pools(strategy, rounding), strategy)
        if least.peak + CONTEXT > capacity:
            return False
    return account(trace, machine, strategy, workspace, rounding).fits is not False


def _run_in_least_memory(
    trace: Trace, script: _Script, plenty: _Replay, strategy: Strategy, workspace: Sequence[float] | None
) -> _Replay:
    """Replay steps in the smallest memory in which they run.

    Limits are tried from small to large, up to what the allocator reserves without a limit (`plenty`). At
    each limit the allocator returns unused segments before it fails.
    """

    def run(limit: float, script: _Script = script) -> _Replay | None:
        with contextlib.suppress(Exhausted):
            return _run(script, _pools(strategy, plenty.rounding, limit), strategy)
        return None

    needs = _required_workspaces(trace, workspace)
    least = plenty if needs == workspace else run(math.inf, _script_of(trace, needs))
    assert least is not None, "nothing fails without a limit"
    peak, low, high, best = least.peak, float(least.peak), float(plenty.reserved), plenty
    for share in _FRAGMENTED_SHARES:
        limit = peak * (1 + share)
        found = run(limit) if limit < high else None
        if found is not None:
            high, best = limit, found
            break
        low = min(limit, high)
    while high - low > _FRAGMENTED_STEP * peak:
        middle = (low + high) / 2
        found = run(middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    return best


def _required_workspaces(trace: Trace, workspace: Sequence[float] | None) -> list[float] | None:
    """The workspaces without optional ones: an op with an optional workspace has an algorithm that needs
    none."""
    if workspace is None:
        return None
    return [0.0 if _is_optional(op.family) else need for op, need in zip(trace.ops, workspace, strict=True)]


def _is_optional(family: str) -> bool:
    known = registry.get(family)
    return known is not None and known.workspace_is_optional


def _pools(strategy: Strategy, rounding: Rounding | None, limit: float = math.inf) -> Pools:
    return (ExpandablePools if strategy.expandable_segments else Pools)(rounding, limit)


def _run(script: _Script, pools: Pools, strategy: Strategy) -> _Replay:
    """Replay steps on a GPU's allocator."""
    replay = _Replay(script, pools, _MATRIX_WORKSPACE)
    if strategy.execution == "graph":
        _capture(replay, pools)
    else:
        _run_eagerly(replay, strategy.prefetch if strategy.data != "resident" else 0)
    return replay


def _run_eagerly(replay: _Replay, ahead: int) -> None:
    """Prefetched batches are allocated on the copy stream: those that wait and the one in use."""
    replay.hold("weights")
    for copy in range(ahead + 1):
        replay.hold("data", stream="copy" if ahead else "", copy=copy)
    for _ in range(_STEPS):
        replay.step()


def _capture(replay: _Replay, pools: Pools) -> None:
    """Warm up on another stream, then capture into a private pool, as torch.cuda.graph does.

    Gradients of the warm-up stay allocated until the captured step frees them.
    """
    replay.hold("weights", "data")
    for _ in range(_STEPS):
        replay.step("warm-up")
    pools.release()
    replay.step("graph")


class _Script(NamedTuple):
    """What a replay reads of a trace: the sizes and parts of its memory, and the ops that move memory."""

    allocations: Mapping[int, tuple[float, str]]
    held: Sequence[int]
    allocated: Sequence[int]
    ops: Sequence[tuple[int, Op, float]]  # with its position and its workspace


def _script_of(trace: Trace, workspace: Sequence[float] | None) -> _Script:
    needs = workspace if workspace is not None else (0.0,) * len(trace.ops)
    return _Script(
        allocations={name: (each.bytes, each.part) for name, each in trace.allocations.items()},
        held=trace.held,
        allocated=[name for op in trace.ops for name in op.allocated],
        # Most ops of a trace are views or work in place, and move no memory.
        ops=[
            (position, op, need)
            for position, (op, need) in enumerate(zip(trace.ops, needs, strict=True))
            if op.allocated or op.freed or need or op.family == "matmul"
        ],
    )


class _Replay:
    """Replays steps of a trace on an allocator and remembers the peak with its parts."""

    def __init__(self, script: _Script, store: Pools | Heap, matrix_workspace: int = 0) -> None:
        self.peak = 0
        self._peak_parts: dict[str, int] = {}
        self._is_new_peak = False  # and its parts are not kept yet
        self._script, self._store = script, store
        self._matrix_workspace = matrix_workspace
        self._is_warm = False
        self._parts: dict[str, int] = {}
        self._blocks: dict[Hashable, tuple[Block, str]] = {}
        self.moments: list[AllocatedMoment] | None = None  # of the last step, if they are asked for

    def hold(self, *parts: str, stream: str = "", copy: int = 0) -> None:
        """Allocate what exists between steps for these `parts`; each `copy` has its own memory."""
        for name in self._script.held:
            size, part = self._script.allocations[name]
            if part in parts:
                self._take((name, copy) if copy else name, size, part, stream)

    def step(self, stream: str = "") -> None:
        """Replay one step. It frees what the previous step left. The first step creates the optimizer's
        state."""
        script, store, blocks, parts = self._script, self._store, self._blocks, self._parts
        self._free(script.allocated)
        if self._is_warm:
            self._take_state(stream)
        if self.moments is not None:
            self.moments.clear()
        for position, op, need in script.ops:
            if not self._is_warm and op.phase == "update":
                self._take_state(stream)
            for name in op.allocated:  # as `_take` does; most of a replay's time is spent here
                size, part = script.allocations[name]
                if size:
                    block = store.take(size, stream)
                    blocks[name] = block, part
                    parts[part] = parts.get(part, 0) + block.size
            if self._matrix_workspace and op.family == "matmul":
                self._take_matrix_workspace(stream, op.phase == "backward")
            if need:
                self._take_workspace(op, need, stream)
            if store.allocated > self.peak:
                self._note_peak()
            if self.moments is not None:
                self.moments.append(AllocatedMoment(position, store.allocated, dict(parts)))
            if need:
                self._free(("need",))
            if op.freed:
                self._free(op.freed)
        if not self._is_warm:
            self._take_state(stream)
        if store.allocated > self.peak:
            self._note_peak()

    def _note_peak(self) -> None:
        self.peak, self._is_new_peak = self._store.allocated, True

    @property
    def reserved(self) -> int:
        """The most that the allocator held."""
        return self._store.most_reserved if isinstance(self._store, Pools) else self.peak

    @property
    def rounding(self) -> Rounding | None:
        return self._store.rounding if isinstance(self._store, Pools) else None

    def peak_parts(self) -> dict[str, float]:
        parts = self._parts if self._is_new_peak else self._peak_parts
        return {part: float(size) for part, size in parts.items() if size}

    def _take_state(self, stream: str) -> None:
        """Allocate what exists before a warm step, but not before the first step.

        This is the optimizer's state, and the gradients of the previous step if the step frees them later.
        """
        for name in self._script.held:
            size, part = self._script.allocations[name]
            if name not in self._blocks and (self._is_warm or part != "gradients"):
                self._take(name, size, part, stream)
        self._is_warm = True

    def _take_workspace(self, op: Op, need: float, stream: str) -> None:
        try:
            self._take("need", need, "workspace", stream)
        except Exhausted:
            if not _is_optional(op.family):
                raise

    def _take_matrix_workspace(self, stream: str, in_backward: bool) -> None:
        key = ("matrix workspace", stream, in_backward)
        if key not in self._blocks:
            self._take(key, self._matrix_workspace, "workspace", stream)

    def _take(self, key: Hashable, size: float, part: str, stream: str) -> None:
        if size:
            block = self._store.take(size, stream)
            self._blocks[key] = block, part
            self._parts[part] = self._parts.get(part, 0) + block.size

    def _free(self, keys: Iterable[Hashable]) -> None:
        blocks, parts, free = self._blocks, self._parts, self._store.free
        for key in keys:
            entry = blocks.pop(key, None)
            if entry is None:
                continue
            if self._is_new_peak:
                self._peak_parts, self._is_new_peak = dict(parts), False
            block, part = entry
            parts[part] -= block.size
            free(block)


def _spare_bytes(trace: Trace, peak: int, knows_workspaces: bool) -> float:
    if knows_workspaces:
        return SPARE * peak
    moved = (op.read_bytes + op.written_bytes for op in trace.ops if op.family == "convolution")
    return _SPARE_WITHOUT_WORKSPACES * peak + _CONVOLUTION_WORKSPACE * max(moved, default=0.0)
