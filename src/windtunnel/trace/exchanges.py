"""Exchanges between workers inside a traced step, as ops that the recorder sees.

`exchange` represents a collective on the tensor of one worker: it returns a tensor of the right size, and the
recorder sees what is exchanged. Its gradient is the matching exchange, as in Megatron-LM and in PyTorch's
DTensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAMESPACE = "windtunnel"
NAME = "exchange"
_library: Any = None


def exchange(tensor: Tensor, kind: str, ranks: int, dim: int = 0) -> Tensor:
    """The tensor of this worker after the collective: as large, or `ranks` times as large or as small along
    `dim`."""
    _define()
    result: Tensor = torch.ops.windtunnel.exchange(tensor, kind, ranks, dim)
    return result


class _Exchanged(torch.autograd.Function):
    """One collective forward and another backward; an empty name exchanges nothing."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forward: str, backward: str, ranks: int, dim: int) -> Tensor:
        ctx.backward_kind, ctx.ranks, ctx.dim = backward, ranks, dim
        return exchange(tensor, forward, ranks, dim) if forward else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        if ctx.backward_kind:
            gradient = exchange(gradient, ctx.backward_kind, ctx.ranks, ctx.dim)
        return gradient, None, None, None, None


def copied(tensor: Tensor, ranks: int) -> Tensor:
    """The same tensor for all workers; their gradients are summed."""
    return _apply(tensor, "", "all_reduce", ranks, 0)


def summed(tensor: Tensor, ranks: int) -> Tensor:
    """The sum over workers; all get the same gradient."""
    return _apply(tensor, "all_reduce", "", ranks, 0)


def gathered(tensor: Tensor, ranks: int, dim: int) -> Tensor:
    """The pieces of all workers put together along `dim`; gradients are summed, each worker gets a piece."""
    return _apply(tensor, "all_gather", "reduce_scatter", ranks, dim)


def gathered_copies(tensor: Tensor, ranks: int, dim: int) -> Tensor:
    """The pieces of all workers put together; all compute the same from them, so gradients are only cut."""
    return _apply(tensor, "all_gather", "slice", ranks, dim)


def scattered(tensor: Tensor, ranks: int, dim: int) -> Tensor:
    """The worker's piece of the sum over workers; gradients are put together."""
    return _apply(tensor, "reduce_scatter", "all_gather", ranks, dim)


def spread(tensor: Tensor, ranks: int) -> Tensor:
    """Rows sent to the workers of their experts, or back; each worker gets as many as it sends."""
    return _apply(tensor, "all_to_all", "all_to_all", ranks, 0)


def sliced(tensor: Tensor, ranks: int, dim: int) -> Tensor:
    """The worker's piece of a tensor that all have; gradients are put together."""
    return _apply(tensor, "slice", "all_gather", ranks, dim)


def _apply(tensor: Tensor, forward: str, backward: str, ranks: int, dim: int) -> Tensor:
    result: Tensor = _Exchanged.apply(tensor, forward, backward, ranks, dim)  # type: ignore[no-untyped-call]
    return result


def exchanged_bytes(kind: str, given: Tensor, result: Tensor) -> float:
    """The bytes of the full tensor, as nccl-tests counts them."""
    full = result if kind == "all_gather" else given
    return float(full.numel() * full.element_size())


def _define() -> None:
    global _library
    if _library is not None:
        return
    _library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    _library.define(f"{NAME}(Tensor tensor, str kind, int ranks, int dim) -> Tensor")
    _library.impl(NAME, _shaped, "CompositeExplicitAutograd")


def _shaped(tensor: Tensor, kind: str, ranks: int, dim: int) -> Tensor:
    shape = list(tensor.shape)
    if kind == "all_gather":
        shape[dim] *= ranks
    elif kind in ("reduce_scatter", "slice"):
        shape[dim] //= ranks
    return tensor.new_empty(shape)
