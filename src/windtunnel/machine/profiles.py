"""Find the profile by which a machine is priced: its own, or that of the nearest machine that was probed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.forecast import profile_format
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import CATALOG, Device, Machine, names

# The probed machine whose profile prices machines that nobody has probed.
REFERENCE = {"gpu": "h200", "cpu": "emerald-rapids-2-cores"}
_VENDORS = {
    "intel": ("intel", "xeon", "core i"),
    "amd": ("amd", "epyc", "ryzen", "threadripper"),
    "arm": ("apple", "arm", "cortex", "neoverse", "graviton"),
}
_USUAL_FLOP_PER_CYCLE = 32.0


def profile_for(machine: Machine) -> Profile:
    """The machine's own profile, else that of the nearest machine that was probed."""
    return load(machine.profile or nearest(machine))


def nearest(machine: Machine) -> str:
    """The profile of the catalogue whose machine is most like this one.

    Of a GPU it is the reference. Of a CPU it is that of the same vendor and vector width, by which libraries
    choose their code; then of the nearest cache of a core, which tells generations apart, and core count.
    """
    reference = REFERENCE[machine.device.kind]
    if machine.device.kind == "gpu":
        return reference
    known = sorted(stand_ins(), key=lambda name: name != reference)
    return min(known, key=lambda name: _distance(machine.device, Machine.named(name).device))


@functools.cache
def stand_ins() -> tuple[str, ...]:
    """The probed CPUs whose profiles may price others: those whose ops were timed on data outside of the
    first caches.

    An older probe timed ops on the same tensors again and again. By such a profile two other CPUs are
    forecast 59 and 85 % too slow at the median; by each other's they are 12 and 13 % off.
    """
    return tuple(name for name in probed_cpus() if load(name).cached_op_factor == 1.0)


@functools.cache
def probed_cpus() -> tuple[str, ...]:
    """The CPUs of the catalogue that have a profile of their own."""
    every = map(Machine.named, names())
    return tuple(machine.name for machine in every if machine.device.kind == "cpu" and machine.profile)


def _distance(one: Device, other: Device) -> float:
    vendors = _vendor(one) != _vendor(other)
    width = abs(math.log2(_flop_per_cycle(one) / _flop_per_cycle(other)))
    cores = abs(math.log2((one.cores or 1) / (other.cores or 1)))
    caches = one.core_cache_bytes, other.core_cache_bytes
    cache = abs(math.log2(caches[0] / caches[1])) if caches[0] and caches[1] else 0.0
    return 2.0 * vendors + width + cache / 4 + cores / 8


def _vendor(device: Device) -> str:
    words = device.model.lower()
    return next((name for name in _VENDORS if any(mark in words for mark in _VENDORS[name])), "")


def _flop_per_cycle(device: Device) -> float:
    """fp32 flop of one core in a cycle: 64 with AVX-512, 32 with AVX2."""
    rate, clock = device.flop_rates.get("fp32"), device.clock_rate
    return rate / clock / (device.cores or 1) if rate and clock else _USUAL_FLOP_PER_CYCLE


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


def keep_last(path: Path) -> Path | None:
    """Set an existing profile aside under another name, which is returned; None if there is none."""
    if not path.is_file():
        return None
    kept = beside(path, "previous")
    path.replace(kept)
    return kept


def beside(path: Path, word: str) -> Path:
    """A file name next to a profile: cpu.json.gz becomes cpu.previous.json.gz."""
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.{word}{dot}{rest}")
