"""Facts of the machine on which a study's cells are measured, and which cells cannot be measured here."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
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
    """Facts that two measurements must share to count as one, and why a task cannot be measured.

    The facts of two tasks of one framework are the same.
    """

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
    """This machine, looked at once for each framework. An `engine` that is not local may have other devices.

    Cells whose processes are `shared` do not count as those that had a process of their own.
    """

    def __init__(self, engine: str = "local", *, shared: bool = False) -> None:
        self.engine, self.shared = engine, shared
        self._facts: dict[str, Plain] = {}
        self._pythons: dict[str, Path | None] = {}

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
        if task.framework not in self._facts:
            self._facts[task.framework] = self._facts_of(task.framework)
        return self._facts[task.framework]

    def _facts_of(self, framework: str) -> Plain:
        facts: Plain = {
            "system": platform.system(),
            "cpu": here.cpu_name(),
            "cpus": len(here.available_cpus()),
            "cores": self.cores,
            "windtunnel": windtunnel.__version__,
            "versions": _versions_of(framework),
        }
        facts |= {"processes": SHARED} if self.shared else {}
        facts |= {"framework_file": _digest_of(framework)} if framework.endswith(".py") else {}
        return facts if self.engine == "local" else {**facts, "engine": self.engine}

    def obstacle(self, task: Task) -> tuple[str, str] | None:
        """The state of a cell that cannot be measured here, and why."""
        from windtunnel.measurement import frameworks

        why = frameworks.refusal(task)
        if why:
            return UNSUPPORTED, f"{task.label}: {why}."
        if self.engine != "local":
            return None
        if self._python_for(task.framework) is None:
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

    def _python_for(self, framework: str) -> Path | None:
        from windtunnel.measurement import frameworks

        if framework not in self._pythons:
            self._pythons[framework] = frameworks.python_for(framework)
        return self._pythons[framework]


def _digest_of(path: str) -> str:
    """What a user's own framework is: with another file, a cell is another cell."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return "missing"


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
