"""Single kernels that training frameworks use where plain PyTorch runs several ops.

Each is an op whose tensors have the right sizes and whose values are never computed: it serves forecasts of a
network as Megatron-LM, nanotron or llm-foundry run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

NAMESPACE = "windtunnel"
POINTWISE = "fused_pointwise"
FIRST_FLASH = "attention_first"
Keeps = Literal["inputs", "mask", "nothing"]
_library: Any = None


def pointwise(*tensors: Tensor, keeps: Keeps = "inputs") -> Tensor:
    """One kernel that reads these tensors and writes one like the first; backward is one kernel too.

    `keeps`: what backward needs: the inputs (an activation), a mask of one byte for each element (dropout),
    or nothing (a rotation). A tensor of one dimension, such as a bias, gets its gradient by a sum; others
    that are added get that of the result.
    """
    _define()
    result: Tensor = _Pointwise.apply(keeps, *tensors)  # type: ignore[no-untyped-call]
    return result


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keeps: Keeps, *tensors: Tensor) -> Tensor:
        result: Tensor = torch.ops.windtunnel.fused_pointwise(list(tensors))
        mask = [torch.empty(result.shape, dtype=torch.bool)] if keeps == "mask" else []
        ctx.save_for_backward(*(tensors if keeps == "inputs" else mask))
        ctx.others = [(t.requires_grad, t.dim() == 1, t.dtype) for t in tensors[1:]]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        first = torch.ops.windtunnel.fused_pointwise([gradient, *ctx.saved_tensors])
        others = [
            None if not is_wanted else _summed(first, dtype) if is_small else gradient
            for is_wanted, is_small, dtype in ctx.others
        ]
        return None, first, *others


def first_flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention by the kernels of the first FlashAttention, or by their Triton version."""
    _define()
    result: Tensor = _FirstFlash.apply(query, key, value)  # type: ignore[no-untyped-call]
    return result


class _FirstFlash(torch.autograd.Function):
    """It keeps its inputs, its result and one sum for each query, as FlashAttention-2 does."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, sums = torch.ops.windtunnel.attention_first(query, key, value, True, False)
        ctx.save_for_backward(query, key, value, output, sums)
        result: Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, output, sums = ctx.saved_tensors
        return torch.ops.windtunnel.attention_first_backward(
            gradients[0], query, key, value, output, sums, True, False
        )


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row of scores, by one kernel that reads them once; backward is one kernel too.

    github Dao-AILab/flash-attention, flash_attn/losses/cross_entropy.py: it keeps the scores and one sum for
    each row, and writes gradients in the format of the scores.
    """
    _define()
    result: Tensor = _LossOfRows.apply(scores, targets)  # type: ignore[no-untyped-call]
    return result


class _LossOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor) -> Tensor:
        sums = torch.sum(scores, -1, dtype=torch.float32)  # as much work as the sum of exponentials
        ctx.save_for_backward(scores, sums, targets)
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.ops.windtunnel.fused_pointwise([*ctx.saved_tensors, *gradients]), None


def when_backward_ends(tensor: Tensor, work: Callable[[], None]) -> None:
    """Do this when the backward pass that reaches the tensor has ended and freed what it held."""
    engine: Any = torch.autograd.Variable._execution_engine
    tensor.register_hook(lambda _: engine.queue_callback(work))  # type: ignore[no-untyped-call]


def _attended(query: Tensor, key: Tensor, value: Tensor, causal: bool, masked: bool) -> tuple[Tensor, Tensor]:
    # Heads lie inside of positions, as the kernels write them: joining the heads again then needs no copy.
    n, heads, length, _ = query.shape
    output = query.new_empty(n, length, heads, value.shape[-1]).transpose(1, 2)
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _attended_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in (query, key, value))


def _summed(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    return gradient.flatten(0, -2).sum(0).to(dtype)


def _define() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
        _library.define(f"{POINTWISE}(Tensor[] tensors) -> Tensor")
        _library.impl(POINTWISE, lambda tensors: torch.empty_like(tensors[0]), "CompositeExplicitAutograd")
        inputs = "Tensor query, Tensor key, Tensor value"
        _library.define(f"{FIRST_FLASH}({inputs}, bool causal, bool masked) -> (Tensor, Tensor)")
        _library.define(
            f"{FIRST_FLASH}_backward(Tensor gradient, {inputs}, Tensor output, Tensor sums, bool causal, "
            "bool masked) -> (Tensor, Tensor, Tensor)"
        )
        _library.impl(FIRST_FLASH, _attended, "CompositeExplicitAutograd")
        _library.impl(f"{FIRST_FLASH}_backward", _attended_backward, "CompositeExplicitAutograd")
