"""The frameworks by name: what each can run, where it is installed, and which can no longer be installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from windtunnel import records
from windtunnel.errors import UnknownName, nearest
from windtunnel.machine import machine as machines
from windtunnel.measurement.frameworks.task import Task
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.measurement.frameworks.base import TracedStep

_CATALOG = Path(__file__).parents[2] / "catalog" / "frameworks.toml"
PLACE_VARIABLE = "WINDTUNNEL_FRAMEWORKS"
STAMP = "windtunnel.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """`module` is the file that builds its jobs; `imports` are the libraries that its interpreter must have.

    `environment` names the isolated environment into which `packages` are installed, with dependencies at the
    versions in `constraints`; frameworks with the same versions share one. Libraries in `borrows` come from
    the interpreter that builds the environment, so that both run the same build. A framework that is "gone"
    has only a `reason` and a `successor`.
    """

    name: str
    title: str
    status: Literal["living", "retired", "gone"]
    module: str = ""
    imports: tuple[str, ...] = ()
    devices: tuple[Literal["cpu", "gpu"], ...] = ()
    environment: str = ""
    packages: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    borrows: tuple[str, ...] = ()
    reason: str = ""
    successor: str = ""

    @property
    def is_gone(self) -> bool:
        return self.status == "gone"

    @property
    def is_users_own(self) -> bool:
        return self.module.endswith(".py")

    @property
    def variants(self) -> dict[str, tuple[str, ...]]:
        """The variants of each job in the framework's file; those in a user's own file are not known."""
        if self.is_gone or self.is_users_own:
            return {}
        return {job: tuple(variants) for job, variants in file_of(self).JOBS.items()}


def names(*, gone: bool = False) -> list[str]:
    """Every framework that builds jobs; with `gone`, those that can no longer be installed instead."""
    return [f.name for f in _all().values() if f.is_gone == gone]


def named(name: str) -> Framework:
    """A framework of the catalogue, or a user's own as the path of its file."""
    if name.endswith(".py"):
        return Framework(
            name=name,
            title=Path(name).stem,
            status="living",
            module=str(Path(name).resolve()),
            devices=("cpu", "gpu"),
        )
    if name not in _all():
        raise UnknownName(f"There is no framework {name!r}.", hint=nearest(name, _all()))
    return _all()[name]


def jobs() -> list[str]:
    """Every job that at least one framework builds."""
    return list(dict.fromkeys(job for name in names() for job in named(name).variants))


def forecast_names() -> list[str]:
    """The frameworks whose steps can be forecast."""
    return [name for name in names() if hasattr(file_of(named(name)), "traced")]


def traced(task: Task) -> TracedStep | None:
    """The step of PyTorch by which a task is forecast; None where there is none."""
    framework = named(task.framework)
    if task.variant not in framework.variants.get(task.job, ()) or framework.name not in forecast_names():
        return None
    step: TracedStep = file_of(framework).traced(task)
    return step


def place() -> Path:
    """The folder of the isolated environments. WINDTUNNEL_FRAMEWORKS sets another one."""
    return (
        Path(os.environ[PLACE_VARIABLE]) if PLACE_VARIABLE in os.environ else machines.home() / "frameworks"
    )


def environment_of(framework: Framework) -> Path:
    return place() / framework.environment


def python_for(name: str) -> Path | None:
    """The interpreter that has the framework: this one, else that of its environment, else None."""
    framework = named(name)
    if framework.is_gone:
        return None
    if all(_is_here(module) for module in framework.imports):
        return Path(sys.executable)
    if not framework.environment:
        return None
    return interpreter(environment_of(framework)) if stamp_of(framework) else None


def stamp_of(framework: Framework) -> Plain:
    """The record of building the environment; empty where it, or a library that it borrows, is missing."""
    path = environment_of(framework) / STAMP
    if not framework.environment or not path.is_file() or not interpreter(path.parent).exists():
        return {}
    stamp = records.load(path)
    return stamp if all(Path(place).exists() for place in stamp.get("borrowed", [])) else {}


def interpreter(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def refusal(task: Task) -> str | None:
    """Why this framework cannot run this task, whatever is installed; None where it can."""
    framework = named(task.framework)
    if framework.is_gone:
        return (
            f"{framework.title} can no longer be installed: {framework.reason}. "
            f"Its successor is {framework.successor}"
        )
    if task.device not in framework.devices:
        return f"{framework.title} is built for {', '.join(framework.devices)} here, not for {task.device}"
    if framework.is_users_own:
        return None
    variants = framework.variants.get(task.job, ())
    if task.variant not in variants:
        known = ", ".join(variants) or "none"
        return f"{framework.title} has no variant {task.variant!r} for {task.job}; it has {known}"
    reason: str | None = getattr(file_of(framework), "refusal", lambda task: None)(task)
    return reason


def file_of(framework: Framework) -> Any:
    """The framework's file of ours. Importing it does not import the framework."""
    return importlib.import_module(f"windtunnel.measurement.frameworks.{framework.module}")


@functools.cache
def _all() -> dict[str, Framework]:
    data = records.load(_CATALOG)
    environments = data.get("environment", {})
    frameworks = {}
    for name, entry in data["framework"].items():
        installed = environments.get(entry.get("environment", ""), {})
        fields = {"name": name, **installed, **entry}
        frameworks[name] = records.read(Framework, fields, f"{_CATALOG.name}: {name}")
    return frameworks


def _is_here(module: str) -> bool:
    """Whether this interpreter can import it; an empty folder of that name on the path does not count."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None
