"""What a GPU runs for scaled dot-product attention: a fused kernel, or PyTorch's plain products.

A fused kernel keeps its inputs, its result and one sum for each query. The plain path keeps the scores. The
rules are those of PyTorch 2.11 (aten/src/ATen/native/transformers, sdp_utils.cpp and attention.cpp), with the
order of kernels on Hopper: cuDNN, flash, memory-efficient, plain. GPUs before Hopper try cuDNN last; the kept
tensors are the same, except for a mask with grouped heads.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_HALF = (torch.float16, torch.bfloat16)
_CUDNN_HEAD_SIZE = 128
_FLASH_HEAD_SIZE = 256
_FLASH_GRAIN = 8  # flash attention pads heads to a multiple of this
_MASK_GRAIN = 8  # the memory-efficient kernel pads a mask whose strides are no multiple of this
_MASK_GRADIENT_GRAIN = 16  # and the rows of the mask's gradient to a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The arguments of torch's scaled_dot_product_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float

    @property
    def is_grouped(self) -> bool:
        """Whether several heads share a key."""
        return self.query.dim() == 4 and self.query.shape[1] != self.key.shape[1]

    @property
    def head_sizes(self) -> tuple[int, int, int]:
        return self.query.shape[-1], self.key.shape[-1], self.value.shape[-1]

    @property
    def is_regular(self) -> bool:
        """Whether any fused kernel may take it: four dimensions, and neighbours in memory along the last."""
        tensors = (self.query, self.key, self.value, *(() if self.mask is None else (self.mask,)))
        return self.query.dim() == 4 and all(t.stride(-1) == 1 for t in tensors)


def read_call(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> AttentionCall:
    """scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, ...)."""
    given = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | options
    scale = given.get("scale")
    return AttentionCall(
        query=query,
        key=key,
        value=value,
        mask=given.get("attn_mask"),
        dropout=float(given.get("dropout_p", 0.0)),
        causal=bool(given.get("is_causal", False)),
        scale=1.0 / math.sqrt(query.shape[-1]) if scale is None else abs(float(scale)),
    )


def attend(call: AttentionCall) -> Tensor:
    """The result of a call, by the first kernel that takes it."""
    if not call.is_regular:
        return _attend_unfused(call)
    if _takes_cudnn(call):
        return _attend_fused(call, _as_additive(call))
    if _takes_flash(call):
        return _attend_padded(call)
    if _takes_memory_efficient(call):
        return _attend_fused(call, _aligned(_as_additive(call)))
    return _attend_unfused(call)


def _takes_cudnn(call: AttentionCall) -> bool:
    learned_mask = call.mask is not None and call.mask.requires_grad
    return (
        torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
        and call.query.dtype in _HALF
        and not learned_mask
        and all(size % 8 == 0 and size <= _CUDNN_HEAD_SIZE for size in call.head_sizes)
        and call.key.shape[-2] > 1
    )


def _takes_flash(call: AttentionCall) -> bool:
    square = call.query.shape[-2] == call.key.shape[-2]
    return (
        torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and call.query.dtype in _HALF
        and call.mask is None
        and len(set(call.head_sizes)) == 1
        and call.head_sizes[0] <= _FLASH_HEAD_SIZE
        and (square or not call.causal)
    )


def _takes_memory_efficient(call: AttentionCall) -> bool:
    grain = 8 if call.query.dtype in _HALF else 4
    query_size, key_size, value_size = call.head_sizes
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        and call.query.dtype in (*_HALF, torch.float32)
        and not call.is_grouped
        and query_size == key_size
        and query_size % grain == 0
        and value_size % grain == 0
    )


def _attend_fused(call: AttentionCall, mask: Tensor | None) -> Tensor:
    batch, heads, queries, keys = *call.query.shape[:3], call.key.shape[2]
    wide = None if mask is None else mask.expand(batch, heads, queries, keys)
    result: Tensor = stand_in().apply(call.query, call.key, call.value, wide, call.causal)
    return result


def _attend_padded(call: AttentionCall) -> Tensor:
    """Flash attention copies heads of an odd size to the next multiple of 8, and keeps the copies."""
    size = call.query.shape[-1]
    missing = -size % _FLASH_GRAIN
    if not missing:
        return _attend_fused(call, None)
    padded = (F.pad(t, (0, missing)) for t in (call.query, call.key, call.value))
    result: Tensor = stand_in().apply(*padded, None, call.causal)
    return result[..., :size]


def _attend_unfused(call: AttentionCall) -> Tensor:
    """Two products with a softmax between, in fp32, as PyTorch's `_scaled_dot_product_attention_math`.

    The query and the key are each multiplied by the root of the scale. Shared keys are repeated.
    """
    query, key, value = (t.float() if t.dtype in _HALF else t for t in (call.query, call.key, call.value))
    root = math.sqrt(call.scale)
    query = query * root
    mask = _as_additive(call)
    if call.causal:
        square = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _additive(square, query.dtype)
    if call.is_grouped:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    weights = torch.matmul(query, key.transpose(-2, -1) * root)
    if mask is not None:
        weights.add_(mask)
    weights = _safe_softmax().apply(weights)
    if call.dropout > 0:
        weights = torch.dropout(weights, call.dropout, True)
    result = torch.matmul(weights, value).to(call.query.dtype)
    weights.to(call.query.dtype)  # a second result of PyTorch's function, which nobody reads
    return result


def _as_additive(call: AttentionCall) -> Tensor | None:
    """The mask as a number to add to each score. PyTorch makes one of a boolean mask in every call."""
    if call.mask is None or call.mask.dtype != torch.bool:
        return call.mask
    return _additive(call.mask, call.query.dtype)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(mask, 0.0, torch.full((), -math.inf, dtype=dtype, device=mask.device))


def _aligned(mask: Tensor | None) -> Tensor | None:
    """The mask as the memory-efficient kernel reads it: rows that begin at a multiple of 8 elements."""
    if mask is None or all(stride % _MASK_GRAIN == 0 for stride in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, _MASK_GRAIN - length % _MASK_GRAIN))[..., :length]


@functools.cache
def _safe_softmax() -> Any:
    """PyTorch's `_safe_softmax`: a softmax, and zeros for rows that are masked entirely."""

    class SafeSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: Tensor) -> Any:
            weights = torch.softmax(scores, -1)
            masked = scores.eq(-math.inf)
            rows = torch.all(masked, -1, keepdim=True)
            result = torch.where(rows, torch.zeros((), dtype=scores.dtype, device=scores.device), weights)
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (result,) = ctx.saved_tensors
            return torch.ops.aten._softmax_backward_data(gradient, result, -1, result.dtype)

    return SafeSoftmax


@functools.cache
def stand_in() -> Any:
    """Operators with the inputs, outputs and kept bytes of GPU kernels; returns their autograd function."""
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
        def forward(
            ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
        ) -> Any:
            output, sums = torch.ops.windtunnel.attention(query, key, value, causal, mask is not None)
            ctx.save_for_backward(query, key, value, output, sums, mask)
            ctx.causal = causal
            return output

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            query, key, value, output, sums, mask = ctx.saved_tensors
            of_mask = _mask_gradient(mask) if ctx.needs_input_grad[3] else None
            of_query, of_key, of_value = torch.ops.windtunnel.attention_backward(
                gradient, query, key, value, output, sums, ctx.causal, mask is not None
            )
            if key.shape[1] != query.shape[1]:  # the gradients of all heads, then their sums
                groups = key.shape[1], query.shape[1] // key.shape[1]
                of_key, of_value = (t.unflatten(1, groups).sum(2) for t in (of_key, of_value))
            return of_query, of_key, of_value, of_mask, None

    return FusedAttention


def _mask_gradient(mask: Tensor) -> Tensor:
    """The kernel writes a gradient for every example and head, also where one mask serves all."""
    *lead, length = mask.shape
    width = -(-length // _MASK_GRADIENT_GRAIN) * _MASK_GRADIENT_GRAIN
    return mask.new_empty(*lead, width)[..., :length]


def _forward_results(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, masked: bool
) -> tuple[Tensor, Tensor]:
    # Heads lie inside of positions, as the kernels write them: joining the heads again then needs no copy.
    output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _backward_results(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any) -> Any:
    """Gradients of query, key and value; those of a shared key or value for each head of the query."""
    heads = query.shape[1]
    if key.shape[1] == heads:
        return tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    full = (t.new_empty(t.shape[0], t.shape[2], heads, t.shape[3]).transpose(1, 2) for t in (key, value))
    return torch.empty_like(query), *full
