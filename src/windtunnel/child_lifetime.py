"""The entry of every child process: it ends when its parent ends, and so do all processes that it starts.

    command ── keeper ── worker ── whatever the worker starts

Run as `python -P -m windtunnel.child_lifetime MODULE PARENT ...`. On Linux the process splits before it
imports anything large. The keeper only waits; MODULE.main() runs in the worker. Daemons of the worker become
children of the keeper. It kills all of them when the worker ends, when the command ends, and when the command
tells it to (SIGTERM). It then ends as the worker did.
"""

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

MARK = "WINDTUNNEL_CHILD"  # an environment variable that identifies the child to which a process belongs
_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)
_HAS_KEEPER = sys.platform == "linux"
_MOST_FILES = 1 << 16
_KILL_SECONDS = 5.0  # for killed processes to end
_MARKED_SECONDS = 30.0
_LOOK_SECONDS = 0.002


def die_with_parent(parent: int | None = None) -> None:
    """End when the parent ends. When memory runs out, be the first process that the system kills.

    A parent that ended before the request is noticed by its number: `parent` is what it should be.
    """
    if _HAS_KEEPER:
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def keep(parent: int | None = None) -> None:
    """Split this process into a keeper and a worker; returns in the worker only."""
    if not _HAS_KEEPER:
        die_with_parent(parent)
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
    prctl, keeper = ctypes.CDLL(None).prctl, os.getpid()
    prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    prctl(_SUBREAPER, 1)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with_parent(keeper)
        return
    try:
        _end_as(_watch(worker))
    finally:
        os._exit(1)


def _watch(worker: int) -> int | None:
    """The exit status of the worker; None if the keeper received SIGTERM."""
    os.closerange(0, _MOST_FILES)  # a pipe ends when the worker closes it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    status = None
    while status is None:
        if signal.sigwait((signal.SIGTERM, signal.SIGCHLD)) == signal.SIGTERM:
            break
        status = _reap_one(worker)
    _kill_children()
    return status


def _reap_one(worker: int) -> int | None:
    """The worker's exit status once it has ended. Other children that have ended are reaped."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = found[1] if found[0] == worker else status
    return status


def _kill_children() -> None:
    """Kill all children of this process, and theirs, which become its own when their parents are gone."""
    end, known = time.monotonic() + _KILL_SECONDS, set[int]()
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            for child in children_of(os.getpid()):
                if child not in known:  # a job that keeps forking has new children for a while
                    known.add(child)
                    end = time.monotonic() + _KILL_SECONDS
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_LOOK_SECONDS)


def _end_as(status: int | None) -> NoReturn:
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (-code,))
            os.kill(os.getpid(), -code)
    os._exit(code & 255)


def signal_name(number: int) -> str:
    """A signal with its name, as "signal 11 (SIGSEGV)". Most realtime signals have none."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def children_of(parent: int) -> list[int]:
    """The children of a process of one thread, by number."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as file:
            return list(map(int, file.read().split()))
    except (OSError, ValueError):  # a kernel without this file, or the process is gone
        return [pid for pid in _processes() if _parent_of(pid) == parent]


def worker_of(pid: int) -> int:
    """The worker process of a child; 0 if it has not started."""
    return next(iter(children_of(pid)), 0) if _HAS_KEEPER else pid


def end(pid: int, wait: Callable[[float | None], bool], mark: str = "") -> None:
    """End a child and all processes that it has started. `wait(seconds)` waits for it (None: without limit)
    and returns whether it has ended. A keeper that does not react is killed; the processes that are left are
    then found by their mark."""
    if _HAS_KEEPER:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # in case the worker has stopped it
        if wait(2 * _KILL_SECONDS):
            return
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    wait(None)
    kill_marked(mark)


def tell_to_end(pid: int) -> None:
    """Tell a child to end, with all processes that it has started, without waiting for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _HAS_KEEPER:
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, signal.SIGKILL)


def new_mark() -> str:
    """The value of the environment variable MARK of a new child, which all that it starts inherit."""
    return os.urandom(8).hex()


def kill_marked(mark: str) -> None:
    """Kill the processes that a child has left, by their mark. Only needed if its keeper was killed: it reads
    the environment of every process. Processes that fork meanwhile are found by the next pass."""
    end = time.monotonic() + _MARKED_SECONDS
    while mark and _kill_found(f"{MARK}={mark}".encode()) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def _kill_found(wanted: bytes) -> bool:
    """Kill all processes with a variable in their environment; whether there were any."""
    found = False
    for pid in _processes():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_left = wanted in file.read().split(b"\0")
            if is_left:
                os.kill(pid, signal.SIGKILL)
                found = True
    return found


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def command(module: str) -> tuple[str, ...]:
    """The command that starts a child; the parent's process number and the child's own arguments follow.

    `-P`: a file in the current folder must not replace a library.
    """
    return (sys.executable, "-P", "-m", "windtunnel.child_lifetime", module)


def main() -> None:
    module, parent = sys.argv[1], int(sys.argv[2])
    keep(parent)
    sys.argv = [sys.argv[0], *sys.argv[3:]]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
