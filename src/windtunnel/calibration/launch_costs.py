"""Fit a host's launch costs: least squares of the seconds of microbenchmarks over the counts in their traces.

If the microbenchmarks hardly determine a cost, it stays near that of the reference host. It is never below a
tenth or above ten times of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windtunnel.calibration.host import Microbenchmark
from windtunnel.forecast.trees import Numbers
from windtunnel.machine.machine import LaunchCosts
from windtunnel.trace import Trace

_PRIOR_WEIGHT = 0.15  # how strongly a cost is kept near the reference
_SWEEPS = 400
_MOST = 10.0
_CALLS = {
    "node_seconds": "nodes",
    "module_seconds": "module_calls",
    "backward_seconds": "backward_calls",
    "update_seconds": "update_calls",
}


def count(trace: Trace) -> dict[str, float]:
    """How often a step pays each cost."""
    counts: dict[str, float] = {name: float(getattr(trace, field)) for name, field in _CALLS.items()}
    counts["tensor_seconds"] = float(sum(op.calls - 1 for op in trace.ops))
    for op in trace.ops:
        key = f"{op.phase} {op.family}"
        counts[key] = counts.get(key, 0.0) + 1.0
    return counts


def seconds(counts: Mapping[str, float], launch_costs: LaunchCosts) -> float:
    """What a step with these counts costs the host."""
    return sum(times * _cost(name, launch_costs) for name, times in counts.items())


def fit(
    microbenchmarks: Sequence[Microbenchmark], traces: Sequence[Trace], reference: LaunchCosts
) -> LaunchCosts:
    """The costs that explain the microbenchmarks best; `traces` are theirs."""
    counted = [count(trace) for trace in traces]
    names = sorted({name for counts in counted for name in counts})
    prior = np.array([_cost(name, reference) for name in names])
    measured = np.array([microbenchmark.seconds for microbenchmark in microbenchmarks])
    table = np.array([[counts.get(name, 0.0) for name in names] for counts in counted])
    shares = table * prior / measured[:, None]
    # The whole host may be faster or slower than the reference.
    level = 1.0 / max(float(np.median(shares.sum(axis=1))), 1e-9)
    costs = dict(zip(names, (_solve(shares * level) * prior * level).tolist(), strict=True))
    return _launch_costs(costs, reference.scaled(level))


def factor(
    microbenchmarks: Sequence[Microbenchmark], traces: Sequence[Trace], launch_costs: LaunchCosts
) -> float:
    """How many times as slow as `launch_costs` this host is, by the median of all microbenchmarks."""
    return statistics.median(
        microbenchmark.seconds / seconds(count(trace), launch_costs)
        for microbenchmark, trace in zip(microbenchmarks, traces, strict=True)
    )


def _cost(name: str, launch_costs: LaunchCosts) -> float:
    phase, _, family = name.partition(" ")
    if not family:
        return float(getattr(launch_costs, name))
    table: Mapping[str, float] = getattr(launch_costs, phase)
    return table.get(family, table["other"])


def _solve(shares: Numbers) -> Numbers:
    """Factors near 1 whose weighted sums are near 1, by coordinate descent."""
    factors = np.ones(shares.shape[1])
    residuals = shares @ factors - 1.0
    squares = (shares**2).sum(axis=0) + _PRIOR_WEIGHT**2
    for _ in range(_SWEEPS):
        for column in range(len(factors)):
            slope = shares[:, column] @ residuals + _PRIOR_WEIGHT**2 * (factors[column] - 1.0)
            new = min(_MOST, max(1 / _MOST, factors[column] - slope / squares[column]))
            residuals += shares[:, column] * (new - factors[column])
            factors[column] = new
    return factors


def _launch_costs(costs: Mapping[str, float], reference: LaunchCosts) -> LaunchCosts:
    """Families that no microbenchmark has keep the reference's cost, scaled to this host."""
    tables: dict[str, dict[str, float]] = {
        phase: dict(getattr(reference, phase)) for phase in ("forward", "backward", "update")
    }
    plain: dict[str, Any] = {
        name: getattr(reference, name) for name in (*_CALLS, "tensor_seconds", "graph_seconds")
    }
    for name, cost in costs.items():
        phase, _, family = name.partition(" ")
        if family:
            tables[phase][family] = cost
        else:
            plain[name] = cost
    for phase in ("forward", "backward"):  # an op of no known family costs as much as a streaming one
        tables[phase]["other"] = tables[phase].get("streaming", tables[phase]["other"])
    return LaunchCosts(
        forward=tables["forward"], backward=tables["backward"], update=tables["update"], **plain
    )
