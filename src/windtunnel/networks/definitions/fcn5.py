"""The fully connected network of the guide's Table I, with the layers Shi et al. 2016 give."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from windtunnel.errors import BadRecord
from windtunnel.networks.definitions import Array, Start, Trial, count_batches, held, scaled, zeros
from windtunnel.networks.definitions.checks import bound_of, require_positive

TRIALS = (Trial(settings={"layers": (20, 16, 16, 16, 9), "rate": 0.1}, batch=8, optimizer="momentum"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`layers`: widths from input to output, so that a smaller copy is possible.

    A lesson has its own rate (of Adam), batch and number of epochs.
    """

    layers: tuple[int, ...] = (26752, 2048, 2048, 2048, 26752)
    rate: float = 0.01
    examples: int = 4096
    lesson_rate: float = held(0.001)
    lesson_batch: int = held(64)
    epochs: int = held(20)
    init: str = held("modern")

    def __post_init__(self) -> None:
        if len(self.layers) < 2 or min(self.layers) < 1:
            raise BadRecord(f"job fcn5: layers must be at least two widths above 0, not {self.layers}.")
        require_positive(self, ("examples", "rate", "lesson_rate", "lesson_batch", "epochs"), "fcn5")
        bound_of(self.init, "fcn5")


def start(settings: Settings, batch: int, rng: numpy.random.Generator) -> Start:
    return start_of_layers(settings.layers, "sigmoid", batch, rng)


def start_of_layers(widths: Sequence[int], activation: str, batch: int, rng: numpy.random.Generator) -> Start:
    """A stack of linear layers that classifies uniform vectors: a matrix and a bias for each layer."""
    weights: dict[str, Array] = {}
    for i, (wide, narrow) in enumerate(itertools.pairwise(widths)):
        weights[f"w{i}"] = scaled(rng, wide, narrow)
        weights[f"b{i}"] = zeros(narrow)
    count = count_batches(batch * widths[0])
    return Start(
        weights=weights,
        inputs=rng.random((count, batch, widths[0]), dtype=numpy.float32),
        targets=rng.integers(0, widths[-1], (count, batch)),
        loss="cross-entropy",
        activation=activation,
    )
