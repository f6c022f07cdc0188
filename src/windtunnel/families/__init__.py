"""Families of ops: one file for each, with everything about it.

To add a family: write one file with a subclass of `Family`, and add it to `FAMILIES` below. The file states
how an op is recognised, its flop, its sizes, its features, how a probe draws it, and, where a GPU runs it
differently from what a trace on CPU tensors shows, its lowering. `Family` in `base.py` documents every item,
and `tests/test_families.py` asks the same questions of all families.

Importing this package loads no framework, because pricing a stored trace must work without one. Whatever
needs PyTorch imports it when it is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from windtunnel.families.attention import AttentionFamily
from windtunnel.families.base import DescribedOp, Family, OpCall, Piece
from windtunnel.families.convolution import ConvolutionFamily
from windtunnel.families.foreach import ForeachFamily
from windtunnel.families.fused import FusedFamily
from windtunnel.families.indexing import IndexingFamily
from windtunnel.families.matmul import MatmulFamily
from windtunnel.families.normalisation import NormalisationFamily
from windtunnel.families.optimiser import OptimiserFamily
from windtunnel.families.pooling import PoolingFamily
from windtunnel.families.random_numbers import RandomFamily
from windtunnel.families.recurrent import RecurrentFamily
from windtunnel.families.reduction import ReductionFamily
from windtunnel.families.softmax import SoftmaxFamily
from windtunnel.families.streaming import StreamingFamily

__all__ = [
    "ALLOCATING",
    "COLLECTIVE",
    "FAMILIES",
    "NOT_ON_DEVICE",
    "OTHER",
    "DescribedOp",
    "Family",
    "OpCall",
    "Piece",
    "Registry",
    "family_of",
    "has_known_sizes",
    "pieces_of",
    "registry",
    "sizes_of",
]

# Of a GPU kernel whose name fits several families, the first is taken: softmax before reduction, for example.
FAMILIES: tuple[Family, ...] = (
    AttentionFamily(),
    RecurrentFamily(),
    FusedFamily(),
    NormalisationFamily(),
    SoftmaxFamily(),
    ConvolutionFamily(),
    MatmulFamily(),
    OptimiserFamily(),
    ForeachFamily(),
    PoolingFamily(),
    RandomFamily(),
    IndexingFamily(),
    ReductionFamily(),
    StreamingFamily(),
)
OTHER = "other"  # an op of no known family
COLLECTIVE = "collective"  # an exchange between workers; links carry it
# Ops that move no data, ops whose data stay on the host, and ops that links carry out.
NOT_ON_DEVICE = ("view", "host", COLLECTIVE)
ALLOCATING = frozenset(
    ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
)


class Registry:
    """The families by name, by op and by kind of work."""

    def __init__(self, families: tuple[Family, ...]) -> None:
        self._hold(families)

    def _hold(self, families: tuple[Family, ...]) -> None:
        self._families = families
        self._by_name = {family.name: family for family in families}
        self._by_op: dict[str, str] = {}  # a cache

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families)

    def get(self, name: str) -> Family | None:
        return self._by_name.get(name)

    def family_of(self, op_name: str) -> str:
        """The name of the family of an op; `other` for an op that no family recognises."""
        if op_name not in self._by_op:
            self._by_op[op_name] = self._recognise(op_name)
        return self._by_op[op_name]

    def of_kind(self, kind: str) -> Family:
        """The family of a kind of work; a kind of no known family counts as streaming."""
        return self._by_name.get(kind.partition(" ")[0]) or self._by_name["streaming"]

    @contextlib.contextmanager
    def including(self, family: Family) -> Iterator[None]:
        """Add one more family within this context."""
        before = self._families
        self._hold((family, *before))
        try:
            yield
        finally:
            self._hold(before)

    def _recognise(self, op_name: str) -> str:
        for family in self:
            if op_name in family.names:
                return family.name
        return next((family.name for family in self if op_name.startswith(family.prefixes)), OTHER)


registry = Registry(FAMILIES)


def family_of(op_name: str) -> str:
    """The name of the family by which an op is priced; `other` is priced by its bytes, with a caution."""
    return registry.family_of(op_name)


def sizes_of(family: str, call: OpCall) -> tuple[int, ...]:
    """The sizes of a call; empty if its arguments are not as the family expects."""
    measure = (registry.get(family) or registry.of_kind(family)).measure
    try:
        return tuple(measure(call))
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration):
        return ()


def has_known_sizes(op: DescribedOp) -> bool:
    """Whether the sizes of an op were read when it was recorded."""
    family = registry.get(op.family)
    return family is None or len(op.shape) == len(family.size_names(op.name))


def pieces_of(op: DescribedOp, cores: int, dtype: str | None = None) -> list[Piece]:
    """The pieces of work of an op on a device with this number of cores. An op of unknown sizes counts as
    streaming.

    `dtype` is the number format in which it is computed. Default: the op's own.
    """
    family = registry.get(op.family)
    if family is None or not has_known_sizes(op):
        family = registry.of_kind("streaming")
    return family.pieces(op, dtype or op.dtype, cores)
