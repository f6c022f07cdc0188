"""Find the profile by which a machine is priced: its own, or that of the nearest machine that was probed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.forecast import profile_format
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import CATALOG, Machine

# The probed machine whose profile prices machines that nobody has probed.
REFERENCE = {"gpu": "h200", "cpu": "ice-lake-2-cores"}


def profile_for(machine: Machine) -> Profile:
    """The machine's own profile, else the reference of its kind of device."""
    return load(machine.profile or REFERENCE[machine.device.kind])


def catalog_path(name: str) -> Path:
    """Where the catalogue keeps the profile of a machine."""
    return CATALOG / "profiles" / f"{name}.json.gz"


def load(name: str) -> Profile:
    """A profile of the catalogue by name, or of a file by its path."""
    path = Path(name) if name.endswith((".json", ".json.gz")) else catalog_path(name)
    if not path.is_file():
        raise BadRecord(f"There is no profile {name!r}.", hint="Probe the machine: windtunnel machine probe")
    return _load(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int) -> Profile:
    return profile_format.read(records.load(path), str(path))


def save(path: Path, profile: Profile, machine_facts: Mapping[str, object]) -> None:
    """Write a profile, and beside it the facts of the machine that its description takes from there.

    A path that ends with .gz is compressed. The file is never half written.
    """
    records.save(path, {**profile_format.plain(profile), **machine_facts})
