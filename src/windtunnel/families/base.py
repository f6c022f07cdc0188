"""The contract of a family of ops, and the records it speaks in. No framework is imported here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.families.drawing import ProbeCase, Sizes

# PyTorch keeps ops below some ten thousand elements on one thread.
_GRAIN_ELEMENTS = 32768
_ELEMENT_BYTES = 12  # an op that reads two fp32 tensors and writes one
_GRAIN_FLOP = 1e6

Coefficients = Mapping[str, Sequence[float]]


class OpCall(NamedTuple):
    """One call as the recorder sees it: the op's name without its namespace, its arguments, and its
    tensors."""

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


class PlainOp(NamedTuple):
    """A described op that only exists as a part of another one."""

    name: str
    family: str
    dtype: str
    shape: tuple[int, ...]
    flop: float
    read_bytes: float
    written_bytes: float
    calls: int = 1


class Piece(NamedTuple):
    """A piece of work of one kind: its features, its arithmetic, and the bytes it must move.

    `per_example_bytes`: the workspace a convolution's weight gradient needs if it is first computed for every
    example by itself, in full precision.
    """

    kind: str
    features: tuple[float, ...]
    flop: float
    bytes: float
    dtype: str
    per_example_bytes: float = 0.0


class Family:
    """Ops that are priced alike. A subclass states the facts below and overrides the methods it needs.

    Recognition. `names` and `prefixes` are names of ops and beginnings of them. `library_ops` are beginnings
    of names that only the profiler shows, `kernels` parts of the names of GPU kernels.

    Description. `sizes` names the whole numbers that `measure` returns. `kinds` names the features of every
    kind of work that `pieces` returns; a kind's first word is the family's name. `draws` names what a probe
    draws, and how often.

    Behaviour. `uses_tensor_cores`: it computes at the rate of its number format, other families at that of
    fp32. `is_fusible`: torch.compile makes its own kernel of it. `is_sequence`: one call runs all timesteps,
    its workspace follows from a formula, and a device without such a call runs many ops instead.
    `launches_by_size`: how many kernels a call starts depends on its sizes. `repeats_workspaces`: a library
    takes the same workspace for the same sizes, by no rule that could be learned. `fills_device`: a call can
    use the whole device. `fewest_flop_share`: the part of its arithmetic that the best algorithm needs.
    `needs_contiguous`: ops whose GPU kernels copy an input first that is not contiguous.
    """

    name: str
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    library_ops: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    needs_contiguous: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ("elements", "layout", "tensors")
    kinds: Mapping[str, tuple[str, ...]] = {}
    draws: Mapping[str, int] = {}
    uses_tensor_cores: bool = False
    is_fusible: bool = False
    is_sequence: bool = False
    launches_by_size: bool = False
    repeats_workspaces: bool = False
    fills_device: bool = True
    fewest_flop_share: float = 1.0

    def size_names(self, op_name: str) -> tuple[str, ...]:
        """The names of the sizes of this op."""
        return self.sizes

    def flop(self, call: OpCall) -> float:
        """The arithmetic of a call: one flop for each element of its largest tensor, unless it is a
        product."""
        return float(max((t.numel() for t in (*call.inputs, *call.outputs)), default=0))

    def read_bytes(self, call: OpCall) -> float:
        """The bytes that a call reads."""
        return sum(tensor_bytes(t) for t in call.inputs)

    def measure(self, call: OpCall) -> tuple[int, ...]:
        """The sizes of a call that decide how long it takes; the names are those of `size_names`."""
        from windtunnel.families.tensors import elements

        return elements(call)

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        """The op's pieces of work if it computes in `dtype` on a device of so many cores."""
        raise NotImplementedError

    def workspace_bytes(self, op: DescribedOp, kernels: float, coefficients: Coefficients) -> float:
        """The workspace on a GPU that follows from how a library works, beside what is learned by kind."""
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

    def drawers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        """For each name in `draws`, a function that draws a case, or nothing if the case came out too
        large."""
        return {}


def tensor_bytes(tensor: Tensor) -> float:
    """The bytes that reading the tensor moves: an expanded tensor is no larger than its storage."""
    return float(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))
