"""Fixtures and helpers. Tests share traces, since recording them is the slow part of a forecast."""

from __future__ import annotations

import functools
import json
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
os.environ["WINDTUNNEL_CACHE"] = tempfile.mkdtemp()
os.environ.pop("COLUMNS", None)  # whoever sets it: output that no terminal shows is not wrapped


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


@functools.cache
def _server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("command_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(
    *words: str, store: Path | None = None, folder: Path | None = None, seconds: int = 900, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command `windtunnel` in a process of its own, with the tests' store or another one.

    After so many seconds it is ended by SIGALRM.
    """
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        request = {
            "words": words,
            "environment": {**os.environ, **variables, **({"WINDTUNNEL_STORE": str(store)} if store else {})},
            "folder": str(folder or os.getcwd()),
            "seconds": seconds,
            "out": str(out),
            "err": str(err),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        output, errors = (path.read_text(errors="replace") for path in (out, err))
        return subprocess.CompletedProcess(["windtunnel", *words], code, output, errors)
