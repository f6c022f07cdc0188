"""Find the profile by which a machine is priced: its own, or that of the nearest machine that was probed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.forecast import profile as profiles
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import CATALOG, Machine

# Who stands in for machines that nobody has probed.
REFERENCE = {"gpu": "h200", "cpu": "ice-lake-2-cores"}


def profile_for(machine: Machine) -> Profile:
    """The machine's own profile, else the reference of its kind of device."""
    return load(machine.profile or REFERENCE[machine.device.kind])


def load(name: str) -> Profile:
    """A profile of the catalogue by name, or of a file by its path."""
    path = Path(name) if name.endswith(".json") else CATALOG / "profiles" / f"{name}.json"
    if not path.is_file():
        raise BadRecord(f"There is no profile {name!r}.", hint="Probe the machine: windtunnel machine probe")
    return _load(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int) -> Profile:
    return profiles.read(records.load(path), str(path))


def save(path: Path, profile: Profile, beside: Mapping[str, Any]) -> None:
    """Write what a probe learned, and beside it what the machine's description takes from there; never half a file."""
    records.save(path, {**profiles.plain(profile), **beside})
