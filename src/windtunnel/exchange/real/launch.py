"""Start the worker processes of a training on this machine, and watch them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch._C._distributed_c10d import TCPStore

from windtunnel import child_lifetime, sealed
from windtunnel.errors import BadInput, Interrupted
from windtunnel.exchange.host import MOST_PROCESSES
from windtunnel.exchange.real import checkpoints
from windtunnel.exchange.real.endings import ENDS_ALL
from windtunnel.exchange.real.gathering import RealOutcome, gather
from windtunnel.exchange.real.losses import where_it_goes_on
from windtunnel.exchange.real.spec import GOES_ON, WITH_SERVER, RealTraining
from windtunnel.machine import here

MODULE = "windtunnel.exchange.real.worker"
_GRACE_SECONDS = 20.0  # for the others to notice that a worker is lost
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0  # for a process to end what it has started
_LOOPBACK = "127.0.0.1"
Processes = list[subprocess.Popen[bytes]]


class WorkerEngine(Protocol):
    """Where the worker processes of a training run."""

    def run(self, spec: RealTraining, folder: Path) -> dict[int, int]:
        """Runs all processes to their end. What they write is in `folder` then. Returns their exit codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnThisMachine:
    """Processes on this machine. `started` is told of them."""

    threads: int = 1
    started: Callable[[Processes], None] | None = None

    def run(self, spec: RealTraining, folder: Path) -> dict[int, int]:
        refuse_many(spec.workers)
        store, port = open_store(_LOOPBACK)
        processes: Processes = []
        try:
            for rank in range(spec.processes):
                processes.append(start_process(spec, folder, rank, rank, _LOOPBACK, port, self.threads))
            keep_apart([process.pid for process in processes[: spec.workers]])
            if self.started:
                self.started(processes)
            return _watch(spec, processes)
        finally:
            end_all(processes)
            del store  # the workers have met there


def run_workers(
    spec: RealTraining, folder: Path, engine: WorkerEngine | None = None, *, fresh: bool = False
) -> RealOutcome:
    """Run a training with real processes, by default on this machine. Its files are in the folder.

    With `spec.keep` it goes on from the last checkpoint of the folder, unless it is to begin `fresh`.
    """
    engine = engine or OnThisMachine()
    if isinstance(engine, OnThisMachine):
        refuse_many(spec.workers)
    folder.mkdir(parents=True, exist_ok=True)
    spec = dataclasses.replace(spec, start=_start_of(spec, folder, fresh))
    for old in (*folder.glob("*.jsonl"), *folder.glob("process-*.log"), folder / "curve.json"):
        old.unlink(missing_ok=True)
    if not spec.start:
        (folder / "weights.safetensors").unlink(missing_ok=True)
    spec.save(folder)
    try:
        codes = engine.run(spec, folder)
    except KeyboardInterrupt:
        raise Interrupted("The workers were stopped.", hint=where_it_goes_on(spec, folder)) from None
    return gather(spec, folder, codes)


def _start_of(spec: RealTraining, folder: Path, fresh: bool) -> int:
    if not spec.keep:
        return 0
    if fresh:
        checkpoints.remove(folder)
    note = checkpoints.last_complete(spec, folder)
    if note is None:
        return 0
    sealed.warn(f"Continues after {note['where']}, from the checkpoint in {folder}.")
    return int(note["changes"])


def end_all(processes: Processes) -> None:
    """Ends processes with all that they have started: their keepers do that when they are told to end."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def keep_apart(pids: Sequence[int]) -> None:
    """Gives each worker cores of its own, as far as they reach. A server may use all of them.

    Linux tends to put processes that wake each other on one core, so that they compute one after another.
    """
    if len(pids) < 2 or not hasattr(os, "sched_setaffinity"):
        return
    for pid, processors in zip(pids, shares(here.processors_by_core(), len(pids)), strict=True):
        with contextlib.suppress(OSError):  # it has ended already, or its container does not allow it
            os.sched_setaffinity(pid, processors)


def shares(cores: Sequence[Sequence[int]], workers: int) -> list[set[int]]:
    """The logical processors of each worker, from those of each core.

    >>> shares([[0], [1], [2], [3]], 2)
    [{0, 1}, {2, 3}]
    >>> shares([[0, 2], [1, 3]], 3)
    [{0, 2}, {1, 3}, {0, 2}]
    """
    count = len(cores)
    if workers > count:
        return [set(cores[worker % count]) for worker in range(workers)]
    return [
        {cpu for core in cores[worker * count // workers : (worker + 1) * count // workers] for cpu in core}
        for worker in range(workers)
    ]


def open_store(host: str) -> tuple[TCPStore, int]:
    """Where the processes of a training meet, and its port, which nobody else can take meanwhile: it is open
    before any of them starts."""
    # Workers of other machines come by any of its networks.
    listener = socket.create_server((host if host == _LOOPBACK else "", 0))
    port = int(listener.getsockname()[1])
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port


def start_process(
    spec: RealTraining, folder: Path, rank: int, local_rank: int, address: str, port: int, threads: int
) -> subprocess.Popen[bytes]:
    """One worker, with the variables that torchrun would set."""
    told = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": spec.processes,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": threads,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is open already, as under torchrun
    }
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if address == _LOOPBACK else {}
    with (folder / f"process-{rank}.log").open("wb") as log:
        return subprocess.Popen(
            # It ends with this process, even if that one is killed.
            [*child_lifetime.command(MODULE), str(os.getpid()), str(folder)],
            env={**os.environ, **{name: str(value) for name, value in told.items()}, **loopback},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _watch(spec: RealTraining, processes: Processes) -> dict[int, int]:
    """Waits for all. After a loss, synchronous workers get some seconds to notice it."""
    lost_at: float | None = None
    while any(process.poll() is None for process in processes):
        failed = [process for process in processes if process.poll() not in (None, 0)]
        is_served = spec.exchange in WITH_SERVER  # without the server nobody can go on
        server_is_gone = is_served and processes[-1].poll() is not None
        is_over = any(process.poll() in ENDS_ALL for process in failed)
        if server_is_gone or is_over or (failed and spec.exchange not in GOES_ON):
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _GRACE_SECONDS:
                break
        time.sleep(_POLL_SECONDS)
    return {rank: process.poll() or 0 for rank, process in enumerate(processes)}


def refuse_many(workers: int) -> None:
    """Refuses absurd numbers of processes before any is started."""
    if not 1 <= workers <= MOST_PROCESSES:
        raise BadInput(f"--workers {workers}: on one machine 1 to {MOST_PROCESSES} workers can be started.")
