"""Chunks of work in folders: their results, including those of jobs whose coordinator was killed."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from windtunnel import ownership, records
from windtunnel.errors import BadRecord
from windtunnel.study.run.engine import Outcome, Work
from windtunnel.study.run.plain_work import lost, outcome_of, to_plain

CHUNK, CHUNK_FILE = "chunk-", "chunk.json"


def gather_chunk(job: Any, chunk: Sequence[Work], folder: Path, settle_seconds: float) -> Iterator[Outcome]:
    """The outcomes that the job wrote. On a shared disk they may appear with a delay."""
    paths = [folder / f"{place}.json" for place in range(len(chunk))]
    end = time.monotonic() + settle_seconds
    while not all(path.is_file() for path in paths) and time.monotonic() < end:
        time.sleep(settle_seconds / 10)
    for path, piece in zip(paths, chunk, strict=True):
        yield (
            outcome_of(piece, records.load(path))
            if path.is_file()
            else lost(piece, f"job {job.job_id} ended as {job.state} before it had a result")
        )


class EarlierChunks:
    """Chunks of a coordinator that has ended: the results of their jobs are collected, not measured again.

    A piece whose job still runs is waited for. A piece whose job ended without it is handed out again.
    """

    def __init__(self, folder: Path, submitit: ModuleType, cluster: str) -> None:
        self.log, self.submitit, self.cluster = folder.absolute() / "log", submitit, cluster
        self.waiting: dict[str, tuple[Work, Path, Any]] = {}  # by the text of the piece
        self.known = dict(self._find(folder.absolute()))
        self.done: list[tuple[Work, Path]] = []
        self.taken: list[Path] = []

    def leave_out(self, work: Iterable[Work]) -> Iterator[Work]:
        """The pieces that no earlier job has measured or is measuring."""
        for piece in work:
            text = json.dumps(to_plain(piece))
            path, job = self.known.get(text, (None, None))
            if path is not None and path.is_file():
                self.done.append((piece, path))
            elif path is not None and _is_running(job):
                self.waiting[text] = (piece, path, job)
            else:
                yield piece

    def collect(self) -> Iterator[Outcome]:
        """New outcomes. A piece is lost if its job ended without a result."""
        while self.done:
            piece, path = self.done.pop()
            yield self._outcome(piece, path)
        for text, (piece, path, job) in list(self.waiting.items()):
            if path.is_file():
                del self.waiting[text]
                yield self._outcome(piece, path)
            elif not _is_running(job) and not path.is_file():
                del self.waiting[text]
                yield lost(piece, f"job {job.job_id} ended before it had a result")

    def _outcome(self, piece: Work, path: Path) -> Outcome:
        try:
            outcome = outcome_of(piece, records.load(path))
        except (BadRecord, KeyError) as error:
            outcome = lost(piece, f"its result in {path} cannot be read: {error}")
        self.taken.append(path)
        return outcome

    def remove(self) -> None:
        """Remove the chunks that were collected; their outcomes are stored by now."""
        for folder in {path.parent for path in self.taken}:
            pieces = [each for each in self.known.values() if each[0].parent == folder]
            if all(path.is_file() or not _is_running(job) for path, job in pieces):
                shutil.rmtree(folder, ignore_errors=True)

    def _find(self, folder: Path) -> Iterator[tuple[str, tuple[Path, Any]]]:
        for file in sorted(folder.glob(f"{CHUNK}*/{CHUNK_FILE}")):
            with contextlib.suppress(BadRecord, KeyError, TypeError):
                data = records.load(file)
                job = self._job(str(data["job"]))
                for place, text in enumerate(data["pieces"]):
                    yield str(text), (file.with_name(f"{place}.json"), job)

    def _job(self, number: str) -> Any:
        """submitit's job of this number; None if submitit cannot find it."""
        try:
            if self.cluster == "local":
                return _LocalJob(job_id=number)
            return self.submitit.SlurmJob(self.log, number)
        except Exception:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalJob:
    """A job of submitit's local executor, which is a process; submitit itself knows only its own children."""

    job_id: str

    def done(self) -> bool:
        return not self.job_id.isdigit() or not ownership.is_running(int(self.job_id))


def _is_running(job: Any) -> bool:
    with contextlib.suppress(Exception):
        return job is not None and not job.done()
    return False
