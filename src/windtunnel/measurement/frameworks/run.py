"""Tasks of frameworks in fresh processes of the Python that has the framework."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import BadInput, MeasurementFailed
from windtunnel.measurement import children, environment
from windtunnel.measurement.children import Launch
from windtunnel.measurement.frameworks import catalogue
from windtunnel.measurement.frameworks.catalogue import Framework
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport
from windtunnel.measurement.steady import Protocol
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.measurement.order import ChildOrder

_START = Path(__file__).with_name("start.py")
# Where only losses count: on an AMD EPYC without AVX-512, oneDNN's convolutions for AVX2 (PyTorch 2.13) wrote
# beyond their buffers in most runs of resnet18 ("corrupted double-linked list"); those for AVX did not.
_SAFE_CONVOLUTIONS = {"ONEDNN_MAX_CPU_ISA": "AVX"}


def run_task(task: Task, protocol: Protocol, *, number: int = 0, lock: str = "") -> ProcessReport:
    """Time one task in one process; MeasurementFailed says by name why there is no report.

    `number` counts the processes of a cell. Weights and data come from the task's seed alone, the same in
    each. Children that get the same file as their `lock` time their tasks one after another.
    """
    launch, order = prepare([task], protocol)
    report = children.spawn(launch, dataclasses.replace(order, lock=lock))
    return dataclasses.replace(report, number=number)


def run_shared(
    tasks: Sequence[Task], protocol: Protocol, *, number: int = 0, lock: str = ""
) -> list[ProcessReport | MeasurementFailed | None]:
    """Time several tasks of one framework one after another in one process.

    For each there is its report, its failure, or None where the process ended before it.
    """
    _require_one_kind(tasks)
    long = dataclasses.replace(protocol, timeout_seconds=protocol.timeout_seconds * len(tasks))
    launch, order = prepare(tasks, long)
    outcomes = children.spawn_shared(launch, dataclasses.replace(order, lock=lock))
    return [
        dataclasses.replace(outcome, number=number) if isinstance(outcome, ProcessReport) else outcome
        for outcome in outcomes
    ]


def losses(task: Task, steps: int) -> list[float]:
    """The loss of each of the first steps."""
    return [float(loss) for loss in traces([task], steps)[0]["losses"]]


def traces(tasks: Sequence[Task], steps: int, *, timeout_seconds: float = 1200.0) -> list[Plain]:
    """The losses of the first steps of several tasks of one framework, and what each is `ready` with."""
    _require_one_kind(tasks)
    launch, order = prepare(tasks, Protocol(timeout_seconds=timeout_seconds), steps)
    launch = dataclasses.replace(launch, environment={**_SAFE_CONVOLUTIONS, **launch.environment})
    ending = children.run_child(launch, order)
    children.report_of(ending)
    return [message for message in ending.messages if message["kind"] == "trace"]


def kind_of(task: Task) -> tuple[str, int, str]:
    """Tasks that share a process must have the same framework, threads and device."""
    return task.framework, task.threads, task.device


def _require_one_kind(tasks: Sequence[Task]) -> None:
    if len(set(map(kind_of, tasks))) != 1:
        raise BadInput(
            "Tasks that share a process must agree in framework, threads and device.",
            hint="Run them one after the other.",
        )


def prepare(tasks: Sequence[Task], protocol: Protocol, loss_steps: int = 0) -> tuple[Launch, ChildOrder]:
    """How to start the child for these tasks, and what to tell it."""
    from windtunnel.measurement.order import ChildOrder, TaskOrder  # which imports this package's tasks

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
    order = TaskOrder(
        tasks=tuple(tasks), module=framework.module, imports=framework.imports, loss_steps=loss_steps
    )
    launch = Launch(
        command=(str(python), "-P", str(_START)),
        environment=_environment(framework, task, python),
        threads=task.threads if task.device == "cpu" else None,
    )
    return launch, ChildOrder(protocol=protocol, tasks=order)


def _environment(framework: Framework, task: Task, python: Path) -> dict[str, str]:
    """The child's environment: its threads, and nothing of this interpreter's packages in an isolated one."""
    variables = environment.for_child(task.threads)
    if python != Path(sys.executable):
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            variables.pop(name, None)
        variables["PYTHONNOUSERSITE"] = "1"
        variables["PATH"] = f"{python.parent}{os.pathsep}{variables.get('PATH', '')}"
    if task.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    if framework.variants:
        variables |= catalogue.file_of(framework).environment(task)
    return variables
