"""Factors of learning, by really training small runs: initial weights, number of nodes, number of layers.

No forecast knows how many steps a network needs, so each value is trained here for a share of the time that
was allowed. The base is trained with two seeds: what differs less than those two is no clear effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import networks
from windtunnel.errors import BadInput, BadJob
from windtunnel.influence.base import CannotVary
from windtunnel.influence.sizes import Role, size_of
from windtunnel.job.workload import Origin, Workload
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.learning.result import EpochRow

_INITIAL = ("0.001", "guide", "modern", "1")  # guide: uniform within 0.1 (section III.A)
_SIZES: Mapping[str, Role] = {"nodes": "width", "layers": "depth"}
_BASE_RUNS = 2
_ANY_NUMBER_OF_EPOCHS = 100_000  # time ends the runs
_HALFWAY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """`seconds`: of all runs together. `until`: the target, such as "accuracy=0.95"; default: what the base
    had reached halfway through its own run. `data`: the data set; default: the network's own."""

    seconds: float = 60.0
    until: str | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise BadInput(
                f"Training needs more than 0 seconds, not {self.seconds:g}.", hint="For example --seconds 60."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRun:
    """One training. `target_seconds` and `target_epochs` are None if it never reached the target."""

    label: str
    is_base: bool
    epochs: int
    seconds: float
    best: float | None
    loss: float | None
    target_seconds: float | None = None
    target_epochs: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedFactor:
    """A factor of learning with its runs, or the reason why there are none.

    `noise`: the ratio of the times to the target of the two seeds of the base.
    """

    name: str
    metric: str = ""
    better: str = "higher"
    target: float | None = None
    runs: tuple[LearnedRun, ...] = ()
    noise: float | None = None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """The longest over the shortest time to the target, of the runs that reached it."""
        times = [run.target_seconds for run in self.runs if run.target_seconds]
        return max(times) / min(times) if len(times) > 1 else None

    @property
    def is_clear(self) -> bool:
        """Whether values differ by more than two seeds of one value do, or some never reach the target."""
        if self.ratio is None:
            return any(run.target_seconds for run in self.runs)
        missed = any(run.target_seconds is None for run in self.runs)
        return missed or self.noise is None or self.ratio > max(self.noise, 1 / self.noise)


def learn_factors(job: Workload, options: LearnOptions, report: Callable[[str], None]) -> list[LearnedFactor]:
    """Train the job with each value of each factor of learning, in the time that is allowed."""
    origin = require_lesson(job)
    plans, missing = _plans(job)
    each = options.seconds / (_BASE_RUNS + sum(len(values) for values in plans.values()))
    trainer = _Trainer(origin.job, origin.settings, options, each)
    report(f"training {origin.job} for {each:.3g} s with each value")
    bases = [trainer.run({}, seed) for seed in range(_BASE_RUNS)]
    goal = trainer.goal_after(bases[0])
    base_runs = [trainer.judged("base", True, rows, goal) for rows in bases]
    noise = _noise(base_runs)
    found = []
    for name, values in plans.items():
        runs = [base_runs[0]]
        for label, settings in values.items():
            report(f"training with {name} {label}")
            runs.append(trainer.judged(label, False, trainer.run(settings, 0), goal))
        found.append(
            LearnedFactor(
                name=name,
                metric=goal.metric,
                better=goal.better,
                target=goal.target,
                runs=tuple(runs),
                noise=noise,
            )
        )
    return [*found, *(LearnedFactor(name=each.name, reason=each.reason) for each in missing)]


def require_lesson(job: Workload) -> Origin:
    """Where the job comes from; an error if it is no network that can be trained here."""
    if job.origin is None or job.origin.job not in networks.names():
        raise BadInput(
            f"{job.name} has no data set to learn from: only built-in networks can be trained here.",
            hint="Leave --learn out, or use a network of: windtunnel network list.",
        )
    return job.origin


def _plans(job: Workload) -> tuple[dict[str, dict[str, Plain]], list[CannotVary]]:
    """For each factor the settings of its values beside the base; and the factors that cannot be varied."""
    assert job.origin is not None
    own = str(job.origin.settings.get("init", "modern"))
    plans: dict[str, dict[str, Plain]] = {
        "initial weights": {value: {"init": value} for value in _INITIAL if value != own}
    }
    missing = []
    for name, role in _SIZES.items():
        size = size_of(job, role)
        if isinstance(size, CannotVary):
            missing.append(CannotVary(name=name, reason=size.reason))
            continue
        values = dict(size.scaled(factor) for factor in (0.5, 2.0))
        plans[name] = {label: settings for label, settings in values.items() if label != size.label}
    return plans, missing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    metric: str
    target: float
    better: str

    def reached(self, row: EpochRow) -> bool:
        value = row.figures.get(self.metric)
        if value is None or row.epoch < 1:
            return False
        return value >= self.target if self.better == "higher" else value <= self.target


class _OutOfTime(Exception):
    """The share of the time of one run is over."""


class _Trainer:
    """Trains a network for a share of the time, with changed settings."""

    def __init__(
        self, name: str, settings: Mapping[str, object], options: LearnOptions, seconds: float
    ) -> None:
        self.name, self.settings, self.options, self.seconds = name, settings, options, seconds

    def run(self, changes: Plain, seed: int) -> Sequence[EpochRow] | str:
        """The rows of the complete epochs, or what went wrong."""
        import time

        import torch

        from windtunnel.learning.loop import TrainingLoop
        from windtunnel.learning.options import TrainingOptions
        from windtunnel.learning.training import parse_goal, prepare

        start = 0.0

        def stop(done: int, total: int, text: str) -> None:
            if time.perf_counter() > start + self.seconds:
                raise _OutOfTime

        goal = parse_goal(self.options.until) if self.options.until else None
        lesson, identity = prepare(self.name, {**self.settings, **changes}, self.options.data)
        self.metric, self.better = lesson.metric, lesson.better
        # PyTorch imports its compiler when the first optimizer is made. These seconds are no training.
        torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loop = TrainingLoop(
                lesson, TrainingOptions(seed=seed, epochs=self._epochs(lesson)), goal, identity, stop
            )
            start = time.perf_counter()  # loading the data takes no time from the run
            try:
                loop.run()
            except _OutOfTime:
                pass
            except BadJob as error:
                return error.message.splitlines()[0]
        last = lesson.stages[-1].name
        if len(lesson.stages) > 1 and loop.rows[-1].stage != last:
            return f"its last stage ({last}) did not begin in {self.seconds:.3g} s; give more --seconds"
        return loop.rows

    def _epochs(self, lesson: object) -> int | None:
        """Lessons with several stages keep their numbers of epochs, or the last stage would never begin."""
        return _ANY_NUMBER_OF_EPOCHS if len(lesson.stages) == 1 else None  # type: ignore[attr-defined]

    def goal_after(self, base: Sequence[EpochRow] | str) -> _Target:
        """The target that was asked for, or else what the base had reached halfway."""
        from windtunnel.learning.training import parse_goal

        if self.options.until:
            goal = parse_goal(self.options.until)
            return _Target(metric=goal.metric, target=goal.target, better=goal.better or self.better)
        if isinstance(base, str):
            raise BadInput(f"Nothing can be learned about {self.name}: {base}.")
        rows = [row for row in base if row.epoch > 0]
        values = [row.figures[self.metric] for row in rows if self.metric in row.figures]
        if not values:
            raise BadInput(
                f"No epoch of {self.name} ended in {self.seconds:.3g} s, so nothing can be learned about it.",
                hint=f"Give it more time: --seconds {self.options.seconds * 10:g}, or a smaller network.",
            )
        first = values[: max(1, math.ceil(len(values) * _HALFWAY))]
        best = max(first) if self.better == "higher" else min(first)
        return _Target(metric=self.metric, target=best, better=self.better)

    def judged(self, label: str, is_base: bool, rows: Sequence[EpochRow] | str, goal: _Target) -> LearnedRun:
        if isinstance(rows, str):
            return LearnedRun(
                label=label, is_base=is_base, epochs=0, seconds=0.0, best=None, loss=None, error=rows
            )
        trained = [row for row in rows if row.epoch > 0]
        values = [row.figures[goal.metric] for row in trained if goal.metric in row.figures]
        losses = [row.loss for row in trained if row.loss is not None]
        hit = next((row for row in trained if goal.reached(row)), None)
        pick = max if goal.better == "higher" else min
        return LearnedRun(
            label=label,
            is_base=is_base,
            epochs=trained[-1].epoch if trained else 0,
            seconds=trained[-1].seconds if trained else 0.0,
            best=pick(values) if values else None,
            loss=losses[-1] if losses else None,
            target_seconds=hit.seconds if hit else None,
            target_epochs=hit.epoch if hit else None,
        )


def _noise(runs: Sequence[LearnedRun]) -> float | None:
    times = [run.target_seconds for run in runs if run.target_seconds]
    return max(times) / min(times) if len(times) > 1 else None
