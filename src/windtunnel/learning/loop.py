"""The training loop: stages, epochs, evaluation on held-out data, and a checkpoint after each epoch."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from windtunnel import records
from windtunnel.errors import BadInput, BadJob, StoreError, nearest
from windtunnel.job.lesson import Lesson, Stage
from windtunnel.learning import checkpoint
from windtunnel.learning.goal import Goal
from windtunnel.learning.options import TrainingIdentity, TrainingOptions
from windtunnel.learning.result import EpochRow, TrainingResult, write_curve
from windtunnel.records import Plain

Progress = Callable[[int, int, str], None]  # steps done, steps in all, text


class TrainingLoop:
    """The state of one training: the network, its optimisers, its random numbers and its rows so far."""

    def __init__(
        self,
        lesson: Lesson,
        options: TrainingOptions,
        goal: Goal | None,
        identity: TrainingIdentity | None,
        progress: Progress | None,
    ) -> None:
        self.lesson, self.options, self.goal = lesson, options, goal
        self.stages = [dataclasses.replace(s, epochs=options.epochs or s.epochs) for s in lesson.stages]
        self.goal_better = lesson.better if goal is None else goal.better or lesson.better
        self.device, self.folder = options.device, options.folder
        self.title = f"{identity.network} on {identity.data}" if identity else "network"
        self.name = identity.network if identity else "network"
        self.identity = identity.plain(options.seed) if identity else {"seed": options.seed}
        self.progress = progress or (lambda done, total, text: None)
        self.model = lesson.model().to(options.device)
        self.order = torch.Generator().manual_seed(options.seed)
        self.optimizers: Any = None  # of a structure that the stage chooses
        self.rows: list[EpochRow] = []
        self.cautions = tuple(lesson.cautions)
        self.done = (0, 0)  # the stage, and how many of its epochs are complete

    def run(self) -> TrainingResult:
        resumed = 0 if self.options.fresh else self._resume()
        if not self.rows:
            self._add_row("start", None, 0, 0.0)
        self._check_goal()
        if self.folder is not None:
            self._make(self.folder)
        first, epochs_done = self.done
        for number, stage in enumerate(self.stages[first:], first):
            if self._is_over():
                break
            if number > first or self.optimizers is None:
                self.optimizers = stage.optimizers(self.model)
            self._run_stage(number, stage, epochs_done if number == first else 0)
        return self._finish(resumed)

    def _make(self, folder: Path) -> None:
        """Makes the folder before the first epoch, so that an error comes early."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The folder {folder} cannot be made: {error.strerror or error}.",
                hint="Choose another --folder.",
            ) from error

    def _run_stage(self, number: int, stage: Stage, epochs_done: int) -> None:
        for epoch in range(epochs_done, stage.epochs):
            if self._is_over():
                return
            self._run_epoch(stage)
            self.done = (number, epoch + 1)
            self._save()

    def _run_epoch(self, stage: Stage) -> None:
        """One pass over the data. The loss is read once at the end, because each read synchronizes a GPU."""
        before, start = self.rows[-1], time.perf_counter()
        self.model.train()
        losses = stage.epoch(self.model, self.order, self.optimizers) if stage.epoch else None
        if losses is None:
            loss, steps = self._run_steps(stage, before.steps)
        else:
            loss, steps = float(losses.double().mean()), len(losses)
        self.progress(before.steps + steps, self._total_steps(), self._progress_text())
        if not math.isfinite(loss) or not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            note = f"; the checkpoint of epoch {before.epoch} is kept in {self.folder}" if self.folder else ""
            raise BadJob(
                f"In epoch {before.epoch + 1} ({stage.name}) the loss is no longer a finite number{note}.",
                hint="Lower the rate, for example rate=0.001",
            )
        self._add_row(stage.name, loss, steps, time.perf_counter() - start)

    def _run_steps(self, stage: Stage, before: int) -> tuple[float, int]:
        """The mean loss of an epoch and its number of steps."""
        total, steps = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for batch in stage.batches(self.order):
            moved = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), batch)
            total += stage.step(self.model, moved, self.optimizers).detach().to(torch.float64).mean()
            steps += 1
            self.progress(before + steps, self._total_steps(), self._progress_text())
        return float(total) / max(steps, 1), steps

    def _add_row(self, stage: str, loss: float | None, steps: int, seconds: float) -> None:
        """Evaluates the network on held-out data and adds a row."""
        self.model.eval()
        figures = {name: float(value) for name, value in self.lesson.examine(self.model).items()}
        last = self.rows[-1] if self.rows else EpochRow(stage=stage, epoch=-1, steps=0, seconds=0.0)
        self.rows.append(
            EpochRow(
                stage=stage,
                epoch=last.epoch + 1,
                steps=last.steps + steps,
                seconds=last.seconds + seconds,
                loss=loss,
                figures=figures,
            )
        )

    def _check_goal(self) -> None:
        """Refuses a target on an unknown metric before the first epoch."""
        if self.goal is None:
            return
        known = self.rows[0].figures
        if self.goal.metric not in known:
            raise BadInput(
                f"The evaluation of this network has no metric {self.goal.metric!r}.",
                hint=f"{nearest(self.goal.metric, known)} Known: {', '.join(known)}.",
            )
        if self.goal.better is None and self.goal.metric != self.lesson.metric:
            name, target = self.goal.metric, self.goal.target
            raise BadInput(
                f"It is not known whether a higher or a lower {name} is better.",
                hint=f"Write --until '{name}>={target:g}' or --until '{name}<={target:g}'.",
            )

    def _is_over(self) -> bool:
        """Whether the target is reached, or the caller wants no further epoch."""
        return self._reached() or bool(self.options.stop and self.options.stop(self.rows))

    def _reached(self) -> bool:
        """Whether the target is reached. An untrained network never reaches it, even by chance."""
        if self.goal is None or len(self.rows) < 2:
            return False
        value = self.rows[-1].figures[self.goal.metric]
        return value >= self.goal.target if self.goal_better == "higher" else value <= self.goal.target

    def _save(self) -> None:
        if self.folder is None:
            return
        states = [o.state_dict() for o in _with_state(self.optimizers)]
        trees = {"model": dict(self.model.state_dict()), "optimizers": states, "random": self._random_state()}
        note = {
            "identity": self.identity,
            "done": list(self.done),
            "stages": [s.name for s in self.stages],
            "rows": records.plain(self.rows),
        }
        checkpoint.save(self.folder / checkpoint.NAME, trees, note)

    def _resume(self) -> int:
        """Continues from the checkpoint in the folder, if there is one; returns its epoch."""
        last = checkpoint.load_last(self.folder) if self.folder else None
        if last is None:
            return 0
        path, trees, note, caution = last
        try:
            self._continue_from(path, trees, note)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"{path} is not a checkpoint of this training: {type(error).__name__} {error}.",
                hint="Use another --folder, or start again with --fresh.",
            ) from error
        if caution:
            self.cautions += (caution,)
            self.progress(self.rows[-1].steps, self._total_steps(), caution)
        return self.rows[-1].epoch

    def _continue_from(self, path: Path, trees: Plain, note: Plain) -> None:
        _check_identity(path, note["identity"], self.identity)
        checkpoint.check_fit(self.model, trees["model"], path)
        self.done = (note["done"][0], note["done"][1])
        self.optimizers = self.stages[self.done[0]].optimizers(self.model)
        self.model.load_state_dict(trees["model"])
        for optimizer, state in zip(_with_state(self.optimizers), trees["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._set_random_state(trees["random"])
        self.rows = [records.read(EpochRow, row, str(path)) for row in note["rows"]]

    def _random_state(self) -> dict[str, torch.Tensor]:
        state = {"order": self.order.get_state(), "cpu": torch.get_rng_state()}
        return {**state, "cuda": torch.cuda.get_rng_state()} if self.device == "cuda" else state

    def _set_random_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.order.set_state(state["order"])
        torch.set_rng_state(state["cpu"])
        if self.device == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])

    def _finish(self, resumed: int) -> TrainingResult:
        metric, better = self.lesson.metric, self.lesson.better
        trained = self.rows[1:] or self.rows
        values = [(row.figures[metric], row.epoch) for row in trained if metric in row.figures]
        best, best_epoch = max(values) if better == "higher" else min(values)
        result = TrainingResult(
            title=self.title,
            goal=self.goal,
            folder=self.folder,
            rows=tuple(self.rows),
            metric=metric,
            better=better,
            reached=None if self.goal is None else self._reached(),
            best=best,
            best_epoch=best_epoch,
            resumed=resumed,
            cautions=self.cautions,
            files=(),
            model=self.model,
        )
        self.model.eval()
        if self.folder is None:
            return result
        return dataclasses.replace(result, files=tuple(self._write(result, self.folder)))

    def _write(self, result: TrainingResult, folder: Path) -> list[Path]:
        try:
            weights = checkpoint.save_weights(folder / "weights.safetensors", self.model)
            files = [weights, *write_curve(result, folder, self.name)]
            return files + (self.lesson.draw(self.model, folder) if self.lesson.draw else [])
        except (OSError, StoreError) as error:
            reason = error.message if isinstance(error, StoreError) else f"{error.strerror or error}."
            raise StoreError(
                f"{folder} cannot be written: {reason}",
                hint="Free some disk space and run the same command again; no epoch is trained twice.",
            ) from error

    def _total_steps(self) -> int:
        return sum(s.epochs * s.steps for s in self.stages)

    def _progress_text(self) -> str:
        row = self.rows[-1]
        value = row.figures.get(self.lesson.metric)
        return f"epoch {row.epoch + 1}" + (f", {self.lesson.metric} {value:.4g}" if value is not None else "")


def _check_identity(path: Path, there: Plain, here: Plain) -> None:
    """Refuses the checkpoint of another network, data set, seed or other settings."""
    hint = "Use another --folder, or start again with --fresh, which overwrites it."
    for key in ("network", "data", "seed"):
        if there.get(key) != here.get(key):
            raise BadInput(
                f"{path} is a checkpoint of {key} {there.get(key)!r}, not of {here.get(key)!r}.", hint=hint
            )
    old, new = there.get("settings") or {}, here.get("settings") or {}
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            raise BadInput(
                f"{path} was trained with {key}={old.get(key)}, not {key}={new.get(key)}.", hint=hint
            )


def _with_state(optimizers: Any) -> list[Any]:
    """The optimisers and schedulers in whatever structure the lesson keeps them."""
    return [
        leaf
        for leaf in pytree.tree_leaves(optimizers)
        if hasattr(leaf, "state_dict") and hasattr(leaf, "load_state_dict")
    ]
