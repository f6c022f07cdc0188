"""A training by the workers of a machine under a simulated clock, as a study asks for it.

It says what was reached and when, and ends at its target.

What synchronous and local workers learn does not depend on the clock. So the last few learning curves are
kept, and the same curve is laid on the clock of another machine without training again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel.errors import BadInput, BadJob
from windtunnel.exchange import forms
from windtunnel.exchange.outcome import ClusterRow
from windtunnel.exchange.run import ExchangeSettings, groups_on_nodes
from windtunnel.exchange.training import LOCAL, SERVED, ClusterLoop, ClusterOptions, opened
from windtunnel.exchange.variation import Variation
from windtunnel.learning.goal import Goal
from windtunnel.learning.training import random_state
from windtunnel.learning.trial import TrialOutcome
from windtunnel.machine.machine import Machine

_KEPT = 8  # learning curves
_LEAST_GROUPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTrial:
    """One training.

    machine         of the catalogue; beyond its devices, with more of its nodes
    network_factor  the rate of the links between nodes, times that of the machine
    every           local steps between two averages (local, diloco)
    jitter          standard deviation of a step's time, as a share of its mean
    slow_factor     one worker is slower by this factor, always
    rounds, steps   at most so many rounds of so many mini-batches of all workers together; after each round
                    the network is tested
    """

    network: str
    machine: str
    exchange: str
    workers: int
    target: float
    settings: Mapping[str, object] = field(default_factory=dict)
    data: str = ""
    network_factor: float = 1.0
    every: int = 10
    jitter: float = 0.0
    slow_factor: float = 1.0
    rounds: int = 10
    steps: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        forms.named(self.exchange)
        if self.workers < 1 or self.rounds < 1 or self.steps < 1 or self.every < 1:
            raise BadInput(
                "A training needs at least one worker, one round, one step, and one step an average."
            )
        if not (0 < self.network_factor < math.inf):
            raise BadInput(f"network_factor must be above 0, not {self.network_factor}.")

    @property
    def curve(self) -> str:
        """Trainings with the same text learn the same if their workers do not come in an order of their
        own."""
        name = {"server": "sync"}.get(self.exchange, self.exchange)
        every = self.every if name in LOCAL else 0
        clock = (self.machine, self.network_factor, self.jitter, self.slow_factor) if name in SERVED else ()
        return repr((self.network, sorted(self.settings.items()), self.data, name, self.workers, every, clock,
                     self.target, self.rounds, self.steps, self.seed))  # fmt: skip

    def on_machine(self) -> Machine:
        """The machine with as many nodes as the workers need."""
        machine = Machine.find(self.machine)
        nodes = max(machine.nodes, -(-self.workers // machine.devices))
        machine = dataclasses.replace(machine, nodes=nodes)
        if machine.network is None or self.network_factor == 1.0:
            return machine
        link = dataclasses.replace(machine.network, rate=machine.network.rate * self.network_factor)
        return dataclasses.replace(machine, network=link)

    def options(self, machine: Machine) -> ClusterOptions:
        groups = max(_LEAST_GROUPS, groups_on_nodes(self.workers, machine.devices))
        return ClusterOptions(
            exchange=self.exchange,
            workers=self.workers,
            settings=ExchangeSettings(groups=groups if self.exchange == "mixed" else 1, every=self.every),
            variation=Variation(
                jitter=self.jitter,
                slow_workers=int(self.slow_factor > 1),
                slow_factor=self.slow_factor,
            ),
            steps=self.rounds * self.steps,
            round_steps=self.steps,
            seed=self.seed,
        )


class ClusterTrials:
    """Carries out trials one after another, and keeps their last learning curves."""

    def __init__(self) -> None:
        self._curves: dict[str, tuple[list[ClusterRow], bool]] = {}

    def run(self, trial: ClusterTrial) -> TrialOutcome:
        """Train to the target, or to the end of the rounds. A loss that is not finite is a result."""
        machine = trial.on_machine()
        with random_state(trial.seed):
            loop = opened(trial.network, machine, trial.options(machine), dict(trial.settings), trial.data)
            better = loop.lesson.better
            loop.goal = Goal(metric=loop.lesson.metric, target=trial.target, better=better)
            if trial.curve not in self._curves:
                self._keep(trial.curve, _learn(loop))
        rows, diverged = self._curves[trial.curve]
        return _outcome(loop, rows, diverged)

    def _keep(self, key: str, curve: tuple[list[ClusterRow], bool]) -> None:
        while len(self._curves) >= _KEPT:
            self._curves.pop(next(iter(self._curves)))
        self._curves[key] = curve


def _learn(loop: ClusterLoop) -> tuple[list[ClusterRow], bool]:
    try:
        loop.run(lambda done, total, text: None)
    except BadJob:
        return loop.rows, True
    return loop.rows, False


def _outcome(loop: ClusterLoop, rows: list[ClusterRow], diverged: bool) -> TrialOutcome:
    """The curve on the clock of this loop's run."""
    metric, last = loop.lesson.metric, rows[-1]
    reached = last if loop.reaches(last) else None
    losses = [row.loss for row in rows if row.loss is not None]
    steps = last.changes * loop.learner.per_change
    seconds = loop.seconds_at(last.changes)
    return TrialOutcome(
        metric=metric,
        better=loop.lesson.better,
        scores=tuple(row.figures[metric] for row in rows),
        loss=losses[-1] if losses else None,
        steps=steps,
        examples=last.examples,
        seconds=seconds,
        diverged=diverged,
        steps_to_target=steps if reached else None,
        examples_to_target=last.examples if reached else None,
        seconds_to_target=seconds if reached else None,
    )
