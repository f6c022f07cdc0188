"""What several workers learned, against the time of their cluster. It prints itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel import records, units
from windtunnel.displays import Displayed
from windtunnel.exchange.curves import LearningCurve, curve_lines
from windtunnel.exchange.run import ExchangeSettings
from windtunnel.exchange.variation import Variation
from windtunnel.learning.goal import Better, Goal
from windtunnel.learning.pictures import spark
from windtunnel.records import Plain

_NOT_PLAIN = ("goal", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """After so many passes over the data by all workers together. `seconds` is the time of the cluster."""

    seconds: float
    changes: int
    epochs: int
    examples: int
    loss: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTraining(Displayed):
    """A training by several workers. `staleness` and `wait_share` are means."""

    network: str
    machine: str
    exchange: str
    workers: int
    settings: ExchangeSettings
    variation: Variation
    rows: tuple[ClusterRow, ...]
    metric: str
    better: Better
    goal: Goal | None
    reached: bool | None
    staleness: float
    wait_share: float
    resumed: int = 0
    model: Any = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> ClusterRow:
        """The row with the best result on held-out data."""
        rows = self.rows[1:] or self.rows
        choose = max if self.better == "higher" else min
        return choose(rows, key=lambda row: row.figures[self.metric])

    @property
    def target_seconds(self) -> float | None:
        """When the target was reached; None if it was not, or if there is none."""
        return self.rows[-1].seconds if self.reached else None

    @property
    def curve(self) -> LearningCurve:
        points = tuple((row.seconds, row.figures[self.metric]) for row in self.rows)
        return LearningCurve(name=self.exchange, metric=self.metric, points=points)

    def plain(self) -> Plain:
        """Plain data in seconds, for JSON."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in _NOT_PLAIN]
        data: Plain = records.plain({name: getattr(self, name) for name in names})
        return {**data, "target_seconds": self.target_seconds}

    def _end(self) -> str:
        if self.goal is None:
            return ""
        if self.reached:
            return f"; {self.goal} reached"
        best = self.best
        return f"; {self.goal} not reached: best {best.figures[self.metric]:.4g} at {_time(best.seconds)}"

    def __str__(self) -> str:
        last, values = self.rows[-1], [row.figures[self.metric] for row in self.rows]
        count = f"{self.workers} worker{'' if self.workers == 1 else 's'}"
        epochs = f"{last.epochs} epoch{'' if last.epochs == 1 else 's'}"
        lines = [
            f"{self.network} on {self.machine}, {count}, exchange {self.exchange}: {epochs} "
            f"in {_time(last.seconds)} of simulated time{self._end()}",
            f"  {self.metric:<12}{values[0]:.4g} {spark(values)} {values[-1]:.4g}",
            f"  changes     {last.changes:,} of the shared weights, {last.examples:,} examples",
            f"  waiting     {self.wait_share:.0%} of a worker's time",
        ]
        if self.resumed:
            lines.append(f"  continued   after epoch {self.resumed}")
        if self.staleness:
            lines.append(f"  staleness   {self.staleness:.1f} other changes between reading and writing")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterComparison(Displayed):
    """Several forms of exchange, trained from the same weights on the same data."""

    trainings: tuple[ClusterTraining, ...]

    def plain(self) -> Plain:
        return {"trainings": [training.plain() for training in self.trainings]}

    def __str__(self) -> str:
        first = self.trainings[0]
        lines = [
            f"{first.network} on {first.machine}, {first.workers} workers; the time is simulated",
            "",
            f"  {'exchange':9}{'time':>10}{'epochs':>8}{'an epoch':>10}{first.metric:>20}"
            f"{'staleness':>11}{'waiting':>9}  target",
            *(_line(training) for training in self.trainings),
        ]
        drawn = curve_lines([training.curve for training in self.trainings])
        return "\n".join([*lines, "", *drawn, "", *self._verdict()])

    def _verdict(self) -> list[str]:
        """Which form reached the target first."""
        reached = [each for each in self.trainings if each.target_seconds is not None]
        if not reached:
            return (
                ["  No target was given. Name one to compare the times to it: --until accuracy=0.95"]
                if not _goals(self.trainings)
                else ["  No form reached the target.", *(f"    {_best(each)}" for each in self.trainings)]
            )
        ranked = sorted(reached, key=lambda each: each.target_seconds or 0.0)
        best = ranked[0].target_seconds or 1.0
        text = ", then ".join(
            f"{each.exchange} ({(each.target_seconds or 0.0) / best:.2f} x)" for each in ranked[1:]
        )
        return [f"  First at the target: {ranked[0].exchange}{', then ' + text if text else ''}."]


def _goals(trainings: Sequence[ClusterTraining]) -> bool:
    return any(training.goal is not None for training in trainings)


def _best(training: ClusterTraining) -> str:
    best = training.best
    return f"{training.exchange}: best {best.figures[training.metric]:.4g} at {_time(best.seconds)}"


def _line(training: ClusterTraining) -> str:
    last = training.rows[-1]
    stale = f"{training.staleness:.1f}" if training.staleness else ""
    target = "" if training.goal is None else "reached" if training.reached else "not reached"
    return (
        f"  {training.exchange:9}{_time(last.seconds):>10}{last.epochs:>8}"
        f"{_time(last.seconds / max(1, last.epochs)):>10}{last.figures[training.metric]:>20.4g}{stale:>11}"
        f"{training.wait_share:>9.0%}  {target}"
    )


def _time(seconds: float) -> str:
    return units.show(seconds, "s")
