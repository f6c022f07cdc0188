"""The child's side of a child process: how it speaks, what it does not outlive, and the memory it takes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

Emit = Callable[[dict[str, Any]], None]
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def speak_on(descriptor: int) -> Emit:
    """Messages go to a pipe of their own, and what the user's code prints to standard error."""
    pipe = os.fdopen(descriptor, "w", buffering=1)
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message), file=pipe, flush=True)


def die_with_parent() -> None:
    """Nobody waits for this child's result when its parent is gone; and if memory runs out it is this child that must go."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


class Turn:
    """A file that one process at a time may hold; it is free again when given back and when its holder ends, however it ends."""

    def __init__(self, path: str, emit: Emit) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_RDWR) if path else None
        self.emit, self.held = emit, False

    def take(self) -> None:
        """Sleep until it is free. The parent is told, for waiting is not this child's time."""
        import fcntl

        if self.file is not None and not self.held:
            self.emit({"kind": "waits"})
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.emit({"kind": "turn"})
            self.held = True

    def give(self) -> None:
        import fcntl

        if self.file is not None and self.held:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.held = False


def resident_bytes(reset_peak: bool) -> int:
    if reset_peak:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    told = _status_bytes("VmRSS")
    if told is not None:
        return told
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    import resource

    told = _status_bytes("VmHWM")
    if told is not None:
        return told
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status_bytes(name: str) -> int | None:
    """A figure of this process as Linux tells it; None elsewhere."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None
