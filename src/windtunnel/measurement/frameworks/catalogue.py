"""The frameworks by name: what each can do, where it is installed, and those that nobody can install any more."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windtunnel import records
from windtunnel.errors import UnknownName, nearest
from windtunnel.machine import machine as machines
from windtunnel.measurement.frameworks.task import Task

_CATALOG = Path(__file__).parents[2] / "catalog" / "frameworks.toml"
PLACE_VARIABLE = "WINDTUNNEL_FRAMEWORKS"
STAMP = "windtunnel.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """`module` is the file that builds jobs there; `imports` what its interpreter must have; `variants` how it can write each job.

    `environment` names the isolated environment that `packages` are installed in, held to the versions in `constraints`; frameworks
    that agree in versions share one. What it `borrows` comes from the interpreter that builds the environment, so that both run the
    same build. A framework that is "gone" has only a `reason` and a `successor`.
    """

    name: str
    title: str
    status: Literal["living", "retired", "gone"]
    module: str = ""
    imports: tuple[str, ...] = ()
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    environment: str = ""
    packages: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    borrows: tuple[str, ...] = ()
    reason: str = ""
    successor: str = ""

    @property
    def is_gone(self) -> bool:
        return self.status == "gone"


def names(*, gone: bool = False) -> list[str]:
    """Every framework that jobs can be built in; with `gone`, those that cannot be installed any more instead."""
    return [f.name for f in _all().values() if f.is_gone == gone]


def named(name: str) -> Framework:
    """A framework of the catalogue, or anybody's own as the path of its file."""
    if name.endswith(".py"):
        return Framework(
            name=name,
            title=Path(name).stem,
            status="living",
            module=str(Path(name).resolve()),
            devices=("cpu", "cuda"),
        )
    if name not in _all():
        raise UnknownName(f"There is no framework {name!r}.", hint=nearest(name, _all()))
    return _all()[name]


def place() -> Path:
    """Where the isolated environments lie; WINDTUNNEL_FRAMEWORKS says otherwise."""
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


def stamp_of(framework: Framework) -> dict[str, Any]:
    """What was written when the framework's environment was built; empty where it is not there or what it borrows has gone."""
    path = environment_of(framework) / STAMP
    if not framework.environment or not path.is_file() or not interpreter(path.parent).exists():
        return {}
    stamp = records.load(path)
    return stamp if all(Path(place).exists() for place in stamp.get("borrowed", [])) else {}


def interpreter(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def refusal(task: Task) -> str | None:
    """Why this framework cannot do this task, whatever is installed; None where it can."""
    framework = named(task.framework)
    if framework.is_gone:
        return f"{framework.title} can no longer be installed: {framework.reason}. Its successor is {framework.successor}"
    if task.device not in framework.devices:
        return f"{framework.title} is built for {', '.join(framework.devices)} here, not for {task.device}"
    variants = framework.variants.get(task.job, ())
    if framework.variants and task.variant not in variants:
        return f"{framework.title} has no way {task.variant!r} for {task.job}; it has {', '.join(variants) or 'none'}"
    return file_of(framework).refusal(task) if framework.variants else None


def file_of(framework: Framework) -> Any:
    """The framework's file of ours. Importing it does not import the framework."""
    return importlib.import_module(f"windtunnel.measurement.frameworks.{framework.module}")


@functools.cache
def _all() -> dict[str, Framework]:
    data = records.load(_CATALOG)
    shared = data.get("environment", {})
    found = {}
    for name, entry in data["framework"].items():
        installed = shared.get(entry.get("environment", ""), {})
        found[name] = records.read(
            Framework, {"name": name, **installed, **entry}, f"{_CATALOG.name}: {name}"
        )
    return found


def _is_here(module: str) -> bool:
    """Whether this interpreter can import it; a mere folder of that name on the path is not it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None
