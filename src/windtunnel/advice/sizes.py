"""About how large a batch fits, without tracing another one."""

from __future__ import annotations

from windtunnel.advice.contract import Situation

# Parts of memory that do not grow with the batch.
_FIXED = ("weights", "gradients", "optimiser")
_ROOM = 0.95  # of what a straight line says: the allocator rounds


def batch_that_fits(situation: Situation) -> int:
    """Examples of one device that probably fit, by a straight line through memory and batch; 0 if none."""
    memory, own = situation.forecast.memory, situation.setup.per_device
    if memory.capacity_bytes is None:
        return own
    fixed = memory.context_bytes + sum(memory.parts.get(part, 0.0) for part in _FIXED)
    growing = max(memory.total_bytes - fixed, 1.0) / own
    return max(0, int(_ROOM * (memory.capacity_bytes - fixed) / growing))
