"""A short training whose whole budget is spent, to compare settings: what it reached, and when.

A trial is the same, bit for bit, for the same seed on the same machine with the same threads. It runs in
rounds: this many steps, then a test on held-out data. It does not stop at its target, so that the final score
and the steps to the target come from one training.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from windtunnel.errors import BadInput, BadJob
from windtunnel.job.lesson import Lesson, Stage
from windtunnel.job.workload import Batch
from windtunnel.learning import training
from windtunnel.learning.goal import Better
from windtunnel.learning.loop import TrainingLoop
from windtunnel.learning.options import TrainingOptions
from windtunnel.learning.result import EpochRow

MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """A network with its settings on a data set: `rounds` of `steps` each, from one seed.

    `data` is a data set by name. Default: that of the network. `target` is a score on held-out data.
    """

    network: str
    settings: Mapping[str, object] = field(default_factory=dict)
    data: str = ""
    rounds: int = 10
    steps: int = 50
    target: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.steps < 1 or self.rounds * self.steps > MOST_STEPS:
            raise BadInput(
                f"A trial cannot have {self.rounds} rounds of {self.steps} steps.",
                hint=f"Use at least 1 of each, and at most {MOST_STEPS:,} steps in all.",
            )
        if self.seed < 0:
            raise BadInput(f"The seed of a trial must be 0 or above, not {self.seed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What a trial reached.

    `scores` are the metric on held-out data: of the untrained network, then after each round. A trial whose
    loss was no longer finite has `diverged`; its scores end before that. `to_target` counts what the target
    took: None where it was not reached. `seconds` are those of training without the tests.
    """

    metric: str
    better: Better
    scores: tuple[float, ...]
    steps: int
    examples: int
    seconds: float
    diverged: bool = False
    loss: float | None = None
    steps_to_target: int | None = None
    examples_to_target: int | None = None
    seconds_to_target: float | None = None

    @property
    def score(self) -> float:
        """The score at the end."""
        return self.scores[-1]

    @property
    def best(self) -> float:
        trained = self.scores[1:] or self.scores
        return max(trained) if self.better == "higher" else min(trained)


def run_trial(trial: TrialRun) -> TrialOutcome:
    """Train for all rounds. A loss that is no longer finite ends the trial; that is a result."""
    lesson, identity = training.prepare(trial.network, trial.settings, trial.data or None)
    counter = _Counter()
    bounded = _bounded(lesson, trial, counter)
    diverged = False
    with training.random_state(trial.seed):
        loop = TrainingLoop(bounded, TrainingOptions(seed=trial.seed), None, identity, None)
        try:
            loop.run()
        except BadJob:
            diverged = True
    return _result(trial, lesson, loop.rows, counter, diverged)


class _Counter:
    """Counts the examples of each step."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def count(self, batch: Batch) -> Batch:
        """The last tensor of a batch (labels, targets or the inputs themselves) has a row per example."""
        leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        self.sizes.append(len(leaves[-1]))
        return batch

    def after(self, steps: int) -> int:
        return sum(self.sizes[:steps])


def _bounded(lesson: Lesson, trial: TrialRun, counter: _Counter) -> Lesson:
    """The lesson with rounds in place of epochs. Several stages share the rounds equally."""
    share = max(1, trial.rounds // len(lesson.stages))
    stages = tuple(_bounded_stage(stage, share, trial.steps, counter) for stage in lesson.stages)
    return dataclasses.replace(lesson, stages=stages)


def _bounded_stage(stage: Stage, rounds: int, steps: int, counter: _Counter) -> Stage:
    def batches(generator: torch.Generator) -> Iterator[Batch]:
        """Batches of fresh shuffles until the round is full."""
        endless = itertools.chain.from_iterable(stage.batches(generator) for _ in itertools.count())
        return (counter.count(batch) for batch in itertools.islice(endless, steps))

    return dataclasses.replace(stage, epochs=rounds, steps=steps, batches=batches, epoch=None)


def _result(
    trial: TrialRun, lesson: Lesson, rows: list[EpochRow], counter: _Counter, diverged: bool
) -> TrialOutcome:
    last, scores = rows[-1], tuple(row.figures[lesson.metric] for row in rows)
    reached = next((row for row in rows[1:] if _reaches(row.figures[lesson.metric], trial, lesson)), None)
    losses = [row.loss for row in rows if row.loss is not None]
    return TrialOutcome(
        metric=lesson.metric,
        better=lesson.better,
        scores=scores,
        loss=losses[-1] if losses else None,
        steps=last.steps,
        examples=counter.after(last.steps),
        seconds=last.seconds,
        diverged=diverged,
        steps_to_target=reached.steps if reached else None,
        examples_to_target=counter.after(reached.steps) if reached else None,
        seconds_to_target=reached.seconds if reached else None,
    )


def _reaches(score: float, trial: TrialRun, lesson: Lesson) -> bool:
    if trial.target is None:
        return False
    return score >= trial.target if lesson.better == "higher" else score <= trial.target
