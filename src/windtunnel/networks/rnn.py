"""The small recurrent network of Brandfonbrener 2017, equation by equation:

state(t)  = f(input(t) W_in + state(t-1) W_rec + b_rec),   f = relu or sigmoid
output(t) = state(t) W_out + b_out

It is measured as in the paper: one example at a time, uniform noise from (-5, 5), clipped gradient descent at
rate 0.001. Its lesson is perceptual decisions (Song, Yang and Wang 2016), in mini-batches and with Adam.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.fused.epochs import Epochs
from windtunnel.fused.module import FusedRNN
from windtunnel.fused.settings import Examples, Optimizer
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.learning import decision
from windtunnel.networks import _images as images
from windtunnel.networks import _text, weights
from windtunnel.networks.definitions.rnn import Settings as Settings

DATA = "decision"


class _RecurrentLayer(nn.Module):
    """A further recurrent layer, before its activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w_in = nn.Parameter(_scaled(width, width))
        self.w_rec = nn.Parameter(_scaled(width, width))
        self.b_rec = nn.Parameter(torch.zeros(width))

    def forward(self, below: Tensor, state: Tensor) -> Tensor:
        return below @ self.w_in + state @ self.w_rec + self.b_rec


class LoopRNN(nn.Module):
    """One Python loop over time, as the equations read."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.w_in = nn.Parameter(_scaled(settings.n_in, settings.n_rec))
        self.w_rec = nn.Parameter(_scaled(settings.n_rec, settings.n_rec))
        self.b_rec = nn.Parameter(torch.zeros(settings.n_rec))
        self.above = nn.ModuleList(_RecurrentLayer(settings.n_rec) for _ in range(settings.layers - 1))
        self.w_out = nn.Parameter(_scaled(settings.n_rec, settings.n_out))
        self.b_out = nn.Parameter(torch.zeros(settings.n_out))
        self.activation = torch.relu if settings.activation == "relu" else torch.sigmoid

    def forward(self, inputs: Tensor) -> Tensor:
        state = inputs.new_zeros(inputs.shape[1], self.w_rec.shape[0])
        higher = [state] * len(self.above)
        outputs = []
        for step_input in inputs:
            state = self.activation(step_input @ self.w_in + state @ self.w_rec + self.b_rec)
            top = state
            for number, layer in enumerate(self.above):
                top = higher[number] = self.activation(layer(top, higher[number]))
            outputs.append(top @ self.w_out + self.b_out)
        return torch.stack(outputs)


class ModuleRNN(nn.Module):
    """The same network through nn.RNN, which a GPU runs as one fused call over all timesteps."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.recurrent = nn.RNN(settings.n_in, settings.n_rec, settings.layers, nonlinearity="relu")
        self.readout = nn.Linear(settings.n_rec, settings.n_out)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.recurrent(inputs)
        outputs: Tensor = self.readout(states)
        return outputs


def build(settings: Settings) -> Workload:
    """The paper's job. Its tensors have time as their first axis, as PyTorch's recurrent modules expect."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return _noise(settings.n_steps, n, settings.n_in), _noise(settings.n_steps, n, settings.n_out)

    def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(pair[0]), pair[1])

    return Workload(
        name="rnn",
        model=lambda: _model(settings),
        batch=batch,
        loss=loss,
        forward=forward_inputs,
        optimizer=lambda params: torch.optim.SGD(params, lr=settings.rate),
        clip_norm=settings.clip_norm,
        examples=settings.examples,
        default_batch=1,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Choose the stronger of two noisy inputs. The error counts in the decision period after the stimulus."""
    if "coherences" not in data.train:
        raise BadRecord(
            f"job rnn: learns perceptual decisions, but the data set {data.name} has none.",
            hint="Use --data decision.",
        )
    n_steps = data.facts["n_steps"]
    fitted = dataclasses.replace(
        settings, n_in=data.facts["inputs"], n_out=data.facts["choices"], n_steps=n_steps
    )
    _, decision_start = decision.periods(n_steps)

    def loss(model: nn.Module, pair: tuple[Tensor, ...]) -> Tensor:
        outputs = model(pair[0].transpose(0, 1))[decision_start:]
        return F.mse_loss(outputs, F.one_hot(pair[1], fitted.n_out).to(outputs.dtype).expand_as(outputs))

    learn = Stage(
        name="learn",
        epochs=settings.epochs,
        steps=images.steps_of(len(data.train["inputs"]), settings.lesson_batch),
        batches=images.shuffled(settings.lesson_batch, data.train["inputs"], data.train["choices"]),
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=settings.lesson_rate),
        step=_text.clipped_step(loss, settings.clip_norm),
    )
    learn = _fused(learn, fitted, data) if settings.variant == "fused" else learn
    return Lesson(
        model=lambda: _model(fitted),
        stages=(learn,),
        examine=lambda model: _examine(model, loss, data, n_steps),
        metric="accuracy",
        better="higher",
    )


def _fused(stage: Stage, settings: Settings, data: Dataset) -> Stage:
    """The same stage with each epoch in one call, where the engine can run the network.

    All batches are then full.
    """
    inputs, choices = data.train["inputs"], data.train["choices"]
    _, decision_start = decision.periods(settings.n_steps)
    targets = F.one_hot(choices, settings.n_out).float()[:, None].expand(-1, settings.n_steps, -1)
    examples = Examples(
        inputs=inputs.numpy(),
        targets=targets.numpy(),
        mask=(torch.arange(settings.n_steps) >= decision_start).float().numpy(),
    )
    batch = min(settings.lesson_batch, len(inputs))
    adam = Optimizer(name="adam", rate=settings.lesson_rate, clip_norm=settings.clip_norm)

    def optimizers(model: FusedRNN) -> Any:
        return Epochs.of(model, examples, optimizer=adam, batch=batch) or stage.optimizers(model)

    def epoch(model: FusedRNN, order: torch.Generator, optimizer: Any) -> Tensor | None:
        return (
            optimizer.run(model, torch.randperm(len(inputs), generator=order))
            if isinstance(optimizer, Epochs)
            else None
        )

    return dataclasses.replace(stage, steps=len(inputs) // batch, optimizers=optimizers, epoch=epoch)


@torch.no_grad()
def _examine(
    model: nn.Module, loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor], data: Dataset, n_steps: int
) -> dict[str, float]:
    inputs, choices = images.on_device_of(model, data.held_out["inputs"], data.held_out["choices"])
    outputs = model(inputs.transpose(0, 1)).cpu()
    return {
        **decision.accuracy(outputs, data.held_out, n_steps),
        "loss": float(loss(model, (inputs, choices))),
    }


def _model(settings: Settings) -> nn.Module:
    if settings.variant == "fused":
        return weights.initialise(
            FusedRNN(settings.n_in, settings.n_rec, settings.n_out, activation=settings.activation),
            settings.init,
            "rnn",
        )
    network = LoopRNN if settings.variant == "loop" else ModuleRNN
    return weights.initialise(network(settings), settings.init, "rnn")


def _noise(*shape: int) -> Tensor:
    return torch.rand(*shape) * 10 - 5


def _scaled(rows: int, columns: int) -> Tensor:
    bound = rows**-0.5
    return torch.empty(rows, columns).uniform_(-bound, bound)
