"""A task of a framework, as the measuring child builds it. The child may run in an interpreter without
PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.process import Emit
from windtunnel.measurement.sampler import Sampler


class TaskSubject:
    """A task to be measured with the framework's file that builds it."""

    reports_losses = True
    checks_clock = True

    def __init__(self, task: Task, framework: Any) -> None:
        self.task, self.framework = task, framework
        self.device: str = task.device

    def build(self) -> Built:
        built: Built = self.framework.build(base.problem_of(self.task), self.task)
        return built

    def after_first_step(self, emit: Emit) -> None:
        """Nothing more: what compiling took is reset by the child."""

    def inspect(self, sampler: Sampler, emit: Emit) -> None:
        """Nothing: there is no profiler that all frameworks share."""

    def explain(self, error: BaseException, state: str) -> tuple[str, str]:
        """State and hint for what went wrong: where in the framework's file it happened."""
        if state == "out of memory":
            return state, "Try a smaller batch or job."
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        line = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace is not None else ""
        return state, line


def load(module: str) -> Any:
    """A framework's file: one of this package by name, or a user's own by its path."""
    if not module.endswith(".py"):
        return importlib.import_module(f"windtunnel.measurement.frameworks.{module}")
    spec = importlib.util.spec_from_file_location(Path(module).stem, module)
    assert spec is not None and spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    return file
