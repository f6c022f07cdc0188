"""The transformer block (Vaswani et al. 2017), in the variants of GPT-2, BERT and the Vision Transformer.

    attention(x) = softmax(Q K^T / sqrt(width / heads)) V,  where Q, K and V are linear maps of x
    mlp(x)       = W2 gelu(W1 x)

A block adds both to its input: x + attention(norm(x)), then x + mlp(norm(x)) (GPT-2, ViT), or it normalises
after each addition (BERT).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord, nearest

INITIAL_SPREAD = 0.02  # standard deviation of the initial weights in all three papers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a stack of blocks and the variant of its blocks.

    causal      a position attends only to itself and earlier positions
    norm_first  normalise before attention and MLP, not after
    gelu        "tanh": the approximate GELU of GPT-2
    epsilon     added to the variance in layer normalisation
    """

    layers: int
    width: int
    heads: int
    dropout: float
    causal: bool = False
    norm_first: bool = True
    gelu: Literal["none", "tanh"] = "none"
    epsilon: float = 1e-5


def check_shape(job: str, shape: Shape) -> None:
    """Raise an error that names the setting for which no stack of blocks exists."""
    for name in ("layers", "width", "heads"):
        if getattr(shape, name) < 1:
            raise BadRecord(f"job {job}: {name} must be above 0, not {getattr(shape, name)}.")
    if shape.width % shape.heads:
        raise BadRecord(
            f"job {job}: heads must divide width; {shape.heads} heads do not divide {shape.width}."
        )
    if not 0 <= shape.dropout < 1:
        raise BadRecord(f"job {job}: dropout must be from 0 to below 1, not {shape.dropout}.")


def caution_if_large(job: str, shape: Shape) -> tuple[str, ...]:
    """Warn that a large transformer is too large for a small text."""
    if shape.width < 512:
        return ()
    return (
        f"{job} of width {shape.width} trains slowly on a small text and memorises it; "
        "size=tiny trains in minutes on a CPU.",
    )


def check_size(job: str, size: str, sizes: Iterable[str]) -> None:
    """Raise an error if `size` is not the name of a published size."""
    known = tuple(sizes)
    if size not in known:
        raise BadRecord(
            f"job {job}: size cannot be {size!r}.", hint=f"{nearest(size, known)} Sizes: {', '.join(known)}."
        )


def chosen_or_published(
    chosen: tuple[int | None, int | None, int | None], published: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Layers, width and heads: those that the user set, else those of the published size."""
    layers, width, heads = (p if c is None else c for c, p in zip(chosen, published, strict=True))
    return layers, width, heads


class Attention(nn.Module):
    """Multi-head self-attention: a position attends to all; with `causal`, to itself and earlier ones."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, states: Tensor) -> Tensor:
        n, length, _ = states.shape
        # Not `heads` but -1: a tensor-parallel worker has only some of them.
        heads = self.queries_keys_values(states).view(n, length, 3, -1, self.shape.width // self.shape.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.shape.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.shape.causal
        )
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(n, length, -1))
        return mixed


class TransformerBlock(nn.Module):
    """Attention, then an MLP of two linear layers; each adds its output to its input."""

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
            return states + self._mlp(self.second_norm(states))
        states = self.first_norm(states + self.dropout(self.attention(states)))
        normed: Tensor = self.second_norm(states + self._mlp(states))
        return normed

    def _mlp(self, states: Tensor) -> Tensor:
        output: Tensor = self.dropout(self.narrow(self.gelu(self.widen(states))))
        return output


def stack(shape: Shape) -> nn.Sequential:
    """A sequence of `shape.layers` blocks."""
    return nn.Sequential(*(TransformerBlock(shape) for _ in range(shape.layers)))


@torch.no_grad()
def small_weights(model: nn.Module) -> nn.Module:
    """Initialise as all three papers do: matrices and embeddings normal with deviation 0.02, biases 0."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.normal_(0.0, INITIAL_SPREAD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
    return model


def adamw(params: Iterable[Any], rate: float) -> torch.optim.Optimizer:
    """AdamW with BERT's weight decay, and beta2 = 0.98, which Liu et al. 2019 (RoBERTa) found more stable."""
    return torch.optim.AdamW(params, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
