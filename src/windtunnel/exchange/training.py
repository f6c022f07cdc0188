"""Train with several workers under a simulated clock: real gradients, applied when the simulation says.

The workers exist only here: their gradients are computed one after another. What comes out is the loss and
the metrics on held-out data against the time of the cluster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from windtunnel import records, sealed
from windtunnel.errors import BadInput, BadJob, Interrupted, nearest
from windtunnel.exchange import forms
from windtunnel.exchange.costs import WorkerForecasts
from windtunnel.exchange.learners import Learner, LocalLearner, ServedLearner, TogetherLearner
from windtunnel.exchange.outcome import ClusterRow, ClusterTraining
from windtunnel.exchange.run import ExchangeRun, ExchangeSettings, groups_on_nodes
from windtunnel.exchange.splitting import StepSplitter, examples_in, only_optimizer, only_stage
from windtunnel.exchange.stream import BatchStream
from windtunnel.exchange.variation import Variation, compute_times
from windtunnel.job.lesson import Lesson
from windtunnel.job.workload import Workload
from windtunnel.learning import checkpoint, randomness
from windtunnel.learning.goal import Goal, parse_goal
from windtunnel.learning.own_job import prepare
from windtunnel.machine.machine import Machine

_ROUND_STEPS = 100  # of jobs, whose passes over the data may be long: a choice
TOGETHER, SERVED, LOCAL = ("sync", "server"), ("async", "mixed"), ("local", "diloco")
Progress = Callable[[int, int, str], None]  # changes done, changes in all, text


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How several workers train.

    exchange   the form: one of `forms.FORMS`
    workers    how many; None: all devices of the machine
    epochs     passes over the data, by all workers together; None: those of the network
    steps      mini-batches of all workers together, instead of epochs
    until      stop at a result on held-out data: "accuracy=0.97"
    round_steps  mini-batches of all workers between two tests on held-out data; None: a pass over the data
    folder     where the checkpoint is kept; the same call continues an interrupted training
    """

    exchange: str = "sync"
    workers: int | None = None
    settings: ExchangeSettings = field(default_factory=ExchangeSettings)
    variation: Variation = field(default_factory=Variation)
    epochs: int | None = None
    steps: int | None = None
    until: str | Goal | None = None
    seed: int = 0
    round_steps: int | None = None
    folder: Path | None = None
    fresh: bool = False


def train_on_cluster(
    job: str | Workload,
    machine: Machine,
    options: ClusterOptions | None = None,
    *,
    settings: dict[str, object] | None = None,
    data: str | None = None,
    progress: Progress | None = None,
) -> ClusterTraining:
    """Train a built-in network, by its name, or a job with the workers of a machine that need not be here.

    A job with data of its own is tested after every 100 steps, or after a pass over them if that is shorter.
    """
    options = options or ClusterOptions()
    with randomness.seeded(options.seed):
        loop = opened(job, machine, options, settings, data)
        try:
            return loop.run(progress or (lambda done, total, text: None))
        except KeyboardInterrupt:
            hint = "Give --folder to be able to continue."
            if options.folder:
                hint = "The same command continues after the last complete pass over the data."
            raise Interrupted(f"Stopped after {loop.rows[-1].epochs} epochs.", hint=hint) from None


def opened(
    job: str | Workload,
    machine: Machine,
    options: ClusterOptions,
    settings: dict[str, object] | None = None,
    data: str | None = None,
) -> ClusterLoop:
    """A training that has not begun. Its weights come from the current random state."""
    lesson, identity = prepare(job, settings or {}, data or None)
    if isinstance(job, Workload) and options.round_steps is None:
        options = dataclasses.replace(options, round_steps=min(_ROUND_STEPS, lesson.stages[0].steps))
    loop = ClusterLoop(lesson, machine, options, identity.network)
    loop.identity = {**identity.plain(options.seed), **_identity(machine, options)}
    return loop


def _identity(machine: Machine, options: ClusterOptions) -> dict[str, object]:
    left_out = ("epochs", "steps", "until", "folder", "fresh", "seed")
    plain = records.plain(options)
    return {"machine": machine.name, **{name: plain[name] for name in plain if name not in left_out}}


def workload_of(lesson: Lesson, name: str) -> Workload:
    """The step of a lesson as a job that can be forecast."""
    stage = only_stage(lesson, name)
    batch = next(iter(stage.batches(torch.Generator().manual_seed(0))))
    return Workload(
        name=name,
        model=lesson.model,
        batch=lambda n: batch,
        step=stage.step,
        optimizers=stage.optimizers,
        default_batch=examples_in(batch),
    )


class ClusterLoop:
    """One training: the shared network, the simulated run, and the rows so far."""

    def __init__(self, lesson: Lesson, machine: Machine, options: ClusterOptions, name: str) -> None:
        self.lesson, self.options, self.name = lesson, options, name
        self.stage = only_stage(lesson, name)
        self.model = lesson.model()
        self.machine = machine
        with torch.random.fork_rng(devices=[]):
            only_optimizer(self.stage.optimizers(lesson.model()), name)
            self.forecasts = WorkerForecasts.of(workload_of(lesson, name), machine)
        self.workers = self.forecasts.most_workers if options.workers is None else options.workers
        self._refuse()
        self.settings = self._grouped()
        self.epochs = options.epochs or self.stage.epochs
        self.splitter = StepSplitter(self.model, self.stage, name)
        self.cluster_run = self._simulate()
        self.learner = self._learner()
        self.stream = BatchStream(self.stage, torch.Generator().manual_seed(options.seed))
        self.goal = parse_goal(options.until) if isinstance(options.until, str) else options.until
        if self.goal is not None:
            self._refuse_unknown_metric(self.goal.metric)
        self.rows: list[ClusterRow] = []
        self.changes, self.identity = 0, dict[str, object]()

    def _refuse(self) -> None:
        most, form = self.forecasts.most_workers, self.options.exchange
        forms.named(form)
        if not 1 <= self.workers <= most:
            raise BadInput(
                f"{self.workers} workers: {self.machine.name} has {most} devices.", hint=f"Use 1 to {most}."
            )
        if self.workers == 1 and form not in ("sync", "server"):
            name, more = self.machine.name, "Use --workers 2 or more"
            if most == 1:
                more = f"{name} has one device: use --on 2x{name}"
            raise BadInput(
                f"One worker has nobody to exchange with: {form} needs at least two.",
                hint=f"{more}, or --exchange sync.",
            )

    def _refuse_unknown_metric(self, metric: str) -> None:
        self.model.eval()
        known = self.lesson.examine(self.model)
        if metric not in known:
            raise BadInput(
                f"The evaluation of {self.name} has no metric {metric!r}.", hint=nearest(metric, known)
            )

    def _grouped(self) -> ExchangeSettings:
        """Groups as asked for; by default one on each node."""
        settings = self.options.settings
        if self.options.exchange != "mixed" or settings.groups > 1:
            return settings
        groups = groups_on_nodes(self.workers, self.machine.devices)
        if groups == 1:
            raise BadInput(
                f"mixed needs at least two groups; {self.workers} workers of {self.machine.name} lie on one "
                "node.",
                hint="Use --groups 2, or --exchange sync.",
            )
        return dataclasses.replace(settings, groups=groups)

    def _simulate(self) -> ExchangeRun:
        """As many steps of each worker as the epochs need; whole periods of local steps."""
        settings, steps = self.settings, self.options.steps or self.epochs * self.stage.steps
        needed = math.ceil(steps / self.workers)
        if self.options.exchange in LOCAL:
            needed = math.ceil(needed / settings.every) * settings.every
        group = self.workers // settings.groups if self.workers % settings.groups == 0 else 1
        costs = self.forecasts.costs(self.workers, group)
        compute = compute_times(costs, self.options.variation, self.workers, needed, self.options.seed)
        return forms.named(self.options.exchange).simulate(compute, costs, settings)

    def replay(self, run: ExchangeRun) -> None:
        """Learn in the order and at the times of another run of the same form, workers and steps."""
        self.cluster_run = run
        self.learner = self._learner()

    def _learner(self) -> Learner:
        form, settings = self.options.exchange, self.settings
        if form in TOGETHER:
            return TogetherLearner(self.splitter, self.workers)
        if form in SERVED:
            group = self.workers // settings.groups if form == "mixed" else 1
            return ServedLearner(self.splitter, self.cluster_run, group)
        return LocalLearner(self.splitter, self.workers, settings.every, form == "diloco")

    def run(self, progress: Progress) -> ClusterTraining:
        resumed = 0 if self.options.fresh else self._resume()
        if not self.rows:
            self._add_row(None)
        total, losses = len(self.cluster_run.ends), list[torch.Tensor]()
        while self.changes < total and not self._reached():
            self.model.train()
            losses += self.learner.apply(self.changes, self.stream.take)
            self.changes += 1
            progress(self.changes, total, f"epoch {self.rows[-1].epochs + 1}")
            if self._rounds(self.changes) > self._rounds(self.rows[-1].changes) or self.changes == total:
                self._add_row(float(torch.stack([loss.double().mean() for loss in losses]).mean()))
                losses = []
                self._save()
        return self._outcome(resumed)

    def _rounds(self, changes: int) -> int:
        """Tests on held-out data that are due after so many changes."""
        return changes * self.learner.per_change // (self.options.round_steps or self.stage.steps)

    def seconds_at(self, changes: int) -> float:
        """The time of the cluster after so many changes."""
        return float(self.cluster_run.ends[changes - 1]) if changes else 0.0

    def _timed(self, rows: list[ClusterRow]) -> list[ClusterRow]:
        return [dataclasses.replace(row, seconds=self.seconds_at(row.changes)) for row in rows]

    def _add_row(self, loss: float | None) -> None:
        if loss is not None and not math.isfinite(loss):
            raise BadJob(
                f"After {self.changes} changes the loss is no longer a finite number.",
                hint="Lower the rate (rate=0.001), use fewer workers, or --exchange sync.",
            )
        self.model.eval()
        figures = {name: float(value) for name, value in self.lesson.examine(self.model).items()}
        done = self.changes * self.learner.per_change
        self.rows.append(
            ClusterRow(
                seconds=self.seconds_at(self.changes),
                changes=self.changes,
                epochs=done // self.stage.steps,
                examples=done * self.forecasts.batch,
                loss=loss,
                figures=figures,
            )
        )

    def _reached(self) -> bool:
        return len(self.rows) > 1 and self.reaches(self.rows[-1])

    def reaches(self, row: ClusterRow) -> bool:
        """Whether a row is at the target."""
        if self.goal is None:
            return False
        value, better = row.figures[self.goal.metric], self.goal.better or self.lesson.better
        return value >= self.goal.target if better == "higher" else value <= self.goal.target

    def _outcome(self, resumed: int) -> ClusterTraining:
        done = self.changes
        stale = self.cluster_run.staleness[:done]
        return ClusterTraining(
            network=self.name,
            machine=self.machine.name,
            exchange=self.options.exchange,
            workers=self.workers,
            settings=self.settings,
            variation=self.options.variation,
            rows=tuple(self.rows),
            metric=self.lesson.metric,
            better=self.lesson.better,
            goal=self.goal,
            reached=None if self.goal is None else self._reached(),
            staleness=float(stale.mean()) if done else 0.0,
            wait_share=self.cluster_run.wait_share,
            resumed=resumed,
            model=self.model,
        )

    @property
    def _file(self) -> Path | None:
        return self.options.folder / checkpoint.NAME if self.options.folder else None

    def _save(self) -> None:
        if self._file is None:
            return
        trees = {
            "model": dict(self.model.state_dict()),
            "optimizer": self.splitter.optimizer.state_dict(),
            "learner": self.learner.state(),
            "stream": self.stream.state(),
            "random": randomness.state(),
        }
        note = {
            "identity": self.identity,
            "changes": self.changes,
            "rows": records.plain(self.rows),
            "order": self._order(),
        }
        checkpoint.save(self._file, trees, note)

    def _order(self) -> str:
        """A digest of the order in which workers come, where it decides what is learned."""
        run = self.cluster_run
        return records.digest([run.workers.tolist(), run.staleness.tolist()])

    def _resume(self) -> int:
        last = checkpoint.load_last(self._file.parent) if self._file is not None else None
        if last is None:
            return 0
        path, trees, note, caution = last
        if caution:
            sealed.warn(caution)
        if note.get("identity") != records.plain(self.identity):
            raise BadInput(
                f"{path} is the checkpoint of another training.",
                hint="Use another --folder, or start again with --fresh, which overwrites it.",
            )
        if self.options.exchange in SERVED and note.get("order", self._order()) != self._order():
            raise BadInput(
                f"{path} is the checkpoint of a training of another length, in which the workers come in "
                "another order.",
                hint="Use the same --epochs as before, another --folder, or start again with --fresh.",
            )
        self.model.load_state_dict(trees["model"])
        self.splitter.optimizer.load_state_dict(trees["optimizer"])
        self.learner.load_state(trees["learner"])
        self.stream.load_state(trees["stream"])
        randomness.load_state(trees["random"])
        self.changes = note["changes"]
        rows = [records.read(ClusterRow, row, str(path)) for row in note["rows"]]
        # A longer training of synchronous workers learns the same, but its clock draws other times.
        self.rows = rows if self.changes > len(self.cluster_run.ends) else self._timed(rows)
        return self.rows[-1].epochs
