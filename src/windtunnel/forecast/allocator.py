"""Models of two allocators: PyTorch's caching allocator on a GPU, and plain memory on a CPU.

The rules are those of PyTorch's c10/cuda/CUDACachingAllocator.cpp with its default settings. The allocator
takes segments from the driver and splits them into blocks. A freed block merges with free blocks next to it
and stays with the process. `expandable.py` has the rules of expandable segments.

>>> pools = Pools()
>>> block = pools.take(3 * MIB)
>>> block.size // MIB, pools.allocated // MIB, pools.reserved // MIB
(3, 3, 20)
>>> pools.free(block)
>>> pools.allocated, pools.reserved // MIB
(0, 20)
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from windtunnel.units import MIB

SMALL = 1 * MIB  # requests up to this size use the small pool
MEDIUM = 10 * MIB  # larger requests below this size share a segment; the others get their own
CPU_GRAIN = 64
# The C library (glibc) serves CPU tensors below 32 MiB from a heap. Free memory between
# live blocks stays resident. It is this share of them, the median of ten tuning networks (0.06 to 0.7,
# benchmarks/cpu_memory.py).
# Larger tensors are mapped and returned one by one.
HEAP_BLOCK, HEAP_FRAGMENTATION = 32 * MIB, 0.43

FreeList = list[tuple[Any, ...]]  # (size, address, block), smallest first
Pool = tuple[str, bool]  # a stream, and whether its blocks are small


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How the allocator rounds sizes. Defaults are PyTorch's; a probe measures all four.

    A block is a multiple of `grain`. A segment has one size in the small pool and another one below MEDIUM;
    a larger segment is a multiple of `large_step`.
    """

    grain: int = 512
    small_segment: int = 2 * MIB
    medium_segment: int = 20 * MIB
    large_step: int = 2 * MIB


class Block:
    """A piece of a segment, linked to the pieces before and after it. `free_list` holds it while it is
    free."""

    __slots__ = ("address", "after", "before", "free_list", "is_free", "is_mapped", "is_small", "size")

    def __init__(self, address: int, size: int, free_list: FreeList, is_small: bool) -> None:
        self.address, self.size, self.free_list, self.is_small = address, size, free_list, is_small
        self.is_free, self.is_mapped = False, True
        self.before: Block | None = None
        self.after: Block | None = None


class Exhausted(Exception):
    """The device has no memory left, although all unused segments were returned."""


class Pools:
    """The caching allocator of one GPU.

    `allocated` sums the blocks in use, which may be larger than requested; `reserved` sums the segments.
    Each stream, and each graph under capture, has its own blocks. `limit` is the memory of the device: before
    a segment would exceed it, unused segments are returned, as PyTorch does when the driver refuses one. If
    that is not enough, the allocation fails with `Exhausted`.
    """

    def __init__(self, rounding: Rounding | None = None, limit: float = math.inf) -> None:
        self.rounding, self.limit = rounding or Rounding(), limit
        self.allocated = self.reserved = self.most_reserved = 0
        self._free_lists: defaultdict[Pool, FreeList] = defaultdict(list)
        self._next_address = 0
        self._grain = self.rounding.grain
        self._least_rest = SMALL + 1  # the smallest rest of a large block that is split off

    def take(self, size: float, stream: str = "") -> Block:
        """Allocate the smallest free block that is large enough; split it if the rest is useful."""
        grain = self._grain
        wanted = -(-int(size) // grain) * grain or grain
        pool = stream, wanted <= SMALL
        free_list = self._free_lists[pool]
        place = self._best_fit(free_list, wanted)
        block: Block = free_list.pop(place)[2] if place < len(free_list) else self._take_segment(wanted, pool)
        rest = block.size - wanted
        if rest and rest >= (grain if block.is_small else self._least_rest):
            self._split(block, wanted)
        block.is_free = False
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Return a block to its pool and merge it with the free blocks next to it."""
        self.allocated -= block.size
        self._set_free(block)

    def _set_free(self, block: Block) -> Block:
        before, after = block.before, block.after
        if before is not None and before.is_free:
            remove_free(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.is_free:
            remove_free(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        block.is_free = True
        insort(block.free_list, (block.size, block.address, block))
        return block

    def release(self) -> None:
        """Return unused segments to the driver, as torch.cuda.empty_cache does."""
        for free_list in self._free_lists.values():
            in_use = [
                entry for entry in free_list if entry[2].before is not None or entry[2].after is not None
            ]
            self.reserved -= sum(size for size, _, _ in free_list) - sum(size for size, _, _ in in_use)
            free_list[:] = in_use

    def _best_fit(self, free_list: FreeList, wanted: int) -> int:
        """The index of the smallest block that is large enough; the end of the list if there is none."""
        return bisect_left(free_list, (wanted,))

    def _take_segment(self, wanted: int, pool: Pool) -> Block:
        rules, is_small = self.rounding, pool[1]
        size = (
            -(-wanted // rules.large_step) * rules.large_step
            if wanted >= MEDIUM
            else rules.small_segment
            if is_small
            else rules.medium_segment
        )
        if self.reserved + size > self.limit:
            self.release()
            if self.reserved + size > self.limit:
                raise Exhausted
        block = Block(self._next_address, size, self._free_lists[pool], is_small)
        self._next_address += size
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.free_list, block.is_small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        rest.is_free = True
        insort(rest.free_list, (rest.size, rest.address, rest))


class Heap:
    """Resident memory of a CPU: requested sizes, rounded up, and fragmentation."""

    def __init__(self) -> None:
        self._mapped = self._in_heap = 0

    @property
    def allocated(self) -> int:
        return self._mapped + int(self._in_heap * (1 + HEAP_FRAGMENTATION))

    def take(self, size: float, stream: str = "") -> Block:
        block = Block(0, -(-int(size) // CPU_GRAIN) * CPU_GRAIN, [], False)
        self._count(block.size, block.size)
        return block

    def free(self, block: Block) -> None:
        self._count(block.size, -block.size)

    def _count(self, size: int, change: int) -> None:
        if size < HEAP_BLOCK:
            self._in_heap += change
        else:
            self._mapped += change


def remove_free(block: Block) -> None:
    """Take a block from its free list."""
    del block.free_list[bisect_left(block.free_list, (block.size, block.address))]
