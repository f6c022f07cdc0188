"""Two prices for every op: what the host spends to issue it and what the unit spends to do it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.forecast import efficiency
from windtunnel.machine import Issue, Machine, need
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace

_LOW_PRECISION = ("tf32", "fp16", "bf16")
_TENSOR_FAMILIES = ("matmul", "convolution", "attention", "recurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Seconds of one op on the host lane and on the unit lane."""

    host_seconds: float
    unit_seconds: float


class Pricer:
    """Prices ops for one machine and strategy; remembers what it had to assume."""

    def __init__(self, machine: Machine, strategy: Strategy, trace: Trace) -> None:
        assert machine.issue is not None
        self.machine = machine
        self.issue: Issue = machine.issue
        self.unit = machine.unit
        self.strategy = strategy
        self.threads = threads_of(machine, strategy)
        self.assumed: dict[str, float] = defaultdict(float)
        backward = sum(op.phase == "backward" for op in trace.ops)
        self._node_seconds = self.issue.node_seconds * trace.nodes / backward if backward else 0.0
        forward = sum(op.phase == "forward" for op in trace.ops)
        self._module_seconds = self.issue.module_seconds * trace.module_calls / forward if forward else 0.0
        self._allocations = trace.allocations
        self._notes: set[str] = set()

    def price(self, ops: Sequence[Op]) -> list[Price]:
        """Prices in order. Equal ops are priced once."""
        known: dict[tuple[object, ...], Price] = {}
        prices = []
        for op in ops:
            key = (op.name, op.phase, op.dtype, op.shape, op.flop, op.read_bytes, op.written_bytes, op.calls, len(op.born))
            if key not in known:
                known[key] = Price(host_seconds=self.host_seconds(op), unit_seconds=self.unit_seconds(op))
            prices.append(known[key])
            if op.family == "other":
                self.assumed[op.name] += known[key].unit_seconds
        return prices

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(sorted(self._notes))

    def host_seconds(self, op: Op) -> float:
        table = {"forward": self.issue.forward, "backward": self.issue.backward, "update": self.issue.update}[op.phase]
        seconds = table.get(op.family, table["other"]) + self.issue.tensor_seconds * (op.calls - 1)
        if op.phase == "backward":
            seconds += self._node_seconds
        return seconds + (self._module_seconds if op.phase == "forward" else 0.0)

    def unit_seconds(self, op: Op) -> float:
        """Zero for a view, which moves no data; never less than the shortest kernel for anything else on a GPU."""
        if op.family == "view":
            return 0.0
        return self._gpu_seconds(op) if self.unit.kind == "gpu" else self._cpu_seconds(op)

    def _cpu_seconds(self, op: Op) -> float:
        share = efficiency.CPU[op.family]
        threads = self._useful_threads(op)
        cores = need(self.machine, "unit.cores")
        clock = need(self.machine, "unit.clock_rate")
        flop_rate = self._flop_rate(op) * min(threads, cores) / cores * share.flop * _side_share(op)
        moved = op.read_bytes + op.written_bytes
        seconds = max(
            op.flop / flop_rate,
            moved / self._cpu_byte_rate(moved, threads, clock) / share.bytes,
            math.prod(op.shape) * share.element_cycles / (clock * min(threads, cores)),
        )
        seconds += self._fresh_bytes(op) / (efficiency.FRESH_RATE * min(threads, cores) ** 0.5)
        if threads == 1:
            return float(seconds)
        crowd = max(1.0, threads / cores) * efficiency.OVERSUBSCRIBED if threads > cores else 1.0
        return float(seconds * crowd + efficiency.THREAD_JOIN_SECONDS * crowd)

    def _fresh_bytes(self, op: Op) -> float:
        """Newborn memory so large that the system gives it page by page."""
        sizes = (self._allocations[name].bytes for name in op.born)
        return sum(size for size in sizes if size >= efficiency.FRESH_BYTES)

    def _useful_threads(self, op: Op) -> int:
        """Small ops stay on one thread, as in PyTorch, whose grain is some ten thousand elements."""
        size = max(math.prod(op.shape), (op.read_bytes + op.written_bytes) / 12)
        busy = op.flop > 1e6 if op.family in _TENSOR_FAMILIES else size > efficiency.THREAD_GRAIN_ELEMENTS
        return self.threads if busy else 1

    def _cpu_byte_rate(self, moved: float, threads: int, clock: float) -> float:
        """From the cache that holds what the op touches, else from memory, of which one core cannot draw all."""
        cores = min(threads, int(need(self.machine, "unit.cores")))
        if self.unit.core_cache_bytes and moved <= self.unit.core_cache_bytes * cores:
            return clock * efficiency.CORE_CACHE_BYTES_PER_CYCLE * cores
        if self.unit.cache_bytes and moved <= self.unit.cache_bytes / 2:
            return clock * efficiency.SHARED_CACHE_BYTES_PER_CYCLE * cores
        one_core = self.unit.core_memory_rate or efficiency.CORE_MEMORY_RATE
        return min(need(self.machine, "unit.memory_rate"), one_core * cores)

    def _gpu_seconds(self, op: Op) -> float:
        share = efficiency.GPU[op.family]
        clock = self.unit.clock_rate or 1.5e9
        moved = op.read_bytes + op.written_bytes
        byte_rate = need(self.machine, "unit.memory_rate") * share.bytes
        if self.unit.cache_bytes and moved < self.unit.cache_bytes / 2:
            byte_rate *= efficiency.GPU_CACHE_SPEEDUP
        arithmetic = op.flop / (self._flop_rate(op) * share.flop * self._busy_share(op))
        fixed = efficiency.KERNEL_CYCLES / clock
        if op.name.startswith("windtunnel.recurrent"):
            fixed *= self._timesteps(op) * efficiency.TIMESTEP_CYCLES / efficiency.KERNEL_CYCLES
        return max(arithmetic, moved / byte_rate) + fixed

    def _busy_share(self, op: Op) -> float:
        """The share of multiprocessors that a matrix product of this size can use; deep ones are split further."""
        if op.family != "matmul" or not self.unit.cores:
            return 1.0
        batch, rows, columns, depth = op.shape
        tiles = batch * math.ceil(rows / efficiency.TILE_SIDE) * math.ceil(columns / efficiency.TILE_SIDE) * max(1.0, depth / efficiency.SPLIT_DEPTH)
        return min(1.0, tiles / self.unit.cores)

    def _timesteps(self, op: Op) -> int:
        return op.shape[0] if op.shape else 1

    def _flop_rate(self, op: Op) -> float:
        """The rate for the op's number format; matrix units serve products only."""
        wanted = op.dtype
        if self.unit.kind == "gpu" and wanted == "fp32" and self.strategy.precision == "tf32" and op.family in _TENSOR_FAMILIES:
            wanted = "tf32"
        if op.family not in _TENSOR_FAMILIES and wanted in _LOW_PRECISION:
            wanted = "fp32"
        rate = self.unit.flop_rates.get(wanted)
        if rate is not None:
            return rate
        self._notes.add(f"{self.machine.name} states no {wanted} rate; {wanted} products are priced at its fp32 rate")
        return need(self.machine, "unit.flop_rates.fp32")


def _side_share(op: Op) -> float:
    """What a CPU loses on a thin matrix product, whose packing is not paid back."""
    if op.family != "matmul":
        return 1.0
    side = min(op.shape[1:])
    return efficiency.CPU_VECTOR_SHARE if side == 1 else side / (side + efficiency.CPU_HALF_SIDE)


def threads_of(machine: Machine, strategy: Strategy) -> int:
    """The threads a CPU step runs on: those asked for, else one for each physical core, as PyTorch does."""
    if strategy.threads is not None:
        return strategy.threads
    return machine.unit.cores or 1 if machine.unit.kind == "cpu" else 1
