"""Who measures a study's cells: an engine takes pieces of work and gives back outcomes, one by one, in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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


class Local:
    """One child after another on this machine, so that none disturbs another."""

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        for piece in work:
            yield carry_out(piece)


def carry_out(work: Work) -> Outcome:
    """Run one child and tell how it went."""
    from windtunnel.measurement import frameworks

    try:
        return Outcome(work=work, report=frameworks.run_task(work.task, work.protocol, number=work.number))
    except MeasurementFailed as error:
        return Outcome(work=work, state=error.state, error=error.message)
