"""The fully connected network of the guide's Table I, with the layers Shi et al. 2016 give."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Widths from input to output, so that a scaled-down copy can be tried first."""

    layers: tuple[int, ...] = (26752, 2048, 2048, 2048, 26752)
    rate: float = 0.01
    examples: int = 4096

    def __post_init__(self) -> None:
        if len(self.layers) < 2 or min(self.layers) < 1:
            raise BadRecord(f"job fcn5: layers must be at least two widths above 0, not {self.layers}.")
        if self.examples < 1 or not self.rate > 0:
            raise BadRecord(f"job fcn5: examples and rate must be above 0, not {self.examples} and {self.rate}.")


def build(settings: Settings) -> Workload:
    """Sigmoid layers, softmax cross-entropy, plain gradient descent, mini-batches of 64 synthetic examples."""

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        for wide, narrow in itertools.pairwise(settings.layers):
            layers += [nn.Linear(wide, narrow), nn.Sigmoid()]
        return nn.Sequential(*layers[:-1])

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, settings.layers[0]), torch.randint(0, settings.layers[-1], (n,))

    def loss(network: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(network(pair[0]), pair[1])

    return Workload(
        name="fcn5",
        model=model,
        batch=batch,
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=settings.rate),
        examples=settings.examples,
        default_batch=64,
    )
