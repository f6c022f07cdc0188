"""Who measures a study's cells: an engine takes pieces of work and gives back outcomes, one by one, in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from windtunnel.errors import MeasurementFailed
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol as Steps


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

    With `ahead` above 1, so many children for the GPU are started at a time: all but one of them only import their framework, which
    takes longer than the timing, and wait for their turn. A child for the CPU is always alone.
    """

    ahead: int = 1

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder, ThreadPoolExecutor(self.ahead) as pool:
            turn, flying = str(Path(folder) / "turn"), set[Future[Outcome]]()
            for piece in work:
                alone = self.ahead == 1 or piece.task.device == "cpu"
                yield from _land(flying, 0 if alone else self.ahead - 1)
                if alone:
                    yield carry_out(piece)
                else:
                    flying.add(pool.submit(carry_out, piece, turn))
            yield from _land(flying, 0)


def _land(flying: set[Future[Outcome]], most: int) -> Iterator[Outcome]:
    """Wait until no more than so many are under way."""
    while len(flying) > most:
        for done in wait(flying, return_when=FIRST_COMPLETED).done:
            flying.remove(done)
            yield done.result()


def carry_out(work: Work, turn: str = "") -> Outcome:
    """Run one child and tell how it went; one with a `turn` waits until no other holds that file."""
    from windtunnel.measurement import frameworks

    try:
        return Outcome(work=work, report=frameworks.run_task(work.task, work.protocol, number=work.number, turn=turn))
    except MeasurementFailed as error:
        return Outcome(work=work, state=error.state, error=error.message)
