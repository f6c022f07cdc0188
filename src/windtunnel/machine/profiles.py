"""Find the profile by which a machine is priced: its own, or that of the most similar probed machine."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

from windtunnel import records, sealed
from windtunnel.errors import BadRecord
from windtunnel.forecast import profile_format
from windtunnel.forecast.profile import Profile
from windtunnel.machine.machine import CATALOG, Device, Machine, names
from windtunnel.records import Plain

# The probed machine whose profile prices machines that nobody has probed.
REFERENCE = {"gpu": "h200", "cpu": "emerald-rapids-2-cores"}
_VENDORS = {
    "intel": ("intel", "xeon", "core i"),
    "amd": ("amd", "epyc", "ryzen", "threadripper"),
    "arm": ("apple", "arm", "cortex", "neoverse", "graviton"),
}
_USUAL_FLOP_PER_CYCLE = 32.0
# Vector width counts for more than the vendor: 40 steps of a Zen 5 (AVX-512) are 13 % off at the median by
# the profile of a Xeon with AVX-512, and 32 % by that of a Zen 3 (AVX2).
_OTHER_VENDOR = 0.5
_LEAST_CASES = 8000  # a probe of three minutes on a quiet CPU times 11,000 to 14,000


def profile_for(machine: Machine) -> Profile:
    """The machine's own profile, otherwise that of the most similar probed machine."""
    return load(machine.profile or nearest(machine))


def nearest(machine: Machine) -> str:
    """The profile of the catalogue whose machine is most similar to this one.

    For a GPU this is the reference. CPUs are compared first by vector width, by which libraries choose their
    code; then by vendor, by the cache size of a core, which differs between generations, and by core count. A
    CPU of a vendor that was never probed gets the reference.
    """
    reference = REFERENCE[machine.device.kind]
    if machine.device.kind == "gpu":
        return reference
    known = sorted(profiles_for_other_cpus(), key=lambda name: name != reference)
    makes = {vendor_of(Machine.named(name).device.model) for name in known}
    if vendor_of(machine.device.model) not in makes:
        return reference
    return min(known, key=lambda name: _distance(machine.device, Machine.named(name).device))


@functools.cache
def profiles_for_other_cpus() -> tuple[str, ...]:
    """The probed CPUs whose profiles may price other CPUs: enough ops were timed, and on data outside of the
    first-level caches.

    An older probe timed ops on the same tensors again and again. By such a profile two other CPUs are
    forecast 59 and 85 % too slow at the median; by each other's they are 12 and 13 % off. A profile of few
    cases has jumps: by one of 5,258 cases, steps of a larger batch were up to 13 % shorter on an i7-3820.
    """
    return tuple(name for name in probed_cpus() if _is_thorough(load(name)))


def _is_thorough(profile: Profile) -> bool:
    cases = sum(kind.rows for kind in profile.kinds.values())
    return profile.cached_op_factor == 1.0 and cases >= _LEAST_CASES


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
    return _OTHER_VENDOR * vendors + width + cache / 4 + cores / 8


def _vendor(device: Device) -> str:
    return vendor_of(device.model)


def vendor_of(model: str) -> str:
    """The maker of a CPU, by the words of its model; empty if none is known."""
    words = model.lower()
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
    found: list[Profile] = []

    def check(data: Plain) -> None:
        found.append(profile_format.read(data, str(path)))

    sealed.load(path, check, version=profile_format.FORMAT, again="Probe again: windtunnel machine probe")
    return found[0]


def save(path: Path, profile: Profile, machine_facts: Mapping[str, object]) -> None:
    """Write a profile with a checksum, together with the facts of the machine that describe it.

    A path that ends with .gz is compressed. The file is never half written.
    """
    records.save_sealed(path, {**profile_format.plain(profile), **machine_facts})


def save_and_keep(path: Path, profile: Profile, machine_facts: Mapping[str, object]) -> Path | None:
    """Write a profile. The previous one is kept under another name, which is returned; None without a
    previous one.

    The old file is moved only once the new one is on the disk.
    """
    kept = beside(path, "previous") if path.is_file() else None
    data = {**profile_format.plain(profile), **machine_facts}
    records.save_sealed(path, data, previous=kept)
    return kept


def differences(old: Profile, new: Profile) -> list[str]:
    """What differs between two profiles, in lines of text."""
    lines = [
        f"{name} {getattr(old, name)} -> {getattr(new, name)}"
        for name in ("model", "date")
        if getattr(old, name) != getattr(new, name)
    ]
    names = sorted({*old.versions, *new.versions})
    versions = [(name, old.versions.get(name, "none"), new.versions.get(name, "none")) for name in names]
    lines += [f"{name} {before} -> {after}" for name, before, after in versions if before != after]
    figures = ("fixed_seconds", "gap_seconds", "node_seconds", "launch_cost_factor", "device_spread")
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in figures]
    lines += [f"{name} {before:.3g} -> {after:.3g}" for name, before, after in pairs if before != after]
    gone = sorted({*old.kinds} - {*new.kinds})
    added = sorted({*new.kinds} - {*old.kinds})
    lines += [f"kinds of op no longer there: {', '.join(gone)}"] if gone else []
    lines += [f"new kinds of op: {', '.join(added)}"] if added else []
    both = [name for name in new.kinds if name in old.kinds]
    narrower = sum(new.kinds[name].spread < old.kinds[name].spread for name in both)
    wider = sum(new.kinds[name].spread > old.kinds[name].spread for name in both)
    return [*lines, f"spread of {len(both)} kinds of op: {narrower} narrower, {wider} wider"]


def beside(path: Path, word: str) -> Path:
    """A file name next to a profile: cpu.json.gz becomes cpu.previous.json.gz."""
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.{word}{dot}{rest}")
