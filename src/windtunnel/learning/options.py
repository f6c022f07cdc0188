"""How to train, and what a checkpoint belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel import records
from windtunnel.learning.goal import Goal
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.learning.result import EpochRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How to train.

    `epochs` replaces the number of epochs of every stage. `until` stops the training early: a `Goal` or text
    such as "accuracy=0.95". `device` is cpu or cuda. With a `folder`, weights, curve and checkpoint are
    written there, and an interrupted training continues after its last complete epoch, unless `fresh` is set.
    `stop` is asked before each epoch with the rows so far, and ends the training when it returns true.
    """

    epochs: int | None = None
    until: str | Goal | None = None
    device: str = "cpu"
    folder: Path | None = None
    seed: int = 0
    fresh: bool = False
    stop: Callable[[Sequence[EpochRow]], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingIdentity:
    """What a checkpoint belongs to: a network with its settings and its data set."""

    network: str
    settings: Mapping[str, object]
    data: str

    def plain(self, seed: int) -> Plain:
        return {**records.plain(self), "seed": seed}

    def folder(self, seed: int) -> Path:
        """The default folder of this training."""
        return Path("windtunnel-runs") / f"{self.network}-{records.digest(self.plain(seed))[:8]}"
