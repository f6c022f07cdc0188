"""The host microbenchmarks: small synthetic networks whose step is nearly all launch cost.

They are so narrow that arithmetic hardly matters on a CPU, and not at all on a GPU. Depths, layers and
optimisers are drawn at random, so that the cost of each family of ops follows from how often it occurs. A few
networks of one to three layers show the cost of a step with hardly any op. Without them, the cost of calling
backward and the optimizer stayed that of the reference host (on a 2-core EPYC 152 us, with them 46 us).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.workload import Workload

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
}
_WIDTH = 16
_TINY = (1, 3)  # layers


def draw(count: int, seed: int = 0) -> list[Workload]:
    """`count` microbenchmarks, all kinds in turn, and a sixth as many tiny ones."""
    rng = random.Random(seed)
    makers = (_perceptron, _convolutional, _transformer, _loop, _dense, _sequence)
    deep = [makers[i % len(makers)](rng, i) for i in range(count)]
    return [*deep, *(_perceptron(rng, i, _TINY) for i in range(count, count + count // len(makers)))]


def _microbenchmark(
    name: str,
    rng: random.Random,
    model: Callable[[], nn.Module],
    source: Callable[[int], Tensor],
    classes: bool = False,
) -> Workload:
    optimizer = rng.choice(list(OPTIMIZERS))
    clip = rng.choice((None, None, 1.0))

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return source(n), torch.zeros(n, dtype=torch.long)

    def loss(net: Any, examples: tuple[Tensor, Tensor]) -> Tensor:
        output, target = net(examples[0]), examples[1]
        return F.cross_entropy(output.flatten(1)[:, :_WIDTH], target) if classes else output.square().mean()

    return Workload(
        name=f"{name} {optimizer}",
        model=model,
        batch=batch,
        loss=loss,
        optimizer=OPTIMIZERS[optimizer],
        default_batch=2,
        clip_norm=clip,
    )


def _perceptron(rng: random.Random, number: int, depths: tuple[int, int] = (4, 60)) -> Workload:
    depth, act = rng.randint(*depths), rng.choice((nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid))
    norm, drop = rng.random() < 0.4, rng.random() < 0.4

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(_WIDTH, _WIDTH), act()]
            layers += [nn.LayerNorm(_WIDTH)] if norm else []
            layers += [nn.Dropout(0.1)] if drop else []
        return nn.Sequential(*layers)

    return _microbenchmark(
        f"perceptron {number}", rng, model, lambda n: torch.ones(n, _WIDTH), classes=rng.random() < 0.5
    )


class _Block(nn.Module):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        groups = rng.choice((1, 1, _WIDTH))
        self.first = nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, groups=groups, bias=rng.random() < 0.3)
        self.norm = nn.BatchNorm2d(_WIDTH) if rng.random() < 0.8 else nn.Identity()
        self.act = nn.ReLU(inplace=True)
        self.residual = rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.norm(self.first(x)))
        return y + x if self.residual else y


def _convolutional(rng: random.Random, number: int) -> Workload:
    depth, seed = rng.randint(4, 50), rng.random()
    pool = rng.random() < 0.5

    def model() -> nn.Module:
        own = random.Random(seed)
        return nn.Sequential(
            *(_Block(own) for _ in range(depth)),
            nn.MaxPool2d(2) if pool else nn.Identity(),
            nn.AdaptiveAvgPool2d(1),
        )

    return _microbenchmark(
        f"convolutional {number}",
        rng,
        model,
        lambda n: torch.ones(n, _WIDTH, 8, 8),
        classes=rng.random() < 0.5,
    )


class _Encoder(nn.Module):
    def __init__(self, drop: float, causal: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.mix, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.drop, self.causal = nn.Dropout(drop), causal

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.mix(self.before(x)).view(n, length, 3, 2, _WIDTH // 2).permute(2, 0, 3, 1, 4)
        y = (
            F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            .transpose(1, 2)
            .reshape(n, length, _WIDTH)
        )
        x = x + self.drop(self.out(y))
        result: Tensor = x + self.drop(self.down(F.gelu(self.up(self.between(x)))))
        return result


def _transformer(rng: random.Random, number: int) -> Workload:
    depth, drop, causal = rng.randint(2, 16), rng.choice((0.0, 0.1)), rng.random() < 0.5
    return _microbenchmark(
        f"transformer {number}",
        rng,
        lambda: nn.Sequential(*(_Encoder(drop, causal) for _ in range(depth))),
        lambda n: torch.ones(n, 8, _WIDTH),
    )


class _Cell(nn.Module):
    def __init__(self, steps: int, gated: bool) -> None:
        super().__init__()
        self.steps, self.gated = steps, gated
        self.inner = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.outer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state, states = x, []
        for _ in range(self.steps):
            fresh = torch.relu(self.inner(state) + x)
            state = 0.9 * state + 0.1 * fresh if self.gated else fresh
            states.append(state)
        result: Tensor = self.outer(torch.stack(states, 1)).mean(1)
        return result


def _loop(rng: random.Random, number: int) -> Workload:
    steps, gated = rng.randint(10, 80), rng.random() < 0.5
    return _microbenchmark(
        f"loop {number}",
        rng,
        lambda: _Cell(steps, gated),
        lambda n: torch.ones(n, _WIDTH),
        classes=rng.random() < 0.5,
    )


class _Growing(nn.Module):
    """Each layer reads the outputs of all layers before it; its own is normalised, pooled and scaled."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 * (i + 1), 4, 1, bias=False) for i in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        outputs = [x[:, :4]]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = F.relu(norm(layer(torch.cat(outputs, 1))))
            scale = torch.sigmoid(y.mean((2, 3), keepdim=True))
            outputs.append(y * scale)
        return torch.cat(outputs, 1).flatten(1)


def _dense(rng: random.Random, number: int) -> Workload:
    depth = rng.randint(3, 24)
    return _microbenchmark(
        f"dense {number}", rng, lambda: _Growing(depth), lambda n: torch.ones(n, _WIDTH, 4, 4)
    )


class _Words(nn.Module):
    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, _WIDTH)
        self.layers = nn.ModuleList(
            getattr(nn, kind)(_WIDTH, _WIDTH, batch_first=True) for _ in range(layers)
        )
        self.out = nn.Linear(_WIDTH, 50)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        for layer in self.layers:
            y, _ = layer(y)
        return F.log_softmax(self.out(y), -1)


def _sequence(rng: random.Random, number: int) -> Workload:
    kind, layers = rng.choice(("RNN", "LSTM", "GRU")), rng.randint(1, 6)
    return _microbenchmark(
        f"sequence {number}", rng, lambda: _Words(kind, layers), lambda n: torch.zeros(n, 8, dtype=torch.long)
    )
