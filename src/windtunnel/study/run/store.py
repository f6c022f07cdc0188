"""Where studies lie: cells, the processes of each and every raw sample. One coordinator writes a study at a time."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import StoreError
from windtunnel.measurement.database import Database
from windtunnel.measurement.store import default_path as measurements_path

VERSION = 1
WAITING, DONE = "waiting", "done"
_APPLICATION = 0x57494E53  # "WINS"
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE lock (study TEXT PRIMARY KEY, owner TEXT NOT NULL, since TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE surroundings (id INTEGER PRIMARY KEY, facts TEXT NOT NULL UNIQUE);
CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    task TEXT NOT NULL,
    level TEXT NOT NULL,
    surroundings INTEGER NOT NULL REFERENCES surroundings (id),
    state TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    finished TEXT NOT NULL DEFAULT '',
    summary TEXT
);
CREATE TABLE place (
    study TEXT NOT NULL,
    figure TEXT NOT NULL,
    line TEXT NOT NULL,
    cell INTEGER NOT NULL REFERENCES cell (id),
    PRIMARY KEY (study, figure, line, cell)
) WITHOUT ROWID;
CREATE TABLE process (
    id INTEGER PRIMARY KEY,
    cell INTEGER NOT NULL REFERENCES cell (id),
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    report TEXT NOT NULL,
    UNIQUE (cell, number)
);
CREATE TABLE sample (
    process INTEGER NOT NULL REFERENCES process (id),
    phase TEXT NOT NULL,
    steps INTEGER NOT NULL,
    seconds BLOB NOT NULL,
    PRIMARY KEY (process, phase)
) WITHOUT ROWID;
CREATE TABLE forecast (
    task TEXT NOT NULL,
    machine TEXT NOT NULL,
    program TEXT NOT NULL,
    found TEXT NOT NULL,
    PRIMARY KEY (task, machine, program)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One cell as stored, its `task` as text and as plain data; `summary` is there once it is done."""

    id: int
    key: str
    text: str
    task: Mapping[str, Any]
    level: str
    state: str
    error: str = ""
    finished: str = ""
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A cell to be registered: its key, where in a study it belongs, and under which facts it would be measured. Both as text."""

    key: str
    figure: str
    case: str
    task: str
    level: str
    facts: str


def default_path() -> Path:
    """Beside the store of measurements."""
    return measurements_path().with_name("study.sqlite")


class StudyStore(Database):
    """Cells of studies, keyed by task, protocol, code and surroundings."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(
            path or default_path(),
            _SCHEMA,
            what="a store of studies",
            application=_APPLICATION,
            version=VERSION,
        )

    @contextlib.contextmanager
    def held(self, study: str, *, take_over: bool = False) -> Iterator[None]:
        """The right to write a study, ours until the end; refused while another coordinator is alive."""
        own = _own_name()
        with self._writing() as db:
            found = db.execute("SELECT owner, since FROM lock WHERE study = ?", (study,)).fetchone()
            if found and not take_over and _is_at_work(found[0]):
                host, pid, _ = found[0].split("|")
                raise StoreError(
                    f"The study {study} is being run by process {pid} on {host} since {found[1]}, into the same store {self.path}.",
                    hint="Wait for it, or use another store with --store FILE. If that process is gone for sure, add --take-over.",
                )
            db.execute("INSERT OR REPLACE INTO lock VALUES (?, ?, ?)", (study, own, now()))
        try:
            yield
        finally:
            with contextlib.suppress(StoreError), self._writing() as db:
                db.execute("DELETE FROM lock WHERE study = ? AND owner = ?", (study, own))

    def seed(self, study: str, fresh: int) -> int:
        """The seed that shuffles a study's cells, the same from its first run on."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (f"seed of {study}", str(fresh)))
            return int(
                db.execute("SELECT value FROM meta WHERE name = ?", (f"seed of {study}",)).fetchone()[0]
            )

    def register(self, study: str, entries: Sequence[Entry]) -> dict[str, Kept]:
        """All these cells are in the store from now on, waiting where they are new; gives them as they stand, by key."""
        with self._writing() as db:
            known = {facts: number for number, facts in db.execute("SELECT id, facts FROM surroundings")}
            for entry in entries:
                if entry.facts not in known:
                    known[entry.facts] = int(
                        db.execute("INSERT INTO surroundings (facts) VALUES (?)", (entry.facts,)).lastrowid
                        or 0
                    )
                row = (entry.key, now(), entry.task, entry.level, known[entry.facts], WAITING)
                db.execute(
                    "INSERT OR IGNORE INTO cell (key, created, task, level, surroundings, state) VALUES (?, ?, ?, ?, ?, ?)",
                    row,
                )
            places = [(study, entry.figure, entry.case, entry.key) for entry in entries]
            db.executemany("INSERT OR IGNORE INTO place SELECT ?, ?, ?, id FROM cell WHERE key = ?", places)
            wanted = {entry.key for entry in entries}
            return {kept.key: kept for _, _, kept in self._cells(study) if kept.key in wanted}

    def add(
        self,
        cell: int,
        number: int,
        report: Mapping[str, Any],
        *,
        state: str = DONE,
        error: str = "",
        summary: Mapping[str, Any] | None = None,
        settles: bool = True,
    ) -> None:
        """One process with all its samples, in one transaction; one that failed settles its cell, and so does the last, with a summary."""
        slim = {key: value for key, value in report.items() if key != "samples"}
        with self._writing() as db:
            row = db.execute(
                "INSERT INTO process (cell, number, state, error, report) VALUES (?, ?, ?, ?, ?)",
                (cell, number, state, error, json.dumps(slim)),
            )
            for phase, entry in report.get("samples", {}).items():
                db.execute(
                    "INSERT INTO sample VALUES (?, ?, ?, ?)",
                    (row.lastrowid, phase, entry["steps"], array("d", entry["seconds"]).tobytes()),
                )
            if settles and (state != DONE or summary is not None):
                self._settle(db, cell, state, error, summary)

    def settle(self, cells: Iterable[tuple[int, str, str, Mapping[str, Any] | None]]) -> None:
        """How cells stand: id, state, error, summary."""
        with self._writing() as db:
            for each in cells:
                self._settle(db, *each)

    def _settle(
        self, db: sqlite3.Connection, cell: int, state: str, error: str, summary: Mapping[str, Any] | None
    ) -> None:
        told = None if summary is None else json.dumps(summary)
        db.execute(
            "UPDATE cell SET state = ?, error = ?, finished = ?, summary = ? WHERE id = ?",
            (state, error, now(), told, cell),
        )

    def forget_failures(self, cells: Sequence[int]) -> None:
        """Processes that failed are as if they had not been; the cells wait again."""
        with self._writing() as db:
            for cell in cells:
                db.execute(
                    "DELETE FROM sample WHERE process IN (SELECT id FROM process WHERE cell = ? AND state != ?)",
                    (cell, DONE),
                )
                db.execute("DELETE FROM process WHERE cell = ? AND state != ?", (cell, DONE))
                self._settle(db, cell, WAITING, "", None)

    def numbers(self, cells: Iterable[int]) -> dict[int, set[int]]:
        """Which processes each cell has."""
        wanted, found = set(cells), dict[int, set[int]]()
        with self._told("read"):
            for cell, number in self._db.execute("SELECT cell, number FROM process"):
                if cell in wanted:
                    found.setdefault(cell, set()).add(number)
        return found

    def cells(self, study: str) -> list[tuple[str, str, Kept]]:
        """Figure, case and cell of everything a study has in this store."""
        with self._told("read"):
            return self._cells(study)

    def counts(self, study: str) -> dict[tuple[str, str, str], int]:
        """Cells by figure, level and state."""
        query = "SELECT figure, level, state, count(*) FROM place JOIN cell ON cell.id = place.cell WHERE study = ? GROUP BY 1, 2, 3"
        with self._told("read"):
            return {
                (figure, level, state): count
                for figure, level, state, count in self._db.execute(query, (study,))
            }

    def owner(self, study: str) -> str:
        """Who runs a study just now, in words; nothing where nobody does."""
        with self._told("read"):
            found = self._db.execute("SELECT owner, since FROM lock WHERE study = ?", (study,)).fetchone()
        if not found or not _is_at_work(found[0]):
            return ""
        host, pid, _ = found[0].split("|")
        return f"process {pid} on {host} since {found[1]}"

    def reports(self, cell: int) -> list[dict[str, Any]]:
        """The reports of a cell's processes that are done, samples included."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT id, number, report FROM process WHERE cell = ? AND state = ? ORDER BY number",
                (cell, DONE),
            ).fetchall()
            return [
                {**json.loads(report), "number": number, "samples": self._samples(process)}
                for process, number, report in rows
            ]

    def groups(self, cells: Iterable[int], most: int | None) -> dict[int, list[tuple[float, ...]]]:
        """The steady samples of every process of these cells, at most so many of each, evenly taken."""
        wanted, found = set(cells), dict[int, list[tuple[float, ...]]]()
        query = "SELECT cell, seconds FROM process JOIN sample ON process.id = process WHERE phase = 'steady' AND state = ? ORDER BY cell, number"
        with self._told("read"):
            for cell, blob in self._db.execute(query, (DONE,)):
                if cell in wanted:
                    seconds = array("d", blob)
                    found.setdefault(cell, []).append(
                        tuple(seconds[:: -(-len(seconds) // most)] if most else seconds)
                    )
        return found

    def forecasts(self, program: str) -> dict[tuple[str, str], dict[str, Any]]:
        """What this version of the program forecast before: by task and machine."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT task, machine, found FROM forecast WHERE program = ?", (program,)
            ).fetchall()
        return {(task, machine): json.loads(found) for task, machine, found in rows}

    def add_forecasts(self, program: str, found: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        with self._writing() as db:
            rows = [(task, machine, program, json.dumps(each)) for (task, machine), each in found.items()]
            db.executemany("INSERT OR REPLACE INTO forecast VALUES (?, ?, ?, ?)", rows)

    def _cells(self, study: str) -> list[tuple[str, str, Kept]]:
        facts = {
            number: json.loads(text)
            for number, text in self._db.execute("SELECT id, facts FROM surroundings")
        }
        query = """
            SELECT figure, line, cell.id, key, task, level, state, error, finished, surroundings, summary
            FROM place JOIN cell ON cell.id = place.cell WHERE study = ? ORDER BY figure, cell.id
        """
        return [
            (
                figure,
                line,
                Kept(
                    id=row,
                    key=key,
                    text=task,
                    task=json.loads(task),
                    level=level,
                    state=state,
                    error=error,
                    finished=finished,
                    surroundings=facts[around],
                    summary=json.loads(summary) if summary else None,
                ),
            )
            for figure, line, row, key, task, level, state, error, finished, around, summary in self._db.execute(
                query, (study,)
            )
        ]

    def _samples(self, process: int) -> dict[str, Any]:
        rows = self._db.execute("SELECT phase, steps, seconds FROM sample WHERE process = ?", (process,))
        return {phase: {"steps": steps, "seconds": list(array("d", blob))} for phase, steps, blob in rows}


def dump(record: Any) -> str:
    """A task, or what else is plain data, as text that is always the same for the same."""
    return json.dumps(records.plain(record), sort_keys=True)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _own_name() -> str:
    return f"{platform.node()}|{os.getpid()}|{_started(os.getpid())}"


def _started(pid: int) -> str:
    """When a process began, by which it is told from a later one with the same number; empty where it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


def _is_at_work(owner: str) -> bool:
    """Whether the owner of a lock is alive; on another host that cannot be seen, so it is taken to be."""
    host, pid, started = owner.split("|")
    return owner != _own_name() and (
        host != platform.node() or (started != "" and _started(int(pid)) == started)
    )
