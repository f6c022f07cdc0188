"""Probe this machine, from the first op to a profile: its device's rates, its launch costs, its latencies."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel import records
from windtunnel.calibration import epochs, fit, host, launch_costs, probe, transfers
from windtunnel.calibration.microbenchmarks import draw
from windtunnel.calibration.probe import ProbeRow
from windtunnel.calibration.recurrent_workspace import fit_workspace_coefficients
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.profile import Profile
from windtunnel.machine import here, profiles
from windtunnel.machine.machine import Device, LaunchCosts, Machine, torch_device
from windtunnel.measurement import environment
from windtunnel.prediction import trace
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

Progress = Callable[[str, float], None]
_BUSY_CORES = 0.3
_BUSY_SPREAD = 1.25
_FIXED_SECONDS = {"gpu": 1e-6, "cpu": 2e-6}
# Errors of single steps for a probed machine of the same sort, by tuning rows: the start for a new one.
_DEVICE_SPREAD = {"gpu": 1.15, "cpu": 1.3}
_HOST_SPREAD = {"gpu": 1.2, "cpu": 1.3}
_LAUNCH_COST_FACTOR = {"gpu": 1.06, "cpu": 1.0}
_CACHED_OP_FACTOR = {"gpu": 1.0, "cpu": 1.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long to time ops, how many microbenchmarks to run, how finely to fit."""

    seconds: float
    microbenchmarks: int
    effort: fit.Effort


QUICK = Plan(seconds=85.0, microbenchmarks=24, effort=fit.Effort(few=80, many=160, depth=6))
THOROUGH = Plan(seconds=330.0, microbenchmarks=48, effort=fit.Effort(few=200, many=500, depth=7))
HOST_MICROBENCHMARKS = 8
_ENOUGH_ROWS = 40  # for a kind with fewer rows the reference's profile is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a probe. `learned`: the kinds learned here; the others are the reference's."""

    profile: Profile
    learned: tuple[str, ...]
    launch_costs: LaunchCosts
    rows: tuple[ProbeRow, ...]
    device: Device
    interpreter_seconds: float
    cautions: tuple[str, ...]

    def machine_facts(self) -> dict[str, Any]:
        """What a machine's description takes from a profile: device, launch costs and Python's speed."""
        return {
            "device": records.plain(self.device),
            "launch_costs": records.plain(self.launch_costs),
            "interpreter_seconds": self.interpreter_seconds,
        }


def calibrate(machine: Machine, plan: Plan, progress: Progress | None = None) -> Calibration:
    """Time synthetic ops and microbenchmarks on this machine."""
    report = progress or (lambda what, share: None)
    kind = machine.device.kind
    cautions = _busy()
    report("microbenchmarks", 0.0)
    pace = here.interpreter_seconds(kind)
    costs = measure_launch_costs(machine, plan.microbenchmarks)
    latencies = host.measure_latencies() if kind == "gpu" else None
    if latencies is not None:
        costs = dataclasses.replace(costs, graph_seconds=latencies.graph_seconds)
    rows = _time_ops(machine, plan.seconds, lambda share: report("ops", share))
    report("fitting", 0.0)
    blank = _blank(machine, latencies)
    threads = sorted({row.threads for row in rows})
    fitted = fit.fit_kinds(
        rows, {count: roofline_of(machine, blank, count) for count in threads}, plan.effort
    )
    own = {name: learned for name, learned in fitted.items() if learned.rows >= _ENOUGH_ROWS}
    wider = _BUSY_SPREAD if cautions else 1.0
    reference = profiles.load(profiles.REFERENCE[kind])
    profile = dataclasses.replace(
        blank,
        kinds={**fitted, **reference.kinds, **own},
        workspaces=fit.find_workspaces(rows, own, machine.device.cores or 1) if kind == "gpu" else {},
        workspace_coefficients={**reference.workspace_coefficients, **fit_workspace_coefficients(rows)},
        device_spread=blank.device_spread * wider,
        host_spread=blank.host_spread * wider,
    )
    return Calibration(
        profile=profile,
        learned=tuple(sorted(own)),
        launch_costs=costs,
        rows=tuple(rows),
        device=machine.device,
        interpreter_seconds=pace,
        cautions=cautions,
    )


def measure_launch_costs(machine: Machine, count: int) -> LaunchCosts:
    """The launch costs of this host, by microbenchmarks; on a CPU, with their little arithmetic."""
    assert machine.launch_costs is not None
    kind = machine.device.kind
    timed = host.run_microbenchmarks(torch_device(kind), count)
    return launch_costs.fit(timed, _microbenchmark_traces(kind, count), machine.launch_costs)


def host_factor(kind: str, base: LaunchCosts) -> float:
    """How many times as slow as these costs this host is now; takes about ten seconds."""
    timed = host.run_microbenchmarks(
        torch_device(kind), HOST_MICROBENCHMARKS, 0.16, rounds=4, choose=statistics.median
    )
    return launch_costs.factor(timed, _microbenchmark_traces(kind, HOST_MICROBENCHMARKS), base)


def _microbenchmark_traces(kind: str, count: int) -> list[Trace]:
    return [trace(workload, Strategy(), kind) for workload in draw(count)]


def _time_ops(machine: Machine, seconds: float, progress: Callable[[float], None]) -> Sequence[ProbeRow]:
    if machine.device.kind == "gpu":
        return probe.probe_gpu(seconds, progress=progress)
    cores = machine.device.cores or 1
    return probe.probe_cpu(seconds, sorted({1, cores}), progress=progress)


def _blank(machine: Machine, latencies: host.Latencies | None) -> Profile:
    """A profile with everything but what is learned from rows."""
    kind = machine.device.kind
    return Profile(
        name=machine.name,
        target=kind,
        model=machine.device.model,
        date=time.strftime("%Y-%m-%d"),
        versions={"torch": importlib.metadata.version("torch"), "python": platform.python_version()},
        fixed_seconds=_FIXED_SECONDS[kind],
        gap_seconds=latencies.gap_seconds if latencies else 0.0,
        node_seconds=latencies.node_seconds if latencies else 0.0,
        launch_seconds=latencies.launch_seconds if latencies else 0.0,
        copies=transfers.measure_copies() if kind == "gpu" else {},
        rounding=transfers.measure_rounding() if kind == "gpu" else {},
        epochs=epochs.measure_epochs(kind),
        device_spread=_DEVICE_SPREAD[kind],
        host_spread=_HOST_SPREAD[kind],
        launch_cost_factor=_LAUNCH_COST_FACTOR[kind],
        cached_op_factor=_CACHED_OP_FACTOR[kind],
        kinds={},
    )


def _busy() -> tuple[str, ...]:
    """A caution if other programs use the machine: they make every figure of a probe too slow."""
    others = environment.busy_cores()
    if others < _BUSY_CORES:
        return ()
    return (
        f"other programs kept {others:.1f} cores busy when the probe began: "
        "figures may be too slow, and intervals are widened",
    )
