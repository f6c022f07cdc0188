"""Fully connected networks of any depth for rows of a table: the rungs of the ladder on tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Batch, Model, Optimizers
from windtunnel.networks import weights

_MANY_ROWS = 5_000
_SMALL_BATCH, _LARGE_BATCH = 32, 128
_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSettings:
    """`hidden`: nodes of each hidden layer; `number`: predicts a number, not a class."""

    inputs: int
    outputs: int
    hidden: tuple[int, ...] = ()
    number: bool = False
    rate: float = 0.005
    init: str = "modern"


def build_model(settings: DenseSettings) -> nn.Module:
    layers: list[nn.Module] = []
    sizes = (settings.inputs, *settings.hidden, settings.outputs)
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return weights.initialise(nn.Sequential(*layers[:-1]), settings.init, "dense")


def teach(settings: DenseSettings, data: Dataset) -> Lesson:
    """Adam on cross-entropy, or on squared error for a number."""
    inputs, targets = data.train["inputs"], data.train["targets"]
    batch = _SMALL_BATCH if len(inputs) < _MANY_ROWS else _LARGE_BATCH
    steps = -(-len(inputs) // batch)

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(inputs), generator=generator).tensor_split(steps):
            yield inputs[rows], targets[rows]

    def step(model: Model, pair: Batch, optimizer: Optimizers) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(model(pair[0]), pair[1], settings.number)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    learn = Stage(
        name="learn",
        epochs=1,
        steps=steps,
        batches=batches,
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=settings.rate),
        step=step,
    )
    return Lesson(
        model=lambda: build_model(settings),
        stages=(learn,),
        examine=lambda model: _examine(model, data, settings.number),
        metric="r2" if settings.number else "accuracy",
        better="higher",
    )


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs for many rows, some at a time."""
    place = next(model.parameters()).device
    return torch.cat([model(some.to(place)).cpu() for some in torch.split(inputs, _AT_ONCE)])


def _examine(model: nn.Module, data: Dataset, number: bool) -> dict[str, float]:
    given, wanted = outputs_of(model, data.held_out["inputs"]), data.held_out["targets"]
    loss = float(_loss(given, wanted, number))
    if not number:
        return {"accuracy": int((given.argmax(1) == wanted).sum()) / len(wanted), "loss": loss}
    # The targets are scaled to mean 0 on the rows to learn from: guessing that mean makes this error.
    guess = float(wanted.square().mean())
    return {"r2": 1 - loss / guess if guess else 0.0, "loss": loss}


def _loss(given: Tensor, wanted: Tensor, number: bool) -> Tensor:
    return F.mse_loss(given.squeeze(1), wanted) if number else F.cross_entropy(given, wanted)
