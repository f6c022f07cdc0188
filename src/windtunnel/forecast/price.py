"""Price every op twice: what the host spends to launch it, and what the device spends to run it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from windtunnel import families
from windtunnel.families import Piece, registry
from windtunnel.families.arithmetic import is_custom_op, is_unprobed
from windtunnel.families.base import GENERATED
from windtunnel.forecast.inference_costs import inference_costs
from windtunnel.forecast.profile import UNPROBED_SPREAD, Profile
from windtunnel.forecast.roofline import Roofline
from windtunnel.forecast.transfer import TENSOR_FORMATS, Transfer, sustained_share
from windtunnel.machine.machine import Device, LaunchCosts, Machine, need
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace

# A CPU with more threads than cores: threads take turns, and every join waits for the last one.
_OVERSUBSCRIBED = 1.5
# The longest that the call of an op takes on a CPU, whatever its size; the rest is work. An assumption, which
# only divides an op's time between launch and compute.
_MOST_CALL_SECONDS = 2e-5
# The share of the launch cost that remains in compiled code on a CPU, which calls neither the dispatcher nor
# Python modules. A guess.
_COMPILED_SHARE = 0.4
# Calls of the microbenchmarks launch up to this many kernels. Each further kernel of a call costs the host
# extra.
_MICROBENCHMARK_KERNELS = 20.0
_FIRST_TENSOR_CORES = 7.0  # the compute capability of Volta
# Host costs of each forward or backward of a compiled region, and of each weight that it uses. If they were
# not probed, the costs of a module call and of an autograd node are used.
_REGION, _WEIGHT = "region", "weight"
# Host costs: the minimum for a library call from compiled code, and a generated kernel in inference.
_LIBRARY, _WITHOUT_GRADIENTS = "library", f"{GENERATED} inference"


class Price(NamedTuple):
    """Seconds of an op on the host and on the device, pauses before its kernels, and workspace."""

    host_seconds: float
    device_seconds: float
    gap_seconds: float = 0.0
    workspace_bytes: float = 0.0


class DeviceWork(NamedTuple):
    """What the device does for one op; `fixed_seconds` of it do not depend on the op's size."""

    seconds: float
    fixed_seconds: float
    kernels: float
    workspace_bytes: float


class Timed(NamedTuple):
    """Seconds of a piece on the device, and how certain they are.

    weak_share    the share of them whose limit transfers poorly from the probed GPU
    is_sustained  whether its rate was seen in long training runs
    is_one_unit   whether one slow hardware unit sets the time, whichever kernel a library chooses
    """

    seconds: float
    weak_share: float = 0.0
    is_sustained: bool = False
    is_one_unit: bool = False


class PricedPiece(NamedTuple):
    """A piece of work with its time. `spread`: four of five held-out ops of its kind were within this factor
    of their forecast."""

    piece: Piece
    timed: Timed
    spread: float


class Pricer:
    """Prices ops for one machine and strategy by a profile, and remembers what it had to assume."""

    def __init__(self, machine: Machine, strategy: Strategy, trace: Trace, profile: Profile) -> None:
        assert machine.launch_costs is not None
        self.machine, self.strategy, self.profile = machine, strategy, profile
        self._probed = probed_machine(machine, profile)
        self.launch_costs: LaunchCosts = machine.launch_costs
        self.device = machine.device
        if strategy.inference and strategy.execution == "eager" and self.device.kind == "cpu":
            self.launch_costs = inference_costs(machine.launch_costs)
        self.threads = threads_of(machine, strategy)
        self.assumed: dict[str, float] = defaultdict(float)
        self.outside: dict[str, float] = defaultdict(float)
        self._notes: set[str] = set()
        # The values keep the ops alive, so that their ids stay unique.
        self._known_keys: dict[int, tuple[Op, tuple[object, ...]]] = {}
        self._known_prices: dict[tuple[object, ...], Price] = {}
        self._known_pieces: dict[tuple[object, ...], list[PricedPiece]] = defaultdict(list)
        self._last: tuple[Sequence[Op], list[Price]] | None = None
        self.compilation = trace.compilation
        self._is_compiled = trace.compilation is not None
        self.generated = sum(op.calls for op in trace.ops if op.is_generated)
        self._tables = {
            "forward": self.launch_costs.forward,
            "backward": self.launch_costs.backward,
            "update": self.launch_costs.update,
        }
        backward = sum(op.phase == "backward" for op in trace.ops)
        forward = sum(op.phase == "forward" for op in trace.ops)
        # The costs of autograd and of modules are spread over the ops of their phase.
        self._overheads = {
            "forward": self._call_seconds(trace) / max(forward, 1),
            "backward": self._node_seconds() * trace.nodes / max(backward, 1),
            "update": 0.0,
        }

    def _call_seconds(self, trace: Trace) -> float:
        """Host seconds to call modules, or to replay captured graphs (one forward and one backward for
        each)."""
        if self.strategy.execution == "reduce-overhead":
            return 2 * self.launch_costs.graph_seconds * trace.module_calls
        seconds = self.launch_costs.module_seconds
        if self._is_compiled:
            passes = 1 if self.strategy.inference else 2
            seconds = passes * self.launch_costs.forward.get(_REGION, seconds)
        return seconds * trace.module_calls

    def _node_seconds(self) -> float:
        """The cost of a node of the autograd graph. The nodes of a compiled step are its weights."""
        seconds = self.launch_costs.node_seconds
        return self.launch_costs.forward.get(_WEIGHT, seconds) if self._is_compiled else seconds

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(sorted(self._notes))

    def price(self, ops: Sequence[Op]) -> list[Price]:
        """The price of each op, in order. Equal ops are priced once; all ops of a kind are priced
        together."""
        if self._last is not None and self._last[0] is ops:
            return self._last[1]
        keys = self._keys(ops)
        unique = dict(zip(keys, ops, strict=True))
        known = self._known_prices
        new = {key: op for key, op in unique.items() if key not in known}
        work = self._device_work(list(new.values()))
        known.update({key: self._price(op, done) for (key, op), done in zip(new.items(), work, strict=True)})
        prices = [known[key] for key in keys]
        for op, price in zip(ops, prices, strict=True):
            if op.family == families.OTHER:
                self.assumed[op.name] += price.device_seconds
        if not all(map(families.has_known_sizes, unique.values())):
            self._note_unknown_sizes(ops, prices)
        self._last = ops, prices
        return prices

    def _keys(self, ops: Sequence[Op]) -> list[tuple[object, ...]]:
        """A key for each op of all that its price depends on."""
        known, keys = self._known_keys, []
        for op in ops:
            entry = known.get(id(op))
            if entry is None:
                entry = known[id(op)] = op, _key(op)
            keys.append(entry[1])
        return keys

    def pieces(self, ops: Sequence[Op]) -> list[tuple[PricedPiece, int]]:
        """The distinct pieces of work of priced ops, and how many times each runs."""
        counts = Counter(self._keys(ops))
        return [(piece, count) for key, count in counts.items() for piece in self._known_pieces.get(key, ())]

    def _note_unknown_sizes(self, ops: Sequence[Op], prices: Sequence[Price]) -> None:
        unknown: dict[str, float] = defaultdict(float)
        for op, price in zip(ops, prices, strict=True):
            if not families.has_known_sizes(op):
                unknown[op.name] += price.device_seconds
        whole = sum(price.device_seconds for price in prices) or 1.0
        for name, seconds in unknown.items():
            self._notes.add(
                f"the sizes of {name} could not be read; priced by its bytes: "
                f"{seconds / whole:.1%} of the device's time"
            )

    def _price(self, op: Op, work: DeviceWork) -> Price:
        host, family = self.host_seconds(op), registry.get(op.family)
        if self.device.kind == "cpu":
            # The timing of an op on a CPU includes its own launch, but no modules and no autograd.
            overhead = self._overheads[op.phase]
            launch = max(host - overhead, min(work.fixed_seconds, _MOST_CALL_SECONDS))
            return Price(launch + overhead, max(0.0, work.seconds - launch))
        if family is not None and family.launches_by_size:
            launches = max(0.0, work.kernels - _MICROBENCHMARK_KERNELS)
            host += launches * self.profile.launch_seconds * (self.machine.host_factor or 1.0)
        captured = self.strategy.execution == "graph" or (
            self.strategy.execution == "reduce-overhead" and op.phase != "update"
        )
        pause = self.profile.node_seconds if captured else self.profile.gap_seconds
        return Price(host, work.seconds, work.kernels * pause, work.workspace_bytes)

    def host_seconds(self, op: Op) -> float:
        if self._is_compiled and op.phase != "update":
            return self._compiled_seconds(op) + self._overheads[op.phase]
        table = self._tables[op.phase]
        seconds = table.get(op.family, table["other"]) + self.launch_costs.tensor_seconds * (op.calls - 1)
        if self.strategy.execution == "compiled" and op.phase != "update":
            seconds *= _COMPILED_SHARE
        return seconds + self._overheads[op.phase]

    def _compiled_seconds(self, op: Op) -> float:
        """The host's cost of one call from compiled code; zero in a captured graph."""
        if op.family == "view" or self.strategy.execution == "reduce-overhead":
            return 0.0
        table = self.launch_costs.forward
        if not op.is_generated:
            return max(table.get(op.family, table["other"]), table.get(_LIBRARY, 0.0))
        cost = table.get(GENERATED, table["other"])
        each = table.get(_WITHOUT_GRADIENTS, cost) if self.strategy.inference else cost
        return each * op.calls

    def _device_work(self, ops: Sequence[Op]) -> list[DeviceWork]:
        """What the device does for each op; nothing for a view, which moves no data."""
        pieces: list[Piece] = []
        owners: list[int] = []
        for number, op in enumerate(ops):
            self._note_assumption(op)
            own = [] if op.family in families.NOT_ON_DEVICE else self._pieces(op)
            pieces += own
            owners += [number] * len(own)
        timed = self._timed(pieces)
        sizes = self.profile.workspace(pieces) if self.device.kind == "gpu" else [0.0] * len(pieces)
        fixed = self._fixed_shares(pieces) if self.device.kind == "cpu" else [0.0] * len(pieces)
        totals = [[0.0, 0.0, 0.0, 0.0] for _ in ops]
        for owner, piece, each, share, workspace in zip(owners, pieces, timed, fixed, sizes, strict=True):
            total, duration = totals[owner], each.seconds
            op = ops[owner]
            is_unknown = op.family == families.OTHER and (is_unprobed(op.name) or is_custom_op(op.name))
            spread = max(self.profile.spread(piece), UNPROBED_SPREAD if is_unknown else 1.0)
            self._known_pieces[_key(op)].append(PricedPiece(piece, each, spread))
            total[0] += duration
            total[1] += duration * share
            total[2] += self.profile.kernels(piece)
            total[3] = max(total[3], workspace)
            self._note_unprobed(piece)
            if op.family != families.OTHER and self.profile.is_outside(piece):
                self.outside[op.name] += duration
        return [
            DeviceWork(duration, least, kernels, max(workspace, self._library_workspace(op, kernels)))
            for op, (duration, least, kernels, workspace) in zip(ops, totals, strict=True)
        ]

    def _fixed_shares(self, pieces: Sequence[Piece]) -> list[float]:
        """The share of each piece's seconds that does not depend on its size."""
        roofline = self._roofline(min(self.threads, self.device.cores or 1))
        return [roofline.fixed_seconds / roofline.seconds(piece) for piece in pieces]

    def _note_assumption(self, op: Op) -> None:
        family = registry.get(op.family)
        note = "" if family is None or self.device.kind == "cpu" else family.assumption(op)
        if note:
            self._notes.add(note)

    def _note_unprobed(self, piece: Piece) -> None:
        if piece.kind not in self.profile.kinds and not registry.of_kind(piece.kind).fills_device:
            self._notes.add(
                f"{piece.kind} was never probed for {self.machine.name}: bounded by rates of the whole device"
            )

    def _library_workspace(self, op: Op, kernels: float) -> float:
        """Workspace by the family's own formula, in addition to what was learned for the kind."""
        family = registry.get(op.family)
        if self.device.kind != "gpu" or family is None:
            return 0.0
        return family.workspace_bytes(op, kernels, self.profile.workspace_coefficients)

    def _timed(self, pieces: Sequence[Piece]) -> list[Timed]:
        if self.device.kind == "gpu":
            return self._timed_on_gpu(pieces)
        cores = int(need(self.machine, "device.cores"))
        many = min(self.threads, cores)
        alone = self.profile.seconds(pieces, self._roofline(1), 1)
        together = self.profile.seconds(pieces, self._roofline(many), many)
        oversubscription = max(1.0, self.threads / cores) * _OVERSUBSCRIBED if self.threads > cores else 1.0
        return [
            Timed(b * oversubscription if registry.of_kind(piece.kind).is_shared(piece) else a)
            for piece, a, b in zip(pieces, alone, together, strict=True)
        ]

    def _timed_on_gpu(self, pieces: Sequence[Piece]) -> list[Timed]:
        """By the GPU's own profile, or transferred from the GPU that was probed."""
        own = self._roofline(1)
        if self._probed is None:
            return [Timed(seconds) for seconds in self.profile.seconds(pieces, own, 1)]
        there = roofline_of(self._probed, self.profile)
        probed = self.profile.seconds(pieces, there, 1)
        transfer = Transfer(self._probed.device, self.device, there)
        found = transfer.seconds_and_weak_shares(pieces, probed, own)
        return [
            self._sustained(piece, Timed(*each, is_one_unit=transfer.is_bound_by_double(piece)), own)
            for piece, each in zip(pieces, found, strict=True)
        ]

    def _sustained(self, piece: Piece, timed: Timed, roofline: Roofline) -> Timed:
        """Seconds in a long run, in which the power limit lowers the clock of large products."""
        if piece.dtype not in TENSOR_FORMATS or not registry.of_kind(piece.kind).reaches_power_limit:
            return timed
        rate = roofline.flop_rate(piece)
        seconds = piece.flop / (rate * sustained_share(self.device, rate))
        return Timed(seconds, is_sustained=True) if seconds > timed.seconds else timed

    def _pieces(self, op: Op) -> list[Piece]:
        family, dtype = registry.get(op.family), op.dtype
        # Features must be those that the probed GPU would see.
        cores = (self._probed or self.machine).device.cores or 1
        if family is not None and family.uses_tensor_cores:
            dtype = product_format(op, self.device, self.strategy)
        if dtype != op.dtype and op.dtype in ("bf16", "fp16"):
            self._notes.add(f"no fast {op.dtype} on {self.machine.name}: its products are priced as fp32")
        pieces = families.pieces_of(op, cores, dtype)
        return [known for piece in pieces for known in self._known(op, piece)]

    def _known(self, op: Op, piece: Piece) -> list[Piece]:
        """The piece itself if its kind was probed, otherwise pieces of probed kinds that replace it."""
        if piece.kind in self.profile.kinds:
            return [piece]
        return registry.of_kind(piece.kind).substitutes(op, piece)

    def _roofline(self, threads: int) -> Roofline:
        return roofline_of(self.machine, self.profile, threads)


def product_format(op: Op, device: Device, strategy: Strategy) -> str:
    """The number format in which the products of an op are computed.

    A format that the device lacks is computed as fp32: PyTorch ignores tf32 there, and fp16 and bf16 numbers
    are converted. PyTorch accumulates in fp32. So a device lacks a format if its rate is below that of fp32,
    or if it has no tensor cores: then its fp16 rate is for accumulation in fp16.
    """
    family, dtype = registry.get(op.family), op.dtype
    if dtype == "fp32" and device.kind == "gpu" and family is not None and family.uses_tensor_cores:
        allowed = ("pytorch", "tf32", "bf16", "fp16") if family.is_cudnn_call else ("tf32",)
        dtype = "tf32" if strategy.precision in allowed else dtype
    return "fp32" if dtype in ("tf32", "bf16", "fp16") and not has_format(device, dtype) else dtype


def has_format(device: Device, dtype: str) -> bool:
    """Whether a device computes products in this format, and not slower than in fp32."""
    has_tensor_cores = (device.compute_capability or _FIRST_TENSOR_CORES) >= _FIRST_TENSOR_CORES
    return has_tensor_cores and device.flop_rates.get(dtype, 0.0) >= device.flop_rates.get("fp32", 0.0)


def workspaces(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> list[float]:
    """Workspace of each op of a trace in bytes: memory that it needs while it runs, in addition to its
    tensors."""
    return [price.workspace_bytes for price in Pricer(machine, strategy, trace, profile).price(trace.ops)]


def roofline_of(machine: Machine, profile: Profile, threads: int = 1) -> Roofline:
    """The machine's rates as a roofline. For a CPU: the rates that this number of threads can use."""
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


def probed_machine(machine: Machine, profile: Profile) -> Machine | None:
    """The probed machine whose profile prices this GPU machine; None if it has its own profile."""
    if machine.profile or machine.device.kind != "gpu":
        return None
    return Machine.named(profile.name)


def _key(op: Op) -> tuple[object, ...]:
    return op.name, op.phase, op.dtype, op.shape, op.flop, op.read_bytes, op.written_bytes, op.calls


def threads_of(machine: Machine, strategy: Strategy) -> int:
    """The threads a CPU step runs on. Default: one for each physical core, as in PyTorch."""
    if strategy.threads is not None:
        return strategy.threads
    return machine.device.cores or 1 if machine.device.kind == "cpu" else 1
