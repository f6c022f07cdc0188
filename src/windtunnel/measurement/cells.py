"""Records of a store's cells: as they are stored, new ones, and the outcome of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windtunnel.measurement.summary import Summary
from windtunnel.records import Plain

WAITING, DONE = "waiting", "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """One cell as stored, its `task` as text and as plain data; `summary` is there once it is done.

    A single measurement also has its whole `result` as plain data.
    """

    id: int
    key: str
    text: str
    task: Plain
    level: str
    state: str
    error: str = ""
    finished: str = ""
    environment: Plain = field(default_factory=dict)
    summary: Summary | None = None
    result: Plain | None = None

    @property
    def loop_kind(self) -> tuple[Any, ...]:
        """The machine and the Python that ran the reference loop: all its processes share one quiet value,
        whatever their framework and threads."""
        python = self.summary.ready.versions.get("python") if self.summary else None
        return self.environment.get("cpu"), python

    def by(self, whole: Summary) -> StoredCell:
        """The same cell by another summary. Field by field, since a study has thousands of cells."""
        return StoredCell(
            id=self.id,
            key=self.key,
            text=self.text,
            task=self.task,
            level=self.level,
            state=self.state,
            error=self.error,
            finished=self.finished,
            environment=self.environment,
            summary=whole,
            result=self.result,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCell:
    """A cell to be registered: its key, its place in a study, and the facts of its measurement as text."""

    key: str
    figure: str
    case: str
    task: str
    level: str
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The new state of a cell."""

    cell: int
    state: str = DONE
    error: str = ""
    summary: Summary | None = None
    result: Plain | None = None
