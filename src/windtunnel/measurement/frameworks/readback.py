"""How many threads a process really computes with, read from its libraries and from the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_OPENBLAS = (
    "scipy_openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
)


def openblas_threads() -> int | None:
    """Threads of the OpenBLAS that is loaded; None without one."""
    return _read("openblas", _OPENBLAS)


def openmp_threads(library: str = "omp") -> int | None:
    """Threads of the OpenMP runtime that is loaded."""
    return _read(library, ("omp_get_max_threads",))


def threads_named(start: str) -> int:
    """Threads of this process whose name begins with `start`, the name of their pool."""
    count = 0
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            count += task.read_text().startswith(start)
    return count


def cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _read(word: str, functions: tuple[str, ...]) -> int | None:
    for path in _loaded(word):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in functions:
                if hasattr(library, name):
                    return int(getattr(library, name)())
    return None


def _loaded(word: str) -> list[str]:
    """Shared libraries of this process with `word` in their file name."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return [path for path in paths if word in path.rpartition("/")[2] and ".so" in path]
