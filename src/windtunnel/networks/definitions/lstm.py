"""A long short-term memory network that reads text and predicts the next character."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from windtunnel.networks.definitions import Array, Start, Trial, count_batches, held, scaled, zeros
from windtunnel.networks.definitions.checks import bound_of, check_dropout, require_positive

_SMALL = {"alphabet": 11, "embedding": 5, "width": 8, "length": 6}
TRIALS = (
    Trial(settings={**_SMALL, "layers": 2, "clip_norm": 0.1, "rate": 0.5}, batch=4, optimizer="sgd"),
    Trial(settings=_SMALL, batch=3, optimizer="adam", data="streamed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`length`: characters after which the gradient is cut.

    `batch`: passages in a step. `examples`: passages in an epoch.

    A framework's step has no dropout, because each framework draws other masks.
    """

    alphabet: int = 96
    embedding: int = 32
    width: int = 192
    layers: int = 1
    length: int = 32
    batch: int = held(32)
    dropout: float = held(0.3, at=0.0)
    rate: float = 0.006
    clip_norm: float = 1.0
    examples: int = 12_500
    init: str = held("modern")

    def __post_init__(self) -> None:
        counts = ("alphabet", "embedding", "width", "layers", "length", "batch", "examples")
        require_positive(self, (*counts, "rate", "clip_norm"), "lstm")
        check_dropout(self.dropout, "lstm")
        bound_of(self.init, "lstm")


def start(settings: Settings, batch: int, rng: numpy.random.Generator) -> Start:
    """Each layer has its gates input, forget, cell and output in one matrix, and two biases as in PyTorch."""
    characters = rng.standard_normal((settings.alphabet, settings.embedding), dtype=numpy.float32)
    weights: dict[str, Array] = {"characters": characters}
    width = settings.width
    for layer in range(settings.layers):
        forget_bias = zeros(4 * width)
        forget_bias[width : 2 * width] = 1.0  # forget gates begin open
        weights[f"w_input{layer}"] = scaled(rng, width if layer else settings.embedding, 4 * width)
        weights[f"w_state{layer}"] = scaled(rng, width, 4 * width)
        weights[f"b_input{layer}"] = forget_bias
        weights[f"b_state{layer}"] = zeros(4 * width)
    weights["w_head"] = scaled(rng, width, settings.alphabet)
    weights["b_head"] = zeros(settings.alphabet)
    count = count_batches(batch * settings.length)
    text = rng.integers(0, settings.alphabet, (count, batch, settings.length + 1))
    return Start(weights=weights, inputs=text[:, :, :-1], targets=text[:, :, 1:], loss="cross-entropy")
