"""Lists of tensors as one flat tensor, which is what processes send each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def kind_of(tensors: Sequence[Tensor]) -> torch.dtype:
    """The format in which tensors are sent: float64 if one of them is, else float32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def flatten(tensors: list[Tensor], kind: torch.dtype | None = None) -> Tensor:
    """One flat tensor. Gradients of embeddings may be sparse; what is sent is dense."""
    kind = kind or kind_of(tensors)
    return torch.cat([_dense(tensor.detach()).reshape(-1).to(kind) for tensor in tensors])


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def unflatten(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, like, strict=True)]


def whole(gradients: list[Tensor | None], parameters: list[Tensor]) -> list[Tensor]:
    """Gradients in which none is missing: a parameter that took no part has zeros."""
    return [
        torch.zeros_like(p) if gradient is None else gradient
        for gradient, p in zip(gradients, parameters, strict=True)
    ]
