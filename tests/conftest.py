"""Fixtures and helpers. Tests share traces, since recording them is the slow part of a forecast."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import windtunnel as wt
from windtunnel.forecast.forecast import Forecast, forecast_step
from windtunnel.machine.profiles import profile_for
from windtunnel.prediction import trace
from windtunnel.trace import Trace

torch.set_num_threads(1)
os.environ["WINDTUNNEL_STORE"] = str(Path(tempfile.mkdtemp()) / "store.sqlite")  # never the user's own
os.environ["WINDTUNNEL_PROFILES"] = tempfile.mkdtemp()


@functools.cache
def _trace(
    job: str, settings: tuple[tuple[str, object], ...], batch: int | None, precision: str, target: str
) -> Trace:
    return trace(
        wt.Workload.named(job, **dict(settings)), wt.Strategy(batch=batch, precision=precision), target
    )


def fly(
    job: str, machine: str | wt.Machine, strategy: wt.Strategy | None = None, **settings: object
) -> Forecast:
    """A forecast whose trace is shared among tests."""
    strategy = strategy or wt.Strategy()
    target = wt.Machine.named(machine) if isinstance(machine, str) else machine
    recorded = _trace(
        job, tuple(sorted(settings.items())), strategy.batch, strategy.precision, target.device.kind
    )
    return forecast_step(recorded, target, strategy, profile_for(target)).forecast


@pytest.fixture
def recorded() -> Callable[..., Trace]:
    def get(
        job: str, target: str = "cpu", batch: int | None = None, precision: str = "fp32", **settings: object
    ) -> Trace:
        return _trace(job, tuple(sorted(settings.items())), batch, precision, target)

    return get


def run(*words: str, store: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command `windtunnel` in a process of its own, with the tests' store or another one."""
    environment = {**os.environ, **({"WINDTUNNEL_STORE": str(store)} if store else {})}
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
