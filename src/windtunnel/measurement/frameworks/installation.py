"""Isolated environments for frameworks that this interpreter lacks.

Each is built under another name and then renamed, so that an interrupted build leaves nothing incomplete.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from windtunnel import ownership
from windtunnel.errors import BadInput, Unavailable
from windtunnel.measurement.frameworks import catalogue
from windtunnel.measurement.frameworks.catalogue import STAMP, Framework

Tell = Callable[[str], None]


def install(name: str, *, fresh: bool = False, tell: Tell = lambda text: None) -> Path:
    """The interpreter that has the framework.

    Builds its environment where it is missing or has other versions.
    """
    framework = catalogue.named(name)
    if framework.is_gone:
        raise Unavailable(
            f"{framework.title} can no longer be installed: {framework.reason}.",
            hint=f"Its successor is {framework.successor}.",
        )
    there = catalogue.python_for(name)
    if there is not None and (there == Path(sys.executable) or (not fresh and not is_outdated(framework))):
        return there
    if not framework.environment:
        raise BadInput(
            f"{framework.title} comes with windtunnel itself, and this interpreter lacks it.",
            hint=f"pip install {framework.name}",
        )
    return _build(framework, tell)


def is_outdated(framework: Framework) -> bool:
    """Whether its environment was built with other versions than the catalogue has now."""
    stamp = catalogue.stamp_of(framework)
    return bool(stamp) and stamp.get("packages") != _requirements(framework)


def versions(name: str) -> dict[str, str]:
    """The versions of a framework's libraries where they are installed, read without starting anything."""
    framework, python = catalogue.named(name), catalogue.python_for(name)
    if python is None:
        return {}
    places = (
        None
        if python == Path(sys.executable)
        else [str(_packages_of(python)), *catalogue.stamp_of(framework).get("borrowed", [])]
    )
    versions = {name: _version(name, places) or _version(f"{name}-cpu", places) for name in framework.imports}
    return {name: version for name, version in versions.items() if version}


def _build(framework: Framework, tell: Tell) -> Path:
    final = catalogue.environment_of(framework)
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final)
    beside = final.with_name(f".{final.name}.{ownership.own_mark()}")
    try:
        tell(f"building {final}")
        _call([sys.executable, "-m", "venv", str(beside)], framework, "its environment could not be made")
        listed = beside / "constraints.txt"
        listed.write_text("\n".join(framework.constraints) + "\n")
        tell(f"installing {', '.join(framework.packages)}")
        # No bytecode is compiled: most of a framework's files are never imported.
        pip = [
            str(catalogue.interpreter(beside)),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ]
        _call([*pip, "--constraint", str(listed), *framework.packages], framework, "pip could not install it")
        borrowed = _borrow(framework, beside)
        _try(framework, beside)
        (beside / STAMP).write_text(
            json.dumps(
                {"packages": _requirements(framework), "borrowed": borrowed, "python": sys.version.split()[0]}
            )
        )
        _put_in_place(beside, final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return catalogue.interpreter(final)


def _requirements(framework: Framework) -> list[str]:
    return sorted([*framework.packages, *framework.constraints])


def _borrow(framework: Framework, environment: Path) -> list[str]:
    """Put this interpreter's packages behind the environment's own on its path, for those that it borrows."""
    places = []
    for module in framework.borrows:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise Unavailable(
                f"{framework.title} borrows {module} from this interpreter, which lacks it.",
                hint=f"pip install {module}",
            )
        places.append(str(Path(spec.origin).parents[1]))
    if places:
        own = _packages_of(catalogue.interpreter(environment))
        (own / "borrowed.pth").write_text("\n".join(dict.fromkeys(places)) + "\n")
    return places


def _try(framework: Framework, environment: Path) -> None:
    """Raise where the environment cannot import its framework."""
    around = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": framework.imports[0],
        "PYTHONNOUSERSITE": "1",
    }
    around.pop("PYTHONPATH", None)
    _call(
        [str(catalogue.interpreter(environment)), "-P", "-c", f"import {', '.join(framework.imports)}"],
        framework,
        "it does not import",
        around,
    )


def _put_in_place(beside: Path, final: Path) -> None:
    if final.exists():
        old = final.with_name(f".{final.name}.{ownership.own_mark()}.old")
        os.rename(final, old)
        os.rename(beside, final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(beside, final)


def _remove_leftovers(final: Path) -> None:
    """Remove the rest of an installation that was killed."""
    for left in final.parent.glob(f".{final.name}.*"):
        mark = left.name.removeprefix(f".{final.name}.").removesuffix(".old")
        if ownership.is_abandoned(mark):
            shutil.rmtree(left, ignore_errors=True)


def _call(command: list[str], framework: Framework, what: str, around: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=around, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        words = [line for line in lines if "ignored" not in line][-4:]
        raise Unavailable(
            f"{framework.title} was not installed: {what} (code {done.returncode}).\n    "
            + "\n    ".join(words),
            hint="Nothing was left behind.",
        )


def _packages_of(python: Path) -> Path:
    places = sorted(python.parents[1].glob("lib/python*/site-packages")) or [
        python.parents[1] / "Lib" / "site-packages"
    ]
    return places[0]


def _version(distribution: str, places: list[str] | None) -> str | None:
    installed = metadata.distributions(name=distribution, path=sys.path if places is None else places)
    return next((each.version for each in installed), None)
