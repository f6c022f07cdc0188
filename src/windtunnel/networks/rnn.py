"""The small recurrent network of Brandfonbrener 2017, equation by equation:

state(t)  = f(input(t) W_in + state(t-1) W_rec + b_rec),   f = relu or sigmoid
output(t) = state(t) W_out + b_out

trained one example at a time on uniform noise from (-5, 5) with clipped gradient descent at rate 0.001.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`way`: a loop over time as the paper's author writes it, or PyTorch's own recurrent module."""

    n_in: int = 2
    n_rec: int = 50
    n_out: int = 2
    n_steps: int = 20
    activation: Literal["relu", "sigmoid"] = "relu"
    way: Literal["loop", "module"] = "loop"
    rate: float = 0.001
    clip_norm: float = 1.0
    examples: int = 1000

    def __post_init__(self) -> None:
        for name in ("n_in", "n_rec", "n_out", "n_steps", "examples"):
            if getattr(self, name) < 1:
                raise BadRecord(f"job rnn: {name} must be above 0, not {getattr(self, name)}.")
        for name in ("rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise BadRecord(f"job rnn: {name} must be above 0, not {getattr(self, name)}.")
        if self.way == "module" and self.activation == "sigmoid":
            raise BadRecord("job rnn: way=module has no sigmoid, since PyTorch's RNN knows only relu and tanh.", hint="Use way=loop with activation=sigmoid.")


class LoopRNN(nn.Module):
    """One Python loop over time, the way the equations read."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.w_in = nn.Parameter(_scaled(settings.n_in, settings.n_rec))
        self.w_rec = nn.Parameter(_scaled(settings.n_rec, settings.n_rec))
        self.b_rec = nn.Parameter(torch.zeros(settings.n_rec))
        self.w_out = nn.Parameter(_scaled(settings.n_rec, settings.n_out))
        self.b_out = nn.Parameter(torch.zeros(settings.n_out))
        self.activation = torch.relu if settings.activation == "relu" else torch.sigmoid

    def forward(self, inputs: Tensor) -> Tensor:
        state = inputs.new_zeros(inputs.shape[1], self.w_rec.shape[0])
        outputs = []
        for step_input in inputs:
            state = self.activation(step_input @ self.w_in + state @ self.w_rec + self.b_rec)
            outputs.append(state @ self.w_out + self.b_out)
        return torch.stack(outputs)


class ModuleRNN(nn.Module):
    """The same network through nn.RNN, which a GPU runs as one fused call over all timesteps."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.recurrent = nn.RNN(settings.n_in, settings.n_rec, nonlinearity="relu")
        self.readout = nn.Linear(settings.n_rec, settings.n_out)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.recurrent(inputs)
        outputs: Tensor = self.readout(states)
        return outputs


def build(settings: Settings) -> Workload:
    """The paper's job; its tensors are laid out time first, as PyTorch's recurrent modules expect."""
    network = LoopRNN if settings.way == "loop" else ModuleRNN

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return _noise(settings.n_steps, n, settings.n_in), _noise(settings.n_steps, n, settings.n_out)

    def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(pair[0]), pair[1])

    return Workload(
        name="rnn",
        model=lambda: network(settings),
        batch=batch,
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=settings.rate),
        clip_norm=settings.clip_norm,
        examples=settings.examples,
        default_batch=1,
    )


def _noise(*shape: int) -> Tensor:
    return torch.rand(*shape) * 10 - 5


def _scaled(rows: int, columns: int) -> Tensor:
    bound = rows**-0.5
    return torch.empty(rows, columns).uniform_(-bound, bound)
