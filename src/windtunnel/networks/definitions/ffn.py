"""Feed-forward network: inputs, one layer of hidden nodes (or several) and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from windtunnel.networks.definitions import Start, Trial, held
from windtunnel.networks.definitions.checks import bound_of, require_positive
from windtunnel.networks.definitions.fcn5 import start_of_layers

TRIALS = (Trial(settings={"inputs": 12, "classes": 5}, batch=16, optimizer="adam", data="streamed"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`hidden`: nodes of the hidden layer. Default: twice the inputs; the guide asks for at least as many.

    `layers`: hidden layers of this many nodes. The guide's shallow network has one.
    """

    inputs: int = 64
    hidden: int | None = None
    layers: int = held(1)
    classes: int = 10
    rate: float = 0.003
    batch: int = held(32)
    epochs: int = held(20)
    examples: int = 1442
    init: str = held("modern")

    def __post_init__(self) -> None:
        require_positive(self, ("inputs", "layers", "classes", "rate", "batch", "epochs", "examples"), "ffn")
        if self.hidden is not None:
            require_positive(self, ("hidden",), "ffn")
        bound_of(self.init, "ffn")

    @property
    def nodes(self) -> int:
        return 2 * self.inputs if self.hidden is None else self.hidden


def start(settings: Settings, batch: int, rng: numpy.random.Generator) -> Start:
    return start_of_layers((settings.inputs, settings.nodes, settings.classes), "relu", batch, rng)
