"""The small recurrent network of Brandfonbrener 2017, on uniform noise from (-5, 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy

from windtunnel.errors import BadRecord
from windtunnel.networks.definitions import Array, Start, Trial, count_batches, held, scaled, zeros
from windtunnel.networks.definitions.checks import bound_of, require_positive

_SMALL = {"n_in": 3, "n_rec": 12, "n_out": 2, "n_steps": 6}
TRIALS = (
    Trial(settings=_SMALL, batch=1, optimizer="sgd"),
    Trial(
        settings={**_SMALL, "activation": "sigmoid", "rate": 0.01},
        batch=4,
        optimizer="adam",
        data="streamed",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`variant`: a loop over time as in the paper, PyTorch's own recurrent module, or the fused engine.

    `layers`: recurrent layers, of which the next reads the states of the one before; the paper has one.

    `examples`: examples in an epoch. A lesson has its own rate (of Adam), batch and number of epochs.
    """

    n_in: int = 2
    n_rec: int = 50
    layers: int = held(1)
    n_out: int = 2
    n_steps: int = 20
    activation: Literal["relu", "sigmoid"] = "relu"
    variant: Literal["loop", "module", "fused"] = held("loop")
    rate: float = 0.001
    clip_norm: float = 1.0
    examples: int = 1000
    lesson_rate: float = held(0.003)
    lesson_batch: int = held(50)
    epochs: int = held(10)
    init: str = held("modern")

    def __post_init__(self) -> None:
        counts = ("n_in", "n_rec", "layers", "n_out", "n_steps", "examples", "lesson_batch", "epochs")
        require_positive(self, (*counts, "rate", "clip_norm", "lesson_rate"), "rnn")
        bound_of(self.init, "rnn")
        if self.variant == "fused" and self.layers > 1:
            raise BadRecord(
                f"job rnn: variant=fused has one recurrent layer, not {self.layers}.",
                hint="Use variant=loop or variant=module with several layers.",
            )
        if self.variant == "module" and self.activation == "sigmoid":
            raise BadRecord(
                "job rnn: variant=module has no sigmoid, since PyTorch's RNN has only relu and tanh.",
                hint="Use variant=loop or variant=fused with activation=sigmoid.",
            )


def start(settings: Settings, batch: int, rng: numpy.random.Generator) -> Start:
    """Batches are (timesteps, batch, width), the layout of PyTorch's recurrent modules."""
    weights = {
        "w_in": scaled(rng, settings.n_in, settings.n_rec),
        "w_rec": scaled(rng, settings.n_rec, settings.n_rec),
        "b_rec": zeros(settings.n_rec),
        "w_out": scaled(rng, settings.n_rec, settings.n_out),
        "b_out": zeros(settings.n_out),
    }
    count = count_batches(settings.n_steps * batch * (settings.n_in + settings.n_out))
    return Start(
        weights=weights,
        inputs=_noise(rng, count, settings.n_steps, batch, settings.n_in),
        targets=_noise(rng, count, settings.n_steps, batch, settings.n_out),
        loss="squared error",
        activation=settings.activation,
    )


def _noise(rng: numpy.random.Generator, *shape: int) -> Array:
    return rng.random(shape, dtype=numpy.float32) * 10 - 5
