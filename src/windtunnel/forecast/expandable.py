"""PyTorch's caching allocator with expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).

Each stream has one segment of small blocks and one of large blocks. A segment is a range of addresses that
has no end. The driver maps memory to it page by page, where blocks need it. So a segment grows in place, and
free pages go back to the driver one by one: only what lies free within a page is lost.

>>> pools = ExpandablePools()
>>> first, second = pools.take(30 * MIB), pools.take(30 * MIB)
>>> pools.reserved // MIB  # three pages of 20 MiB hold both
60
>>> pools.free(first)
>>> pools.release()
>>> pools.reserved // MIB  # the second block lies in the second and third page
40
"""

from __future__ import annotations

from bisect import insort

from windtunnel.forecast.allocator import Block, Exhausted, FreeList, Pool, Pools, Rounding, remove_free
from windtunnel.units import MIB

_ENDLESS = 2**60 // (20 * MIB) * (20 * MIB)  # addresses of a segment: more than any device has, in pages


class ExpandablePools(Pools):
    """The caching allocator of one GPU with expandable segments.

    A page is as large as a segment of `Rounding`: 2 MiB for small blocks, 20 MiB for large ones.
    """

    def __init__(self, rounding: Rounding | None = None, limit: float = float("inf")) -> None:
        super().__init__(rounding, limit)
        self._unmapped: dict[Pool, list[Block]] = {}  # ranges without memory, by address
        self._least_rest = self._grain

    def release(self) -> None:
        """Return free pages to the driver."""
        for pool, free_list in self._free_lists.items():
            for _, _, block in list(free_list):
                self._unmap(block, pool)

    def _best_fit(self, free_list: FreeList, wanted: int) -> int:
        """As in `Pools`, but a block that can grow counts with the size to which it can grow."""
        place = super()._best_fit(free_list, wanted)
        while place + 1 < len(free_list) and _reach(free_list[place + 1][2]) < _reach(free_list[place][2]):
            place += 1
        return place

    def _take_segment(self, wanted: int, pool: Pool) -> Block:
        """Map memory at the lowest address with enough room. Before it fails, free pages are returned."""
        try:
            block = self._grow(wanted, pool)
        except Exhausted:
            self.release()
            block = self._grow(wanted, pool)
        remove_free(block)
        return block

    def _grow(self, wanted: int, pool: Pool) -> Block:
        block = self._find_room(wanted, pool)
        while not block.is_free or block.size < wanted:
            hole = block.after if block.is_free else block
            assert hole is not None, "a segment has no end"
            here = block.size if block.is_free else 0
            block = self._map(hole, min(wanted - here, hole.size), pool)
        return block

    def _find_room(self, wanted: int, pool: Pool) -> Block:
        """The lowest range without memory, or the free block before it, from which `wanted` bytes are
        free."""
        holes = self._unmapped.setdefault(pool, [])
        if not holes:
            holes.append(_hole(0, _ENDLESS, self._free_lists[pool], pool[1]))
        for hole in holes:
            first = hole.before if hole.before is not None and hole.before.is_free else hole
            size, block = 0, first
            while block is not None and (block.is_free or not block.is_mapped):
                size += block.size
                if size >= wanted:
                    return first
                block = block.after  # type: ignore[assignment]
        raise AssertionError("a segment has no end")

    def _map(self, hole: Block, size: int, pool: Pool) -> Block:
        """Map memory to whole pages from the start of a hole. Returns the free block that they become part
        of."""
        page = self._page(pool)
        size = -(-size // page) * page
        if self.reserved + size > self.limit:
            raise Exhausted
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        holes = self._unmapped[pool]
        place = holes.index(hole)
        if size < hole.size:
            rest = _hole(hole.address + size, hole.size - size, hole.free_list, hole.is_small)
            _link(rest, before=hole, after=hole.after)
            hole.size, holes[place] = size, rest
        else:
            del holes[place]
        hole.is_mapped = True
        return self._set_free(hole)

    def _unmap(self, block: Block, pool: Pool) -> None:
        """Return the whole pages of a free block to the driver; the rest of the block stays free."""
        page = self._page(pool)
        first, last = -(-block.address // page) * page, (block.address + block.size) // page * page
        if first >= last:
            return
        remove_free(block)
        start, end = block.address, block.address + block.size
        block.address, block.size = first, last - first
        block.is_free = block.is_mapped = False
        if last < end:
            back = Block(last, end - last, block.free_list, block.is_small)
            _link(back, before=block, after=block.after)
            self._set_free(back)
        if start < first:
            front = Block(start, first - start, block.free_list, block.is_small)
            _link(front, before=block.before, after=block)
            self._set_free(front)
        self.reserved -= block.size
        self._add_hole(block, pool)

    def _add_hole(self, block: Block, pool: Pool) -> None:
        """Merge a range without memory with those next to it."""
        holes = self._unmapped[pool]
        after, before = block.after, block.before
        if after is not None and not after.is_mapped:
            block.size += after.size
            _link(block, before=block.before, after=after.after)
            holes.remove(after)
        if before is not None and not before.is_mapped:
            before.size += block.size
            _link(before, before=before.before, after=block.after)
        else:
            insort(holes, block, key=lambda hole: hole.address)

    def _page(self, pool: Pool) -> int:
        return self.rounding.small_segment if pool[1] else self.rounding.medium_segment


def _reach(block: Block) -> int:
    """The size that a block can grow to."""
    return block.size + (block.after.size if block.after is not None and not block.after.is_mapped else 0)


def _hole(address: int, size: int, free_list: FreeList, is_small: bool) -> Block:
    hole = Block(address, size, free_list, is_small)
    hole.is_mapped = False
    return hole


def _link(block: Block, *, before: Block | None, after: Block | None) -> None:
    block.before, block.after = before, after
    if before is not None:
        before.after = block
    if after is not None:
        after.before = block
