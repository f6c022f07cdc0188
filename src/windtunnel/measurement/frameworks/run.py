"""One task in one fresh process of the Python that has its framework."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import BadInput, MeasurementFailed
from windtunnel.measurement import children, environment
from windtunnel.measurement.frameworks import catalogue
from windtunnel.measurement.frameworks.catalogue import Framework
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol

_START = Path(__file__).with_name("start.py")


def run_task(task: Task, protocol: Protocol, *, number: int = 0, turn: str = "") -> dict[str, Any]:
    """Time one task in one process and give its report; MeasurementFailed says by name why there is none.

    `number` counts the processes of a cell. Weights and data come from the task's seed alone and are the same in each of them.
    Children that are given the same file as their `turn` time their tasks one after another.
    """
    return {**_run([task], protocol, 0, turn), "number": number}


def run_shared(
    tasks: Sequence[Task], protocol: Protocol, *, number: int = 0, turn: str = ""
) -> list[dict[str, Any] | MeasurementFailed | None]:
    """Time several tasks of one framework one after another in one process: for each its report, its failure, or None where the process
    ended before it."""
    _require_one_kind(tasks)
    long = dataclasses.replace(protocol, timeout_seconds=protocol.timeout_seconds * len(tasks))
    found = children.spawn_shared(*_call(tasks, long, 0, turn))
    return [{**each, "number": number} if isinstance(each, dict) else each for each in found]


def losses(task: Task, steps: int) -> list[float]:
    """The loss of each of the first steps."""
    return [float(loss) for loss in traces([task], steps)[0]["losses"]]


def traces(tasks: Sequence[Task], steps: int, *, timeout_seconds: float = 1200.0) -> list[dict[str, Any]]:
    """The losses of the first steps of several tasks of one framework, which share a process, and what it is `ready` with."""
    _require_one_kind(tasks)
    report = _run(tasks, Protocol(timeout_seconds=timeout_seconds), steps)
    return [report[f"trace {i}"] for i in range(len(tasks))]


def kind_of(task: Task) -> tuple[str, int, str]:
    """What tasks that share a process must agree in."""
    return task.framework, task.threads, task.device


def _require_one_kind(tasks: Sequence[Task]) -> None:
    if len(set(map(kind_of, tasks))) != 1:
        raise BadInput(
            "Tasks that share a process must agree in framework, threads and device.",
            hint="Ask for one after the other.",
        )


def _run(tasks: Sequence[Task], protocol: Protocol, steps: int, turn: str = "") -> dict[str, Any]:
    return children.spawn(*_call(tasks, protocol, steps, turn))


def _call(
    tasks: Sequence[Task], protocol: Protocol, steps: int, turn: str
) -> tuple[list[str], dict[str, Any], dict[str, str], int | None, float]:
    """Command, order, environment, pinned threads and time-out of a child."""
    task = tasks[0]
    framework = catalogue.named(task.framework)
    for why in filter(None, map(catalogue.refusal, tasks)):
        raise MeasurementFailed(f"{task.label} cannot do this task: {why}.", state="unsupported")
    python = catalogue.python_for(task.framework)
    if python is None:
        raise MeasurementFailed(
            f"{framework.title} is not installed.",
            state="not installed",
            hint=f"windtunnel frameworks install {framework.name}",
        )
    order = {
        "tasks": [records.plain(task) for task in tasks],
        "protocol": records.plain(protocol),
        "module": framework.module,
        "imports": list(framework.imports),
        "trace": steps,
        "turn": turn,
    }
    command = [str(python), "-P", str(_START)]
    pinned = task.threads if task.device == "cpu" else None
    return command, order, _around(framework, task, python), pinned, protocol.timeout_seconds


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
    if framework.variants:
        around |= catalogue.file_of(framework).environment(task)
    return around
