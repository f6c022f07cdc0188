"""Where bytes are put: PyTorch's caching allocator on a GPU, and plain memory on a CPU.

The rules are those of PyTorch's c10/cuda/CUDACachingAllocator.cpp with its default settings. Memory is taken from the driver in
segments, which are cut into blocks; a freed block joins its free neighbours and stays with the process.

>>> pools = Pools()
>>> block = pools.take(3 * MIB)
>>> block.size // MIB, pools.allocated // MIB, pools.reserved // MIB
(3, 3, 20)
>>> pools.free(block)
>>> pools.allocated, pools.reserved // MIB
(0, 20)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from windtunnel.units import MIB

SMALL = 1 * MIB  # up to here a request is served by the small pool
MEDIUM = 10 * MIB  # below here a larger one shares a segment, and from there on has its own
CPU_GRAIN = 64

Shelf = list[tuple[Any, ...]]  # (size, address, block) of free blocks, from small to large


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Sizes are whole multiples of the grain. Segments are of one size in the small pool, of another below MEDIUM, and from there on
    multiples of the step. A probe measures all four; these are the allocator's defaults."""

    grain: int = 512
    small_segment: int = 2 * MIB
    medium_segment: int = 20 * MIB
    large_step: int = 2 * MIB


class Block:
    """A piece of a segment, with the pieces before and after it. `shelf` is where it lies when it is free."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "shelf", "size")

    def __init__(self, address: int, size: int, shelf: Shelf, is_small: bool) -> None:
        self.address, self.size, self.shelf, self.is_small = address, size, shelf, is_small
        self.is_free = False
        self.before: Block | None = None
        self.after: Block | None = None


class Pools:
    """The caching allocator of one GPU.

    `allocated` sums the blocks in use, of which some are larger than was asked; `reserved` sums the segments. A stream, or a graph
    under capture, finds only blocks that were made for it.
    """

    def __init__(self, rounding: Rounding | None = None) -> None:
        self.rounding = rounding or Rounding()
        self.allocated = self.reserved = self.most_reserved = 0
        self._shelves: defaultdict[tuple[str, bool], Shelf] = defaultdict(list)
        self._next_address = 0

    def take(self, size: float, stream: str = "") -> Block:
        """The smallest free block that is large enough, of equal ones the lowest; cut to size where a useful rest is left."""
        grain = self.rounding.grain
        wanted = -(-int(size) // grain) * grain or grain
        is_small = wanted <= SMALL
        shelf = self._shelves[stream, is_small]
        place = bisect_left(shelf, (wanted,))
        block = shelf.pop(place)[2] if place < len(shelf) else self._take_segment(wanted, shelf, is_small)
        rest = block.size - wanted
        if rest >= grain if is_small else rest > SMALL:
            self._cut(block, wanted)
        block.is_free = False
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Give a block back to its pool, as one with its free neighbours."""
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.is_free:
            _unshelve(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.is_free:
            _unshelve(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        block.is_free = True
        insort(block.shelf, (block.size, block.address, block))

    def release(self) -> None:
        """Give segments without a block in use back to the driver, as torch.cuda.empty_cache does."""
        for shelf in self._shelves.values():
            kept = [entry for entry in shelf if entry[2].before is not None or entry[2].after is not None]
            self.reserved -= sum(size for size, _, _ in shelf) - sum(size for size, _, _ in kept)
            shelf[:] = kept

    def _take_segment(self, wanted: int, shelf: Shelf, is_small: bool) -> Block:
        rules = self.rounding
        size = (
            -(-wanted // rules.large_step) * rules.large_step
            if wanted >= MEDIUM
            else rules.small_segment
            if is_small
            else rules.medium_segment
        )
        block = Block(self._next_address, size, shelf, is_small)
        self._next_address += size
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        return block

    def _cut(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.shelf, block.is_small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        rest.is_free = True
        insort(rest.shelf, (rest.size, rest.address, rest))


class Heap:
    """Memory of a CPU: what is asked for, rounded, and no more."""

    def __init__(self) -> None:
        self.allocated = 0

    def take(self, size: float, stream: str = "") -> Block:
        block = Block(0, -(-int(size) // CPU_GRAIN) * CPU_GRAIN, [], False)
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        self.allocated -= block.size


def _unshelve(block: Block) -> None:
    del block.shelf[bisect_left(block.shelf, (block.size, block.address))]
