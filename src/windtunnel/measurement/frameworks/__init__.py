"""Frameworks under one contract: the same job from the same weights, timed in a process of their Python."""

from __future__ import annotations

from windtunnel.measurement.frameworks.catalogue import (
    Framework,
    forecast_names,
    jobs,
    named,
    names,
    python_for,
    refusal,
    traced,
)
from windtunnel.measurement.frameworks.run import kind_of, losses, prepare, run_shared, run_task, traces
from windtunnel.measurement.frameworks.task import Task

__all__ = [
    "Framework",
    "Task",
    "forecast_names",
    "jobs",
    "kind_of",
    "losses",
    "named",
    "names",
    "prepare",
    "python_for",
    "refusal",
    "run_shared",
    "run_task",
    "traced",
    "traces",
]
