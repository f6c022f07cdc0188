"""Jobs of the families of ops that forecasts for GPUs were weak at: `python benchmarks/truth.py collect
benchmarks/weak_jobs.toml OUT.jsonl` measures them on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import windtunnel as wt


def _labels(n: int, classes: int = 10) -> Tensor:
    return torch.randint(0, classes, (n,))


class _Recurrent(nn.Module):
    def __init__(self, kind: str, hidden: int, layers: int, both: bool) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(80, hidden, layers, batch_first=True, bidirectional=both)
        self.out = nn.Linear(hidden * (2 if both else 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.layers(x)[0].mean(1))
        return result


def _recurrent(name: str, kind: str, hidden: int, layers: int, both: bool) -> wt.Workload:
    return wt.Workload(
        name=name,
        model=lambda: _Recurrent(kind, hidden, layers, both),
        batch=lambda n: (torch.randn(n, 120, 80), _labels(n)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.Adam(parameters),
    )


def bidirectional_gru() -> wt.Workload:
    return _recurrent("bidirectional GRU", "GRU", 320, 1, True)


def stacked_lstm() -> wt.Workload:
    return _recurrent("stacked LSTM", "LSTM", 512, 4, False)


def bidirectional_lstm() -> wt.Workload:
    return _recurrent("stacked bidirectional LSTM", "LSTM", 256, 3, True)


def volumes() -> wt.Workload:
    """Five convolutions over volumes, as for video or scans."""

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after, stride in ((1, 24, 1), (24, 48, 2), (48, 96, 2), (96, 96, 1), (96, 192, 2)):
            layers += [nn.Conv3d(before, after, 3, stride, padding=1), nn.BatchNorm3d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(192, 10))

    return wt.Workload(
        name="volumes",
        model=model,
        batch=lambda n: (torch.randn(n, 1, 24, 80, 80), _labels(n)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    )


class _Recommender(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(200_000, 48, mode="sum", sparse=sparse) for _ in range(6)])
        self.mix = nn.Sequential(nn.Linear(6 * 48, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, words: Tensor) -> Tensor:
        pooled = [bag(words[:, place]) for place, bag in enumerate(self.bags)]
        result: Tensor = self.mix(torch.cat(pooled, 1)).squeeze(1)
        return result


def _recommender(sparse: bool) -> wt.Workload:
    def optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.1)  # type: ignore[arg-type]

    return wt.Workload(
        name="recommender",
        model=lambda: _Recommender(sparse),
        batch=lambda n: (torch.randint(0, 200_000, (n, 6, 24)), torch.rand(n)),
        loss=lambda model, batch: F.binary_cross_entropy_with_logits(model(batch[0]), batch[1]),
        optimizer=optimizer,
    )


def sparse_bags() -> wt.Workload:
    return _recommender(True)


def dense_bags() -> wt.Workload:
    return _recommender(False)


class _Segmenter(nn.Module):
    """Convolutions down to an eighth, then resized back in two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 48, 3, 2, 1),
            nn.GroupNorm(8, 48),
            nn.SiLU(),
            nn.Conv2d(48, 96, 3, 2, 1),
            nn.GroupNorm(8, 96),
            nn.SiLU(),
            nn.Conv2d(96, 160, 3, 2, 1),
            nn.GroupNorm(8, 160),
            nn.SiLU(),
        )
        self.up1, self.up2 = nn.Conv2d(160, 64, 3, padding=1), nn.Conv2d(64, 20, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(self.up1(self.down(x)), scale_factor=4, mode="bilinear")
        return F.interpolate(self.up2(F.silu(y)), size=x.shape[-2:], mode="bilinear")


def segmentation() -> wt.Workload:
    return wt.Workload(
        name="segmentation",
        model=_Segmenter,
        batch=lambda n: (torch.randn(n, 3, 256, 320), torch.randint(0, 20, (n, 256, 320))),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    )


def table() -> wt.Workload:
    """A wide, thin perceptron over a table of numbers."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(40, 8192), nn.ReLU(), nn.Linear(8192, 64), nn.ReLU(), nn.Linear(64, 2))

    return wt.Workload(
        name="table",
        model=model,
        batch=lambda n: (torch.randn(n, 40), _labels(n, 2)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.Adam(parameters),
    )


class _Depthwise(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.BatchNorm2d(width)
        self.up, self.down = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(3 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(F.gelu(self.up(self.norm(self.mix(x)))))
        return result


def depthwise() -> wt.Workload:
    return wt.Workload(
        name="depthwise",
        model=lambda: nn.Sequential(
            nn.Conv2d(3, 72, 4, 4),
            *(_Depthwise(72) for _ in range(6)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(72, 10),
        ),
        batch=lambda n: (torch.randn(n, 3, 224, 224), _labels(n)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    )


class _GroupedAttention(nn.Module):
    """Four query heads of 40 features to each key head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.pair, self.out = nn.Linear(320, 320), nn.Linear(320, 160), nn.Linear(320, 320)
        self.norm = nn.LayerNorm(320)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        y = self.norm(x)
        query = self.query(y).view(n, length, 8, 40).transpose(1, 2)
        key, value = self.pair(y).view(n, length, 2, 2, 40).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        result: Tensor = x + self.out(seen.transpose(1, 2).reshape(n, length, 320))
        return result


def grouped_attention() -> wt.Workload:
    return wt.Workload(
        name="grouped attention",
        model=lambda: nn.Sequential(*(_GroupedAttention() for _ in range(8))),
        batch=lambda n: torch.randn(n, 768, 320),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
    )
