"""Scaled dot-product attention in one fused call that stores no scores."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import both_directions, direction, log2, number_format

if TYPE_CHECKING:
    from torch import Tensor


class AttentionFeatures(NamedTuple):
    log_examples: float
    log_heads: float
    log_queries: float
    log_keys: float
    log_head_size: float
    causal: float
    masked: float
    log_flop: float
    number_format: float


class AttentionFamily(Family):
    """Fused attention."""

    name = "attention"
    prefixes = ("_scaled_dot_product", "attention")
    library_ops = (
        *("_flash_attention", "_efficient_attention", "_cudnn_attention", "_fused_sdp"),
        "_scaled_dot_product",
    )
    kernels = ("flash", "fmha", "sdpa", "attention")
    sizes = ("examples", "heads", "queries", "keys", "head_size", "causal", "masked")
    kinds: Mapping[str, tuple[str, ...]] = both_directions({"attention": AttentionFeatures._fields})
    draws: Mapping[str, int] = {"attention": 10}
    uses_tensor_cores = True

    def flop(self, call: OpCall) -> float:
        """Two products forward (scores, values), five backward (the scores again and four gradients)."""
        query, key = _query_and_key(call)
        product = 2.0 * math.prod(query.shape[:-1]) * key.shape[-2] * query.shape[-1]
        return product * (5 if call.is_backward else 2)

    def measure(self, call: OpCall) -> tuple[int, ...]:
        query, key = _query_and_key(call)
        flags = [a for a in call.args if isinstance(a, bool)]
        causal, masked = (int(flags[0]), int(flags[1])) if len(flags) > 1 else (0, 0)
        heads = query.shape[1] if query.dim() == 4 else 1
        return query.shape[0], heads, query.shape[-2], key.shape[-2], query.shape[-1], causal, masked

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        examples, heads, queries, keys, head_size, causal, masked = op.shape
        features = AttentionFeatures(
            log_examples=log2(examples),
            log_heads=log2(heads),
            log_queries=log2(queries),
            log_keys=log2(keys),
            log_head_size=log2(head_size),
            causal=causal,
            masked=masked,
            log_flop=log2(op.flop),
            number_format=number_format(dtype),
        )
        moved = op.read_bytes + op.written_bytes
        return [Piece(f"attention {direction(op.name)}", features, op.flop, moved, dtype)]

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        _stand_in()
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        return contextlib.nullcontext()

    def drawers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"attention": lambda: _draw(sizes)}


def _query_and_key(call: OpCall) -> tuple[Tensor, Tensor]:
    first = 1 if call.is_backward else 0  # a backward takes the gradient first
    return call.inputs[first], call.inputs[first + 1]


@functools.cache
def _stand_in() -> Any:
    """Operators with the inputs, outputs and saved bytes of GPU kernels; returns their autograd function."""
    import torch

    library: Any = torch.library.Library("windtunnel", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(
        "attention(Tensor query, Tensor key, Tensor value, bool causal, bool masked) -> (Tensor, Tensor)"
    )
    library.define(
        "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, "
        "Tensor sums, bool causal, bool masked) -> (Tensor, Tensor, Tensor)"
    )
    library.impl("attention", _forward_results, "Meta")
    library.impl("attention_backward", _backward_results, "Meta")

    class FusedAttention(torch.autograd.Function):
        owner = library  # an operator lives as long as its library

        @staticmethod
        def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, masked: bool) -> Any:
            output, sums = torch.ops.windtunnel.attention(query, key, value, causal, masked)
            ctx.save_for_backward(query, key, value, output, sums)
            ctx.flags = causal, masked
            return output

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gradients = torch.ops.windtunnel.attention_backward(gradient, *ctx.saved_tensors, *ctx.flags)
            return *gradients, None, None

    return FusedAttention


def _forward_results(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, masked: bool
) -> tuple[Tensor, Tensor]:
    import torch

    # Heads lie inside of positions, as the kernels write them: joining the heads again then needs no copy.
    output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _backward_results(gradient: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key and value; the arguments are those of the operator."""
    import torch

    return tuple(torch.empty_like(tensor) for tensor in args[:3])


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    """torch's scaled_dot_product_attention(query, key, value, mask, dropout, causal, ...) as a GPU runs it.

    Scores are computed tile by tile and never stored, so masks and dropout do not change what is stored for
    backward.
    """
    mask: Tensor | None = args[0] if args else options.get("attn_mask")
    causal = bool(args[2] if len(args) > 2 else options.get("is_causal", False))
    if query.dim() != 4:
        return _plain_attention(query, key, value, mask)
    if query.shape[1] != key.shape[1]:  # several heads share a key: a GPU repeats it
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    result: Tensor = _stand_in().apply(query, key, value, causal, mask is not None)
    return result


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Two products with a softmax between, where no fused kernel takes the shapes."""
    import torch

    scores = query @ key.transpose(-2, -1)
    scores = scores + mask if mask is not None and mask.dtype != torch.bool else scores
    return torch.softmax(scores, -1) @ value


def _draw(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    precision = sizes.precision()
    batch, heads, length = sizes.size(1, 128), sizes.size(1, 32), sizes.size(8, 2048)
    size = sizes.rng.choice((16, 32, 64, 64, 64, 80, 96, 128))
    if 4.0 * batch * heads * length**2 * size > sizes.flop_limit(precision) / 2:
        return None
    causal = sizes.rng.random() < 0.4
    masked = not causal and sizes.rng.random() < 0.3
    query = TensorSpec(shape=(batch, heads, length, size), dtype=precision, grad=True)
    mask = (TensorSpec(shape=(batch, 1, length, length), dtype=precision),) if masked else ()
    return ProbeCase(
        family="attention",
        precision=precision,
        tensors=(query, query, query, *mask),
        call=lambda t: F.scaled_dot_product_attention(
            t[0], t[1], t[2], t[3] if len(t) > 3 else None, is_causal=causal
        ),
    )
