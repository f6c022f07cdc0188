"""Two prices for every op: what the host spends to launch it and what the device spends to do it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from windtunnel.forecast import recurrent
from windtunnel.forecast.features import TENSOR_FAMILIES, Piece, Roofline, pieces_of
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import LaunchCosts, Machine, need
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace
from windtunnel.units import MIB

_LOW_PRECISION = ("tf32", "fp16", "bf16")
# A CPU with more threads than cores: threads take turns, and every join waits for the one that came last.
_OVERSUBSCRIBED = 1.5
# Ops so small stay on one thread, as in PyTorch, whose grain is some ten thousand elements.
_GRAIN_ELEMENTS = 32768
_GRAIN_FLOP = 1e6
# Fused recurrent networks up to so many units run on one core, whose own cache holds their weights.
_FUSED_UNITS = 8.0  # as a power of two, like the feature


# Compiled code starts a kernel without the dispatcher and without Python's modules: a first guess at what is left of the cost.
_COMPILED_SHARE = 0.4


# A recurrent call that starts more kernels than a microbenchmark's pays for each.
_MICROBENCHMARK_KERNELS = 20.0


# What cuBLAS's product with a bias takes while it runs.
_BIASED_WORKSPACE = MIB


class Price(NamedTuple):
    """Seconds of one op on the host lane and on the device lane, the pauses before its kernels, and bytes it needs for a while."""

    host_seconds: float
    device_seconds: float
    gap_seconds: float = 0.0
    workspace_bytes: float = 0.0


class Pricer:
    """Prices ops for one machine and strategy by a profile; remembers what it had to assume."""

    def __init__(self, machine: Machine, strategy: Strategy, trace: Trace, profile: Profile) -> None:
        assert machine.launch_costs is not None
        self.machine, self.strategy, self.profile = machine, strategy, profile
        self.launch_costs: LaunchCosts = machine.launch_costs
        self.device = machine.device
        self.threads = threads_of(machine, strategy)
        self.assumed: dict[str, float] = defaultdict(float)
        self.outside: dict[str, float] = defaultdict(float)
        self._notes: set[str] = set()
        self._tables = {
            "forward": self.launch_costs.forward,
            "backward": self.launch_costs.backward,
            "update": self.launch_costs.update,
        }
        backward = sum(op.phase == "backward" for op in trace.ops)
        forward = sum(op.phase == "forward" for op in trace.ops)
        # What autograd and modules cost beside their ops is spread over the ops of their phase.
        self._beside = {
            "forward": self.launch_costs.module_seconds * trace.module_calls / max(forward, 1),
            "backward": self.launch_costs.node_seconds * trace.nodes / max(backward, 1),
            "update": 0.0,
        }

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(sorted(self._notes))

    def price(self, ops: Sequence[Op]) -> list[Price]:
        """Prices in order. Equal ops are priced once, and all of a kind together."""
        keys = [_key(op) for op in ops]
        unique = dict(zip(keys, ops, strict=True))
        work = self._device_work(list(unique.values()))
        known = {key: self._price(op, *done) for (key, op), done in zip(unique.items(), work, strict=True)}
        for key, op in zip(keys, ops, strict=True):
            if op.family == "other":
                self.assumed[op.name] += known[key].device_seconds
        return [known[key] for key in keys]

    def _price(self, op: Op, seconds: float, kernels: float, workspace: float) -> Price:
        host = self.host_seconds(op)
        if op.family == "recurrent" and self.device.kind == "gpu":
            host += (
                max(0.0, kernels - _MICROBENCHMARK_KERNELS)
                * self.profile.launch_seconds
                * (self.machine.host_factor or 1.0)
            )
        if self.device.kind == "cpu":
            return Price(
                host, max(0.0, seconds - host) if seconds else 0.0
            )  # a CPU's timing of an op has its launching in it
        pause = self.profile.node_seconds if self.strategy.execution == "graph" else self.profile.gap_seconds
        return Price(host, seconds, kernels * pause, workspace)

    def host_seconds(self, op: Op) -> float:
        table = self._tables[op.phase]
        seconds = table.get(op.family, table["other"]) + self.launch_costs.tensor_seconds * (op.calls - 1)
        if self.strategy.execution == "compiled" and op.phase != "update":
            seconds *= _COMPILED_SHARE
        return seconds + self._beside[op.phase]

    def _device_work(self, ops: Sequence[Op]) -> list[tuple[float, float, float]]:
        """Seconds, kernels and workspace of each op; nothing for a view, which moves no data."""
        pieces: list[Piece] = []
        owners: list[int] = []
        for number, op in enumerate(ops):
            own = [] if op.family in ("view", "host") else self._pieces(op)
            pieces += own
            owners += [number] * len(own)
        seconds = self._seconds(pieces)
        held = self.profile.workspace(pieces) if self.device.kind == "gpu" else [0.0] * len(pieces)
        work = [[0.0, 0.0, 0.0] for _ in ops]
        for owner, piece, spent, bytes_held in zip(owners, pieces, seconds, held, strict=True):
            entry = work[owner]
            entry[0] += spent
            entry[1] += self.profile.kernels(piece)
            entry[2] = max(entry[2], bytes_held)
            if piece.kind not in self.profile.kinds and ops[owner].family == "fused":
                self._notes.add(
                    f"{piece.kind} was never probed for {self.machine.name}: it is bounded by rates of the whole device, of which it uses a part"
                )
            if self.profile.is_outside(piece):
                self.outside[ops[owner].name] += spent
        return [
            (spent, kernels, max(workspace, self._library_workspace(op, kernels)))
            for op, (spent, kernels, workspace) in zip(ops, work, strict=True)
        ]

    def _library_workspace(self, op: Op, kernels: float) -> float:
        """Workspace that follows from how a library works, beside what was learned op by op."""
        if self.device.kind != "gpu":
            return 0.0
        if op.family == "recurrent" and len(op.shape) == 7:
            return recurrent.library_bytes(
                self.profile.sums, op.shape, op.dtype, backward="backward" in op.name, kernels=kernels
            )
        if op.family == "fused" and len(op.shape) == 6:
            return recurrent.fused_bytes(op.shape, backward="backward" in op.name)
        return float(_BIASED_WORKSPACE) if op.name == "aten.addmm" else 0.0

    def _seconds(self, pieces: Sequence[Piece]) -> list[float]:
        if self.device.kind == "gpu":
            return self.profile.seconds(pieces, self._roofline(1), 1)
        cores = int(need(self.machine, "device.cores"))
        many = min(self.threads, cores)
        alone, together = (
            self.profile.seconds(pieces, self._roofline(1), 1),
            self.profile.seconds(pieces, self._roofline(many), many),
        )
        crowd = max(1.0, self.threads / cores) * _OVERSUBSCRIBED if self.threads > cores else 1.0
        return [
            (b * crowd if _is_shared(piece) else a)
            for piece, a, b in zip(pieces, alone, together, strict=True)
        ]

    def _pieces(self, op: Op) -> list[Piece]:
        tf32 = (
            self.device.kind == "gpu"
            and op.dtype == "fp32"
            and self.strategy.precision == "tf32"
            and op.family in TENSOR_FAMILIES
        )
        dtype = self._known_format("tf32" if tf32 else op.dtype, op.family)
        return pieces_of(
            op.name,
            op.family,
            dtype,
            op.shape,
            op.flop,
            op.read_bytes,
            op.written_bytes,
            op.calls,
            self.device.cores or 1,
        )

    def _known_format(self, dtype: str, family: str) -> str:
        if family in TENSOR_FAMILIES and dtype in _LOW_PRECISION and dtype not in self.device.flop_rates:
            self._notes.add(
                f"{self.machine.name} states no {dtype} rate; {dtype} products are priced at its fp32 rate"
            )
        return dtype

    def _roofline(self, threads: int) -> Roofline:
        return roofline_of(self.machine, self.profile, threads)


def workspaces(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> list[float]:
    """Bytes that each op of a trace needs beside its tensors while it runs."""
    return [price.workspace_bytes for price in Pricer(machine, strategy, trace, profile).price(trace.ops)]


def roofline_of(machine: Machine, profile: Profile, threads: int = 1) -> Roofline:
    """The machine's rates as a roofline; of a CPU, as much of them as so many threads can draw."""
    device = machine.device
    need(machine, "device.flop_rates.fp32")
    memory_rate = need(machine, "device.memory_rate")
    fixed = profile.fixed_seconds
    if device.kind == "gpu":
        return Roofline(
            flop_rates=device.flop_rates,
            memory_rate=memory_rate,
            cache_bytes=device.cache_bytes or 0.0,
            fixed_seconds=fixed,
            cores=device.cores or 1,
        )
    cores = int(need(machine, "device.cores"))
    share = min(threads, cores) / cores
    one_core = device.core_memory_rate or memory_rate / min(cores, 4)
    return Roofline(
        flop_rates={name: rate * share for name, rate in device.flop_rates.items()},
        memory_rate=min(memory_rate, one_core * min(threads, cores)),
        cache_bytes=device.cache_bytes or 0.0,
        fixed_seconds=fixed,
        cores=cores,
    )


def _is_shared(piece: Piece) -> bool:
    """Whether a CPU shares the piece among its threads."""
    if piece.kind.startswith("fused"):
        return piece.features[3] > _FUSED_UNITS
    if piece.kind.partition(" ")[0] in TENSOR_FAMILIES:
        return piece.flop > _GRAIN_FLOP
    return piece.bytes / 12 > _GRAIN_ELEMENTS


def _key(op: Op) -> tuple[object, ...]:
    return op.name, op.phase, op.dtype, op.shape, op.flop, op.read_bytes, op.written_bytes, op.calls


def threads_of(machine: Machine, strategy: Strategy) -> int:
    """The threads a CPU step runs on: those asked for, else one for each physical core, as PyTorch does."""
    if strategy.threads is not None:
        return strategy.threads
    return machine.device.cores or 1 if machine.device.kind == "cpu" else 1
