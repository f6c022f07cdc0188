"""The parts, families and memory of a measured step, from the profiler's record of each process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from windtunnel.machine.machine import Machine
from windtunnel.measurement.report import ProcessReport, Profiled
from windtunnel.results import Memory


def profiles_of(reports: Sequence[ProcessReport]) -> list[Profiled]:
    return [report.profiled for report in reports if report.profiled is not None]


def middle(profiles: Sequence[Profiled], name: str) -> float:
    return float(statistics.median(getattr(profiled, name) for profiled in profiles))


def parts(profiles: Sequence[Profiled], step_seconds: float, device: str) -> dict[str, float]:
    """The profiler's shares of a step, applied to the steady step that was timed without it."""
    busy, update, copy = (middle(profiles, name) for name in ("busy", "update", "exposed_copy"))
    whole = step_seconds if device != "cpu" else middle(profiles, "wall")
    shares = {
        "compute": max(0.0, busy - update),
        "update": update,
        "copy": copy,
        "launch": max(0.0, whole - busy - copy),
    }
    total = sum(shares.values())
    return {part: step_seconds * seconds / total for part, seconds in shares.items() if seconds > 0}


def families(profiles: Sequence[Profiled], step_seconds: float, device: str) -> dict[str, float]:
    """The device's seconds by family of op.

    A GPU's kernels take as long under the profiler as without. A CPU's ops take longer, so they are scaled.
    """
    names = {name for profiled in profiles for name in profiled.families}
    scale = 1.0 if device != "cpu" else step_seconds / middle(profiles, "wall")
    seconds = {
        name: scale * statistics.median(profiled.families.get(name, 0.0) for profiled in profiles)
        for name in names
    }
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def memory(reports: Sequence[ProcessReport], machine: Machine) -> Memory:
    peaks = [report.memory for report in reports if report.memory is not None]
    reserved = [peak.reserved_bytes for peak in peaks if peak.reserved_bytes is not None]
    return Memory(
        peak_bytes=float(max(peak.peak_bytes for peak in peaks)),
        reserved_bytes=float(max(reserved)) if reserved else None,
        capacity_bytes=machine.device.memory_bytes,
    )
