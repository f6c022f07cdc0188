"""Cells of a study in which a network is really trained, `[[train]]` in a figure's file.

A cell is a network with its settings on a data set. It is trained from several seeds; what it learned is
tested on held-out data. The figure's grid has the swept settings, under names that all networks share. The
case says which setting of its network an axis sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel import networks, records
from windtunnel.errors import BadRecord, WindtunnelError, nearest
from windtunnel.records import Plain

# Axes of trainings by several workers, and what else their `cluster` may state: fields of a ClusterTrial.
CLUSTER_AXES = ("exchange", "workers", "machine", "network_factor", "every", "jitter", "slow_factor")
# Axes that every network has, and what each writes into its setting `init`.
OF_INIT = {"initial_bound": "{}", "initial_scale": "{}x"}
MOST_SEEDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCase:
    """A network to be trained at every point of its figure's grid.

    axes      what an axis of the grid sets: the name of a setting, or for each value a table of settings.
              `initial_bound` and `initial_scale` need no entry; nor does an axis named like its setting
    grid      other values for some axes of the figure's grid
    data      a data set by name; default: that of the network
    rounds    tests on held-out data, each after this many `steps`
    target    the score at which it has learned the task
    baseline  the score of the simplest answer; `baseline_is` says which
    seeds     trainings of each cell, each from other random numbers
    cluster   the machine of several workers, whose clock is simulated, with other fields of a ClusterTrial;
              then the grid has the axes `workers` and `exchange`, and a training ends at its target
    """

    name: str
    network: str
    target: float
    baseline: float
    baseline_is: str
    axes: Mapping[str, object] = field(default_factory=dict)
    grid: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    data: str = ""
    rounds: int = 10
    steps: int = 50
    seeds: int = 5
    quick: bool = True
    cluster: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"train {self.name}"
        if self.network not in networks.names():
            raise BadRecord(
                f"{where}: no network is called {self.network!r}.",
                hint=nearest(self.network, networks.names()),
            )
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise BadRecord(
                f"{where}: seeds must be from 1 to {MOST_SEEDS}, not {self.seeds}.",
                hint="Use 3 or more: one training says little about the next.",
            )
        for name in self.cluster:
            if name not in CLUSTER_AXES:
                raise BadRecord(f"{where}: cluster has no {name!r}.", hint=nearest(name, CLUSTER_AXES))
        if self.rounds < 1 or self.steps < 1:
            raise BadRecord(f"{where}: rounds and steps must be above 0, not {self.rounds} and {self.steps}.")
        if not (math.isfinite(self.target) and math.isfinite(self.baseline)) or self.target == self.baseline:
            raise BadRecord(
                f"{where}: the target {self.target:g} must be a score other than the baseline's "
                f"{self.baseline:g}."
            )


def check(cases: tuple[TrainCase, ...], grid: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse axes that a case cannot set. The settings themselves are checked before a run."""
    for case in cases:
        for axis in case.grid:
            if axis not in grid:
                raise BadRecord(
                    f"train {case.name}: {axis!r} is not an axis of the grid.", hint=nearest(axis, grid)
                )
        for axis, values in {**grid, **case.grid}.items():
            if case.cluster and axis in CLUSTER_AXES:
                continue
            for value in values:
                _settings_at(case, axis, value)


def settings_at(case: TrainCase, point: Mapping[str, object]) -> Plain:
    """The settings of the network at one point of the grid."""
    settings: Plain = dict(case.settings)
    for axis, value in point.items():
        if case.cluster and axis in CLUSTER_AXES:
            continue
        settings |= _settings_at(case, axis, value)
    return settings


def is_possible(case: TrainCase, point: Mapping[str, object]) -> bool:
    """Whether a point of the grid exists: one worker has no other to exchange with, so it is only trained
    with `sync`."""
    fields = {**case.cluster, **point}
    return not case.cluster or fields.get("workers") != 1 or fields.get("exchange") == "sync"


def check_settings(case: TrainCase, settings: Mapping[str, object]) -> None:
    """Refuse settings that the network does not have, by the case that states them."""
    try:
        records.read(networks.named(case.network).settings, settings, f"job {case.network}")
    except WindtunnelError as error:
        raise BadRecord(f"train {case.name}: {error.message}", hint=error.hint) from None


def _settings_at(case: TrainCase, axis: str, value: object) -> Plain:
    if axis in OF_INIT:
        return {"init": OF_INIT[axis].format(value)}
    meaning = case.axes.get(axis, axis)
    if isinstance(meaning, str):
        return {meaning: value}
    if not isinstance(meaning, Mapping):
        raise BadRecord(
            f"train {case.name}: axes: {axis} must name a setting or hold a table for each value.",
            hint=f'For example axes = {{ {axis} = "hidden" }}.',
        )
    table = meaning.get(str(value))
    if not isinstance(table, Mapping):
        raise BadRecord(
            f"train {case.name}: axes: {axis} has no settings for {value!r}.",
            hint=nearest(str(value), meaning),
        )
    return dict(table)
