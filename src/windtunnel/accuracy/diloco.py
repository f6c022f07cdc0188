"""Utilisation of workers that average their weights every H steps: measured runs of DiLoCo and local SGD.

Four nodes with one L40S each exchange over TCP at rates that were limited on purpose. The time of a local
step is taken from the run, so that only the exchange is judged: how long an average takes at that rate, and
what share of the time is left for computing. The steps that a run counted are not always whole periods of H;
the forecast has as many averages as were counted. Runs without a limit are left out: the rate of their
network is not stated.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from windtunnel.accuracy import published
from windtunnel.accuracy.utilisation import JudgedUtilisation, UtilisationValidation
from windtunnel.exchange import forms
from windtunnel.exchange.run import ExchangeCosts, ExchangeSettings
from windtunnel.exchange.variation import Variation
from windtunnel.forecast.collectives import Group, collective_seconds
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import Link

FILE = "diloco_measured_runs.csv"
MOST_POINTS = 0.05
TITLE = "Local SGD and DiLoCo on 4 nodes over limited TCP: utilisation"
USE = (
    "The spread of the nodes' speeds was chosen on the rows at 50 Mbit/s and 1 Gbit/s (the smallest worst "
    "error there) and is judged on the others. The time of a local step is the run's own."
)
# Standard deviation of the nodes' mean step times. The file does not state it; chosen as USE says.
SPREAD = 0.15
TUNING_RATES = ("50m", "1g")
_DRAWS = 200  # of the nodes' speeds; their mean is the forecast
_RATES = {"50m": 50e6 / 8, "200m": 200e6 / 8, "1g": 1e9 / 8, "5g": 5e9 / 8}
_FORMS = {"diloco": "diloco", "localsgd": "local"}
_BYTES_OF_WEIGHT = 4


class LocalRun(NamedTuple):
    """A published run: bytes of the weights, steps between averages, and what was measured.

    `steps` and `averages` are those that the utilisation was counted over.
    """

    algorithm: str
    every: int
    bandwidth: str
    workers: int
    weight_bytes: float
    compute_seconds: float
    steps: int
    averages: int
    utilisation: float


def validate(folder: Path) -> UtilisationValidation:
    """Judge forecasts of utilisation by the file of the folder."""
    runs = read(published.read_rows(folder, FILE))
    constant = statistics.fmean(run.utilisation for run in runs)
    rows = [
        JudgedUtilisation(
            series=run.algorithm,
            case=f"H={run.every} {run.bandwidth}bit/s",
            measured=run.utilisation,
            predicted=utilisation(run),
            constant=constant,
        )
        for run in runs
    ]
    return UtilisationValidation(
        title=TITLE, use=USE, rows=tuple(rows), limited=tuple(_FORMS), most_points=MOST_POINTS
    )


def read(rows: Iterable[dict[str, str]]) -> list[LocalRun]:
    """The runs with a stated rate, except those of DDP: their time of computing includes the exchange."""
    return [
        LocalRun(
            algorithm=row["algorithm"],
            every=int(row["H"]),
            bandwidth=row["bandwidth_shaped"],
            workers=int(row["workers"]),
            weight_bytes=float(row["n_params"]) * _BYTES_OF_WEIGHT,
            compute_seconds=float(row["median_compute_ms"]) / 1e3,
            steps=int(row["steps_counted"]),
            averages=int(row["n_outer_steps"]),
            utilisation=float(row["compute_fraction"]),
        )
        for row in rows
        if row["algorithm"] in _FORMS and row["bandwidth_shaped"] in _RATES
    ]


def utilisation(run: LocalRun, spread: float = SPREAD) -> float:
    """The share of the time in which a worker computes, by the simulation of the exchange.

    Nodes differ in speed by `spread`: over H steps they drift apart, and all wait for the slowest. The
    worker whose time is given is an average one.
    """
    machine = _machine(run)
    costs = ExchangeCosts(
        compute_seconds=run.compute_seconds,
        reduce_seconds=collective_seconds("all_reduce", run.weight_bytes, Group(1, run.workers), machine),
    )
    form, settings = forms.named(_FORMS[run.algorithm]), ExchangeSettings(every=run.every)
    nodes = Variation(spread=spread)
    draws = [nodes.draw(run.compute_seconds, run.workers, run.every, seed) for seed in range(_DRAWS)]
    period = float(np.mean([form.simulate(compute, costs, settings).seconds for compute in draws]))
    computing = run.steps * run.compute_seconds
    return computing / (computing + run.averages * (period - run.every * run.compute_seconds))


def _machine(run: LocalRun) -> Machine:
    """So many nodes with one L40S and Ethernet of the run's rate."""
    link = Link(name="limited TCP", kind="ethernet", rate=_RATES[run.bandwidth], latency_seconds=50e-6)
    return dataclasses.replace(Machine.named("l40s"), nodes=run.workers, network=link)
