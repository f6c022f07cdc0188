"""The store of measurements: cells of studies and single measurements with all processes and raw samples."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import sqlite3
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import StoreError
from windtunnel.measurement import migration
from windtunnel.measurement.database import Database
from windtunnel.measurement.report import STEADY, ProcessReport, Samples
from windtunnel.measurement.summary import Summary
from windtunnel.measurement.tables import SCHEMA
from windtunnel.records import Plain

WAITING, DONE = "waiting", "done"
_OF_STUDY, _SINGLE = "study", "single"
_LATEST = 200  # this many cells show how fast this machine's reference loop is


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCell:
    """A cell to be registered: its key, its place in a study, and the facts it is measured under, as text."""

    key: str
    figure: str
    case: str
    task: str
    level: str
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How a cell stands from now on."""

    cell: int
    state: str = DONE
    error: str = ""
    summary: Summary | None = None
    result: Plain | None = None


def default_path() -> Path:
    """The store in the user's own data directory, or where WINDTUNNEL_STORE says."""
    named = os.environ.get("WINDTUNNEL_STORE")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", str(Path.home())))
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "windtunnel" / "store.sqlite"


class Store(Database):
    """Cells, keyed by task, protocol, code and environment. One process writes a study at a time.

    Studies had a file of their own once, study.sqlite. The default store takes its data over and leaves the
    file.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path or default_path(), SCHEMA)
        if self.path == default_path():
            self._take_over_former(self.path.with_name(migration.FORMER_NAME))

    def _take_over_former(self, former: Path) -> None:
        if former == self.path or not former.is_file() or migration.is_taken_over(self._db, former):
            return
        with self._writing() as db:
            migration.take_over(db, former, SCHEMA)

    # Single measurements

    def begin(
        self, key: str, task: Mapping[str, object], facts: Mapping[str, object], level: str = ""
    ) -> int:
        """A new measurement, which this process is at."""
        with self._writing() as db:
            environment = migration.environment_of(db, dump(facts))
            row = db.execute(
                "INSERT INTO cell (kind, key, created, task, level, environment, state) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (_SINGLE, key, now(), dump(task), level, environment, WAITING),
            )
            number = int(row.lastrowid or 0)
            self._lock(db, _lock_name(number))
            return number

    def take_over(self, key: str) -> int | None:
        """The latest measurement of this key that was interrupted with at least one process done, now this
        process's own. One whose owner is still alive is not interrupted, and is left alone."""
        query = """
            SELECT id FROM cell WHERE kind = ? AND key = ? AND state = ?
            AND EXISTS (SELECT 1 FROM process WHERE cell = cell.id AND process.state = ?) ORDER BY id DESC
        """
        with self._writing() as db:
            for (number,) in db.execute(query, (_SINGLE, key, WAITING, DONE)).fetchall():
                if not self._holder(_lock_name(number)):
                    self._lock(db, _lock_name(number))
                    return int(number)
        return None

    def finish(self, settled: Settled) -> None:
        """Name how a single measurement ended: done with a result, or by the name of its failure."""
        with self._writing() as db:
            self._settle(db, settled)
            db.execute("DELETE FROM lock WHERE name = ?", (_lock_name(settled.cell),))

    def results(self) -> list[StoredCell]:
        """All single measurements, newest first."""
        with self._clear_errors("read"):
            return [cell for *_, cell in self._select("WHERE kind = ? ORDER BY cell.id DESC", _SINGLE)]

    def loop_seconds(self, kind: tuple[Any, ...]) -> list[float]:
        """Times of the reference loop in the latest cells whose loops compare."""
        with self._clear_errors("read"):
            cells = self._select(
                "WHERE summary IS NOT NULL ORDER BY cell.id DESC LIMIT ?",
                _LATEST,
            )
        return [
            seconds
            for *_, cell in cells
            if cell.summary and cell.loop_kind == kind
            for seconds in cell.summary.loop_seconds
        ]

    # Studies

    @contextlib.contextmanager
    def held(self, study: str, *, take_over: bool = False) -> Iterator[None]:
        """Hold the lock of a study; refused while another process that holds it is alive."""
        with self._writing() as db:
            holder = self._holder(study)
            if holder and not take_over:
                raise StoreError(
                    f"The study {study} is being run by {holder}, into the same store {self.path}.",
                    hint="Wait for it, or use another store with --store FILE. "
                    "If that process is gone for sure, add --take-over.",
                )
            self._lock(db, study)
        try:
            yield
        finally:
            with contextlib.suppress(StoreError), self._writing() as db:
                db.execute("DELETE FROM lock WHERE name = ? AND owner = ?", (study, _own_name()))

    def owner(self, study: str) -> str:
        """Who runs a study just now, in words; empty where nobody does."""
        with self._clear_errors("read"):
            return self._holder(study)

    def seed(self, study: str, fresh: int) -> int:
        """The seed that shuffles a study's cells, the same from its first run on."""
        name = f"seed of {study}"
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, str(fresh)))
            return int(db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])

    def register(self, study: str, cells: Sequence[NewCell]) -> dict[str, StoredCell]:
        """Add these cells, waiting, where they are new; give all of them as they stand, by key."""
        with self._writing() as db:
            known = dict(db.execute("SELECT facts, id FROM environment"))
            for cell in cells:
                if cell.facts not in known:
                    known[cell.facts] = migration.environment_of(db, cell.facts)
                db.execute(
                    "INSERT OR IGNORE INTO cell (kind, key, created, task, level, environment, state) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (_OF_STUDY, cell.key, now(), cell.task, cell.level, known[cell.facts], WAITING),
                )
            places = [(study, cell.figure, cell.case, cell.key, _OF_STUDY) for cell in cells]
            db.executemany(
                "INSERT OR IGNORE INTO place SELECT ?, ?, ?, id FROM cell WHERE key = ? AND kind = ?", places
            )
            wanted = {cell.key for cell in cells}
            return {cell.key: cell for _, _, cell in self._cells(study) if cell.key in wanted}

    def settle(self, cells: Iterable[Settled]) -> None:
        with self._writing() as db:
            for each in cells:
                self._settle(db, each)

    def forget_failures(self, cells: Sequence[int]) -> None:
        """Delete processes that failed; the cells wait again."""
        failed = "SELECT id FROM process WHERE cell = ? AND state != ?"
        with self._writing() as db:
            for cell in cells:
                db.execute(f"DELETE FROM sample WHERE process IN ({failed})", (cell, DONE))
                db.execute("DELETE FROM process WHERE cell = ? AND state != ?", (cell, DONE))
                self._settle(db, Settled(cell=cell, state=WAITING))

    def cells(self, study: str) -> list[tuple[str, str, StoredCell]]:
        """Figure, case and cell of everything a study has in this store."""
        with self._clear_errors("read"):
            return self._cells(study)

    def counts(self, study: str) -> dict[tuple[str, str, str], int]:
        """Cells by figure, level and state."""
        query = """
            SELECT figure, level, state, count(*) FROM place JOIN cell ON cell.id = place.cell
            WHERE study = ? GROUP BY 1, 2, 3
        """
        with self._clear_errors("read"):
            rows = self._db.execute(query, (study,)).fetchall()
        return {(figure, level, state): count for figure, level, state, count in rows}

    def forecasts(self, program: str) -> dict[tuple[str, str], Plain]:
        """What this version of the program forecast before: by task and machine."""
        with self._clear_errors("read"):
            rows = self._db.execute(
                "SELECT task, machine, data FROM forecast WHERE program = ?", (program,)
            ).fetchall()
        return {(task, machine): json.loads(text) for task, machine, text in rows}

    def add_forecasts(self, program: str, forecasts: Mapping[tuple[str, str], Plain]) -> None:
        rows = [(task, machine, program, json.dumps(each)) for (task, machine), each in forecasts.items()]
        with self._writing() as db:
            db.executemany("INSERT OR REPLACE INTO forecast VALUES (?, ?, ?, ?)", rows)

    # Processes of either

    def add(self, cell: int, report: ProcessReport, settled: Settled | None = None) -> None:
        """One process that is done, with all its samples, in one transaction; the last settles its cell."""
        with self._writing() as db:
            text = json.dumps(report.plain(samples=False))
            process = self._add(db, cell, report.number, DONE, "", text)
            for phase, samples in report.samples.items():
                db.execute(
                    "INSERT INTO sample VALUES (?, ?, ?, ?)",
                    (process, phase, samples.steps, array("d", samples.seconds).tobytes()),
                )
            if settled is not None:
                self._settle(db, settled)

    def add_failure(self, number: int, settled: Settled, *, settles: bool = True) -> None:
        """A process that failed; it settles its cell too, unless other processes of it are enough."""
        with self._writing() as db:
            self._add(db, settled.cell, number, settled.state, settled.error, "{}")
            if settles:
                self._settle(db, settled)

    def numbers(self, cells: Iterable[int]) -> dict[int, set[int]]:
        """Which processes each cell has."""
        wanted, numbers = set(cells), dict[int, set[int]]()
        with self._clear_errors("read"):
            for cell, number in self._db.execute("SELECT cell, number FROM process"):
                if cell in wanted:
                    numbers.setdefault(cell, set()).add(number)
        return numbers

    def reports(self, cell: int) -> list[ProcessReport]:
        """The reports of a cell's processes that are done, samples included."""
        with self._clear_errors("read"):
            rows = self._db.execute(
                "SELECT id, number, report FROM process WHERE cell = ? AND state = ? ORDER BY number",
                (cell, DONE),
            ).fetchall()
            return [self._report(process, number, text) for process, number, text in rows]

    def groups(self, cells: Iterable[int], most: int | None) -> dict[int, list[tuple[float, ...]]]:
        """The steady samples of every process of these cells, at most so many of each, evenly taken."""
        wanted, groups = set(cells), dict[int, list[tuple[float, ...]]]()
        query = """
            SELECT cell, seconds FROM process JOIN sample ON process.id = process
            WHERE phase = ? AND state = ? ORDER BY cell, number
        """
        with self._clear_errors("read"):
            for cell, blob in self._db.execute(query, (STEADY, DONE)):
                if cell in wanted:
                    seconds = array("d", blob)
                    chosen = seconds[:: -(-len(seconds) // most)] if most else seconds
                    groups.setdefault(cell, []).append(tuple(chosen))
        return groups

    # Inside a transaction

    def _add(
        self, db: sqlite3.Connection, cell: int, number: int, state: str, error: str, report: str
    ) -> int:
        row = db.execute(
            "INSERT INTO process (cell, number, state, error, report) VALUES (?, ?, ?, ?, ?)",
            (cell, number, state, error, report),
        )
        return int(row.lastrowid or 0)

    def _settle(self, db: sqlite3.Connection, settled: Settled) -> None:
        summary = None if settled.summary is None else json.dumps(settled.summary.plain())
        result = None if settled.result is None else json.dumps(settled.result)
        db.execute(
            "UPDATE cell SET state = ?, error = ?, finished = ?, summary = ?, result = ? WHERE id = ?",
            (settled.state, settled.error, now(), summary, result, settled.cell),
        )

    def _lock(self, db: sqlite3.Connection, name: str) -> None:
        db.execute("INSERT OR REPLACE INTO lock VALUES (?, ?, ?)", (name, _own_name(), now()))

    def _holder(self, name: str) -> str:
        """Which other living process holds a lock, in words; empty where none does."""
        row = self._db.execute("SELECT owner, since FROM lock WHERE name = ?", (name,)).fetchone()
        if not row or not _is_alive(row[0]):
            return ""
        host, pid, _ = row[0].split("|")
        return f"process {pid} on {host} since {row[1]}"

    def _cells(self, study: str) -> list[tuple[str, str, StoredCell]]:
        return self._select("WHERE study = ? ORDER BY figure, cell.id", study)

    def _select(self, where: str, *values: Any) -> list[tuple[str, str, StoredCell]]:
        """Figure, case and cell of what matches; a single measurement has neither figure nor case."""
        facts = {n: json.loads(text) for n, text in self._db.execute("SELECT id, facts FROM environment")}
        query = f"""
            SELECT figure, line, cell.id, key, task, level, state, error, finished, environment,
                summary, result
            FROM cell LEFT JOIN place ON cell.id = place.cell {where}
        """
        cells = []
        for figure, line, *row in self._db.execute(query, values):
            number, key, task, level, state, error, finished, environment, summary, result = row
            cell = StoredCell(
                id=number,
                key=key,
                text=task,
                task=json.loads(task),
                level=level,
                state=state,
                error=error,
                finished=finished,
                environment=facts[environment],
                summary=Summary.read(json.loads(summary)) if summary else None,
                result=json.loads(result) if result else None,
            )
            cells.append((figure or "", line or "", cell))
        return cells

    def _report(self, process: int, number: int, text: str) -> ProcessReport:
        rows = self._db.execute("SELECT phase, steps, seconds FROM sample WHERE process = ?", (process,))
        samples = {p: Samples(steps=steps, seconds=tuple(array("d", blob))) for p, steps, blob in rows}
        report = ProcessReport.read({**json.loads(text), "number": number})
        return dataclasses.replace(report, samples=samples)


def dump(record: Any) -> str:
    """A task or other plain data as text that is always the same for the same."""
    return json.dumps(records.plain(record), sort_keys=True)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _lock_name(cell: int) -> str:
    return f"measurement {cell}"


def _own_name() -> str:
    return f"{platform.node()}|{os.getpid()}|{_started(os.getpid())}"


def _started(pid: int) -> str:
    """When a process began, which distinguishes it from a later one of the same number; empty where it is
    gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


def _is_alive(owner: str) -> bool:
    """Whether another process that owns a lock lives; on another host, where it cannot be seen, yes."""
    host, pid, started = owner.split("|")
    return owner != _own_name() and (
        host != platform.node() or (started != "" and _started(int(pid)) == started)
    )
