"""Factors from single ops and microbenchmarks to whole networks, measured on synthetic networks."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.calibration.correction import add_trees, thread_factors
from windtunnel.calibration.probe_networks import compute_networks, host_networks, ordinary_networks
from windtunnel.calibration.steps import Job, TimedStep
from windtunnel.errors import Unavailable
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import LaunchCosts, Machine, reference_network_factors
from windtunnel.strategy import Strategy

_HOST_BOUND = 0.3  # a step counts if launch costs are at least this share of its forecast
_LEAST_FACTOR = 0.1
# How far a host probe moves the factor from 1, in logarithms. Five probes of one GPU host within a quarter of
# an hour found 0.87, 0.90, 0.71, 0.70 and 0.67 (a standard deviation of 0.13); five hosts of an H200 that
# steps were timed on had 0.76 to 1.03 (0.13). So a probe and the reference are equally reliable.
_PROBE_WEIGHT = 0.5
_MOST_RESIDUAL = 0.35  # in logarithms; with a larger residual, another program disturbed the steps


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFactor:
    """The factor of a host, and that of each network; `factor` is their median or nearer to 1."""

    factor: float
    networks: dict[str, float]

    @property
    def measured(self) -> float:
        """The median over the networks."""
        return statistics.median(self.networks.values())


def host_jobs(kind: str) -> list[Job]:
    """All host networks, on one thread of a CPU; for a GPU also those of ordinary width."""
    strategy = Strategy(threads=1 if kind == "cpu" else None)
    networks = (*host_networks(), *(ordinary_networks() if kind == "gpu" else ()))
    return [(workload, strategy) for workload in networks]


def compute_jobs(kind: str, cores: int) -> list[Job]:
    """All compute networks on one thread of a CPU and on all; none on a GPU."""
    return [
        (workload, Strategy(threads=threads))
        for workload in (compute_networks() if kind == "cpu" else ())
        for threads in sorted({1, cores})
    ]


def factor_of(
    steps: Sequence[TimedStep], machine: Machine, profile: Profile, costs: LaunchCosts
) -> HostFactor:
    """The median over the networks of the factor on launch costs that makes a forecast right; `costs` are
    those of factor 1.

    The synthetic networks cost a host less than networks in use with the same ops. By how much was measured
    once, and each network's factor is divided by it (launch_costs.toml, network_factors).
    """
    usual = reference_network_factors(machine.device.kind)
    factors = {}
    for step in steps:
        once, twice = (
            step.forecast(
                dataclasses.replace(machine, launch_costs=costs.scaled(factor), host_factor=1.0), profile
            ).step_seconds
            for factor in (1.0, 2.0)
        )
        launching = twice - once
        if launching >= _HOST_BOUND * once:
            factor = 1.0 + (step.seconds - once) / launching
            factors[step.name] = max(factor, _LEAST_FACTOR) / usual.get(step.name, 1.0)
    if not factors:
        raise Unavailable(
            f"No probe network is limited by the host of {machine.name}: its factor cannot be measured.",
            hint="Forecasts keep the host factor that they have.",
        )
    return HostFactor(factor=statistics.median(factors.values()), networks=factors)


def halfway_to_reference(found: HostFactor) -> HostFactor:
    """The factor halfway between the measured one and that of the reference host."""
    return dataclasses.replace(found, factor=found.factor**_PROBE_WEIGHT)


def with_network_residuals(steps: Sequence[TimedStep], machine: Machine, profile: Profile) -> Profile:
    """The profile with all slowdowns scaled by measured over forecast seconds of whole steps, separately for
    one thread and for more. Single ops, timed again and again, miss the waking of threads and the reading of
    weights from memory.
    """
    residuals: dict[bool, list[float]] = {False: [], True: []}
    for step in steps:
        ratio = step.seconds / step.forecast(machine, profile).step_seconds
        residuals[(step.strategy.threads or 1) > 1].append(math.log(ratio))
    one, many = (_shrunk(residuals[is_many]) for is_many in (False, True))
    kinds = {
        name: dataclasses.replace(
            kind, slowdown=add_trees(kind.slowdown, thread_factors(len(kind.features), one, many))
        )
        for name, kind in profile.kinds.items()
    }
    return dataclasses.replace(profile, kinds=kinds)


def _shrunk(residuals: Sequence[float]) -> float:
    """The median residual, shrunk towards 0 as by one more network without a residual, and bounded."""
    if not residuals:
        return 0.0
    middle = statistics.median(residuals) * len(residuals) / (len(residuals) + 1)
    return max(-_MOST_RESIDUAL, min(_MOST_RESIDUAL, middle))
