"""One task in one fresh process of the Python that has its framework."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import MeasurementFailed
from windtunnel.measurement import children, environment
from windtunnel.measurement.frameworks import catalogue
from windtunnel.measurement.frameworks.catalogue import Framework
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol

_START = Path(__file__).with_name("start.py")


def run_task(task: Task, protocol: Protocol, *, number: int = 0) -> dict[str, Any]:
    """Time one task in one process and give its report; MeasurementFailed says by name why there is none.

    `number` counts the processes of a cell. Weights and data come from the task's seed alone and are the same in each of them.
    """
    return _run(task, protocol, {"number": number, "trace": 0})


def losses(task: Task, steps: int) -> list[float]:
    """The loss of each of the first steps."""
    report = _run(task, Protocol(), {"number": 0, "trace": steps})
    return [float(loss) for loss in report["losses"]["losses"]]


def trace(task: Task, steps: int) -> dict[str, Any]:
    """The same with all that the child tells beside: parameters, dtype, threads, versions."""
    return _run(task, Protocol(), {"number": 0, "trace": steps})


def _run(task: Task, protocol: Protocol, asked: dict[str, Any]) -> dict[str, Any]:
    framework = catalogue.named(task.framework)
    why = catalogue.refusal(task)
    if why is not None:
        raise MeasurementFailed(f"{task.label} cannot do this task: {why}.", state="unsupported")
    python = catalogue.python_for(task.framework)
    if python is None:
        raise MeasurementFailed(f"{framework.title} is not installed.", state="not installed", hint=f"windtunnel frameworks install {framework.name}")
    order = {
        "task": records.plain(task),
        "protocol": records.plain(protocol),
        "module": framework.module,
        "imports": list(framework.imports),
        **asked,
    }
    command = [str(python), "-P", str(_START)]
    pinned = task.threads if task.device == "cpu" else None
    return children.spawn(command, order, _around(framework, task, python), pinned, protocol.timeout_seconds)


def _around(framework: Framework, task: Task, python: Path) -> dict[str, str]:
    """The child's environment: threads are set before its interpreter starts, and an isolated one finds nothing of this one's."""
    around = environment.for_child(task.threads)
    if python != Path(sys.executable):
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            around.pop(name, None)
        around["PYTHONNOUSERSITE"] = "1"
        around["PATH"] = f"{python.parent}{os.pathsep}{around.get('PATH', '')}"
    if task.device == "cpu":
        around["CUDA_VISIBLE_DEVICES"] = ""
    if framework.ways:
        around |= catalogue.file_of(framework).environment(task)
    return around
