"""The training cells of a study: every case at every point of its grid, from each seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import records
from windtunnel.measurement.steady import Level
from windtunnel.measurement.store import dump
from windtunnel.study import train_cases
from windtunnel.study.run.cells import Choice, points
from windtunnel.study.train_cases import TrainCase

if TYPE_CHECKING:
    from windtunnel.exchange.trial import ClusterTrial
    from windtunnel.learning.trial import TrialRun
    from windtunnel.study.study import Figure, Study

LABEL = "torch:train"
# Factors on the number of trainings that a case states. A quick run has three.
_SEEDS_OF_QUICK = 3
_SEEDS = {"default": 1, "rigorous": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPoint:
    """One point of one case's grid: `at` has its axes, `settings` what they set."""

    figure: str
    case: TrainCase
    at: Mapping[str, object]
    settings: Mapping[str, object]

    @property
    def cluster(self) -> Mapping[str, object]:
        """The settings of several workers from the case and the point; empty if one worker trains."""
        swept = {axis: value for axis, value in self.at.items() if axis in train_cases.CLUSTER_AXES}
        return {**self.case.cluster, **swept} if self.case.cluster else {}

    def trial(self, seed: int) -> TrialRun | ClusterTrial:
        from windtunnel.learning.trial import TrialRun

        case = self.case
        if case.cluster:
            return self._cluster_trial(seed)
        return TrialRun(
            network=case.network,
            settings=self.settings,
            data=case.data,
            rounds=case.rounds,
            steps=case.steps,
            target=case.target,
            seed=seed,
        )

    def _cluster_trial(self, seed: int) -> ClusterTrial:
        from windtunnel.exchange.trial import ClusterTrial

        case = self.case
        told = {
            "network": case.network,
            "settings": dict(self.settings),
            "data": case.data,
            "rounds": case.rounds,
            "steps": case.steps,
            "target": case.target,
            "seed": seed,
        }
        return records.read(ClusterTrial, {**self.cluster, **told}, f"train {case.name}")

    def text(self, seed: int) -> str:
        """The trial as the store keeps it."""
        return dump(self.trial(seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCell:
    """One training of one point."""

    point: TrainPoint
    seed: int


def points_of(study: Study, choice: Choice | None = None) -> list[TrainPoint]:
    """All points of a choice, figure by figure."""
    choice = choice or Choice()
    wanted = [figure for figure in study.figures if not choice.figures or figure.name in choice.figures]
    if choice.devices and "cpu" not in choice.devices:
        return []
    if choice.frameworks and not {LABEL, "torch"} & set(choice.frameworks):
        return []
    return [point for figure in wanted for case in figure.trains for point in _points(figure, case, choice)]


def cells_of(study: Study, level: Level = "default", choice: Choice | None = None) -> list[TrainCell]:
    """All trainings of a choice: the first seed of every point, then the second of every point, and so on."""
    every = points_of(study, choice)
    for point in every:
        train_cases.check_settings(point.case, point.settings)
    cells = [TrainCell(point=point, seed=seed) for point in every for seed in range(seeds_of(point, level))]
    return sorted(cells, key=lambda cell: cell.seed)


def seeds_of(point: TrainPoint, level: Level) -> int:
    return min(_SEEDS_OF_QUICK, point.case.seeds) if level == "quick" else point.case.seeds * _SEEDS[level]


def _points(figure: Figure, case: TrainCase, choice: Choice) -> list[TrainPoint]:
    if choice.corners and not case.quick:
        return []
    grid = {axis: case.grid.get(axis, values) for axis, values in figure.grid.items()}
    if choice.corners:
        grid = {axis: _corners(figure, axis, values) for axis, values in grid.items()}
    return [
        TrainPoint(figure=figure.name, case=case, at=at, settings=train_cases.settings_at(case, at))
        for at in points(grid)
        if train_cases.is_possible(case, at)
    ]


def _corners(figure: Figure, axis: str, values: tuple[object, ...]) -> tuple[object, ...]:
    chosen = tuple(value for value in figure.quick.get(axis, ()) if value in values)
    return chosen or (values if len(values) < 3 else (values[0], values[-1]))
