"""The transformer block (Vaswani et al. 2017) in the forms that GPT-2, BERT and the Vision Transformer give it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord, nearest

INITIAL_SPREAD = 0.02  # standard deviation of all three papers' initial weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a stack of blocks is and where it differs from the others."""

    layers: int
    width: int
    heads: int
    dropout: float
    causal: bool = False
    norm_first: bool = True
    gelu: Literal["none", "tanh"] = "none"
    epsilon: float = 1e-5


def check_shape(job: str, layers: int, width: int, heads: int, dropout: float) -> None:
    """Refuse by name a stack that cannot be."""
    for name, value in (("layers", layers), ("width", width), ("heads", heads)):
        if value < 1:
            raise BadRecord(f"job {job}: {name} must be above 0, not {value}.")
    if width % heads:
        raise BadRecord(f"job {job}: heads must divide width; {heads} heads do not divide {width}.")
    if not 0 <= dropout < 1:
        raise BadRecord(f"job {job}: dropout must be from 0 to below 1, not {dropout}.")


def check_size(job: str, size: str, sizes: Iterable[str]) -> None:
    """Refuse the name of a size that was never published."""
    known = tuple(sizes)
    if size not in known:
        raise BadRecord(
            f"job {job}: size cannot be {size!r}.", hint=f"{nearest(size, known)} Sizes: {', '.join(known)}."
        )


class Attention(nn.Module):
    """Every position looks at all others, or with `causal` only at those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, states: Tensor) -> Tensor:
        n, length, width = states.shape
        heads = self.queries_keys_values(states).view(
            n, length, 3, self.shape.heads, width // self.shape.heads
        )
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.shape.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.shape.causal
        )
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(n, length, width))
        return mixed


class Block(nn.Module):
    """Attention, then two linear layers, each added to what came in; normalised before (GPT-2, ViT) or after (BERT)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_first = shape.norm_first
        self.attention = Attention(shape)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.gelu = nn.GELU(approximate=shape.gelu)
        self.narrow = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.first_norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.second_norm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, states: Tensor) -> Tensor:
        if self.norm_first:
            states = states + self.dropout(self.attention(self.first_norm(states)))
            return states + self._think(self.second_norm(states))
        states = self.first_norm(states + self.dropout(self.attention(states)))
        normed: Tensor = self.second_norm(states + self._think(states))
        return normed

    def _think(self, states: Tensor) -> Tensor:
        thought: Tensor = self.dropout(self.narrow(self.gelu(self.widen(states))))
        return thought


def stack(shape: Shape) -> nn.Sequential:
    """The blocks one after another."""
    return nn.Sequential(*(Block(shape) for _ in range(shape.layers)))


@torch.no_grad()
def small_weights(model: nn.Module) -> nn.Module:
    """Matrices and embeddings from a narrow normal, biases at 0, as all three papers begin."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.normal_(0.0, INITIAL_SPREAD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
    return model


def adamw(params: Iterable[Any], rate: float) -> torch.optim.Optimizer:
    """BERT's optimiser and decay; its second mean forgets sooner, which Liu et al. 2019 (RoBERTa) found steadier."""
    return torch.optim.AdamW(params, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
