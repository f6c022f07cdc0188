"""Engines by name: this machine, a Ray cluster, or Slurm. Work goes out as plain data and outcomes come in
any order.

Whatever the engine, a machine measures one cell at a time, so that cells do not disturb one another. If a
machine fails, only its current piece is lost: it becomes a named failure, and the rest runs elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from windtunnel import records
from windtunnel.errors import BadInput, Unavailable, nearest, need_package
from windtunnel.records import Plain
from windtunnel.study.run.chunks import CHUNK, CHUNK_FILE, EarlierChunks, gather_chunk
from windtunnel.study.run.engine import Local, Outcome, StudyEngine, Work
from windtunnel.study.run.plain_work import carry_out_plain, lost, outcome_of, to_plain

_DOUBT_SECONDS = 30.0
_MOST_AT_ONCE = 64
_PRIVATE = 0o700
_NAMES = ("local", "ray", "slurm")


def engine_for(text: str) -> StudyEngine:
    """`local` or `local:ahead=4,share=10`; `ray` or `ray://HOST:PORT`; `slurm` or
    `slurm:partition=gpu,jobs=4`."""
    name, _, rest = text.partition(":")
    if name == "local":
        return Local(**_local_settings(rest))
    if name == "ray":
        return RayCluster(address=text if rest else "auto")
    if name == "slurm":
        return Slurm(**_slurm_settings(rest))
    raise BadInput(
        f"No engine is called {text!r}.",
        hint=f"{nearest(name, _NAMES)} Write local, local:ahead=4,share=10, ray://HOST:PORT or slurm.",
    )


def _local_settings(text: str) -> dict[str, int]:
    """`ahead=4,share=10`: each once, from 1 on."""
    settings: dict[str, int] = {}
    for word in filter(None, text.split(",")):
        key, _, value = word.partition("=")
        good = key in ("ahead", "share") and key not in settings and value.isascii() and value.isdigit()
        if not good or not 1 <= int(value) <= _MOST_AT_ONCE:
            raise BadInput(
                f"local: {word!r} is not a setting.",
                hint=f"Write local:ahead=4,share=10 with numbers from 1 to {_MOST_AT_ONCE}.",
            )
        settings[key] = int(value)
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """The nodes of a Ray cluster, each with one piece at a time. Nodes with windtunnel may join while it
    runs.

    With no node left for `wait_seconds`, every piece that remains is named as lost.
    """

    address: str = "auto"
    wait_seconds: float = 60.0

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        ray = need_package("ray", "The engine ray")
        own = not ray.is_initialized()
        if own:
            self._connect(ray)
        pieces = _Pieces(ray, self.wait_seconds)
        try:
            yield from pieces.spread(iter(work))
        finally:
            pieces.cancel()
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


class _Pieces:
    """Pieces of work that run on the nodes of one cluster."""

    def __init__(self, ray: ModuleType, wait_seconds: float) -> None:
        self.ray, self.wait_seconds = ray, wait_seconds
        self.running: dict[Any, tuple[Work, str]] = {}
        # Nodes that lost a piece, and when: a cluster notices a failed node only after a while.
        self.doubted: dict[str, float] = {}
        self.alone_since: float | None = None

    def spread(self, pieces: Iterator[Work]) -> Iterator[Outcome]:
        """Take a piece of work only when a node is free, because the remaining work may depend on the
        outcomes so far."""
        held = next(pieces, None)
        while held is not None or self.running:
            for node in self._free():
                if held is None:
                    break
                self.running[_send(self.ray, node, held)] = (held, node["NodeID"])
                held = next(pieces, None) if self._free() else None
            yield from self._collect()
            if held is None and self._free():
                held = next(pieces, None)
            if held is not None and self._is_alone():
                for piece in (held, *pieces):
                    yield lost(piece, f"no node of the cluster has been alive for {self.wait_seconds:.0f} s")
                held = None

    def cancel(self) -> None:
        """Interrupt what still runs, which ends its child too."""
        for reference in self.running:
            with contextlib.suppress(Exception):
                self.ray.cancel(reference)

    def _free(self) -> list[Plain]:
        busy, now = {node for _, node in self.running.values()}, time.monotonic()
        return [
            node
            for node in _nodes(self.ray)
            if node["NodeID"] not in busy
            and now - self.doubted.get(node["NodeID"], -math.inf) > _DOUBT_SECONDS
        ]

    def _is_alone(self) -> bool:
        if self.running or _nodes(self.ray):
            self.alone_since = None
            return False
        self.alone_since = self.alone_since or time.monotonic()
        return time.monotonic() - self.alone_since > self.wait_seconds

    def _collect(self) -> Iterator[Outcome]:
        """The finished pieces. Waits at most a second, so that new and lost nodes are noticed."""
        if not self.running:
            time.sleep(0.2)
            return
        done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
        alive = {node["NodeID"] for node in _nodes(self.ray)}
        for reference in [r for r, (_, node) in self.running.items() if r in done or node not in alive]:
            piece, node = self.running.pop(reference)
            try:
                if reference not in done:
                    raise ValueError(f"node {node[:8]} left the cluster")
                yield outcome_of(piece, json.loads(self.ray.get(reference)))
            except (self.ray.exceptions.RayError, ValueError) as error:
                self.doubted[node] = time.monotonic()
                yield lost(piece, error)


def _nodes(ray: ModuleType) -> list[Plain]:
    """Nodes that are alive and have processors to offer; a head that only coordinates has none."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def _send(ray: ModuleType, node: Plain, piece: Work) -> Any:
    """Claim all processors of the node, so that nothing else runs there, and a GPU for what needs one."""
    where = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
        node["NodeID"], soft=False
    )
    gpus = 1 if piece.task.device != "cpu" and node["Resources"].get("GPU", 0) >= 1 else 0
    remote = ray.remote(
        num_cpus=node["Resources"]["CPU"], num_gpus=gpus, max_retries=0, scheduling_strategy=where
    )(_carry_out_text)
    return remote.remote(json.dumps(to_plain(piece)))


def _carry_out_text(text: str) -> str:
    """Text in, text out: what crosses between machines is JSON."""
    return json.dumps(carry_out_plain(json.loads(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """Slurm through submitit: `jobs` jobs at a time, each with its own node and a chunk of work, piece by
    piece.

    `folder` must lie on a disk that all nodes share. `cluster` is "slurm", or "local" to try it without one.
    """

    folder: Path = Path("windtunnel-slurm")
    chunk: int = 8
    jobs: int = 4
    cluster: str = "slurm"
    poll_seconds: float = 2.0
    parameters: Mapping[str, object] | None = None

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        submitit = need_package("submitit", "The engine slurm")
        self._make_private()
        earlier = EarlierChunks(self.folder, submitit, self.cluster)
        pieces = earlier.leave_out(work)
        running: list[tuple[Any, list[Work], Path]] = []
        try:
            while True:
                yield from earlier.collect()
                while len(running) < self.jobs and (chunk := list(itertools.islice(pieces, self.chunk))):
                    running.append(self._submit(submitit, chunk))
                yield from earlier.collect()
                if not running and not earlier.waiting:
                    earlier.remove()
                    return
                for entry in [entry for entry in running if entry[0].done()]:
                    running.remove(entry)
                    yield from gather_chunk(*entry, settle_seconds=2 * self.poll_seconds)
                    shutil.rmtree(entry[2], ignore_errors=True)  # all of it is stored
                if running or earlier.waiting:
                    time.sleep(self.poll_seconds)
        finally:
            self._cancel(running)

    def _cancel(self, running: Sequence[tuple[Any, list[Work], Path]]) -> None:
        for job, _, folder in running:
            with contextlib.suppress(Exception):
                job.cancel()
            shutil.rmtree(folder, ignore_errors=True)

    def _submit(self, submitit: ModuleType, chunk: list[Work]) -> tuple[Any, list[Work], Path]:
        results = self.folder.absolute() / f"{CHUNK}{uuid.uuid4().hex[:12]}"
        results.mkdir(parents=True, mode=_PRIVATE)
        texts = [json.dumps(to_plain(piece)) for piece in chunk]
        # If this coordinator is killed, the next one finds this file and collects the job's results.
        records.save(results / CHUNK_FILE, {"job": "", "pieces": texts})
        minutes = sum(piece.protocol.timeout_seconds for piece in chunk) / 60 + 5
        try:
            executor = submitit.AutoExecutor(folder=str(self.folder.absolute() / "log"), cluster=self.cluster)
            slurm = {"slurm_exclusive": True, **(self.parameters or {})} if self.cluster == "slurm" else {}
            executor.update_parameters(timeout_min=int(minutes) + 1, name="windtunnel", **slurm)
            job = executor.submit(carry_out_chunk, texts, str(results))
            records.save(results / CHUNK_FILE, {"job": str(job.job_id), "pieces": texts})
        except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
            raise Unavailable(
                f"Slurm does not take the job: {error}",
                hint="Is sbatch on this machine's path, and is the partition right?",
            ) from error
        return job, chunk, results

    def _make_private(self) -> None:
        """The folder holds the user's settings and error messages: nobody else may read it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
            self.folder.chmod(_PRIVATE)
        except OSError as error:
            raise Unavailable(
                f"The folder {self.folder} cannot be used: {error.strerror or error}.",
                hint="Name another one on a disk that all nodes share: slurm:folder=FOLDER",
            ) from error


def carry_out_chunk(texts: Sequence[str], folder: str) -> int:
    """What runs in a job: one piece after another, each result written at once, so that a job that dies loses
    one."""
    for place, text in enumerate(texts):
        records.write_whole(Path(folder) / f"{place}.json", json.dumps(carry_out_plain(json.loads(text))))
    return len(texts)


def _slurm_settings(text: str) -> Plain:
    """Our own settings, and the rest for Slurm itself: `slurm:partition=gpu,jobs=4,gres=gpu:1`."""
    own = {"chunk": int, "jobs": int, "folder": Path, "cluster": str, "poll_seconds": float}
    settings: Plain = {"parameters": {}}
    for word in filter(None, text.split(",")):
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise BadInput(
                f"slurm: {word!r} is not a setting.", hint="Write them like slurm:partition=gpu,jobs=4"
            )
        try:
            if key in own:
                settings[key] = own[key](value)
            else:
                settings["parameters"][f"slurm_{key}"] = value
        except ValueError:
            raise BadInput(
                f"slurm: {key} cannot be {value!r}.", hint="chunk and jobs are whole numbers."
            ) from None
    if min(settings.get("chunk", 1), settings.get("jobs", 1)) < 1:
        raise BadInput("slurm: chunk and jobs must be above 0.")
    return settings
