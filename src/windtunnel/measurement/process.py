"""The child's side of a child process: messages to the parent, the lock for timing, memory and
interruptions."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import IO

from windtunnel.records import Plain

Emit = Callable[[Plain], None]
END = "end"  # the kind of a child's last message


def emit_on(descriptor: int) -> Emit:
    """A function that sends messages on a pipe of their own; the output of the user's code goes to standard
    error."""
    pipe = os.fdopen(descriptor, "w", buffering=1)
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message), file=pipe, flush=True)


def words() -> IO[str]:
    """The lines that the parent sends: the order, then a line before each turn."""
    return open(0, closefd=False)


class Lock:
    """A file that one process at a time may hold. The system frees it when its holder ends in any way."""

    def __init__(self, path: str, emit: Emit) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_RDWR) if path else None
        self.emit, self.held = emit, False

    def take(self) -> None:
        """Wait until the lock is free. Messages tell the parent, so that the wait does not count as this
        child's time."""
        import fcntl

        if self.file is not None and not self.held:
            self.emit({"kind": "waits"})
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.emit({"kind": "locked"})
            self.held = True

    def release(self) -> None:
        import fcntl

        if self.file is not None and self.held:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.held = False


def resident_bytes(reset_peak: bool) -> int:
    if reset_peak:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    resident = _status_bytes("VmRSS")
    if resident is not None:
        return resident
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    import resource

    highest = _status_bytes("VmHWM")
    if highest is not None:
        return highest
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def interruptions_of(threads: int | None) -> Callable[[], int]:
    """Counts how often the system took a core from this process to run something else on it.

    Always 0 if the process has more threads than cores, because its threads then interrupt one another, which
    belongs to the step. Also 0 if the number of threads is not known, or if the system has no such counter.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is None or threads > cores or sys.platform == "win32":
        return lambda: 0
    import resource

    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _status_bytes(name: str) -> int | None:
    """A figure of this process from /proc; None where there is no such file."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None
