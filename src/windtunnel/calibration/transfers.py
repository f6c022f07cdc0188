"""Measure copies to a GPU by size, and the sizes that its allocator rounds to."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable

import torch

from windtunnel.units import KIB, MIB

_COPIED = tuple(4 * KIB * 4**power for power in range(9))  # 4 KiB to 256 MiB
_REPEATS = 7
Timed = tuple[tuple[float, float], ...]


def measure_copies() -> dict[str, Timed]:
    """Seconds from the call of a copy to its end, from pageable and from pinned memory."""
    target = torch.empty(_COPIED[-1], dtype=torch.uint8, device="cuda")
    sources = {
        "pageable": torch.ones(_COPIED[-1], dtype=torch.uint8),
        "pinned": torch.ones(_COPIED[-1], dtype=torch.uint8).pin_memory(),
    }
    return {
        name: tuple((float(size), _copy_seconds(target[:size], source[:size])) for size in _COPIED)
        for name, source in sources.items()
    }


def _copy_seconds(target: torch.Tensor, source: torch.Tensor) -> float:
    samples = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=source.is_pinned())
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def measure_rounding() -> dict[str, int]:
    """The sizes of the allocator: requests are rounded to the grain, memory is taken in segments."""
    torch.cuda.empty_cache()
    grain = math.gcd(*(_rounded(size) for size in _odd_sizes(KIB, 64 * KIB)))
    return {
        "grain": grain,
        "small_segment": _segment(MIB),
        "medium_segment": _segment(3 * MIB),
        "large_step": math.gcd(*(_segment(size) for size in _odd_sizes(24 * MIB, 80 * MIB))),
    }


def _odd_sizes(low: int, high: int) -> Iterable[int]:
    return (low + 1 + (high - low) * i // 11 for i in range(12))


def _segment(size: int) -> int:
    """What the allocator takes from the driver if no free block is left for a tensor of this size."""
    torch.cuda.empty_cache()
    tensors, before = list[torch.Tensor](), torch.cuda.memory_reserved()
    while torch.cuda.memory_reserved() == before and len(tensors) < 1000:
        tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return torch.cuda.memory_reserved() - before


def _rounded(size: int) -> int:
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    grown = torch.cuda.memory_allocated() - before
    del tensor
    return grown
