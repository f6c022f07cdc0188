"""Synthetic networks with as many modules, parameters and distinct ops as real ones, but so narrow that the
host limits their step.

Microbenchmarks of a few layers stay in the caches of the processor. A network of hundreds of modules does
not: its Python objects, dispatcher tables and autograd nodes are read from slower memory in every step. So
the factor of a host is measured on these, and the cost of single ops on the microbenchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.workload import Workload


def host_networks() -> list[Workload]:
    """A deep residual network, a stack of transformer layers, and a stack of mixer layers."""
    return [
        _workload("residual", _residual, (2, 3, 16, 16), lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9)),
        _workload("transformer", _transformer, (2, 8, 24), lambda p: torch.optim.AdamW(p, 1e-4)),
        _workload("mixer", _mixer, (2, 9, 32), lambda p: torch.optim.Adam(p, 1e-4)),
    ]


def _workload(
    name: str, model: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: Callable[[Any], Any]
) -> Workload:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.ones(n, *shape[1:]), torch.zeros(n, dtype=torch.long)

    def loss(net: nn.Module, examples: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(net(examples[0]), examples[1])

    return Workload(
        name=f"host {name}",
        model=model,
        batch=batch,
        loss=loss,
        optimizer=optimizer,
        default_batch=shape[0],
    )


class _ResidualBlock(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 with batch norm, added to the input."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        inner = max(4, out // 4)
        self.reduce, self.norm1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.norm2, self.relu = nn.BatchNorm2d(inner), nn.ReLU(inplace=True)
        self.expand, self.norm3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            conv = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.reduce(x)))
        y = self.relu(self.norm2(self.conv(y)))
        result: Tensor = self.relu(self.norm3(self.expand(y)) + self.shortcut(x))
        return result


def _residual() -> nn.Module:
    """30 blocks in four groups, as deep residual networks have them: about 310 modules."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for blocks, out, stride in ((4, 16, 1), (8, 24, 2), (14, 32, 2), (4, 48, 2)):
        for number in range(blocks):
            layers.append(_ResidualBlock(channels, out, stride if number == 0 else 1))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class _TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.drop = nn.Linear(width, width), nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        y = self.norm1(x)
        query, key, value = (
            part(y).view(n, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(n, length, width)))
        result: Tensor = x + self.drop(self.down(self.act(self.up(self.norm2(x)))))
        return result


class _Classifier(nn.Module):
    """Layers over positions, then a linear layer over the mean of all positions."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.out(self.norm(x).mean(1))
        return result


def _transformer() -> nn.Module:
    """24 layers: about 270 modules, 390 parameters."""
    return _Classifier([_TransformerLayer(24, 2) for _ in range(24)], 24)


class _MixerLayer(nn.Module):
    """A perceptron over positions, then one over features."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up1, self.act1, self.down1 = nn.Linear(positions, 16), nn.GELU(), nn.Linear(16, positions)
        self.up2, self.act2, self.down2 = nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.down1(self.act1(self.up1(self.norm1(x).transpose(1, 2))))
        x = x + mixed.transpose(1, 2)
        result: Tensor = x + self.down2(self.act2(self.up2(self.norm2(x))))
        return result


def _mixer() -> nn.Module:
    """18 layers: about 165 modules, 220 parameters."""
    return _Classifier([_MixerLayer(9, 32) for _ in range(18)], 32)
