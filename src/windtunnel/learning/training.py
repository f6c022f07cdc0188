"""Teach a network until it is good enough: stages in order, an examination after each epoch, a checkpoint that a kill cannot spoil.

>>> parse_goal("accuracy=0.95")
Goal(metric='accuracy', target=0.95, better=None)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from windtunnel import networks, records
from windtunnel.errors import BadInput, BadJob, Interrupted, StoreError, Unavailable, WindtunnelError, nearest
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.learning import checkpoint, data, pictures

Better = Literal["higher", "lower"]
Progress = Callable[[int, int, str], None]
SMALLEST_PHOTOGRAPH = 32
_GOAL = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*(=|>=|<=)\s*(\S+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure and the value at which to stop; `better` is None where the lesson is to say which way is up."""

    metric: str
    target: float
    better: Better | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The state after an epoch; row 0 is the network before it has learned anything. `epoch` and `steps` count over all stages."""

    stage: str
    epoch: int
    steps: int
    seconds: float
    loss: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a training went. `reached` is None where no target was set; `resumed` is the epoch from which it went on, 0 for the beginning."""

    rows: tuple[Row, ...]
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
        """The held-out figures at the end."""
        return self.rows[-1].figures

    def plain(self) -> dict[str, Any]:
        kept = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("model", "files")
        }
        return {**records.plain(kept), "files": [str(path) for path in self.files]}


def parse_goal(words: str) -> Goal:
    """`accuracy=0.95`, or with a direction `loss<=0.3`."""
    match = _GOAL.match(words)
    try:
        target = float(match[3]) if match else math.nan
    except ValueError:
        target = math.nan
    if match is None or not math.isfinite(target):
        raise BadInput(
            f"{words!r} is no target.",
            hint="Write a held-out figure and a number, for example --until accuracy=0.95",
        )
    ways: dict[str, Better | None] = {"=": None, ">=": "higher", "<=": "lower"}
    return Goal(metric=match[1], target=target, better=ways[match[2]])


def prepare(
    name: str, settings: Mapping[str, Any], source: str | None = None
) -> tuple[Lesson, dict[str, Any]]:
    """The lesson of a named network on its own data or the user's, and the identity by which its checkpoints are told apart."""
    network = networks.named(name)
    chosen = records.read(network.settings, settings, f"job {name}")
    source = source or network.module.DATA
    wanted = {key: getattr(chosen, key) for key in ("channels", "n_steps") if hasattr(chosen, key)}
    classes = getattr(chosen, "classes", None) if "classes" in settings else None
    dataset = data.load(
        source, network.module.DATA, size=_picture_size(chosen, settings, source), classes=classes, **wanted
    )
    identity = {"network": name, "settings": records.plain(chosen), "data": source}
    return _teach(network, chosen, dataset), identity


def train(
    lesson: Lesson,
    *,
    epochs: int | None = None,
    until: str | Goal | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    identity: Mapping[str, Any] | None = None,
    fresh: bool = False,
) -> Course:
    """Run the lesson's stages; `epochs` replaces the number of epochs of every stage.

    With a `folder`, an interrupted training goes on from its last whole epoch, unless `fresh` asks to begin anew; `identity`
    (network, settings, data) tells its checkpoint from another's. The caller's own random numbers are left as they were.
    """
    check_device(device)
    if folder is not None:
        checkpoint.require()
    if epochs is not None and epochs < 1:
        raise BadInput(f"A training needs at least one epoch, not {epochs}.")
    goal = parse_goal(until) if isinstance(until, str) else until
    with _own_random_numbers(seed):
        run = _Run(lesson, epochs, goal, device, folder, {**(identity or {}), "seed": seed}, progress)
        try:
            return run.go(fresh)
        except KeyboardInterrupt:
            hint = (
                "The same command goes on from the last whole epoch."
                if folder
                else "Give a folder to be able to go on."
            )
            raise Interrupted(
                f"Stopped after epoch {run.rows[-1].epoch if run.rows else 0}.", hint=hint
            ) from None


def check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise BadInput(f"A network can be trained on cpu or cuda, not on {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable(
            "PyTorch finds no CUDA GPU on this machine.", hint="Use --on cpu."
        )


def use_threads(threads: int) -> None:
    """Small networks often learn fastest on one thread."""
    if threads < 1:
        raise BadInput(f"A training needs at least one thread, not {threads}.")
    torch.set_num_threads(threads)


class _Run:
    """One training under way: the network, its optimisers, its random numbers and what was seen so far."""

    def __init__(
        self,
        lesson: Lesson,
        epochs: int | None,
        goal: Goal | None,
        device: str,
        folder: Path | None,
        identity: Mapping[str, Any],
        progress: Progress | None,
    ) -> None:
        self.lesson = lesson
        self.stages = [dataclasses.replace(s, epochs=epochs or s.epochs) for s in lesson.stages]
        self.goal = goal
        self.device = device
        self.folder = folder
        self.identity = records.plain(identity)
        self.progress = progress or (lambda done, total, told: None)
        self.model = lesson.model().to(device)
        self.order = torch.Generator().manual_seed(int(identity["seed"]))
        self.optimizers: Any = None
        self.rows: list[Row] = []
        self.done = (0, 0)  # the stage, and how many of its epochs are behind us

    def go(self, fresh: bool) -> Course:
        resumed = 0 if fresh else self._resume()
        if not self.rows:
            self._note("start", None, 0, 0.0)
        self._check_goal()
        if self.folder is not None:
            self._make(self.folder)
        first, epochs_done = self.done
        for number, stage in enumerate(self.stages[first:], first):
            if self._reached():
                break
            if number > first or self.optimizers is None:
                self.optimizers = stage.optimizers(self.model)
            self._stage(number, stage, epochs_done if number == first else 0)
        return self._finish(resumed)

    def _make(self, folder: Path) -> None:
        """Say before the first epoch, not after it, that nothing can be written there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The folder {folder} cannot be made: {error.strerror or error}.",
                hint="Choose another --folder.",
            ) from error

    def _stage(self, number: int, stage: Stage, epochs_done: int) -> None:
        for epoch in range(epochs_done, stage.epochs):
            if self._reached():
                return
            self._epoch(stage)
            self.done = (number, epoch + 1)
            self._save()

    def _epoch(self, stage: Stage) -> None:
        """One pass over the data; the loss is looked at once, at the end, since each look makes a GPU wait."""
        before, began = self.rows[-1], time.perf_counter()
        self.model.train()
        losses = stage.epoch(self.model, self.order, self.optimizers) if stage.epoch else None
        loss, steps = (
            self._step_by_step(stage, before.steps)
            if losses is None
            else (float(losses.double().mean()), len(losses))
        )
        self.progress(before.steps + steps, self._steps_in_all(), self._told())
        if not math.isfinite(loss) or not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            kept = f"; the checkpoint of epoch {before.epoch} is kept in {self.folder}" if self.folder else ""
            raise BadJob(
                f"In epoch {before.epoch + 1} ({stage.name}) the loss is no longer a finite number{kept}.",
                hint="Lower the rate, for example rate=0.001",
            )
        self._note(stage.name, loss, steps, time.perf_counter() - began)

    def _step_by_step(self, stage: Stage, before: int) -> tuple[float, int]:
        """The mean loss of an epoch and its number of steps."""
        total, steps = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for batch in stage.batches(self.order):
            moved = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), batch)
            total += stage.step(self.model, moved, self.optimizers).detach().to(torch.float64).mean()
            steps += 1
            self.progress(before + steps, self._steps_in_all(), self._told())
        return float(total) / max(steps, 1), steps

    def _note(self, stage: str, loss: float | None, steps: int, seconds: float) -> None:
        self.model.eval()
        figures = {name: float(value) for name, value in self.lesson.examine(self.model).items()}
        last = self.rows[-1] if self.rows else Row(stage=stage, epoch=-1, steps=0, seconds=0.0)
        self.rows.append(
            Row(
                stage=stage,
                epoch=last.epoch + 1,
                steps=last.steps + steps,
                seconds=last.seconds + seconds,
                loss=loss,
                figures=figures,
            )
        )

    def _check_goal(self) -> None:
        """Say at once, not after an hour, that a target names no figure of this lesson."""
        if self.goal is None:
            return
        known = self.rows[0].figures
        if self.goal.metric not in known:
            raise BadInput(
                f"This network's examination has no figure {self.goal.metric!r}.",
                hint=f"{nearest(self.goal.metric, known)} Known: {', '.join(known)}.",
            )
        if self.goal.better is None:
            if self.goal.metric != self.lesson.metric:
                name, target = self.goal.metric, self.goal.target
                raise BadInput(
                    f"Is a higher or a lower {name} the better?",
                    hint=f"Write --until '{name}>={target:g}' or --until '{name}<={target:g}'.",
                )
            self.goal = dataclasses.replace(self.goal, better=self.lesson.better)

    def _reached(self) -> bool:
        """An untrained network has reached nothing, even where its figure happens to be good."""
        if self.goal is None or len(self.rows) < 2:
            return False
        value = self.rows[-1].figures[self.goal.metric]
        return value >= self.goal.target if self.goal.better == "higher" else value <= self.goal.target

    def _save(self) -> None:
        if self.folder is None:
            return
        states = [o.state_dict() for o in _stateful(self.optimizers)]
        trees = {"model": dict(self.model.state_dict()), "optimizers": states, "random": self._random_state()}
        note = {
            "identity": self.identity,
            "done": list(self.done),
            "stages": [s.name for s in self.stages],
            "rows": records.plain(self.rows),
        }
        checkpoint.save(self.folder / checkpoint.NAME, trees, note)

    def _resume(self) -> int:
        """Go on from the folder's checkpoint where there is one; returns its epoch."""
        path = self.folder / checkpoint.NAME if self.folder else None
        if path is None or not path.exists():
            return 0
        trees, note = checkpoint.load(path)
        _check_identity(path, note["identity"], self.identity)
        checkpoint.check_fit(self.model, trees["model"], path)
        self.done = (note["done"][0], note["done"][1])
        self.optimizers = self.stages[self.done[0]].optimizers(self.model)
        self.model.load_state_dict(trees["model"])
        for optimizer, state in zip(_stateful(self.optimizers), trees["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._set_random_state(trees["random"])
        self.rows = [records.read(Row, row, str(path)) for row in note["rows"]]
        return self.rows[-1].epoch

    def _random_state(self) -> dict[str, torch.Tensor]:
        state = {"order": self.order.get_state(), "cpu": torch.get_rng_state()}
        return {**state, "cuda": torch.cuda.get_rng_state()} if self.device == "cuda" else state

    def _set_random_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.order.set_state(state["order"])
        torch.set_rng_state(state["cpu"])
        if self.device == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])

    def _finish(self, resumed: int) -> Course:
        seen = [
            (row.figures[self.lesson.metric], row.epoch)
            for row in self.rows[1:] or self.rows
            if self.lesson.metric in row.figures
        ]
        best, best_epoch = max(seen) if self.lesson.better == "higher" else min(seen)
        course = Course(
            rows=tuple(self.rows),
            metric=self.lesson.metric,
            better=self.lesson.better,
            reached=None if self.goal is None else self._reached(),
            best=best,
            best_epoch=best_epoch,
            resumed=resumed,
            cautions=self.lesson.cautions,
            files=(),
            model=self.model,
        )
        self.model.eval()
        return (
            course
            if self.folder is None
            else dataclasses.replace(course, files=tuple(self._write(course, self.folder)))
        )

    def _write(self, course: Course, folder: Path) -> list[Path]:
        try:
            return self._write_all(course, folder)
        except OSError as error:
            raise StoreError(
                f"{folder} cannot be written: {error.strerror or error}.",
                hint="Make workspace and give the same command again; nothing is trained anew.",
            ) from error

    def _write_all(self, course: Course, folder: Path) -> list[Path]:
        weights = checkpoint.save_weights(folder / "weights.safetensors", self.model)
        files = [
            weights,
            *draw_curve(course, folder, str(self.identity.get("network", "network")), self.goal),
        ]
        return files + (self.lesson.draw(self.model, folder) if self.lesson.draw else [])

    def _steps_in_all(self) -> int:
        return sum(s.epochs * s.steps for s in self.stages)

    def _told(self) -> str:
        row = self.rows[-1]
        value = row.figures.get(self.lesson.metric)
        return f"epoch {row.epoch + 1}" + (f", {self.lesson.metric} {value:.4g}" if value is not None else "")


def draw_curve(course: Course, folder: Path, name: str, goal: Goal | None = None) -> list[Path]:
    """The learning curve as numbers and as a picture."""
    numbers = folder / "curve.json"
    records.save(numbers, {"metric": course.metric, "better": course.better, "rows": course.rows})
    losses = [(row.epoch, row.loss) for row in course.rows if row.loss is not None]
    held_out = [
        (row.epoch, row.figures[course.metric]) for row in course.rows if course.metric in row.figures
    ]
    marks = {f"held-out {course.metric}": goal.target} if goal and goal.metric == course.metric else {}
    panels = {f"held-out {course.metric}": held_out, **({"training loss": losses} if losses else {})}
    return [numbers, pictures.curves(f"{name}: learning curve", panels, folder / "curve.svg", marks=marks)]


def _picture_size(chosen: Any, given: Mapping[str, Any], source: str) -> int | None:
    """The size the user asks for. Else synthetic images stay small, and photographs are not made smaller than can be recognised."""
    size = getattr(chosen, "size", None)
    if not isinstance(size, int):  # a language model's size is a word
        return None
    return size if "size" in given else None if source in data.NAMES else max(size, SMALLEST_PHOTOGRAPH)


def _teach(network: networks.NetworkEntry, settings: Any, dataset: Dataset) -> Lesson:
    """The network's own lesson; data that lacks what the network must know is the user's to mend."""
    try:
        lesson: Lesson = network.module.teach(settings, dataset)
    except WindtunnelError:
        raise
    except KeyError as error:
        has = ", ".join((*dataset.facts, *dataset.train))
        raise BadInput(
            f"job {network.name} cannot learn from {dataset.name}: it needs {error.args[0]!r}; the data has {has}.",
            hint=f"Use --data {network.module.DATA}, or data of the same kind.",
        ) from error
    return lesson


def _check_identity(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """A checkpoint belongs to one network with one set of settings, data and seed."""
    hint = "Use another --folder, or begin anew with --fresh, which overwrites it."
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


def _stateful(optimizers: Any) -> list[Any]:
    """Optimisers, and schedules among them, in whatever structure the lesson keeps them."""
    return [
        leaf
        for leaf in pytree.tree_leaves(optimizers)
        if hasattr(leaf, "state_dict") and hasattr(leaf, "load_state_dict")
    ]


@contextlib.contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    """Random numbers from `seed` inside, and the caller's go on outside as if nothing had been drawn."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
