"""Scaled dot-product attention in one fused call. `attention_kernels` says which calls are fused."""

from __future__ import annotations

import contextlib
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
        from windtunnel.families import attention_kernels

        attention_kernels.stand_in()
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        return contextlib.nullcontext()

    def drawers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"attention": lambda: _draw(sizes)}


def _query_and_key(call: OpCall) -> tuple[Tensor, Tensor]:
    first = 1 if call.is_backward else 0  # a backward takes the gradient first
    return call.inputs[first], call.inputs[first + 1]


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    """torch's scaled_dot_product_attention as a GPU runs it."""
    from windtunnel.families import attention_kernels

    return attention_kernels.attend(attention_kernels.read_call(query, key, value, *args, **options))


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
