"""Nothing that a child starts outlives it, whichever way it or the command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import run

from windtunnel import child_lifetime
from windtunnel.measurement import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="keepers need Linux")

# Double fork, a session of its own, no open files: a daemon as in the book.
WORKER = """
import os, signal, sys, time

def daemon(note):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(note + ".part", "w") as file:
                file.write(str(os.getpid()))
            os.rename(note + ".part", note)
            time.sleep(1000)
        os._exit(0)
    while not os.path.exists(note):
        time.sleep(0.01)

def main():
    note, then = sys.argv[1:3]
    daemon(note)
    exec(then)
"""
ENDINGS = {
    "returns": ("pass", 0),
    "exits": ("os._exit(3)", 3),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}
SECONDS = 300.0  # no test waits so long unless it fails


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def start(folder: Path, then: str, parent: int | None = None, mark: str = "") -> subprocess.Popen[bytes]:
    (folder / "worker_module.py").write_text(WORKER)
    words = [str(parent or os.getpid()), str(folder / "daemon"), then]
    return subprocess.Popen(
        [*child_lifetime.command("worker_module"), *words],
        env={**os.environ, "PYTHONPATH": str(folder), child_lifetime.MARK: mark},
        start_new_session=True,
    )


def daemon_of(folder: Path) -> int:
    assert wait_for((folder / "daemon").exists)
    return int((folder / "daemon").read_text())


def has_ended(child: subprocess.Popen[bytes]) -> Callable[[float | None], bool]:
    def wait(seconds: float | None) -> bool:
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    return wait


@pytest.mark.parametrize(("then", "code"), ENDINGS.values(), ids=ENDINGS)
def test_a_daemon_ends_with_the_child_and_the_child_ends_as_its_worker(
    tmp_path: Path, then: str, code: int
) -> None:
    child = start(tmp_path, then)
    assert child.wait(SECONDS) == code
    assert not is_alive(daemon_of(tmp_path)), "it was gone before the child was"


def test_a_daemon_ends_when_the_child_is_ended(tmp_path: Path) -> None:
    child = start(tmp_path, "time.sleep(1000)")
    daemon = daemon_of(tmp_path)
    child_lifetime.end(child.pid, has_ended(child))
    assert not is_alive(daemon)


@pytest.mark.parametrize("attack", ["SIGKILL", "SIGSTOP"])
def test_a_daemon_is_found_although_its_keeper_was_killed_or_stopped(tmp_path: Path, attack: str) -> None:
    mark = child_lifetime.new_mark()
    child = start(tmp_path, f"os.kill(os.getppid(), signal.{attack}); time.sleep(1000)", mark=mark)
    daemon = daemon_of(tmp_path)
    if attack == "SIGKILL":
        assert child.wait(SECONDS) == -signal.SIGKILL
        child_lifetime.kill_marked(mark)
    else:
        child_lifetime.end(child.pid, has_ended(child), mark)
    assert wait_for(lambda: not is_alive(daemon))


def test_a_mark_names_one_child_only(tmp_path: Path) -> None:
    child = start(tmp_path, "time.sleep(1000)", mark=child_lifetime.new_mark())
    daemon = daemon_of(tmp_path)
    child_lifetime.kill_marked(child_lifetime.new_mark())
    child_lifetime.kill_marked("")
    assert is_alive(daemon) and child.poll() is None
    child_lifetime.end(child.pid, has_ended(child))


# Every process makes the next one and lives on: whoever looks once misses the last.
FORKS = """
while True:
    time.sleep(0.005)
    if os.fork():
        time.sleep(1000)
"""


@pytest.mark.parametrize("keeper_is_killed", [False, True])
def test_none_is_left_of_a_child_that_forks_again_and_again(tmp_path: Path, keeper_is_killed: bool) -> None:
    mark = child_lifetime.new_mark()
    child = start(tmp_path, FORKS, mark=mark)
    daemon_of(tmp_path)  # it has begun
    assert wait_for(lambda: len(marked(mark)) > 8)
    if keeper_is_killed:
        child.kill()
        child.wait()
        child_lifetime.kill_marked(mark)
    else:
        child_lifetime.end(child.pid, has_ended(child), mark)
    assert not marked(mark)


def marked(mark: str) -> list[int]:
    """The living processes of a child."""
    found = []
    for pid in child_lifetime._processes():
        try:
            if f"{child_lifetime.MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_daemon_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    (tmp_path / "worker_module.py").write_text(WORKER)
    code = (
        "import os, subprocess, sys, time\nfrom windtunnel import child_lifetime\n"
        "words = [*child_lifetime.command('worker_module'), str(os.getpid()), *sys.argv[1:]]\n"
        "subprocess.Popen(words, start_new_session=True)\ntime.sleep(1000)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "daemon"), "time.sleep(1000)"]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as command:
        daemon = daemon_of(tmp_path)
        command.kill()
    assert wait_for(lambda: not is_alive(daemon))


def test_a_daemon_of_a_forked_child_ends_with_it(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(WORKER, names)
    daemonize = names["daemon"]
    assert callable(daemonize)
    conversation = children.start_fork(lambda pipe: daemonize(str(tmp_path / "daemon")), None, SECONDS)
    daemon = daemon_of(tmp_path)
    ending = conversation.finish()
    assert ending.code == 0 and not ending.timed_out and not is_alive(daemon)


JOB = """
import os, time, torch
import windtunnel as wt

def build(seconds=0):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open({note!r}, "a") as file:
                file.write(f"{{os.getpid()}} ")
            time.sleep(1000)
        os._exit(0)
    time.sleep(float(seconds))
    return wt.Workload(
        name="mine",
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda n: torch.randn(n, 8),
        loss=lambda model, x: model(x).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
"""
COMMANDS = {
    "predict": (["--on", "h200"], 0),
    "measure": (["--quick", "--processes", "1", "--seconds", "0.01"], 0),
    "predict, timed out": (["seconds=1000", "--on", "h200", "--trace-seconds", "5"], 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_job_that_makes_a_daemon_leaves_none(tmp_path: Path, name: str) -> None:
    note, (words, code) = tmp_path / "daemons", COMMANDS[name]
    (tmp_path / "job.py").write_text(JOB.format(note=str(note)))
    done = run(name.partition(",")[0], f"{tmp_path / 'job.py'}:build", *words)
    assert done.returncode == code, done.stderr
    if note.exists():  # within 5 s a loaded machine may not even have begun the job
        assert not [pid for pid in note.read_text().split() if is_alive(int(pid))]
