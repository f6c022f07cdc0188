"""The result of a training: the metrics after each epoch, the best epoch, the files. It prints itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from windtunnel import records, units
from windtunnel.displays import Displayed
from windtunnel.learning import pictures
from windtunnel.learning.goal import Better, Goal
from windtunnel.learning.text import wrapped
from windtunnel.records import Plain

_NOT_PLAIN = ("title", "goal", "folder", "files", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """The state after an epoch; row 0 is the untrained network. `epoch` and `steps` count over all stages."""

    stage: str
    epoch: int
    steps: int
    seconds: float
    loss: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(Displayed):
    """What a training achieved.

    `reached` is None if no target was set. `resumed` is the epoch after which the training continued, 0 if it
    started from the beginning. `figures` of the rows are metrics on held-out data.
    """

    title: str
    goal: Goal | None
    folder: Path | None
    rows: tuple[EpochRow, ...]
    metric: str
    better: Better
    reached: bool | None
    best: float
    best_epoch: int
    resumed: int
    cautions: tuple[str, ...]
    files: tuple[Path, ...]
    model: torch.nn.Module = field(repr=False, compare=False)

    @property
    def figures(self) -> Mapping[str, float]:
        """The metrics on held-out data at the end."""
        return self.rows[-1].figures

    def metric_curve(self) -> list[tuple[int, float]]:
        """The metric after each epoch."""
        return [(row.epoch, row.figures[self.metric]) for row in self.rows if self.metric in row.figures]

    def loss_curve(self) -> list[tuple[int, float]]:
        """The mean training loss of each epoch."""
        return [(row.epoch, row.loss) for row in self.rows if row.loss is not None]

    def plain(self) -> Plain:
        """As data for JSON."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in _NOT_PLAIN]
        values = records.plain({name: getattr(self, name) for name in fields})
        return {**values, "files": [str(path) for path in self.files]}

    def __str__(self) -> str:
        last = self.rows[-1]
        steps = f"{last.epoch} epoch{'' if last.epoch == 1 else 's'}, {last.steps:,} steps"
        continued = f", continued after epoch {self.resumed}" if self.resumed else ""
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        lines = [
            f"{self.title}: {steps} in {units.show(last.seconds, 's')}{continued}",
            *wrapped("held out", figures),
            f"  best      {self.metric} {self.best:.4g} in epoch {self.best_epoch}",
        ]
        if self.goal is not None:
            missed = "not reached; try more epochs or other settings"
            reached = f"reached in epoch {last.epoch}" if self.reached else missed
            lines.append(f"  target    {self.goal}: {reached}")
        lines += self._curve_lines()
        for caution in self.cautions:
            lines += wrapped("caution", caution)
        return "\n".join([*lines, *self._file_lines()])

    def _curve_lines(self) -> list[str]:
        """The metric and the training loss over the epochs, each as a small curve in one line."""
        curves = {self.metric: self.metric_curve(), "training loss": self.loss_curve()}
        width = max(map(len, curves))
        lines = []
        for name, points in curves.items():
            values = [value for _, value in points]
            if len(values) > 1:
                spark = pictures.spark(values)
                lines.append(f"  {name:<{width}}{values[0]:>9.4g} {spark} {values[-1]:.4g}")
        return lines

    def _file_lines(self) -> list[str]:
        folder = self.folder
        if folder is None:
            return []
        return [
            f"  files     {folder}{os.sep}",
            *(f"            {file.relative_to(folder)}" for file in self.files),
        ]


def write_curve(result: TrainingResult, folder: Path, name: str) -> list[Path]:
    """Writes the learning curve as numbers and as a picture."""
    numbers, picture = folder / "curve.json", folder / "curve.svg"
    records.save(numbers, {"metric": result.metric, "better": result.better, "rows": result.rows})
    held_out, losses, goal = f"held-out {result.metric}", result.loss_curve(), result.goal
    panels = {held_out: result.metric_curve(), **({"training loss": losses} if losses else {})}
    targets = {held_out: goal.target} if goal and goal.metric == result.metric else {}
    return [numbers, pictures.curves(f"{name}: learning curve", panels, picture, targets=targets)]
