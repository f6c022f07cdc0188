"""The results of a study: a row for each cell (measured, forecast or published), a verdict for each claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from windtunnel.records import Plain

Origin = Literal["measured", "forecast", "published"]
# A claim in one framework on one device; and graded over all of them.
Ruling = Literal["holds", "does not hold", "can't tell", "not asked here"]
Grade = Literal[
    "holds everywhere", "holds in most", "holds in few", "holds nowhere", "can't tell", "not asked here"
]
# A cell without a time that did not fail: this machine cannot run it, or the authors printed nothing.
NOT_RUNNABLE = ("not installed", "no gpu here", "unsupported", "not available")
BY_FORECAST = "(by forecast)"  # added to every verdict that no measurement supports
NOT_FAILED = ("done", "waiting", *NOT_RUNNABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSeeds:
    """Results of trainings of one network with the same settings, one entry for each of the `seeds`.

    `scores` are the metric on held-out data at the end, `best_scores` the best after any round, `losses` the
    training loss of the last round (-1 where it was never finite). `target_steps`, `target_examples` and
    `target_seconds` are what the `target` took; -1 where it was not reached within `budget_steps`.
    `baseline` is the score of the simplest answer. `quiet` says whether the machine was quiet.
    """

    metric: str
    better: Literal["higher", "lower"]
    baseline: float
    baseline_is: str
    target: float
    budget_steps: int
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    best_scores: tuple[float, ...]
    losses: tuple[float, ...]
    target_steps: tuple[int, ...]
    target_examples: tuple[int, ...]
    target_seconds: tuple[float, ...]
    seconds: tuple[float, ...]
    diverged: tuple[bool, ...]
    quiet: tuple[bool, ...]

    @property
    def reached(self) -> int:
        """How many seeds reached the target."""
        return sum(steps >= 0 for steps in self.target_steps)

    def skill(self, score: float) -> float:
        """The share of the baseline's error that is gone: 0 at the baseline, 1 for a perfect score."""
        perfect = 1.0 if self.better == "higher" else 0.0
        return (score - self.baseline) / (perfect - self.baseline)

    @property
    def skills(self) -> tuple[float, ...]:
        return tuple(self.skill(score) for score in self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One cell of a study.

    `label` is framework:variant. `case` names the line of the figure. `settings` are those of the job.
    `machine`, `devices` (of all nodes) and `strategy` are stated where several devices take part. `state` is
    "done", "waiting" or the name of the failure; a failed row has no seconds, never a zero. Seconds are of
    one step. `groups` holds the steady samples of each process that counts. A row of a network that was
    trained has `training` instead of seconds; its `data` is the data set.
    """

    study: str
    figure: str
    case: str
    label: str
    job: str
    settings: Mapping[str, object] = field(default_factory=dict)
    device: str = "cpu"
    device_name: str = ""
    machine: str = ""
    devices: int = 1
    strategy: Mapping[str, object] = field(default_factory=dict)
    threads: int | None = None
    batch: int = 1
    data: str = "resident"
    optimizer: str = "sgd"
    origin: Origin = "measured"
    state: str = "done"
    error: str = ""
    step_seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: float | None = None
    groups: tuple[tuple[float, ...], ...] = ()
    training: TrainedSeeds | None = None
    source: str = ""
    measured_at: str = ""
    environment: Plain = field(default_factory=dict)

    @property
    def example_seconds(self) -> float | None:
        return None if self.step_seconds is None else self.step_seconds / self.batch

    @property
    def failed(self) -> bool:
        return self.state not in NOT_FAILED

    @property
    def disturbed(self) -> bool:
        """Whether other programs slowed every process: the time may be too long."""
        return bool(self.environment.get("disturbed"))

    @property
    def diverged(self) -> bool:
        """Whether the loss was no finite number: the steps may have done other work than a training's."""
        return bool(self.environment.get("diverged"))

    @property
    def reference_seconds(self) -> float | None:
        """Seconds of the reference loop on the quiet machine."""
        value = self.environment.get("reference_loop_seconds")
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimVerdict:
    """The verdict on one claim: the effect with its interval, what `counted` says it counts, and the reason.

    `parts` are the verdicts for each framework and device; their `where` names it. The whole is graded by
    them. `basis`: whether measured rows judge it, or forecasts, which no clock has confirmed.
    """

    claim: str
    text: str
    source: str
    ruling: Ruling | Grade
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    counted: str = ""
    published: str = ""
    reason: str = ""
    rows: int = 0
    where: str = ""
    parts: tuple[ClaimVerdict, ...] = ()
    basis: Origin = "measured"

    @property
    def marked_ruling(self) -> str:
        """The ruling as every text shows it: a forecast never looks like a measurement."""
        is_forecast = self.basis == "forecast" and self.ruling != "not asked here"
        return f"{self.ruling} {BY_FORECAST}" if is_forecast else self.ruling


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A quantity that alone would explain a gain: the factor by which it would differ, and its value then.

    `factor` is None where no factor between 1e-4 and 1e4 gives the stated efficiency.
    """

    name: str
    factor: float | None
    value: float | None
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGain:
    """A stated gain of one doubling, the forecast of it, and what would explain the difference.

    Efficiencies are speed-ups over two: as stated, and as forecast with an exchange after backward
    (`not_overlapped`) and one that overlaps it.
    """

    study: str
    figure: str
    name: str
    case: str
    saved: float
    efficiency: float
    not_overlapped: float
    overlapped: float
    factors: tuple[Factor, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyForecasts:
    """Forecasts of a study for several devices: a row for each cell, and explanations of stated gains."""

    rows: tuple[StudyRow, ...] = ()
    explained: tuple[ExplainedGain, ...] = ()
