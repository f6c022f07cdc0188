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

# FlashAttention-2 is 1.7 to 3.0 times as fast as the first version, 1.3 to 2.5 times as fast as that in
# Triton (Dao 2023, on an A100).
_FIRST_FLASH_TIMES = 2
_TILE = 128  # keys that a kernel of FlashAttention-2 takes at once


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
    gpu_draws: Mapping[str, int] = {"heads": 6}
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
        # A causal kernel skips the tiles above the diagonal.
        done = (1 + min(1.0, _TILE / keys)) / 2 if causal else 1.0
        piece = Piece(f"attention {direction(op.name)}", features, op.flop, moved, dtype, padded_flop=done)
        return [piece] * (_FIRST_FLASH_TIMES if "attention_first" in op.name else 1)

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        from windtunnel.families import attention_kernels

        attention_kernels.stand_in()
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        return contextlib.nullcontext()

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"attention": lambda: _draw(sizes), "heads": lambda: _draw_heads(sizes)}


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


def _draw_heads(sizes: Sizes) -> ProbeCase | None:
    """Heads of any size that a fused kernel takes, also wide ones; shared keys; as many keys as queries or
    not. Heads lie inside of positions, as a projection leaves them."""
    from torch.nn import functional as F

    rng, precision = sizes.rng, sizes.precision()
    is_half = precision in ("bf16", "fp16")
    size = rng.randint(2, 32) * 8 if is_half or rng.random() < 0.6 else rng.randint(2, 40) * 4
    batch, heads = sizes.size(1, 256), sizes.size(1, 48)
    queries = rng.choice(
        (1, sizes.size(4, 64), sizes.size(16, 4096), sizes.size(64, 2048), sizes.size(64, 2048))
    )
    keys = queries if queries > 1 and rng.random() < 0.6 else sizes.size(8, 4096)
    if 4.0 * batch * heads * queries * keys * size > sizes.flop_limit(precision) / 2:
        return None
    group = rng.choice([g for g in (1, 1, 2, 4, 8) if heads % g == 0]) if is_half else 1
    causal = queries == keys and rng.random() < 0.4
    shape = (1 if rng.random() < 0.5 else batch, 1, queries, keys)
    masked = not causal and group == 1 and rng.random() < 0.3 and math.prod(shape) < 2**28
    query = TensorSpec(shape=(batch, queries, heads, size), dtype=precision, grad=True)
    key = TensorSpec(shape=(batch, keys, heads // group, size), dtype=precision, grad=True)
    mask = (TensorSpec(shape=shape, dtype=precision),) if masked else ()

    def call(tensors: list[Tensor]) -> Tensor:
        query, key, value = (t.transpose(1, 2) for t in tensors[:3])
        mask = tensors[3] if masked else None
        return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=group > 1)

    return ProbeCase(family="attention", precision=precision, tensors=(query, key, key, *mask), call=call)
