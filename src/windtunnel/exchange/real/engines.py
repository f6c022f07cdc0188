"""Start the same worker processes on a cluster: on the nodes of Ray, or in a job of Slurm.

What crosses between machines is text: what the workers are told, and the files that they wrote.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from windtunnel import ownership, records
from windtunnel.errors import BadInput, Unavailable, nearest, need_package
from windtunnel.exchange.real import checkpoints
from windtunnel.exchange.real.endings import LOST_NODE
from windtunnel.exchange.real.launch import OnThisMachine, WorkerEngine, open_store, start_process
from windtunnel.exchange.real.spec import NAME, RealTraining
from windtunnel.records import Plain

_NAMES = ("local", "ray", "slurm")
_ADDRESS = "address.json"
_LOOPBACK = "127.0.0.1"
_FETCH_SECONDS = 5.0  # between two looks for checkpoints on the nodes of Ray


def engine_for(text: str) -> WorkerEngine:
    """`local`; `ray` or `ray://HOST:PORT`; `slurm` or `slurm:nodes=2,partition=gpu`, as for studies."""
    name, _, rest = text.partition(":")
    if text == "local":
        return OnThisMachine()
    if name == "ray":
        return OnRay(address=text if rest else "auto")
    if name == "slurm":
        return OnSlurm(**_slurm_settings(rest))
    raise BadInput(
        f"No engine is called {text!r}.",
        hint=f"{nearest(name, _NAMES)} Write local, ray://HOST:PORT or slurm:nodes=2,partition=gpu.",
    )


# Ray


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """One process for each worker on the nodes of a Ray cluster, spread over them. All start together."""

    address: str = "auto"
    wait_seconds: float = 60.0

    def run(self, spec: RealTraining, folder: Path) -> dict[int, int]:
        ray = need_package("ray", "The engine ray")
        own = not ray.is_initialized()
        if own:
            self._connect(ray)
        room = None
        try:
            room = self._reserve(ray, spec)
            return _run_on_ray(ray, room, spec, folder)
        finally:
            if room is not None:
                importlib.import_module("ray.util").remove_placement_group(room)
            if own:
                ray.shutdown()

    def _connect(self, ray: ModuleType) -> None:
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise Unavailable(
                f"No Ray cluster answers at {self.address}: {error}",
                hint="Start one: ray start --head; and name it as ray://HOST:10001",
            ) from error

    def _reserve(self, ray: ModuleType, spec: RealTraining) -> Any:
        """A processor, and with nccl a GPU, for each process. Without all of them nobody could begin."""
        one = {"CPU": 1, "GPU": 1} if spec.backend == "nccl" else {"CPU": 1}
        room = importlib.import_module("ray.util").placement_group([one] * spec.processes, strategy="SPREAD")
        done, _ = ray.wait([room.ready()], timeout=self.wait_seconds)
        if not done:
            importlib.import_module("ray.util").remove_placement_group(room)
            free = ray.available_resources().get("CPU", 0)
            raise Unavailable(
                f"The Ray cluster has no room for {spec.processes} processes: {free:g} processors are free.",
                hint="Use fewer --workers, add nodes, or wait until others have ended.",
            )
        return room


class _Seat:
    """One place of the cluster, in the words of Ray an actor. It answers while its worker runs."""

    folder: Path | None = None

    def address(self) -> tuple[str, int]:
        host = str(importlib.import_module("ray.util").get_node_ip_address())
        self.store, port = open_store(host)  # kept open as long as this seat is there
        return host, port

    def run(self, text: str, rank: int, meeting: tuple[str, int], files: dict[str, str]) -> str:
        """Runs one worker to its end; returns its exit code and its files as text."""
        with ownership.temporary_folder(kind="seat") as folder:
            records.write_whole(folder / NAME, text)
            _write_files(folder, files)
            spec = RealTraining.load(folder / NAME)
            process = start_process(spec, folder, rank, 0, *meeting, threads=1)
            self.folder = folder
            code = process.wait()
            self.folder = None
            return json.dumps(
                {"code": code, "files": _as_text(p for p in folder.iterdir() if p.name != NAME)}
            )

    def kept(self, known: list[str]) -> dict[str, str]:
        """The files of checkpoints that are not known yet."""
        if self.folder is None:
            return {}
        with contextlib.suppress(OSError):  # it ends, or removes an older one, at this moment
            return _as_text(path for path in checkpoints.files_in(self.folder) if path.name not in known)
        return {}


def _as_text(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: base64.b64encode(path.read_bytes()).decode() for path in paths}


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, body in files.items():
        records.write_whole(folder / Path(name).name, base64.b64decode(body))


def _run_on_ray(ray: ModuleType, room: Any, spec: RealTraining, folder: Path) -> dict[int, int]:
    seats = _seats(ray, room, spec)
    try:
        meeting = ray.get(seats[0].address.remote())
        text = (folder / NAME).read_text(encoding="utf-8")
        files = ray.put(_as_text(checkpoints.files_in(folder)) if spec.keep else {})
        waiting = {seat.run.remote(text, rank, meeting, files): rank for rank, seat in enumerate(seats)}
        codes: dict[int, int] = {}
        asked = time.monotonic()
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for reference in done:
                rank = waiting.pop(reference)
                codes[rank] = _received(ray, reference, folder)
            if spec.keep and time.monotonic() - asked > _FETCH_SECONDS:
                _fetch(ray, [seats[rank] for rank in waiting.values() if rank in spec.keepers], spec, folder)
                asked = time.monotonic()
        return codes
    finally:
        for seat in seats:
            with contextlib.suppress(Exception):
                ray.kill(seat)  # its worker process ends with it


def _seats(ray: ModuleType, room: Any, spec: RealTraining) -> list[Any]:
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    gpus, seats = int(spec.backend == "nccl"), []
    for rank in range(spec.processes):
        place = strategies.PlacementGroupSchedulingStrategy(
            placement_group=room, placement_group_bundle_index=rank
        )
        remote = ray.remote(
            num_cpus=1, num_gpus=gpus, max_restarts=0, max_concurrency=2, scheduling_strategy=place
        )
        seats.append(remote(_Seat).remote())
    return seats


def _fetch(ray: ModuleType, seats: Sequence[Any], spec: RealTraining, folder: Path) -> None:
    """Brings checkpoints here while workers run: a lost machine or an interrupt does not lose them."""
    known = [path.name for path in checkpoints.files_in(folder)]
    for seat in seats:
        with contextlib.suppress(ray.exceptions.RayError):
            _write_files(folder, ray.get(seat.kept.remote(known), timeout=_FETCH_SECONDS))
    for changes in checkpoints.complete_in(spec, folder)[:1]:
        for rank in spec.keepers:
            checkpoints.prune(folder, rank, changes)


def _received(ray: ModuleType, reference: Any, folder: Path) -> int:
    """Writes the files of one process here and returns its exit code."""
    try:
        answer: Plain = json.loads(ray.get(reference))
    except (ray.exceptions.RayError, ValueError):
        return LOST_NODE
    _write_files(folder, answer["files"])
    return int(answer["code"])


# Slurm


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSlurm:
    """One job of Slurm through submitit, with a task for each process.

    The folder of the training must lie on a disk that all nodes share. `cluster` is "slurm", or "local" to
    try it without one.
    """

    nodes: int = 1
    timeout_min: int = 24 * 60
    cluster: str = "slurm"
    poll_seconds: float = 1.0
    parameters: Mapping[str, object] = field(default_factory=dict)

    def run(self, spec: RealTraining, folder: Path) -> dict[int, int]:
        submitit = need_package("submitit", "The engine slurm")
        (folder / _ADDRESS).unlink(missing_ok=True)
        job = self._submit(submitit, spec, folder)
        try:
            while not job.done():
                time.sleep(self.poll_seconds)
        except BaseException:
            with contextlib.suppress(Exception):
                job.cancel()
            raise
        return self._codes(submitit, job, spec)

    def _submit(self, submitit: ModuleType, spec: RealTraining, folder: Path) -> Any:
        # Every node has as many tasks; those beyond the processes of the training end at once.
        tasks = -(-spec.processes // self.nodes)
        gpus = {"gpus_per_node": tasks} if spec.backend == "nccl" else {}
        try:
            executor = submitit.AutoExecutor(folder=str(folder.absolute() / "slurm"), cluster=self.cluster)
            own = dict(self.parameters) if self.cluster == "slurm" else {}
            executor.update_parameters(
                nodes=self.nodes,
                tasks_per_node=tasks,
                timeout_min=self.timeout_min,
                name="windtunnel",
                **gpus,
                **own,
            )
            return executor.submit(run_task, str(folder.absolute()), self.cluster == "local")
        except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
            raise Unavailable(
                f"Slurm does not take the job: {error}",
                hint="Is sbatch on this machine's path, and is the partition right?",
            ) from error

    def _codes(self, submitit: ModuleType, job: Any, spec: RealTraining) -> dict[int, int]:
        codes = {}
        for rank in range(spec.processes):
            try:
                codes[rank] = int(job.task(rank).result())
            except Exception:  # submitit has several errors for a task without a result
                codes[rank] = LOST_NODE
        return codes


def run_task(folder: str, is_local: bool) -> int:
    """What each task of the job does: it starts one worker and returns its exit code."""
    here = importlib.import_module("submitit").JobEnvironment()
    path, rank = Path(folder), int(here.global_rank)
    spec = RealTraining.load(path / NAME)
    if rank >= spec.processes:
        return 0
    host = _LOOPBACK if is_local else socket.gethostname()
    meeting = open_store(host) if rank == 0 else None
    if meeting is not None:
        records.save(path / _ADDRESS, {"address": host, "port": meeting[1]})
    while not (path / _ADDRESS).is_file():
        time.sleep(0.1)
    found = records.load(path / _ADDRESS)
    process = start_process(spec, path, rank, int(here.local_rank), found["address"], found["port"], 1)
    code = process.wait()
    del meeting  # it stays open until this worker has ended
    return code


def _slurm_settings(text: str) -> Plain:
    """Our own settings, and the rest for Slurm itself: `slurm:nodes=2,partition=gpu,gres=gpu:1`."""
    own = {"nodes": int, "timeout_min": int, "cluster": str, "poll_seconds": float}
    settings: Plain = {"parameters": {}}
    for word in filter(None, text.split(",")):
        key, equals, value = word.partition("=")
        try:
            if not equals or not value:
                raise ValueError
            if key in own:
                settings[key] = own[key](value)
            else:
                settings["parameters"][f"slurm_{key}"] = value
        except ValueError:
            raise BadInput(
                f"slurm: {word!r} is not a setting.", hint="Write them like slurm:nodes=2,partition=gpu"
            ) from None
    if min(settings.get("nodes", 1), settings.get("timeout_min", 1)) < 1:
        raise BadInput("slurm: nodes and timeout_min must be above 0.")
    return settings
