"""Lists of tensors as one flat tensor, which is what processes send each other."""

from __future__ import annotations

import torch
from torch import Tensor


def flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])


def unflatten(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, like, strict=True)]


def whole(gradients: list[Tensor | None], parameters: list[Tensor]) -> list[Tensor]:
    """Gradients in which none is missing: a parameter that took no part has zeros."""
    return [
        torch.zeros_like(p) if gradient is None else gradient
        for gradient, p in zip(gradients, parameters, strict=True)
    ]
