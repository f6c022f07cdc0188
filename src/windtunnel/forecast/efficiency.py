"""How much of its specified rates a unit reaches, by family of op: simple curves where no measured profile is at hand.

A large op reaches `flop` of the arithmetic rate or `bytes` of the memory rate, whichever takes longer. A small one reaches
less because a fixed time and unused cores weigh on it. Shares are round figures for well-tuned libraries; a forecast made
with them says so and carries a wide interval.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the specified rates, and core cycles for each element where the arithmetic is not a plain vector op."""

    flop: float
    bytes: float
    element_cycles: float = 0.0


CPU = {
    "matmul": Efficiency(flop=0.85, bytes=0.8),
    "convolution": Efficiency(flop=0.6, bytes=0.7),
    "attention": Efficiency(flop=0.4, bytes=0.7),
    "recurrent": Efficiency(flop=0.5, bytes=0.7),
    "normalisation": Efficiency(flop=0.1, bytes=0.6),
    "softmax": Efficiency(flop=0.1, bytes=0.7, element_cycles=1.0),
    "reduction": Efficiency(flop=0.1, bytes=0.7),
    "indexing": Efficiency(flop=0.1, bytes=0.4),
    "pooling": Efficiency(flop=0.05, bytes=0.5),
    "random": Efficiency(flop=0.05, bytes=0.8, element_cycles=8.0),
    "optimiser": Efficiency(flop=0.2, bytes=0.8),
    "foreach": Efficiency(flop=0.2, bytes=0.8),
    "streaming": Efficiency(flop=0.2, bytes=0.8),
    "other": Efficiency(flop=0.05, bytes=0.4),
}
GPU = {
    "matmul": Efficiency(flop=0.7, bytes=0.8),
    "convolution": Efficiency(flop=0.5, bytes=0.7),
    "attention": Efficiency(flop=0.5, bytes=0.7),
    "recurrent": Efficiency(flop=0.4, bytes=0.7),
    "normalisation": Efficiency(flop=0.1, bytes=0.6),
    "softmax": Efficiency(flop=0.1, bytes=0.7),
    "reduction": Efficiency(flop=0.1, bytes=0.7),
    "indexing": Efficiency(flop=0.1, bytes=0.4),
    "pooling": Efficiency(flop=0.1, bytes=0.6),
    "random": Efficiency(flop=0.05, bytes=0.7),
    "optimiser": Efficiency(flop=0.2, bytes=0.8),
    "foreach": Efficiency(flop=0.2, bytes=0.8),
    "streaming": Efficiency(flop=0.2, bytes=0.85),
    "other": Efficiency(flop=0.05, bytes=0.4),
}

# A core reads its own caches at some bytes a cycle, and alone cannot draw the whole memory rate of its socket.
CORE_CACHE_BYTES_PER_CYCLE = 24.0
SHARED_CACHE_BYTES_PER_CYCLE = 8.0
CORE_MEMORY_RATE = 12e9
# A matrix product reaches half its share when its smallest side is this long; a product with a vector streams its matrix.
CPU_HALF_SIDE = 48.0
CPU_VECTOR_SHARE = 0.25
# The system hands out large pieces of memory afresh each time, and zeroes page after page as they are first touched.
FRESH_BYTES = 32 * MIB
FRESH_RATE = 3e9
# Cores must be woken and joined again for every op that is shared among them.
THREAD_JOIN_SECONDS = 4e-6
THREAD_GRAIN_ELEMENTS = 32768
# More threads than cores take turns, and every join waits for the one that came last.
OVERSUBSCRIBED = 1.5

# The shortest kernel of a GPU, in cycles of its clock: about a microsecond and a half on today's.
KERNEL_CYCLES = 3000.0
# One timestep of a fused recurrent call waits for the one before: that many cycles at least.
TIMESTEP_CYCLES = 2000.0
# A multiprocessor works at its rate when it has a square tile of outputs of this side; deeper products are split.
TILE_SIDE = 64
SPLIT_DEPTH = 1024
GPU_CACHE_SPEEDUP = 2.0

# How far a forecast from specified rates may be off, as a factor either way, for the unit and for the host: two of the
# same hosts differ by half, and thin products reach half of what large ones do.
UNIT_SPREAD = 2.0
HOST_SPREAD = 2.0
