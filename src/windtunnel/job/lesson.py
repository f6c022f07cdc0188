"""How a network is really taught: its stages, and how well it does on what it has not seen.

A file under `networks/` gives `Settings`, `build(settings) -> Workload` for forecasts and measurements, and
`teach(settings, data) -> Lesson` for real training on the data set whose name it gives as `DATA`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Examples split once and for all into those to learn from and those held out.

    `train` and `held_out` map a name ("images", "labels", "text", "trees", ...) to a tensor or a list of the same length.
    `facts` says what a network must know to be built: "classes", "size", "channels", "alphabet", ...
    """

    name: str
    train: Mapping[str, Any]
    held_out: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of the training with its own step: most lessons have one, a deep belief network has a stage for each layer.

    `batches(generator)` gives one epoch of batches, drawn in the order the generator makes; `optimizers(model)` is called
    when the stage begins; `step(model, batch, optimizers)` trains on one batch and returns its loss. Where there is one,
    `epoch(model, generator, optimizers)` trains on all of them in one call and returns the loss of each step, or None where it cannot.
    """

    name: str
    epochs: int
    steps: int
    batches: Callable[[torch.Generator], Iterator[Any]]
    optimizers: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], torch.Tensor]
    epoch: Callable[[Any, torch.Generator, Any], torch.Tensor | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A network, its stages, its examination on held-out examples, and, for one that generates, what it draws.

    `examine(model)` gives figures by name, among them `metric`, the one to watch. `draw(model, folder)` writes pictures or
    text and returns the files.
    """

    model: Callable[[], torch.nn.Module]
    stages: tuple[Stage, ...]
    examine: Callable[[Any], dict[str, float]]
    metric: str
    better: Literal["higher", "lower"]
    draw: Callable[[Any, Path], list[Path]] | None = None
    cautions: tuple[str, ...] = ()
