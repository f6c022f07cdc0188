"""Synthetic networks whose whole steps a probe times, for costs that single ops and microbenchmarks do not
show.

Host networks have as many modules, parameters and distinct ops as real ones, but are so narrow that the host
limits their step. Microbenchmarks of a few layers stay in the caches of the processor. A network of hundreds
of modules does not: its Python objects, dispatcher tables and autograd nodes are read from slower memory in
every step. So the factor of a host is measured on these, and the cost of single ops on microbenchmarks.

Compute networks have few but wide layers. An op that is timed again and again reads its data from a cache; in
a network, less of the data is cached. These networks measure how much slower ops are then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.workload import Workload


def host_networks() -> list[Workload]:
    """A deep residual network, a stack of transformer layers, and a stack of mixer layers: 283, 268 and 166
    modules with 284, 388 and 220 parameters."""
    groups = ((4, 16), (8, 24), (14, 32), (4, 48))
    return [
        _workload("host residual", lambda: _residual(groups), (2, 3, 16, 16), _momentum),
        _workload("host transformer", lambda: _transformer(24, 24), (2, 8, 24), _adamw),
        _workload("host mixer", lambda: _mixer(18, 9, 32), (2, 9, 32), _adam),
    ]


def ordinary_networks() -> list[Workload]:
    """The same kinds as wide as real networks, on few examples: a fast GPU still waits for the host."""
    groups = ((3, 256), (4, 512), (6, 1024), (3, 2048))
    return [
        _workload("ordinary residual", lambda: _residual(groups), (2, 3, 64, 64), _momentum),
        _workload("ordinary transformer", lambda: _transformer(12, 512), (2, 64, 512), _adamw),
        _workload("ordinary mixer", lambda: _mixer(12, 64, 384), (2, 64, 384), _adam),
    ]


def compute_networks() -> list[Workload]:
    """The same kinds with few wide layers, and a perceptron with many weights for its batch."""
    groups = ((1, 64), (2, 128), (1, 256))
    return [
        _workload("wide residual", lambda: _residual(groups), (4, 3, 32, 32), _momentum),
        _workload("wide transformer", lambda: _transformer(3, 192), (4, 64, 192), _adamw),
        _workload("wide mixer", lambda: _mixer(3, 64, 192), (8, 64, 192), _adam),
        _workload("wide perceptron", _perceptron, (64, 784), _adam),
    ]


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-4)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-4)


def _perceptron() -> nn.Module:
    """3.6 million weights: with gradients and moments, more than a core's own caches hold."""
    layers: list[nn.Module] = [nn.Linear(784, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1536, 10))


def _workload(
    name: str, model: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: Callable[[Any], Any]
) -> Workload:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.ones(n, *shape[1:]), torch.zeros(n, dtype=torch.long)

    def loss(net: nn.Module, examples: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(net(examples[0]), examples[1])

    return Workload(
        name=name,
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


def _residual(groups: Sequence[tuple[int, int]]) -> nn.Module:
    """Groups given by number of blocks and channels; each group but the first halves the image."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for group, (blocks, out) in enumerate(groups):
        for number in range(blocks):
            layers.append(_ResidualBlock(channels, out, 2 if group and not number else 1))
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


def _transformer(layers: int, width: int) -> nn.Module:
    return _Classifier([_TransformerLayer(width, max(2, width // 64)) for _ in range(layers)], width)


class _MixerLayer(nn.Module):
    """A perceptron over positions, then one over features."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        inner, wide = 2 * positions, 2 * width
        self.up1, self.act1, self.down1 = nn.Linear(positions, inner), nn.GELU(), nn.Linear(inner, positions)
        self.up2, self.act2, self.down2 = nn.Linear(width, wide), nn.SiLU(), nn.Linear(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.down1(self.act1(self.up1(self.norm1(x).transpose(1, 2))))
        x = x + mixed.transpose(1, 2)
        result: Tensor = x + self.down2(self.act2(self.up2(self.norm2(x))))
        return result


def _mixer(layers: int, positions: int, width: int) -> nn.Module:
    return _Classifier([_MixerLayer(positions, width) for _ in range(layers)], width)
