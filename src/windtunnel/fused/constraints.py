"""Masks and signs on PyTorch tensors: the effective weights, and the chain rule back to the raw ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from windtunnel.fused.settings import RecurrentNetwork


def effective_weight(network: RecurrentNetwork, name: str, raw: Tensor) -> Tensor:
    """A weight matrix after masks and signs."""
    factor, signed = _factor(network, name, raw), _signed_rows(network, name, raw)
    if signed is not None:
        raw = torch.where(signed, raw.abs(), raw)
    return raw if factor is None else raw * factor


def raw_gradient(network: RecurrentNetwork, name: str, raw: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the raw weights from that of the effective weights."""
    factor, signed = _factor(network, name, raw), _signed_rows(network, name, raw)
    if factor is not None:
        gradient = gradient * factor
    return gradient if signed is None else torch.where(signed, gradient * raw.sign(), gradient)


def _factor(network: RecurrentNetwork, name: str, raw: Tensor) -> Tensor | None:
    factor = network.factor(name)
    return None if factor is None else torch.as_tensor(np.array(factor), device=raw.device, dtype=raw.dtype)


def _signed_rows(network: RecurrentNetwork, name: str, raw: Tensor) -> Tensor | None:
    rows = network.signed_rows if name == "w_rec" else None
    return None if rows is None else torch.as_tensor(rows, device=raw.device)[:, None]
