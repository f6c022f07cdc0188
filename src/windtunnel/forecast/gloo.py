"""Seconds of a collective between CPUs: gloo's rings and trees over TCP, in a host and through a network.

The same form as for GPUs: steps x hop + bytes / rate. Ranks of one host send to each other through its
loopback device, which costs one core's work at each end.
"""

from __future__ import annotations

import math

from windtunnel.forecast.paths import network_of
from windtunnel.machine.machine import Machine

# One message between two processes, and the bytes a second of a long one, through the loopback device: the
# processor time of either end, in a training step. benchmarks/exchange_constants.py on 2 cores of an AMD EPYC
# (Turin), 2026-11-19. By the clock and while other programs ran, benchmarks/gloo.py had found 150 us and
# 1.4 GB/s on a 2-core Xeon (2026-11-18).
STEP_SECONDS = 80e-6
LOOPBACK_RATE = 2.8e9


def seconds(kind: str, size_bytes: float, ranks_per_node: int, nodes: int, machine: Machine) -> float:
    """Seconds of a collective of `ranks_per_node` processes on each of `nodes` CPUs."""
    ranks = ranks_per_node * nodes
    hop, rate = STEP_SECONDS, LOOPBACK_RATE
    if nodes > 1:
        # A ring leaves each node once. A CPU machine has one device, so no other group shares its network.
        network = network_of(machine, 1)
        hop, rate = hop + network.latency_seconds, min(rate, network.rate)
    steps, passes = _steps(kind, ranks)
    return steps * hop + passes * size_bytes / rate


def _steps(kind: str, ranks: int) -> tuple[float, float]:
    """How many messages follow each other, and how many times the bytes of the tensor pass a rank."""
    if kind == "send":
        return 1.0, 1.0
    if kind in ("broadcast", "reduce"):  # a binomial tree that passes the whole tensor at each level
        depth = math.ceil(math.log2(ranks))
        return depth, depth
    rounds = 2 if kind == "all_reduce" else 1
    return rounds * (ranks - 1), rounds * (ranks - 1) / ranks
