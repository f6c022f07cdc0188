"""Describe this machine: ask the operating system and PyTorch, time memory and Python. Needs no root."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from windtunnel import records, sealed
from windtunnel.errors import BadRecord
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Device, LaunchCosts, Machine, Storage
from windtunnel.machine.topology import STORAGE_LATENCIES
from windtunnel.records import Plain

_COPY_BYTES = 96 * 2**20
_MOST_COPIERS = 16
_PRODUCT_SIDE, _PRODUCT_SECONDS = 512, 0.25
# The fastest large product of the reference CPU's probe: 159 of 179 GFLOP/s on one core.
_PRODUCT_EFFICIENCY = 0.89
_LEAST_OF_COMPUTED = 0.45  # half of the rate: cores that run the widest vectors in two halves
REFERENCE_HOST = "reference host"
_HOST_PROBE_FORMAT, _PROFILE_FORMAT = 1, 5  # the first formats with a checksum
_HOST_FACTORS = (1e-3, 1e3)
# fp32 flop of one core in one cycle, by its widest vector instructions:
# lanes x 2 (multiply and add) x vector units.
_FLOP_PER_CYCLE = (
    ("avx512f", 64, "AVX-512, two units of 16 lanes"),
    ("fma", 32, "AVX2, two units of 8 lanes"),
    ("avx", 16, "AVX, an add and a multiply unit of 8 lanes"),
    ("asimd", 16, "NEON, two units of 4 lanes"),
)


def describe(probed: bool = True) -> Machine:
    """Describe cores, caches, memory, disk and GPU, and add what probes of this machine measured.

    Without a probe (or with `probed` False), only the memory rate (a short copy), the rate of one core (a
    short product) and the Python speed are measured.
    """
    machine = _describe()
    return with_probes(machine) if probed else machine


def with_probes(machine: Machine) -> Machine:
    """This machine with what the probes of its device and of its host measured."""
    return _with_host_probe(_with_device_probe(machine))


def launch_costs_base(machine: Machine) -> tuple[LaunchCosts, str]:
    """The launch costs that a host factor multiplies, and their name.

    They are those of the last probe of this device, else those of the reference host.
    """
    probe = _load_device_probe(machine)
    if probe:
        costs = records.read(LaunchCosts, probe["launch_costs"], str(_device_probe_path(machine)))
        return costs, f"probe of {probe.get('date')}"
    return machines.reference_launch_costs(machine.device.kind), REFERENCE_HOST


def save_host_factor(machine: Machine, factor: float) -> Path:
    """Save the result of a host probe, which `describe` uses until the next one; the last one is kept."""
    path = host_probe_path(machine)
    probe = {
        "format": _HOST_PROBE_FORMAT,
        "model": machine.device.model,
        "cpu": machine.host.model,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "host_factor": factor,
        "base": launch_costs_base(machine)[1],
    }
    records.save_sealed(path, probe, previous=path.with_suffix(".previous.json"))
    return path


def last_host_factor(machine: Machine) -> tuple[float, str] | None:
    """The factor that the last host probe of this device found, and its date; None without one."""
    probe = _load_host_probe(machine)
    return (probe.host_factor, probe.date) if probe else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _HostProbe:
    """The result of a host probe: a factor on the launch costs that `base` names."""

    model: str
    cpu: str
    date: str
    host_factor: float
    base: str
    format: int = 0
    checksum: str = ""


def _load_host_probe(machine: Machine) -> _HostProbe | None:
    """The last host probe; None without one. Since format 1 it has a checksum."""
    path, again = host_probe_path(machine), "Probe again: windtunnel machine probe --host"
    if not path.is_file():
        return None

    def check(data: Plain) -> None:
        factor = records.read(_HostProbe, data, str(path)).host_factor
        if not _HOST_FACTORS[0] <= factor <= _HOST_FACTORS[1]:
            raise BadRecord(f"{path} is damaged: host_factor {factor:g}.", hint=again)

    data = sealed.load(path, check, version=_HOST_PROBE_FORMAT, again=again)
    return records.read(_HostProbe, data, str(path))


def _device_probe_path(machine: Machine) -> Path:
    """The profile that a probe wrote here. A file without .gz is of an earlier version; reading it raises an
    error."""
    path = machines.home() / f"{machine.device.kind}.json.gz"
    old = path.with_suffix("")
    return old if old.is_file() and not path.is_file() else path


def host_probe_path(machine: Machine) -> Path:
    return machines.home() / f"host-{machine.device.kind}.json"


def _load_device_probe(machine: Machine) -> Plain:
    """The data of the last probe of this device; empty without a probe, or if it was of another device."""
    path, again = _device_probe_path(machine), "Probe again: windtunnel machine probe"
    data = records.load(path) if path.is_file() else {}
    if data.get("model") != machine.device.model or not isinstance(data.get("launch_costs"), dict):
        return {}

    def check(data: Plain) -> None:
        seconds = data.get("interpreter_seconds")
        good = isinstance(seconds, float) and 0 < seconds < math.inf and isinstance(data.get("device"), dict)
        version = data.get("format")
        if isinstance(version, int) and version < _PROFILE_FORMAT - 1:
            raise BadRecord(f"{path} has format {version}; this version reads {_PROFILE_FORMAT}.", hint=again)
        if not good or version not in (_PROFILE_FORMAT, _PROFILE_FORMAT - 1):
            raise BadRecord(f"{path} is not a profile of this machine, or is damaged.", hint=again)

    return sealed.load(path, check, version=_PROFILE_FORMAT, again=again)


def _with_device_probe(machine: Machine) -> Machine:
    """Use the rates and launch costs that a probe measured on this device.

    The host may run faster or slower now than it did then: scale its launch costs by Python speed.
    """
    probe, path = _load_device_probe(machine), str(_device_probe_path(machine))
    if not probe:
        return machine
    device = _with_cores_of(machine.device, records.read(Device, probe["device"], path))
    factor = interpreter_seconds() / probe["interpreter_seconds"]
    source = f"measured here by a probe on {probe.get('date')}, scaled by Python speed now / then"
    return dataclasses.replace(
        machine,
        host=device if machine.device == machine.host else machine.host,
        device=device,
        launch_costs=records.read(LaunchCosts, probe["launch_costs"], path).scaled(factor),
        profile=path,
        host_factor=factor,
        sources={**machine.sources, "launch_costs": source},
    )


def _with_cores_of(present: Device, probed: Device) -> Device:
    """The probed device, with the number of cores that this process may use if the probe could use more or
    fewer."""
    if present.kind != "cpu" or present.cores == probed.cores or not present.cores or not probed.cores:
        return probed
    share = present.cores / probed.cores
    return dataclasses.replace(
        probed,
        cores=present.cores,
        threads=present.threads,
        flop_rates={name: rate * share for name, rate in probed.flop_rates.items()},
        memory_rate=present.memory_rate,
    )


def _with_host_probe(machine: Machine) -> Machine:
    """Prefer the last host probe: Python speed predicts launch cost poorly, worst on hosts that idle
    between launches."""
    probe, (launch_costs, base) = _load_host_probe(machine), launch_costs_base(machine)
    expected = (machine.device.model, machine.host.model, base)
    if probe is None or (probe.model, probe.cpu, probe.base) != expected:
        return machine
    factor = probe.host_factor
    source = f"measured here by a host probe on {probe.date}: {factor:.2f} times the {base}'s"
    return dataclasses.replace(
        machine,
        launch_costs=launch_costs.scaled(factor),
        host_factor=factor,
        sources={**machine.sources, "launch_costs": source},
    )


def _describe() -> Machine:
    """The machine without the results of its probes."""
    host, sources = _describe_cpu()
    sources["storage.capacity_bytes"] = "read here: the file system's total size"
    sources["storage.latency_seconds"] = STORAGE_LATENCIES["ssd"][1]
    storage = Storage(name="disk", capacity_bytes=float(shutil.disk_usage(Path.home()).total))
    gpu = _describe_gpu()
    device = gpu.device if gpu else host
    sources["launch_costs"] = machines.launch_costs_source(device, by_python_speed=True)
    machine = Machine(
        name="here",
        title=f"this machine: {host.model}",
        host=host,
        device=device,
        storage=storage,
        launch_costs=machines.launch_costs_for(host, device, interpreter_seconds()),
        sources=sources,
    )
    if gpu is None:
        return dataclasses.replace(machine, sources=machines.with_host_as_device(sources))
    machine = dataclasses.replace(
        machine,
        title=f"this machine: {device.model} with {host.model}",
        devices=gpu.count,
        link=gpu.known.link if gpu.known else None,
        profile=gpu.known.profile if gpu.known else "",
        sources={**gpu.sources(), **sources},
    )
    return _with_usual_topology(machine, gpu.known)


def _with_usual_topology(machine: Machine, known: Machine | None) -> Machine:
    """Assume the usual topology for several GPUs; the driver is not asked."""
    if machine.devices == 1 or known is None:
        return machine
    usual = Machine.named(f"{machine.devices}x{known.name}")
    return dataclasses.replace(
        machine,
        peer_link=usual.peer_link,
        topology=usual.topology,
        assumed_topology=usual.assumed_topology,
        sources={
            **{k: text for k, text in usual.sources.items() if k.startswith(("peer_link", "topology"))},
            **machine.sources,
        },
    )


def cpu_name() -> str:
    """The processor's name, as the operating system reports it."""
    for line in read_text("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")) and ":" in line:
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def interpreter_loop() -> int:
    """A fixed loop of plain Python. Its time shows how fast this host runs Python at the moment."""
    table, total = {"a": 1, "b": 2}, 0
    for i in range(20_000):
        total += table["a" if i & 1 else "b"] + len((i, total))
    return total


def interpreter_seconds() -> float:
    """Measure Python speed: the time of `interpreter_loop`, over some tenths of a second.

    Take a low percentile: other programs, and other virtual machines on the same processor, only add time.
    The median of half a second varies by half on such a machine.
    """
    samples = []
    for _ in range(150):
        start = time.perf_counter()
        interpreter_loop()
        samples.append(time.perf_counter() - start)
    return sorted(samples)[15]


def available_cpus() -> list[int]:
    """The logical processors that this process may use; a container or batch system may limit them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_cores() -> int:
    """The physical cores of the processors that this process may use."""
    return len(processors_by_core())


def processors_by_core() -> list[list[int]]:
    """The logical processors that this process may use, those of a physical core together."""
    cores: dict[str, list[int]] = {}
    for cpu in available_cpus():
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.setdefault(read_text(path).strip() or str(cpu), []).append(cpu)
    return list(cores.values())


def _describe_cpu() -> tuple[Device, dict[str, str]]:
    """The CPU and the source of each of its figures."""
    import psutil

    allowed = len(available_cpus())
    physical = min(psutil.cpu_count(logical=False) or allowed, available_cores())
    clock, clock_source = _clock()
    copied = f"{_COPY_BYTES >> 20} MiB"
    sources = {
        "host": "read here: operating system",
        "host.clock_rate": clock_source,
        "host.memory_rate": f"measured here: {physical} cores copying {copied} each, bytes read and written",
        "host.core_memory_rate": f"measured here: one core copying {copied}, bytes read and written",
    }
    rates: dict[str, float] = {}
    per_cycle = _flop_per_cycle()
    if clock and per_cycle:
        flop, reason = per_cycle
        # A system often states another clock than the one it runs at, and some cores run wide vectors at half
        # rate. So a product is timed. If the timing was disturbed, the computed rate is a lower bound.
        core_rate = max(_product_rate() / _PRODUCT_EFFICIENCY, _LEAST_OF_COMPUTED * clock * flop)
        rates = {"fp32": physical * core_rate, "fp64": physical * core_rate / 2}
        sources["host.flop_rates"] = (
            f"measured here: {physical} cores x a product on one core / {_PRODUCT_EFFICIENCY}; computed: "
            f"{physical} cores x {clock / 1e9:.2f} GHz x {flop} fp32 flop a cycle ({reason})"
        )
        sources["host.flop_rates.fp64"] = "half of the fp32 rate"
    caches, one, together = _caches(), _copy_rate(1), _copy_rate(physical)
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
    """The clock rate and its source: from the processor's name, else from the operating system.

    Virtual machines often report no clock rate except in the name.
    """
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
    """fp32 flop of one core in one cycle, and the vector instructions that reach it."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    arm = {"asimd"} if platform.machine() in ("arm64", "aarch64") else set()
    flags = set(match[1].split()) if match else arm
    for flag, count, reason in _FLOP_PER_CYCLE:
        if flag in flags:
            return count, reason
    return None


def _caches() -> dict[int, float]:
    """Bytes of one core's level 2 cache and of the whole level 3 cache, by level."""
    sizes: dict[int, float] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = (read_text(str(index / name)).strip() for name in ("level", "type", "size"))
        match = re.match(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and level.isdigit() and match:
            sizes[int(level)] = float(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    return sizes


def _product_rate() -> float:
    """flop/s of fp32 matrix products on one core: the best of a quarter of a second."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b, out = (torch.ones(_PRODUCT_SIDE, _PRODUCT_SIDE) for _ in range(3))
        best, begin = float("inf"), time.perf_counter()
        while time.perf_counter() - begin < _PRODUCT_SECONDS:
            start = time.thread_time()
            torch.mm(a, b, out=out)
            best = min(best, time.thread_time() - start)
    finally:
        torch.set_num_threads(before)
    return 2.0 * _PRODUCT_SIDE**3 / best


def _copy_rate(cores: int) -> float:
    """Bytes per second that `cores` cores copy together; the best of ten copies, larger than most caches.

    Processor time counts, so that other programs do not disturb it: on a 2-core EPYC with 13 programs in the
    queue, a clock gave 14 to 42 GB/s for both cores, processor time 83 GB/s; quiet, a probe gave 85 GB/s.
    """
    import numpy

    pairs = [
        (numpy.ones(_COPY_BYTES // 8), numpy.empty(_COPY_BYTES // 8))
        for _ in range(min(cores, _MOST_COPIERS))
    ]

    def copy(pair: tuple[Any, Any]) -> float:
        start = time.thread_time()
        numpy.copyto(pair[1], pair[0])
        return time.thread_time() - start

    with ThreadPoolExecutor(len(pairs)) as pool:
        # NumPy releases the interpreter lock during the copy, so the threads run in parallel.
        best = min(max(pool.map(copy, pairs)) for _ in range(10))
    return 2.0 * _COPY_BYTES * len(pairs) / best


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _GPU:
    """The GPUs of this machine; `known` is the catalogue's machine with the same GPU, if there is one."""

    device: Device
    count: int
    known: Machine | None

    def sources(self) -> dict[str, str]:
        if self.known is None:
            return {"device": "read here: PyTorch's device properties"}
        return {k: text for k, text in self.known.sources.items() if k.startswith(("device", "link"))}


def _describe_gpu() -> _GPU | None:
    """The first CUDA device: the catalogue's figures if it has this GPU, else what PyTorch reports."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    count = torch.cuda.device_count()
    known = _match_catalog(properties.name, float(properties.total_memory))
    if known is not None:
        return _GPU(device=known.device, count=count, known=known)
    device = Device(
        kind="gpu",
        model=properties.name,
        cores=properties.multi_processor_count,
        memory_bytes=float(properties.total_memory),
        compute_capability=float(f"{properties.major}.{properties.minor}"),
    )
    return _GPU(device=device, count=count, known=None)


def _match_catalog(name: str, memory_bytes: float) -> Machine | None:
    """The catalogue's machine whose GPU has this name ("NVIDIA H200" is h200) and memory within 15%."""
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
    """The word that names the model of a GPU: the first one with a digit."""
    return next((word for word in sorted(words) if re.search(r"\d", word) and not word.endswith("gb")), "")


def read_text(path: str) -> str:
    """The text of a system file; empty if it does not exist."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
