"""Softmax and its logarithm."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import both_directions, direction, element_bytes, evenness, log2
from windtunnel.families.tensors import around

if TYPE_CHECKING:
    from torch import Tensor


class SoftmaxFeatures(NamedTuple):
    log_outer: float
    log_length: float
    log_inner: float
    log_bytes: float
    element_bytes: float
    is_logarithm: float
    even_length: float


# The largest element takes a pass of its own: on a V100, against elementwise ops of the same bytes.
_EXTRA_PASS = 0.5


class SoftmaxFamily(Family):
    """Softmax over one dimension."""

    name = "softmax"
    prefixes = ("_softmax", "softmax", "_safe_softmax", "_log_softmax")
    kernels = ("softmax",)
    needs_contiguous = ("_softmax", "_log_softmax")
    sizes = ("outer", "length", "inner")
    kinds: Mapping[str, tuple[str, ...]] = both_directions({"softmax": SoftmaxFeatures._fields})
    draws: Mapping[str, int] = {"softmax": 4}
    gpu_draws: Mapping[str, int] = {"scores": 3}
    is_fusible = True

    def measure(self, call: OpCall) -> tuple[int, ...]:
        dim = next(a for a in call.args if isinstance(a, int) and not isinstance(a, bool))
        return around(call.inputs[0].shape, [dim])

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        outer, length, inner = op.shape
        moved = op.read_bytes + op.written_bytes
        features = SoftmaxFeatures(
            log_outer=log2(outer),
            log_length=log2(length),
            log_inner=log2(inner),
            log_bytes=log2(moved),
            element_bytes=element_bytes(dtype),
            is_logarithm=float("log" in op.name),
            even_length=evenness(length),
        )
        kind = f"softmax {direction(op.name)}"
        return [Piece(kind, features, op.flop, moved, dtype, extra_bytes=_EXTRA_PASS * moved)]

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        _stand_in()  # the recorder's casts call it
        return contextlib.nullcontext()

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"softmax": lambda: _draw(sizes), "scores": lambda: _draw_scores(sizes)}


def softmax_to_fp32(source: Tensor, dim: int, *, log: bool) -> Tensor:
    """Softmax that reads low precision and writes fp32 in one kernel, as with CUDA's autocast."""
    result: Tensor = _stand_in().apply(log, source, dim)
    return result


@functools.cache
def _stand_in() -> Any:
    """Operators with the inputs and outputs of CUDA's kernels; returns their autograd function."""
    import torch

    library: Any = torch.library.Library("windtunnel", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("_softmax_to_fp32", "_log_softmax_to_fp32"):
        library.define(f"{name}(Tensor source, int dim) -> Tensor")
        library.define(f"{name}_backward(Tensor gradient, Tensor output, int dim, Tensor low) -> Tensor")
        library.impl(name, lambda source, dim: torch.empty_like(source, dtype=torch.float32), "Meta")
        to_low = lambda gradient, output, dim, low: torch.empty_like(output, dtype=low.dtype)
        library.impl(f"{name}_backward", to_low, "Meta")

    class ToFp32(torch.autograd.Function):
        owner = library  # an operator lives as long as its library

        @staticmethod
        def forward(ctx: Any, log: bool, source: Tensor, dim: int) -> Any:
            ops = torch.ops.windtunnel
            output = (ops._log_softmax_to_fp32 if log else ops._softmax_to_fp32)(source, dim)
            ctx.save_for_backward(output)
            ctx.log, ctx.dim, ctx.dtype = log, dim, source.dtype
            return output

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (output,) = ctx.saved_tensors
            low, ops = torch.empty((), dtype=ctx.dtype), torch.ops.windtunnel
            call = ops._log_softmax_to_fp32_backward if ctx.log else ops._softmax_to_fp32_backward
            return None, call(gradient, output, ctx.dim, low), None

    return ToFp32


def _draw(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    dtype, rng = sizes.dtype(), sizes.rng
    rows = 1 << rng.randint(4, 14) if rng.random() < 0.3 else sizes.size(1, 262144)
    source = TensorSpec(shape=(rows, sizes.size(2, 60000)), dtype=dtype, grad=True)
    log = rng.random() < 0.5
    return ProbeCase(
        family="softmax",
        precision=dtype,
        tensors=(source,),
        call=lambda t: F.log_softmax(t[0], -1) if log else F.softmax(t[0], -1),
    )


def _draw_scores(sizes: Sizes) -> ProbeCase | None:
    """Attention scores: many short rows. Those in low precision are often written in fp32: from fp16 in one
    kernel, from bf16 after a cast."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    dtype, rng = sizes.stored(), sizes.rng
    shape = (sizes.size(1, 256), sizes.size(1, 32), sizes.size(1, 2048), sizes.size(2, 2048))
    to_fp32 = dtype != "fp32" and rng.random() < 0.6
    log = rng.random() < 0.1

    def call(tensors: list[Tensor]) -> Tensor:
        source = tensors[0]
        if to_fp32 and dtype == "fp16" and isinstance(source, FakeTensor):  # a CPU would cast first
            return softmax_to_fp32(source, -1, log=log)
        softmax = torch.log_softmax if log else torch.softmax
        return softmax(source, -1, dtype=torch.float32 if to_fp32 else None)

    return ProbeCase(
        family="softmax",
        precision=dtype,
        tensors=(TensorSpec(shape=shape, dtype=dtype, grad=True),),
        call=call,
    )
