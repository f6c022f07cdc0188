"""Facts of the machine on which a study's cells are measured, and which cells cannot be measured here."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from typing import Protocol

import windtunnel
from windtunnel.machine import here
from windtunnel.measurement.frameworks.task import Task
from windtunnel.records import Plain

NOT_INSTALLED, NO_GPU, UNSUPPORTED = "not installed", "no gpu here", "unsupported"
SHARED = "shared"  # the value in a cell's facts if several cells shared its processes
# A cell in one of these states cannot be measured here, which is no failure.
NOT_MEASURABLE = (NOT_INSTALLED, NO_GPU, UNSUPPORTED)


class RunEnvironment(Protocol):
    """Facts that must be equal for two measurements to count as one, and why a task cannot be measured."""

    @property
    def cores(self) -> int: ...

    @property
    def has_gpu(self) -> bool: ...

    def facts(self, task: Task) -> Plain: ...

    def obstacle(self, task: Task) -> tuple[str, str] | None: ...


_VERSIONS_CODE = """
import importlib.metadata, json, sys
versions = {}
for name in sys.argv[1:]:
    for distribution in (name, name + "-cpu"):
        try:
            versions[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            pass
print(json.dumps(versions))
"""


class Here:
    """This machine. An `engine` that is not local may have other devices.

    Cells whose processes are `shared` do not count as those that had a process of their own.
    """

    def __init__(self, engine: str = "local", *, shared: bool = False) -> None:
        self.engine, self.shared = engine, shared
        self._versions: dict[str, dict[str, str]] = {}

    @functools.cached_property
    def cores(self) -> int:
        import psutil

        physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
        return max(1, min(physical, len(here.available_cpus())))

    @functools.cached_property
    def has_gpu(self) -> bool:
        import torch

        return bool(torch.cuda.is_available())

    def facts(self, task: Task) -> Plain:
        facts: Plain = {
            "system": platform.system(),
            "cpu": here.cpu_name(),
            "cpus": len(here.available_cpus()),
            "cores": self.cores,
            "windtunnel": windtunnel.__version__,
            "versions": self.versions(task.framework),
        }
        facts |= {"processes": SHARED} if self.shared else {}
        return facts if self.engine == "local" else {**facts, "engine": self.engine}

    def obstacle(self, task: Task) -> tuple[str, str] | None:
        """The state of a cell that cannot be measured here, and why."""
        from windtunnel.measurement import frameworks

        why = frameworks.refusal(task)
        if why:
            return UNSUPPORTED, f"{task.label}: {why}."
        if self.engine != "local":
            return None
        if frameworks.python_for(task.framework) is None:
            return (
                NOT_INSTALLED,
                f"{task.framework} is not installed; "
                f"windtunnel frameworks install {task.framework} does that.",
            )
        return (
            (NO_GPU, "There is no CUDA GPU on this machine.")
            if task.device != "cpu" and not self.has_gpu
            else None
        )

    def versions(self, framework: str) -> dict[str, str]:
        """Versions of what a framework's own interpreter imports for it."""
        if framework not in self._versions:
            self._versions[framework] = _versions_of(framework)
        return self._versions[framework]


def _versions_of(framework: str) -> dict[str, str]:
    from windtunnel.measurement import frameworks

    python, imports = frameworks.python_for(framework), frameworks.named(framework).imports
    if python is None or not imports:
        return {}
    done = subprocess.run(
        [str(python), "-I", "-c", _VERSIONS_CODE, *imports],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}
