"""Engines measure a study's cells: they take pieces of work and return outcomes in any order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from windtunnel.errors import MeasurementFailed
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport
from windtunnel.measurement.steady import Protocol as Steps
from windtunnel.ownership import temporary_folder

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One fresh process for one cell: `key` names the cell, `number` counts its processes from 0."""

    key: str
    number: int
    task: Task
    protocol: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a piece of work: the child's report, or the name of its failure."""

    work: Work
    report: ProcessReport | None = None
    state: str = "done"
    error: str = ""


class StudyEngine(Protocol):
    """Carries out work. Never raises for a failed child: that is an outcome."""

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """One child after another on this machine, so that none disturbs another.

    With `ahead` above 1, this number of children for the GPU are started at a time. Importing, building and
    compiling take longer than the timing; all children but one do that, then wait for the lock. A child for
    the CPU runs alone. With `share` above 1, this number of cells of one framework are timed one after
    another in one process. That is faster if starting takes longest, but less independent.
    """

    ahead: int = 1
    share: int = 1

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        with (
            temporary_folder() as folder,
            ThreadPoolExecutor(self.ahead) as pool,
        ):
            lock, running, stop = str(folder / "lock"), set[Future[list[Outcome]]](), Event()
            try:
                for group in _grouped(work, self.share):
                    alone = self.ahead == 1 or group[0].task.device == "cpu"
                    yield from _collect(running, 0 if alone else self.ahead - 1)
                    if alone:
                        yield from carry_out_all(group)
                    else:
                        running.add(pool.submit(carry_out_all, group, lock, stop))
                yield from _collect(running, 0)
            except BaseException:
                _end(running, stop)
                raise


def _grouped(work: Iterable[Work], most: int) -> Iterator[list[Work]]:
    """Groups of pieces that may share a process, at most `share` in each, in the order in which they fill."""
    from windtunnel.measurement import frameworks

    waiting: dict[Hashable, list[Work]] = {}
    for piece in work:
        kind = (frameworks.kind_of(piece.task), piece.protocol)
        waiting.setdefault(kind, []).append(piece)
        if len(waiting[kind]) >= most:
            yield waiting.pop(kind)
    yield from waiting.values()


def _collect(running: set[Future[list[Outcome]]], most: int) -> Iterator[Outcome]:
    """Wait until at most this many are running."""
    while len(running) > most:
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            running.remove(done)
            yield from done.result()


def _end(running: set[Future[list[Outcome]]], stop: Event) -> None:
    """End all running children: an interrupt must not wait for children that still compile."""
    from windtunnel.measurement import children

    stop.set()
    # Repeated, because a thread may have been about to start a child.
    while wait(running, timeout=_POLL_SECONDS).not_done:
        children.end_all()


def carry_out_all(group: Sequence[Work], lock: str = "", stop: Event | None = None) -> list[Outcome]:
    """Run a group in one child. Those it did not reach get their own child, unless it is time to `stop`."""
    from windtunnel.measurement import frameworks

    if len(group) == 1:
        return [carry_out(group[0], lock)]
    try:
        results = frameworks.run_shared(
            [work.task for work in group], group[0].protocol, number=group[0].number, lock=lock
        )
    except MeasurementFailed:
        results = [None] * len(group)
    if stop is not None and stop.is_set():
        return []
    outcomes = []
    for work, result in zip(group, results, strict=True):
        if result is None:
            outcomes.append(carry_out(work, lock))
        elif isinstance(result, MeasurementFailed):
            outcomes.append(Outcome(work=work, state=result.state, error=result.message))
        else:
            outcomes.append(Outcome(work=work, report=result))
    return outcomes


def carry_out(work: Work, lock: str = "") -> Outcome:
    """Run one child. One with a `lock` waits until no other child holds that file."""
    from windtunnel.measurement import frameworks

    try:
        report = frameworks.run_task(work.task, work.protocol, number=work.number, lock=lock)
        return Outcome(work=work, report=report)
    except MeasurementFailed as error:
        return Outcome(work=work, state=error.state, error=error.message)
