"""Sums, means, maxima and norms over some dimensions of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from windtunnel.families.base import GENERATED, DescribedOp, Family, OpCall, Piece, kind_of
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import element_bytes, evenness, log2
from windtunnel.families.tensors import around


class ReductionFeatures(NamedTuple):
    log_outer: float
    log_reduced: float
    log_inner: float
    layout: float
    log_bytes: float
    log_results: float
    element_bytes: float
    even_reduced: float
    even_inner: float


def reduction_piece(op: DescribedOp, dtype: str) -> Piece:
    """The whole op as one piece."""
    outer, reduced, inner, layout = op.shape
    moved = op.read_bytes + op.written_bytes
    features = ReductionFeatures(
        log_outer=log2(outer),
        log_reduced=log2(reduced),
        log_inner=log2(inner),
        layout=float(layout),
        log_bytes=log2(moved),
        log_results=log2(outer * inner),
        element_bytes=element_bytes(dtype),
        even_reduced=evenness(reduced),
        even_inner=evenness(inner),
    )
    return Piece(kind_of(op, "reduction"), features, op.flop, moved, dtype)


class ReductionFamily(Family):
    """Reductions. `layout` is 1 if the input is not contiguous; 2 more if dimensions that stay lie between
    dimensions that are reduced."""

    name = "reduction"
    names = frozenset(
        """
        sum mean amax amin max min argmax argmin norm linalg_vector_norm var var_mean std prod any all cumsum
        logsumexp count_nonzero _is_all_true _is_any_true
        """.split()
    )
    kernels = ("reduce",)
    sizes = ("outer", "reduced", "inner", "layout")
    kinds: Mapping[str, tuple[str, ...]] = {
        "reduction": ReductionFeatures._fields,
        f"reduction {GENERATED}": ReductionFeatures._fields,
    }
    draws: Mapping[str, int] = {"reduction": 9}
    gpu_draws: Mapping[str, int] = {"map_reduction": 3}
    is_fusible = True

    def measure(self, call: OpCall) -> tuple[int, ...]:
        source, dims = call.inputs[0], _reduced_dims(call)
        layout = 2 * int(_is_split(source.shape, dims)) + int(not source.is_contiguous())
        return *around(source.shape, dims), layout

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        return [reduction_piece(op, dtype)]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"reduction": lambda: _draw(sizes), "map_reduction": lambda: _draw_of_maps(sizes)}


def _reduced_dims(call: OpCall) -> Sequence[int]:
    args = call.args
    for arg in args[1:]:
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], int):
            return arg
    if len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool):
        return [args[1]]
    return range(call.inputs[0].dim())


def _is_split(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether dimensions that stay lie between dimensions that are reduced."""
    chosen = {dim % len(shape) for dim in dims} if shape else {0}
    return any(shape[d] > 1 for d in range(min(chosen), max(chosen)) if d not in chosen)


def _draw(sizes: Sizes) -> ProbeCase | None:
    dtype = sizes.dtype()
    shape = (sizes.size(1, 65536), sizes.size(1, 8192), sizes.size(1, 4096))
    dims = sizes.rng.choice(((0,), (0,), (2,), (0, 2), (0, 2), (0, 1, 2)))
    mean = sizes.rng.random() < 0.3
    return ProbeCase(
        family="reduction",
        precision=dtype,
        tensors=(TensorSpec(shape=shape, dtype=dtype),),
        call=lambda t: t[0].mean(dims) if mean else t[0].sum(dims),
    )


def _draw_of_maps(sizes: Sizes) -> ProbeCase | None:
    """Sums of four dimensions: means over the positions of maps in either layout, gradients of biases, and
    gradients of what all examples share."""
    rng, dtype = sizes.rng, sizes.stored()
    shape = (sizes.examples(), sizes.width(4, 2048), sizes.side(), sizes.side())
    dims = rng.choice(((2, 3), (2, 3), (0, 2, 3), (0,), (0,), (1,), (0, 2), (3,)))
    mean = rng.random() < 0.4
    spec = TensorSpec(shape=shape, dtype=dtype, channels_last=rng.random() < 0.6)
    return ProbeCase(
        family="reduction",
        precision=dtype,
        tensors=(spec,),
        call=lambda t: t[0].mean(dims) if mean else t[0].sum(dims),
    )
