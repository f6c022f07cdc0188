"""The contract of a family of ops, and its records. No framework is imported here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from windtunnel.families.tensors import elements, tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.families.drawing import ProbeCase, Sizes

# PyTorch keeps ops below some ten thousand elements on one thread.
_GRAIN_ELEMENTS = 32768
_ELEMENT_BYTES = 12  # an op that reads two fp32 tensors and writes one
_GRAIN_FLOP = 1e6

Coefficients = Mapping[str, Sequence[float]]

GENERATED = "generated"  # the namespace of kernels that a compiler generates


class OpCall(NamedTuple):
    """A call as the recorder sees it: the op's name without namespace, its arguments, its tensors."""

    name: str
    args: Sequence[Any]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]

    @property
    def is_backward(self) -> bool:
        return "backward" in self.name


class DescribedOp(Protocol):
    """An op as plain data: an op of a trace, or a row of a probe."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def calls(self) -> int: ...
    @property
    def flop(self) -> float: ...
    @property
    def read_bytes(self) -> float: ...
    @property
    def written_bytes(self) -> float: ...


def kind_of(op: DescribedOp, kind: str) -> str:
    """The kind of work: kernels that a compiler generated are a kind of their own."""
    return f"{kind} {GENERATED}" if op.name.startswith(f"{GENERATED}.") else kind


class PlainOp(NamedTuple):
    """A described op that is only a part of another one."""

    name: str
    family: str
    dtype: str
    shape: tuple[int, ...]
    flop: float
    read_bytes: float
    written_bytes: float
    calls: int = 1


class Winograd(NamedTuple):
    """Winograd's algorithm for a convolution of 3 x 3, in tiles of 2 x 2 or of 4 x 4 results.

    Small tiles do 1 / 2.25 of the arithmetic in one kernel; a gradient of weights has none (0). Large tiles
    do a quarter of it, and `large_bytes` pass through memory while images are transformed and back.
    """

    small_flop: float
    large_flop: float
    large_bytes: float


class Piece(NamedTuple):
    """A piece of work of one kind: its features, its arithmetic, and the bytes it must move.

    `per_example_bytes`: the workspace a convolution's weight gradient needs if it is first computed for every
    example by itself, in full precision. The other fields are for GPUs that were not probed:

    extra_bytes       what its kernels move beside `bytes`, in further passes or to transpose tensors
    winograd          the work of Winograd's algorithm, if libraries have it for this piece
    lane_use          how many times more fp32 lanes of a Hopper multiprocessor it keeps busy than others do
    padded_flop       how many times as much arithmetic its kernels do: more where tiles are not full, less
                      where they skip what a mask leaves out
    has_few_channels  a convolution of fewer channels than tensor cores multiply at once
    slow_group_width  channels in a group, if cuDNN has no fast kernel for these groups in this layout
    is_grouped        a convolution in groups of several channels
    before_hopper     how many times longer than its limits it takes on GPUs before Hopper
    tiles             of 64 x 64 in the result of a forward convolution without groups; 0 for all other work
    most_blocks       the number of multiprocessors that it can use at most; infinite if it can use them all
    tile_starts       what the beginnings and ends of its tiles add to its memory time, as a share of it
    """

    kind: str
    features: tuple[float, ...]
    flop: float
    bytes: float
    dtype: str
    per_example_bytes: float = 0.0
    extra_bytes: float = 0.0
    winograd: Winograd | None = None
    lane_use: float = 1.0
    padded_flop: float = 1.0
    has_few_channels: bool = False
    slow_group_width: float = 0.0
    is_grouped: bool = False
    before_hopper: float = 1.0
    tiles: float = 0.0
    most_blocks: float = math.inf
    tile_starts: float = 0.0


class Family:
    """Ops that are priced alike. A subclass states these facts and overrides the methods it needs."""

    name: str

    # Recognition: names of ops, and beginnings of names.
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    # Beginnings of names that only the profiler shows, and parts of the names of GPU kernels, in lower case.
    library_ops: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()

    # Description: names of the whole numbers that `measure` returns.
    sizes: tuple[str, ...] = ("elements", "layout", "tensors")
    # What the last sizes are in rows of a probe that were written before there were such sizes.
    later_sizes: tuple[int, ...] = ()
    # Each kind of work that `pieces` returns, with its feature names. It begins with the family's name.
    kinds: Mapping[str, tuple[str, ...]] = {}
    # What a probe draws, and how often: on any device, on GPUs only, and on CPUs only.
    draws: Mapping[str, int] = {}
    gpu_draws: Mapping[str, int] = {}
    cpu_draws: Mapping[str, int] = {}

    # Behaviour. Its arithmetic runs at the rate of its number format; that of other families at the fp32
    # rate.
    uses_tensor_cores: bool = False
    # Its large calls keep the tensor cores so busy that the power limit lowers the clock in a long run.
    reaches_power_limit: bool = False
    # torch.compile lengthens the rows of its operands where they are not aligned.
    is_padded: bool = False
    # cuDNN runs it, which may use tf32 by default; matrix products may not.
    is_cudnn_call: bool = False
    # torch.compile generates its own kernel for it.
    is_fusible: bool = False
    # One call runs all timesteps, and its workspace follows from a formula. Some devices run it as many ops.
    is_sequence: bool = False
    # The engine behind it also trains whole epochs in one call.
    trains_epochs: bool = False
    # The number of kernels that a call starts depends on its sizes.
    launches_by_size: bool = False
    # A library uses the same workspace for the same sizes, but no rule for it could be learned.
    repeats_workspaces: bool = False
    # If there is no memory for a workspace, PyTorch takes a slower algorithm that needs less.
    workspace_is_optional: bool = False
    # A call can use the whole device, so the device's rates bound it.
    fills_device: bool = True
    # The part of its arithmetic that the best algorithm needs.
    fewest_flop_share: float = 1.0
    # Beginnings of the names of ops whose GPU kernels first copy an input that is not contiguous.
    needs_contiguous: tuple[str, ...] = ()

    def size_names(self, op_name: str) -> tuple[str, ...]:
        """The names of the sizes of this op."""
        return self.sizes

    def flop(self, call: OpCall) -> float:
        """The arithmetic of a call. Default: one flop for each element of its largest tensor."""
        return float(max((t.numel() for t in (*call.inputs, *call.outputs)), default=0))

    def read_bytes(self, call: OpCall) -> float:
        """The bytes that a call reads."""
        return sum(tensor_bytes(t) for t in call.inputs)

    def measure(self, call: OpCall) -> tuple[int, ...]:
        """The sizes of a call that decide how long it takes; the names are those of `size_names`."""
        return elements(call)

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        """The op's pieces of work if it computes in `dtype` on a device with this number of cores."""
        raise NotImplementedError

    def substitutes(self, op: DescribedOp, piece: Piece) -> list[Piece]:
        """Pieces that replace a piece of a kind that a profile does not have.

        Default: a kernel that a compiler generated counts as one of PyTorch's own.
        """
        return [piece._replace(kind=piece.kind.removesuffix(f" {GENERATED}"))]

    def assumption(self, op: DescribedOp) -> str:
        """A caution about an assumption of the op's price that no probe confirmed; empty if there is none."""
        return ""

    def gains_in_cudnn(self, piece: Piece) -> bool:
        """Whether cuDNN's kernels gain as much on the probed GPU as its lower clock costs."""
        return False

    def workspace_bytes(self, op: DescribedOp, kernels: float, coefficients: Coefficients) -> float:
        """The workspace on a GPU by a formula of the library, in addition to what is learned by kind."""
        return 0.0

    def is_shared(self, piece: Piece) -> bool:
        """Whether a CPU divides the piece among its threads."""
        if self.uses_tensor_cores:
            return piece.flop > _GRAIN_FLOP
        return piece.bytes / _ELEMENT_BYTES > _GRAIN_ELEMENTS

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        """Make a step traced on CPU tensors run as on a GPU, while the returned context is open.

        `library` is a torch.library.Library that replaces implementations of PyTorch's own ops.
        """
        return contextlib.nullcontext()

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        """For each name that is drawn, a function that draws a case; None if it is too large."""
        return {}
