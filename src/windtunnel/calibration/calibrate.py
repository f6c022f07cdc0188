"""Probe this machine, from the first op to a profile: its device's rates, its launch costs, its latencies."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel import records
from windtunnel.calibration import correction, epochs, fit, host, launch_costs, probe, transfers
from windtunnel.calibration.comparison import Comparison, StepComparison
from windtunnel.calibration.microbenchmarks import draw
from windtunnel.calibration.network_factors import (
    HostFactor,
    compute_jobs,
    factor_of,
    halfway_to_reference,
    host_jobs,
    with_network_residuals,
)
from windtunnel.calibration.probe import ProbeRow
from windtunnel.calibration.recurrent_workspace import fit_workspace_coefficients
from windtunnel.calibration.steps import StepTimer, TimedStep, real_jobs
from windtunnel.errors import Unavailable
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
_MANY_CORES = 8
_FIXED_SECONDS = {"gpu": 1e-6, "cpu": 2e-6}
# The error that all ops of a probed machine have in common, by tuning rows (docs/accuracy.md): the start for
# a new machine. The errors of its kinds of work are added to it (`forecast/uncertainty.py`).
_DEVICE_SPREAD = {"gpu": 1.12, "cpu": 1.18}
_HOST_SPREAD = {"gpu": 1.2, "cpu": 1.3}
# How a probe divides its seconds. Ops of a CPU get all that is left before the fit.
_MICROBENCHMARK_SHARE, _EPOCHS_SHARE, _FIT_SHARE = 0.05, 0.05, 0.1
_HOST_SHARE, _COMPUTE_SHARE, _STEPS_SHARE = 0.03, 0.05, 0.05
_PORTIONS = 3  # of the ops; networks are timed before the first portion and after each
_LEAST_OPS_SHARE, _GPU_OPS_SHARE = 0.4, 0.5
_HOST_SECONDS, _HOST_ROUNDS = 3.0, 5  # for each network of a host probe
# From microbenchmarks to whole networks; a factor outside of this range is a disturbed measurement.
_LAUNCH_COST_RANGE = 0.6, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a probe takes, how many microbenchmarks it runs, how finely it fits a GPU's kinds."""

    seconds: float
    microbenchmarks: int
    effort: fit.Effort


QUICK = Plan(seconds=170.0, microbenchmarks=18, effort=fit.Effort(few=80, many=160, depth=6))
THOROUGH = Plan(seconds=570.0, microbenchmarks=48, effort=fit.Effort(few=200, many=500, depth=7))
_ENOUGH_ROWS = 40  # for a kind of a GPU with fewer rows the reference's profile is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a probe. `learned`: how each kind was learned here; all other kinds are those of another
    machine's profile. `comparison`: this profile against the one in use, by real steps and by rows left
    out."""

    profile: Profile
    learned: Mapping[str, str]
    launch_costs: LaunchCosts
    rows: tuple[ProbeRow, ...]
    device: Device
    interpreter_seconds: float
    comparison: Comparison
    cautions: tuple[str, ...]

    def machine_facts(self) -> dict[str, Any]:
        """What a machine's description takes from a profile: device, launch costs and Python's speed."""
        return {
            "device": records.plain(self.device),
            "launch_costs": records.plain(self.launch_costs),
            "interpreter_seconds": self.interpreter_seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostTimes:
    """What a probe times of the host in addition to networks."""

    costs: LaunchCosts
    interpreter_seconds: float
    latencies: host.Latencies | None


class _Networks:
    """Whole networks that a probe times in rounds: for launch costs, for compute, and real ones."""

    def __init__(self, machine: Machine, seconds: float) -> None:
        kind, cores = machine.device.kind, machine.device.cores or 1
        shares = (
            (_HOST_SHARE, host_jobs(kind)),
            (_COMPUTE_SHARE, compute_jobs(kind, cores)),
            (_STEPS_SHARE, real_jobs(kind, cores)),
        )
        self._seconds = [share * seconds / (_PORTIONS + 1) / max(1, len(jobs)) for share, jobs in shares]
        self._timers = [StepTimer(jobs, kind) for _, jobs in shares]

    @property
    def seconds(self) -> float:
        """What one round takes."""
        pairs = zip(self._timers, self._seconds, strict=True)
        return sum(len(timer) * seconds for timer, seconds in pairs)

    def time(self) -> None:
        """One round over all networks."""
        for timer, seconds in zip(self._timers, self._seconds, strict=True):
            timer.time(seconds)

    def steps(self) -> list[list[TimedStep]]:
        """Host networks, compute networks, real ones."""
        return [timer.steps() for timer in self._timers]


def calibrate(
    machine: Machine,
    plan: Plan,
    progress: Progress | None = None,
    before: Machine | None = None,
    earlier_rows: Sequence[ProbeRow] = (),
) -> Calibration:
    """Time synthetic ops, microbenchmarks and real steps on this machine.

    `before`: this machine with its current profile, for the comparison. `earlier_rows`: rows of an earlier
    probe of this machine, which are fitted too.
    """
    report = progress or (lambda what, share: None)
    begin, cautions = time.perf_counter(), _busy()
    report("microbenchmarks", 0.0)
    timed = _time_host(machine, plan)
    report("networks", 0.0)
    networks = _Networks(machine, plan.seconds)
    networks.time()
    blank = _unfitted_profile(machine, timed.latencies, _EPOCHS_SHARE * plan.seconds)
    end = begin + plan.seconds * (1 - _FIT_SHARE)
    rows = _time_ops(machine, plan, end, len(earlier_rows), networks, report)
    report("fitting", 0.0)
    profile, learned, held_out = _fit_profile(machine, blank, [*earlier_rows, *rows], plan.effort)
    after = dataclasses.replace(machine, launch_costs=timed.costs, profile=machine.name, host_factor=1.0)
    host_steps, compute_steps, real_steps = networks.steps()
    profile = _with_network_factors(profile, host_steps, compute_steps, after)
    wider = _BUSY_SPREAD if cautions else 1.0
    profile = dataclasses.replace(
        profile, device_spread=blank.device_spread * wider, host_spread=blank.host_spread * wider
    )
    return Calibration(
        profile=profile,
        learned=learned,
        launch_costs=timed.costs,
        rows=(*earlier_rows, *rows),
        device=machine.device,
        interpreter_seconds=timed.interpreter_seconds,
        comparison=_compare(real_steps, before or machine, (after, profile), held_out),
        cautions=cautions,
    )


def _time_host(machine: Machine, plan: Plan) -> _HostTimes:
    """Python's speed, launch costs by microbenchmarks, and a GPU's latencies."""
    kind = machine.device.kind
    pace = here.interpreter_seconds()
    costs = measure_launch_costs(machine, plan.microbenchmarks, _MICROBENCHMARK_SHARE * plan.seconds)
    latencies = host.measure_latencies() if kind == "gpu" else None
    if latencies is not None:
        costs = dataclasses.replace(costs, graph_seconds=latencies.graph_seconds)
    return _HostTimes(costs=costs, interpreter_seconds=pace, latencies=latencies)


def measure_launch_costs(machine: Machine, count: int, most_seconds: float = math.inf) -> LaunchCosts:
    """The launch costs of this host, by microbenchmarks; on a CPU, with their little arithmetic."""
    assert machine.launch_costs is not None
    kind = machine.device.kind
    timed = host.run_microbenchmarks(torch_device(kind), count, most_seconds=most_seconds)
    return launch_costs.fit(timed, _microbenchmark_traces(kind, count), machine.launch_costs)


def host_factor(machine: Machine, base: LaunchCosts) -> HostFactor:
    """The factor by which this host is now slower than these costs; takes about half a minute."""
    timer = StepTimer(host_jobs(machine.device.kind), machine.device.kind)
    for _ in range(_HOST_ROUNDS):
        timer.time(_HOST_SECONDS / _HOST_ROUNDS)
    found = factor_of(timer.steps(), machine, profiles.profile_for(machine), base)
    return halfway_to_reference(found) if machine.device.kind == "gpu" else found


def _with_network_factors(
    profile: Profile, host_steps: Sequence[TimedStep], compute_steps: Sequence[TimedStep], machine: Machine
) -> Profile:
    """The profile with the costs of whole networks, as factors on those of microbenchmarks and single ops."""
    assert machine.launch_costs is not None
    low, high = _LAUNCH_COST_RANGE
    with contextlib.suppress(Unavailable):
        factor = factor_of(host_steps, machine, profile, machine.launch_costs).factor
        profile = dataclasses.replace(profile, launch_cost_factor=min(high, max(low, factor)))
    return with_network_residuals(compute_steps, machine, profile) if compute_steps else profile


def _compare(
    steps: Sequence[TimedStep],
    before: Machine,
    after: tuple[Machine, Profile],
    held_out: Sequence[ProbeRow],
) -> Comparison:
    """The profile in use against the new one."""
    machine, profile = after
    old = profiles.profile_for(before)
    threads = {row.threads for row in held_out}
    errors = [
        correction.row_errors(held_out, {n: roofline_of(m, p, n) for n in threads}, p.kinds)
        for m, p in ((before, old), (machine, profile))
    ]
    return Comparison(
        before=f"the profile of {before.profile or old.name}",
        steps=tuple(
            StepComparison(
                name=step.name,
                threads=step.strategy.threads,
                measured_seconds=step.seconds,
                before_seconds=step.forecast(before, old).step_seconds,
                after_seconds=step.forecast(machine, profile).step_seconds,
            )
            for step in steps
        ),
        before_row_errors=tuple(errors[0]),
        after_row_errors=tuple(errors[1]),
    )


def _microbenchmark_traces(kind: str, count: int) -> list[Trace]:
    return [trace(workload, Strategy(), kind) for workload in draw(count)]


def _time_ops(
    machine: Machine, plan: Plan, end: float, seed: int, networks: _Networks, report: Progress
) -> Sequence[ProbeRow]:
    """Time ops in portions, and all networks after each; on a CPU until the clock shows `end`. Another seed
    draws other ops."""
    rows = list[ProbeRow]()
    for portion in range(_PORTIONS):
        done = portion / _PORTIONS
        seconds = max(end - time.perf_counter(), _LEAST_OPS_SHARE * plan.seconds * (1 - done))
        seconds /= _PORTIONS - portion

        def progress(share: float, done: float = done) -> None:
            report("ops", done + share / _PORTIONS)

        if machine.device.kind == "gpu":
            rows += probe.probe_gpu(_GPU_OPS_SHARE * plan.seconds / _PORTIONS, seed + portion, progress)
        else:
            counts = thread_counts(machine.device.cores or 1)
            rows += probe.probe_cpu(seconds - networks.seconds, counts, seed + portion, progress)
        networks.time()
    return rows


def thread_counts(cores: int) -> tuple[int, ...]:
    """The numbers of threads that ops are timed with: one, all, and on large machines some."""
    return tuple(sorted({1, cores} | ({cores // 4} if cores >= _MANY_CORES else set())))


def _fit_profile(
    machine: Machine, blank: Profile, rows: Sequence[ProbeRow], effort: fit.Effort
) -> tuple[Profile, Mapping[str, str], tuple[ProbeRow, ...]]:
    """The profile, how each kind was learned, and rows that were left out of the fit."""
    rooflines = {count: roofline_of(machine, blank, count) for count in {row.threads for row in rows}}
    reference = profiles.load(profiles.nearest(machine))
    if machine.device.kind == "cpu":
        corrected = correction.correct_kinds(rows, rooflines, reference.kinds)
        return (
            dataclasses.replace(blank, kinds=corrected.kinds),
            corrected.learned,
            corrected.held_out,
        )
    fitted = fit.fit_kinds(rows, rooflines, effort)
    own = {name: learned for name, learned in fitted.items() if learned.rows >= _ENOUGH_ROWS}
    profile = dataclasses.replace(
        blank,
        kinds={**fitted, **reference.kinds, **own},
        workspaces=fit.find_workspaces(rows, own, machine.device.cores or 1),
        workspace_coefficients={**reference.workspace_coefficients, **fit_workspace_coefficients(rows)},
    )
    return profile, dict.fromkeys(sorted(own), "own trees"), ()


def _unfitted_profile(machine: Machine, latencies: host.Latencies | None, epoch_seconds: float) -> Profile:
    """A profile with everything except what is learned from rows."""
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
        epochs=epochs.measure_epochs(kind, epoch_seconds if kind == "cpu" else math.inf),
        device_spread=_DEVICE_SPREAD[kind],
        host_spread=_HOST_SPREAD[kind],
        launch_cost_factor=1.0,
        cached_op_factor=1.0,
        kinds={},
    )


def _busy() -> tuple[str, ...]:
    """A caution if other programs use the machine: they make all timings of a probe too long."""
    others = environment.busy_cores()
    if others < _BUSY_CORES:
        return ()
    return (
        f"other programs kept {others:.1f} cores busy when the probe began: "
        "figures may be too slow, and intervals are widened",
    )
