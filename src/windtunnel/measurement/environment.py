"""The environment of a measurement: versions, threads, load and other programs."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata

import windtunnel
from windtunnel.machine import here
from windtunnel.records import Plain

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
EXPANDABLE = "expandable_segments:True"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
BUSY = 0.25
_QUIET = 1.15  # a pace within this of the best counts as quiet


def for_child(threads: int, *, expandable: bool = False) -> dict[str, str]:
    """The environment variables of a child: libraries read the number of threads when they are loaded.

    `expandable`: PyTorch's allocator on a GPU grows its segments; other settings of the user stay.
    """
    child = dict(os.environ)
    child.update({name: str(threads) for name in THREAD_VARIABLES})
    child["OMP_DYNAMIC"] = "FALSE"
    child["PYTHONHASHSEED"] = "0"
    if expandable:
        child[_ALLOCATOR] = with_expandable(child.get(_ALLOCATOR, ""))
    return child


def with_expandable(settings: str) -> str:
    """The allocator's settings with expandable segments."""
    others = [word for word in settings.split(",") if word and not word.startswith("expandable_segments")]
    return ",".join((*others, EXPANDABLE))


def describe() -> Plain:
    """Facts of this machine that must be equal in two results for a comparison."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "python": platform.python_version(),
        "windtunnel": windtunnel.__version__,
        "torch": metadata.version("torch"),
        "cpu": here.cpu_name(),
        "cpus": len(here.available_cpus()),
    }


def busy_cores(seconds: float = 0.3) -> float:
    """How many cores' worth of work other processes do at this moment."""
    import psutil

    psutil.cpu_percent(None)
    time.sleep(seconds)
    return float(psutil.cpu_percent(None)) / 100.0 * (psutil.cpu_count() or 1)


def cpus_for(threads: int) -> set[int] | None:
    """The processors to pin a child to, one for each thread. The last ones, as systems prefer to use the
    first."""
    allowed = here.available_cpus()
    if not hasattr(os, "sched_setaffinity") or threads >= len(allowed):
        return None
    return set(_one_per_core(allowed)[:threads])


def _one_per_core(cpus: list[int]) -> list[int]:
    """From the last to the first, one logical processor of each core before a second of any."""
    first, second, seen = list[int](), list[int](), set[str]()
    for cpu in reversed(cpus):
        core = here.read_text(
            f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        ).strip() or str(cpu)
        (second if core in seen else first).append(cpu)
        seen.add(core)
    return first + second


class QuietMoments:
    """Waits for moments in which the machine is as fast as it ever was, because other programs run now and
    then."""

    def __init__(self) -> None:
        self.best = min(_pace() for _ in range(15))

    def wait(self, seconds: float = 1.5) -> bool:
        """Wait at most `seconds` for the machine to be quiet; whether it is."""
        end = time.perf_counter() + seconds
        while True:
            pace = min(_pace(), _pace())
            self.best = min(self.best, pace)
            if pace <= _QUIET * self.best:
                return True
            if time.perf_counter() > end:
                return False
            time.sleep(0.02)


def _pace() -> float:
    start = time.perf_counter()
    here.interpreter_loop()
    return time.perf_counter() - start
