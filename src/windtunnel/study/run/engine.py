"""Who measures a study's cells: an engine takes pieces of work and gives back outcomes, one by one, in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from windtunnel.errors import MeasurementFailed
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol as Steps

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
    """What became of it: the child's report, or how it failed by name."""

    work: Work
    report: Mapping[str, Any] = field(default_factory=dict)
    state: str = "done"
    error: str = ""


class Engine(Protocol):
    """Carries out work. Never raises for a failed child: that is an outcome."""

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """One child after another on this machine, so that none disturbs another.

    With `ahead` above 1, so many children for the GPU are started at a time: all but one of them import their framework, build and compile,
    which take longer than the timing, and wait for their turn. A child for the CPU is always alone. With `share` above 1, so many cells of
    one framework are timed one after another in one process, which is quicker where starting takes longest and less independent.
    """

    ahead: int = 1
    share: int = 1

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        with (
            tempfile.TemporaryDirectory(prefix="windtunnel-") as folder,
            ThreadPoolExecutor(self.ahead) as pool,
        ):
            turn, flying, stop = str(Path(folder) / "turn"), set[Future[list[Outcome]]](), Event()
            try:
                for group in _grouped(work, self.share):
                    alone = self.ahead == 1 or group[0].task.device == "cpu"
                    yield from _land(flying, 0 if alone else self.ahead - 1)
                    if alone:
                        yield from carry_out_all(group)
                    else:
                        flying.add(pool.submit(carry_out_all, group, turn, stop))
                yield from _land(flying, 0)
            except BaseException:
                _bring_down(flying, stop)
                raise


def _grouped(work: Iterable[Work], most: int) -> Iterator[list[Work]]:
    """Pieces that may share a process, at most so many to one, in the order in which groups are full."""
    from windtunnel.measurement import frameworks

    waiting: dict[Hashable, list[Work]] = {}
    for piece in work:
        kind = (frameworks.kind_of(piece.task), piece.protocol)
        waiting.setdefault(kind, []).append(piece)
        if len(waiting[kind]) >= most:
            yield waiting.pop(kind)
    yield from waiting.values()


def _land(flying: set[Future[list[Outcome]]], most: int) -> Iterator[Outcome]:
    """Wait until no more than so many are under way."""
    while len(flying) > most:
        for done in wait(flying, return_when=FIRST_COMPLETED).done:
            flying.remove(done)
            yield from done.result()


def _bring_down(flying: set[Future[list[Outcome]]], stop: Event) -> None:
    """End what is under variant: an interrupt must not wait for children that still compile."""
    from windtunnel.measurement import children

    stop.set()
    while wait(
        flying, timeout=_POLL_SECONDS
    ).not_done:  # again and again, for a thread may have been about to start one
        children.end_all()


def carry_out_all(group: Sequence[Work], turn: str = "", stop: Event | None = None) -> list[Outcome]:
    """Run a group in one child; those it never came to have a child of their own, unless it is time to `stop`."""
    from windtunnel.measurement import frameworks

    if len(group) == 1:
        return [carry_out(group[0], turn)]
    try:
        found = frameworks.run_shared(
            [work.task for work in group], group[0].protocol, number=group[0].number, turn=turn
        )
    except MeasurementFailed:
        found = [None] * len(group)
    if stop is not None and stop.is_set():
        return []
    outcomes = []
    for work, each in zip(group, found, strict=True):
        if isinstance(each, dict):
            outcomes.append(Outcome(work=work, report=each))
        else:
            outcomes.append(
                carry_out(work, turn)
                if each is None
                else Outcome(work=work, state=each.state, error=each.message)
            )
    return outcomes


def carry_out(work: Work, turn: str = "") -> Outcome:
    """Run one child and tell how it went; one with a `turn` waits until no other holds that file."""
    from windtunnel.measurement import frameworks

    try:
        return Outcome(
            work=work, report=frameworks.run_task(work.task, work.protocol, number=work.number, turn=turn)
        )
    except MeasurementFailed as error:
        return Outcome(work=work, state=error.state, error=error.message)
