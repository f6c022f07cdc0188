"""This machine, as its operating system and PyTorch describe it. Needs no right to change anything."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Device, LaunchCosts, Machine, Storage

_COPY_BYTES = 96 * 2**20
_MOST_COPIERS = 16
REFERENCE_HOST = "reference host"
# fp32 flop of one core in a cycle, by the widest vector instructions: lanes x 2 (multiply and add) x units.
_FLOP_PER_CYCLE = (
    ("avx512f", 64, "AVX-512, two units of 16 lanes"),
    ("fma", 32, "AVX2, two units of 8 lanes"),
    ("avx", 16, "AVX, an add and a multiply unit of 8 lanes"),
    ("asimd", 16, "NEON, two units of 4 lanes"),
)


def describe() -> Machine:
    """Cores, caches, memory, disk and GPU of this machine, with what a probe of it found. Else only the memory's rate is timed (a
    short copy)."""
    machine = _describe()
    return _with_host(_with_profile(machine, _profile_path(machine)))


def _profile_path(machine: Machine) -> Path:
    """The profile that a probe wrote here. One without .gz is of an earlier version: reading it says so."""
    path = machines.home() / f"{machine.device.kind}.json.gz"
    old = path.with_suffix("")
    return old if old.is_file() and not path.is_file() else path


def _host_path(machine: Machine) -> Path:
    return machines.home() / f"host-{machine.device.kind}.json"


def _probed(machine: Machine) -> dict[str, Any]:
    """What a probe of this very device wrote here; empty where there was none."""
    path = _profile_path(machine)
    data = records.load(path) if path.is_file() else {}
    return (
        data
        if data.get("model") == machine.device.model and isinstance(data.get("launch_costs"), dict)
        else {}
    )


def launch_costs_base(machine: Machine) -> tuple[LaunchCosts, str]:
    """The costs that a host's factor is counted from, and their name: those of this machine's own probe, else the reference host's."""
    data = _probed(machine)
    if data:
        return records.read(
            LaunchCosts, data["launch_costs"], str(_profile_path(machine))
        ), f"probe of {data.get('date')}"
    return machines.reference_launch_costs(machine.device.kind), REFERENCE_HOST


def keep_host_factor(machine: Machine, factor: float) -> Path:
    """From now on this host is as fast as a probe of it just found, until the next."""
    path = _host_path(machine)
    found = {
        "model": machine.device.model,
        "cpu": machine.host.model,
        "date": time.strftime("%Y-%m-%d"),
        "host_factor": factor,
    }
    records.save(path, {**found, "base": launch_costs_base(machine)[1]})
    return path


def _with_host(machine: Machine) -> Machine:
    """The host's costs by its own last probe: how fast plain Python runs tells less, on a host that dozes between launches least."""
    path, (launch_costs, base) = _host_path(machine), launch_costs_base(machine)
    data = records.load(path) if path.is_file() else {}
    if (data.get("model"), data.get("cpu"), data.get("base")) != (
        machine.device.model,
        machine.host.model,
        base,
    ):
        return machine
    factor = float(data["host_factor"])
    sources = {
        **machine.sources,
        "launch_costs": f"measured here by a probe of the host on {data.get('date')}: {factor:.2f} times the {base}'s",
    }
    return dataclasses.replace(
        machine, launch_costs=launch_costs.scaled(factor), host_factor=factor, sources=sources
    )


def _with_profile(machine: Machine, path: Path) -> Machine:
    """The rates and costs that were measured here, where that was this very device; a host's costs by how fast it is just now."""
    data = _probed(machine)
    if not data:
        return machine
    device = records.read(Device, data["device"], str(path))
    factor = interpreter_seconds(machine.device.kind) / data["interpreter_seconds"]
    launch_costs = records.read(LaunchCosts, data["launch_costs"], str(path)).scaled(factor)
    source = (
        f"measured here by a probe on {data.get('date')}, scaled by the speed of plain Python now and then"
    )
    host = device if machine.device == machine.host else machine.host
    sources = {**machine.sources, "launch_costs": source}
    return dataclasses.replace(
        machine,
        host=host,
        device=device,
        launch_costs=launch_costs,
        profile=str(path),
        host_factor=factor,
        sources=sources,
    )


def _describe() -> Machine:
    host, sources = _describe_cpu()
    gpu = _describe_gpu()
    storage = Storage(name="disk", capacity_bytes=float(shutil.disk_usage(Path.home()).total))
    sources["storage"] = "read here: the file system's total size"
    pace = interpreter_seconds("cpu" if gpu is None else "gpu")
    if gpu is None:
        sources |= {
            key.replace("host", "device", 1): text for key, text in sources.items() if key.startswith("host")
        }
        title = f"this machine: {host.model}"
        sources["launch_costs"] = machines.launch_costs_source(host, paced=True)
        return Machine(
            name="here",
            title=title,
            host=host,
            device=host,
            storage=storage,
            launch_costs=machines.launch_costs_for(host, host, pace),
            sources=sources,
        )
    device, known, count = gpu
    sources["launch_costs"] = machines.launch_costs_source(device, paced=True)
    if known is None:
        sources["device"] = "read here: PyTorch's device properties"
    return Machine(
        name="here",
        title=f"this machine: {device.model} with {host.model}",
        host=host,
        device=device,
        devices=count,
        link=known.link if known else None,
        storage=storage,
        launch_costs=machines.launch_costs_for(host, device, pace),
        profile=known.profile if known else "",
        sources={**_device_sources(known), **sources},
    )


def _device_sources(known: Machine | None) -> dict[str, str]:
    """The catalogue's sources for what was taken from it; the host is this machine's own."""
    return (
        {key: text for key, text in known.sources.items() if key.startswith(("device", "link"))}
        if known
        else {}
    )


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    for line in read_text("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")) and ":" in line:
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def interpreter_loop() -> int:
    """A fixed piece of plain Python: what it takes tells how fast this host is at launching work, at this moment."""
    table, total = {"a": 1, "b": 2}, 0
    for i in range(20_000):
        total += table["a" if i & 1 else "b"] + len((i, total))
    return total


def interpreter_seconds(kind: str = "cpu") -> float:
    """How long the piece takes, over some tenths of a second. The median where a CPU does all the work, as a measurement tells it too;
    beside a GPU the quickest tenth: such a host dozes between launches, and its median told nothing of what launches cost."""
    samples = []
    for _ in range(150):
        start = time.perf_counter()
        interpreter_loop()
        samples.append(time.perf_counter() - start)
    return sorted(samples)[75 if kind == "cpu" else 15]


def available_cpus() -> list[int]:
    """The logical processors this process may use, which a container or a batch system may have cut down."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _describe_cpu() -> tuple[Device, dict[str, str]]:
    import psutil

    allowed = len(available_cpus())
    physical = min(psutil.cpu_count(logical=False) or allowed, allowed)
    clock, clock_source = _clock()
    sources = {"host": "read here: operating system", "host.clock_rate": clock_source}
    rates: dict[str, float] = {}
    per_cycle = _flop_per_cycle()
    if clock and per_cycle:
        rates = {"fp32": physical * clock * per_cycle[0], "fp64": physical * clock * per_cycle[0] / 2}
        sources["host.flop_rates"] = (
            f"computed: {physical} cores x {clock / 1e9:.2f} GHz x {per_cycle[0]} fp32 flop a cycle ({per_cycle[1]})"
        )
    caches = _caches()
    sources["host.memory_rate"] = (
        f"measured here: {physical} cores copying {_COPY_BYTES >> 20} MiB each, bytes read and written"
    )
    sources["host.core_memory_rate"] = (
        f"measured here: one core copying {_COPY_BYTES >> 20} MiB, bytes read and written"
    )
    one, together = _copy_rate(1), _copy_rate(physical)
    device = Device(
        kind="cpu",
        model=cpu_name(),
        cores=physical,
        threads=allowed,
        clock_rate=clock,
        flop_rates=rates,
        memory_bytes=float(psutil.virtual_memory().total),
        memory_rate=max(one, together),
        core_memory_rate=one,
        cache_bytes=caches.get(3) or caches.get(2),
        core_cache_bytes=caches.get(2),
    )
    return device, sources


def _clock() -> tuple[float | None, str]:
    """The clock in the processor's name, else what the system reports: a virtual machine often reports nothing else."""
    named = re.search(r"@\s*([0-9.]+)\s*GHz", cpu_name())
    if named:
        return float(named[1]) * 1e9, "read here: the clock in the processor's name"
    try:
        import psutil

        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):
        frequency = None
    if frequency and (frequency.max or frequency.current):
        return float(frequency.max or frequency.current) * 1e6, "read here: operating system's clock"
    mhz = re.search(r"cpu MHz\s*:\s*([0-9.]+)", read_text("/proc/cpuinfo"))
    return (float(mhz[1]) * 1e6, "read here: current clock") if mhz else (None, "")


def _flop_per_cycle() -> tuple[int, str] | None:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    flags = (
        set(match[1].split())
        if match
        else ({"asimd"} if platform.machine() in ("arm64", "aarch64") else set())
    )
    for flag, count, reason in _FLOP_PER_CYCLE:
        if flag in flags:
            return count, reason
    return None


def _caches() -> dict[int, float]:
    """Bytes of the level 2 cache of one core and of the whole level 3 cache."""
    found: dict[int, float] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = (read_text(str(index / name)).strip() for name in ("level", "type", "size"))
        match = re.match(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and level.isdigit() and match:
            found[int(level)] = float(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    return found


def _copy_rate(cores: int) -> float:
    """Bytes a second that `cores` cores move together, copying far more than their caches hold; the best of a few tries."""
    import numpy

    pairs = [
        (numpy.ones(_COPY_BYTES // 8), numpy.empty(_COPY_BYTES // 8))
        for _ in range(min(cores, _MOST_COPIERS))
    ]
    best = float("inf")
    with ThreadPoolExecutor(len(pairs)) as pool:
        for _ in range(4):
            start = time.perf_counter()
            list(
                pool.map(lambda pair: numpy.copyto(pair[1], pair[0]), pairs)
            )  # NumPy lets go of the interpreter here
            best = min(best, time.perf_counter() - start)
    return 2.0 * _COPY_BYTES * len(pairs) / best


def _describe_gpu() -> tuple[Device, Machine | None, int] | None:
    """The first CUDA device: catalogue figures where its name is known, else what PyTorch says of it."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    count = torch.cuda.device_count()
    known = _match_catalog(properties.name, float(properties.total_memory))
    if known is not None:
        return known.device, known, count
    device = Device(
        kind="gpu",
        model=properties.name,
        cores=properties.multi_processor_count,
        memory_bytes=float(properties.total_memory),
    )
    return device, None, count


def _match_catalog(name: str, memory_bytes: float) -> Machine | None:
    """The catalogue's machine of this name and about this memory ("NVIDIA H200" is the h200)."""
    words = set(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia", "tesla", "geforce", "graphics"}
    best: tuple[int, Machine] | None = None
    for candidate in map(Machine.named, machines.names()):
        device = candidate.device
        if (
            device.kind != "gpu"
            or device.memory_bytes is None
            or abs(device.memory_bytes / memory_bytes - 1) > 0.15
        ):
            continue
        known = set(re.findall(r"[a-z0-9]+", device.model.lower()))
        score = len(words & known) if words & known and _key_word(words) in known else 0
        if score and (best is None or score > best[0]):
            best = score, candidate
    return best[1] if best else None


def _key_word(words: set[str]) -> str:
    """The word of a GPU's name that tells models apart: the first with a digit in it."""
    return next((word for word in sorted(words) if re.search(r"\d", word) and not word.endswith("gb")), "")


def read_text(path: str) -> str:
    """What a file of the system says, nothing where it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
