"""Equal blocks are traced a few times and repeated: a network of 96 equal blocks is traced with three.

The first and the last block are kept, since what precedes and follows them differs; the block between
represents all others. The unfolded trace is that of the whole network: same ops, memory and order. If the
three blocks do not run the same ops, the whole network is traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from windtunnel.job.trainer import blocks_of
from windtunnel.trace import Allocation, Gradient, Op, Trace

KEPT = 3
_FEWEST = 6  # with fewer blocks, folding saves no time
_NUMBERS = frozenset("layer_idx layer_id layer_number layer_index idx index block_idx".split())


class CannotUnfold(Exception):
    """The blocks that were traced do not run the same ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What was left out of a model: the number of blocks, and the parameters of each."""

    removed: int
    block_parameters: int
    block_tensors: int
    kept_parameters: int
    kept_tensors: int

    @property
    def growth(self) -> float:
        """Parameters of the whole model over those that were kept."""
        return 1 + self.removed * self.block_parameters / self.kept_parameters

    @property
    def tensor_growth(self) -> float:
        return 1 + self.removed * self.block_tensors / self.kept_tensors


def shorten(model: nn.Module) -> int:
    """Keep three blocks of a model whose blocks are all equal. Returns how many were removed."""
    blocks = blocks_of(model)
    containers = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    holder = next((c for c in containers if list(c) == blocks), None)
    if holder is None or len(blocks) < _FEWEST or len({_signature(b) for b in blocks}) > 1:
        return 0
    one = list(blocks[1].parameters())
    if len({id(p) for b in blocks for p in b.parameters()}) != len(one) * len(blocks):
        return 0  # blocks share parameters
    removed = len(blocks) - KEPT
    for _ in range(removed):
        del holder[2]
    return removed


def folded_of(model: nn.Module, removed: int) -> Folded:
    """What was left out of a shortened model, by the sizes that its parameters have now."""
    one, kept = list(blocks_of(model)[1].parameters()), list(model.parameters())
    return Folded(
        removed=removed,
        block_parameters=sum(p.numel() for p in one),
        block_tensors=len(one),
        kept_parameters=sum(p.numel() for p in kept),
        kept_tensors=len(kept),
    )


def _signature(block: nn.Module) -> tuple[object, ...]:
    """All that determines the ops of a block: its modules, the shapes of its weights, and its plain
    settings."""
    parts: list[object] = []
    for name, module in block.named_modules():
        settings = tuple(
            (key, value)
            for key, value in sorted(vars(module).items())
            if isinstance(value, (bool, int, float, str)) and key not in _NUMBERS
        )
        parts.append((name, type(module), settings))
    shapes = tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in block.named_parameters())
    return (*parts, shapes)


class _Place(NamedTuple):
    """The place of an op: the pass (forward or backward of a micro-batch), the block, the position in it."""

    passing: int
    block: int
    position: int


def unfold(trace: Trace, folded: Folded) -> Trace:
    """The trace of the whole model from that of the shortened one."""
    return _Unfolding(trace, folded).trace()


class _Unfolding:
    def __init__(self, trace: Trace, folded: Folded) -> None:
        if trace.blocks != KEPT:
            raise CannotUnfold
        self._trace, self._folded = trace, folded
        self._blocks = KEPT + folded.removed
        self._places = list(_places(trace.ops))
        self._sources = self._block_ops()
        self._own_marks = {key: {op.mark for op in ops} for key, ops in self._sources.items()}
        self._created = {
            name: (place, slot)
            for op, place in zip(trace.ops, self._places, strict=True)
            if 0 <= place.block < KEPT
            for slot, name in enumerate(op.allocated)
        }
        self._allocations = dict(trace.allocations)
        self._names: dict[tuple[_Place, int], int] = {}
        self._next = max(trace.allocations, default=-1) + 1

    def _block_ops(self) -> dict[tuple[int, int], list[Op]]:
        """The ops of each block in each pass; those of equal blocks must be equal."""
        found: dict[tuple[int, int], list[Op]] = {}
        for op, place in zip(self._trace.ops, self._places, strict=True):
            if 0 <= place.block < KEPT:
                found.setdefault((place.passing, place.block), []).append(op)
        for passing, block in list(found):
            middle = found.get((passing, 1), [])
            if [_facts(op) for op in found[passing, block]] != [_facts(op) for op in middle]:
                raise CannotUnfold
        return found

    def trace(self) -> Trace:
        ops, positions = self._ops()
        trace = self._trace
        held, owners = self._held()
        return dataclasses.replace(
            trace,
            ops=tuple(ops),
            allocations=self._allocations,
            held=held,
            owners=owners,
            blocks=self._blocks,
            gradients=self._gradients(positions),
            parameters=trace.parameters,
            nodes=round(trace.nodes * self._growth_of_ops(ops)),
            module_calls=round(trace.module_calls * self._growth_of_ops(ops)),
        )

    def _growth_of_ops(self, ops: Sequence[Op]) -> float:
        """Nodes and calls of modules grow as the ops of forward do."""
        before = sum(op.phase == "forward" for op in self._trace.ops)
        return sum(op.phase == "forward" for op in ops) / max(before, 1)

    def _ops(self) -> tuple[list[Op], dict[tuple[int, int], int]]:
        """All ops, and the new position of each op of the trace for each block that it represents."""
        ops: list[Op] = []
        positions: dict[tuple[int, int], int] = {}
        for start, stop in _runs(self._places):
            place = self._places[start]
            for block in self._numbers(place):
                for index in range(start, stop):
                    positions[index, block] = len(ops)
                    ops.append(self._op(index, block))
        return ops, positions

    def _numbers(self, place: _Place) -> list[int]:
        """The blocks that a run of ops represents, in the order of its pass."""
        if place.block == 1:
            numbers = list(range(1, self._blocks - 1))
            return numbers if place.passing % 2 == 0 else numbers[::-1]
        return [self._number(place.block)]

    def _number(self, block: int) -> int:
        return block + self._folded.removed if block >= KEPT - 1 else block

    def _op(self, index: int, block: int) -> Op:
        op, place = self._trace.ops[index], self._places[index]
        if place.block == -2:  # the update
            return self._updated(op)
        if place.block in (-1, KEPT):
            op = self._updated(op) if "_foreach" in op.name else op  # gradients set to zero
            return dataclasses.replace(op, block=self._number(place.block)) if op.block is not None else op
        if not (op.allocated or op.freed or op.mark or op.waits):
            return dataclasses.replace(op, block=block)
        here = place._replace(block=block)
        allocated = tuple(self._name(here, slot, name) for slot, name in enumerate(op.allocated))
        freed = tuple(self._freed(name, place.block, block) for name in op.freed)
        suffix = f" block {block}" if block != place.block or place.block == 1 else ""
        return dataclasses.replace(
            op,
            block=block,
            allocated=allocated,
            freed=freed,
            mark=f"{op.mark}{suffix}" if op.mark else "",
            waits=tuple(f"{wait}{suffix}" if self._is_own(wait, place) else wait for wait in op.waits),
        )

    def _is_own(self, mark: str, place: _Place) -> bool:
        return mark in self._own_marks[place.passing, place.block]

    def _name(self, place: _Place, slot: int, original: int) -> int:
        """The number of memory that the op at this place allocates."""
        if place.block in (0, 1, self._blocks - 1):
            source = KEPT - 1 if place.block == self._blocks - 1 else place.block
            op = self._sources[place.passing, source][place.position]
            return op.allocated[slot]
        key = (place, slot)
        if key not in self._names:
            self._names[key] = self._new(self._allocations[original])
        return self._names[key]

    def _freed(self, name: int, source: int, block: int) -> int:
        """The memory that the copy of an op frees: it belongs to a block at the same distance as for the op
        itself."""
        if name not in self._created:
            return name
        place, slot = self._created[name]
        other = block + place.block - source
        return self._name(place._replace(block=other), slot, name) if 0 <= other < self._blocks else name

    def _new(self, allocation: Allocation) -> int:
        self._allocations[self._next] = allocation
        self._next += 1
        return self._next - 1

    def _updated(self, op: Op) -> Op:
        """The update of all parameters: lists that are longer, over more elements."""
        if op.calls == 1:
            return op
        growth, tensors = self._folded.growth, round(op.calls * self._folded.tensor_growth)
        for name in op.allocated:
            old = self._allocations[name]
            self._allocations[name] = Allocation(bytes=old.bytes * growth, part=old.part)
        return dataclasses.replace(
            op,
            flop=op.flop * growth,
            read_bytes=op.read_bytes * growth,
            written_bytes=op.written_bytes * growth,
            shape=_grown(op.shape, growth, op.calls, tensors),
            calls=tensors,
        )

    def _held(self) -> tuple[tuple[int, ...], dict[int, int]]:
        """Weights and state of every block: those of the middle one again for each that was left out."""
        held = list(self._trace.held)
        owners = {name: self._number(block) for name, block in self._trace.owners.items()}
        middle = [name for name in self._trace.held if self._trace.owners.get(name) == 1]
        for block in range(2, self._blocks - 1):
            for name in middle:
                new = self._new(self._trace.allocations[name])
                held.append(new)
                owners[new] = block
        return tuple(held), owners

    def _gradients(self, positions: dict[tuple[int, int], int]) -> tuple[Gradient, ...]:
        found = []
        for gradient in self._trace.gradients:
            place = self._places[gradient.position]
            numbers = [self._number(gradient.block)]
            if gradient.block == 1:
                numbers = list(range(1, self._blocks - 1))
            for number in numbers:
                at = (
                    number + place.block - gradient.block
                    if gradient.block == 1
                    else self._number(place.block)
                )
                if place.block in (-1, KEPT):
                    at = self._number(place.block)
                position = positions[gradient.position, at]
                found.append(gradient._replace(block=number, position=position))
        return tuple(sorted(found, key=lambda gradient: gradient.position))


def _grown(shape: tuple[int, ...], growth: float, calls: int, tensors: int) -> tuple[int, ...]:
    """Sizes of a call on a list: its elements, and the number of its tensors."""
    if not shape:
        return ()
    return round(shape[0] * growth), *(tensors if size == calls else size for size in shape[1:])


def _facts(op: Op) -> tuple[object, ...]:
    return op.name, op.family, op.dtype, op.shape, op.read_bytes, op.written_bytes, len(op.allocated)


def _places(ops: Sequence[Op]) -> Iterator[_Place]:
    """The place of each op; the update is block -2."""
    passing, before, counts = 0, "forward", dict[tuple[int, int], int]()
    for op in ops:
        if op.phase == "update":
            yield _Place(-1, -2, 0)
            continue
        if op.phase != before:
            passing, before = passing + 1, op.phase
        block = -1 if op.block is None else op.block
        position = counts.get((passing, block), 0)
        counts[passing, block] = position + 1
        yield _Place(passing, block, position)


def _runs(places: Sequence[_Place]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive ops of one block in one pass; the ops of a block must be consecutive."""
    start = 0
    seen: set[tuple[int, int]] = set()
    for index in range(1, len(places) + 1):
        ends = index == len(places) or places[index][:2] != places[start][:2]
        if ends:
            key = places[start][:2]
            if key[1] in range(KEPT) and key in seen:
                raise CannotUnfold
            seen.add(key)
            yield start, index
            start = index
