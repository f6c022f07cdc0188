"""Small recurrent networks whose forward, backward and update run as one call.

`FusedRNN` is a PyTorch module. `RecurrentNetwork`, `Weights`, `Examples` and `Optimizer` describe a training,
`TrainingRun` puts them together, and `train_many` trains several networks at once on all cores or on a GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.fused.many import train_many
    from windtunnel.fused.module import FusedRNN
    from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights
    from windtunnel.fused.train import TrainingRun

_HOMES = {
    "Examples": "settings",
    "FusedRNN": "module",
    "Optimizer": "settings",
    "RecurrentNetwork": "settings",
    "TrainingRun": "train",
    "Weights": "settings",
    "train_many": "many",
}
__all__ = [
    "Examples",
    "FusedRNN",
    "Optimizer",
    "RecurrentNetwork",
    "TrainingRun",
    "Weights",
    "train_many",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'windtunnel.fused' has no attribute {name!r}")
    return getattr(importlib.import_module(f"windtunnel.fused.{_HOMES[name]}"), name)
