"""Owners of locks and temporary folders: names of processes, whether a process is alive, and temporary
folders.

A process is named by its host, the start of that host (boot), its number and its own start. The start of a
process is counted in ticks of the boot, so that changing the clock changes no name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "windtunnel-"
_PARTS = 4
# Names of earlier versions have the clock time of the start, which differs by this much if the clock was set.
_CLOCK_SECONDS = 2.0


def own_name() -> str:
    """The name of this process."""
    return name_of(os.getpid())


def name_of(pid: int) -> str:
    """The name of a process of this host."""
    return f"{platform.node()}|{_boot()}|{pid}|{_start(pid)}"


def is_alive(name: str) -> bool:
    """Whether another process of this name is alive. True for a process of another host, which cannot be
    checked."""
    parts = name.split("|")
    if name == own_name():
        return False
    if len(parts) == _PARTS - 1:
        return _is_alive_by_clock(*parts)
    if len(parts) != _PARTS or not parts[2].isdigit():
        return False
    host, boot, pid, start = parts
    return host != platform.node() or (boot == _boot() and start != "" and _start(int(pid)) == start)


def is_running(pid: int) -> bool:
    """Whether a process of this number runs on this host."""
    return _start(pid) != ""


def show(name: str) -> str:
    """A name in words."""
    parts = name.split("|")
    return f"process {parts[-2]} on {parts[0]}" if len(parts) >= _PARTS - 1 else f"process {name}"


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None, kind: str = "run") -> Iterator[Path]:
    """A private folder that is removed afterwards. Folders that killed processes left are removed first."""
    place = Path(parent or tempfile.gettempdir())
    remove_abandoned(place)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{kind}-{own_mark()}-", dir=place) as folder:
        yield Path(folder)


def own_mark() -> str:
    """This process as a part of a file name: boot, number and start, without the host."""
    return f"{_boot()[:8] or '0'}-{os.getpid()}-{_start(os.getpid()) or '0'}"


def is_abandoned(mark: str) -> bool:
    """Whether no living process of this host has this mark. What is not a mark is left alone."""
    boot, _, rest = mark.partition("-")
    pid, _, start = rest.partition("-")
    if not pid.isdigit() or not start:
        return False
    return boot != (_boot()[:8] or "0") or (_start(int(pid)) or "0") != start


def remove_abandoned(place: Path) -> None:
    """Remove the temporary folders of processes that were killed. Only those of this user and host."""
    with contextlib.suppress(OSError):
        for folder in place.glob(f"{_PREFIX}*-*-*-*-*"):
            mark = folder.name.removeprefix(_PREFIX).partition("-")[2].rpartition("-")[0]
            if is_abandoned(mark) and _is_own_folder(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return is_own and not path.is_symlink() and path.is_dir()


@functools.cache
def _boot() -> str:
    """The number of this start of the system; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start(pid: int) -> str:
    """The start of a process, which distinguishes it from a later one with the same number; empty if it has
    ended."""
    try:
        # The second field is a name in brackets, which may hold anything. Field 3 is the state, 22 the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return _start_by_clock(pid)


def _start_by_clock(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


def _is_alive_by_clock(host: str, pid: str, start: str) -> bool:
    """A name of an earlier version: host, number and the time of the start."""
    if host != platform.node():
        return True
    now = _start_by_clock(int(pid)) if pid.isdigit() else ""
    try:
        return now != "" and abs(float(now) - float(start)) < _CLOCK_SECONDS
    except ValueError:
        return False
