"""A lesson: the stages in which a network is trained on real data, and its test on held-out examples.

Every network's `teach(settings, data)` returns a `Lesson`; `windtunnel.learning.training` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.job.workload import Batch, Model, Optimizers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Examples in two fixed parts: `train` to learn from, `held_out` to test on.

    Each part maps a name ("images", "labels", "text", "trees", ...) to a tensor or list; all have one length.
    `facts` holds what a network needs to be built: "classes", "size", "channels", "alphabet", ...
    """

    name: str
    train: Mapping[str, Any]
    held_out: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of the training with its own step. Most lessons have one stage; a deep belief network has
    one for each layer.

    batches(generator)                   yields the batches of one epoch, in the generator's random order
    optimizers(model)                    is called once, when the stage begins
    step(model, batch, optimizers)       trains on one batch and returns its loss
    epoch(model, generator, optimizers)  optional: trains a whole epoch in one call and returns the loss of
                                         each step, or None if it cannot (the steps then run one by one)
    """

    name: str
    epochs: int
    steps: int
    batches: Callable[[torch.Generator], Iterator[Batch]]
    optimizers: Callable[[Model], Optimizers]
    step: Callable[[Model, Batch, Optimizers], torch.Tensor]
    epoch: Callable[[Model, torch.Generator, Optimizers], torch.Tensor | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A network, the stages of its training and its test.

    `examine(model)` tests the network on held-out examples and returns results by name; `metric` names the
    most important one. `draw(model, folder)` writes sample images or text and returns the files.
    """

    model: Callable[[], torch.nn.Module]
    stages: tuple[Stage, ...]
    examine: Callable[[Model], dict[str, float]]
    metric: str
    better: Literal["higher", "lower"]
    draw: Callable[[Model, Path], list[Path]] | None = None
    cautions: tuple[str, ...] = ()
