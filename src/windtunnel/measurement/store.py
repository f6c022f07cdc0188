"""The store of measurements: cells of studies and single measurements with all processes and raw samples."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel import folders, ownership, records
from windtunnel.errors import StoreError
from windtunnel.garbage_collection import many_lasting_objects
from windtunnel.measurement import checksums, migration
from windtunnel.measurement.cells import DONE as DONE
from windtunnel.measurement.cells import WAITING as WAITING
from windtunnel.measurement.cells import NewCell as NewCell
from windtunnel.measurement.cells import Settled as Settled
from windtunnel.measurement.cells import StoredCell as StoredCell
from windtunnel.measurement.database import Database, what_to_do
from windtunnel.measurement.report import STEADY, ProcessReport, Samples
from windtunnel.measurement.summary import Summary
from windtunnel.measurement.tables import SCHEMA
from windtunnel.records import Plain

_OF_STUDY, _SINGLE = "study", "single"
_AT_ONCE = 500  # cells whose samples are read by one statement
_LATEST = 200  # this many cells show how fast this machine's reference loop is


def default_path() -> Path:
    """The store in the user's own folder, or where WINDTUNNEL_STORE says."""
    return folders.store_file()


class Store(Database):
    """The measurements of a user in one file, so that what was measured once is not measured again.

    Cells are keyed by task, protocol, code and environment. One process writes a study at a time.

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
            self._check_count("cell", int(self._db.execute("SELECT count(*) FROM cell").fetchone()[0]))
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
                db.execute("DELETE FROM lock WHERE name = ? AND owner = ?", (study, ownership.own_name()))

    def owner(self, study: str) -> str:
        """Who runs a study just now, in words; empty where nobody does."""
        with self._clear_errors("read"):
            return self._holder(study)

    def seed(self, study: str, fresh: int) -> int:
        """The seed that shuffles a study's cells, the same from its first run on."""
        name = f"seed of {study}"
        with self._writing() as db:
            notes = db.execute(f"SELECT name, {checksums.is_whole('meta')} FROM meta").fetchall()
            self._check_count("meta", len(notes))
            for note, whole in notes:
                self._check(whole, "meta", note)
            db.execute("INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", (name, str(fresh)))
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
                "INSERT OR IGNORE INTO place (study, figure, line, cell) "
                "SELECT ?, ?, ?, id FROM cell WHERE key = ? AND kind = ?",
                places,
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
        whole = f"min({checksums.is_whole('cell')} AND {checksums.is_whole('place')})"
        query = f"""
            SELECT figure, level, state, count(*), {whole} FROM place JOIN cell ON cell.id = place.cell
            WHERE study = ? GROUP BY 1, 2, 3
        """
        with self._clear_errors("read"):
            rows = self._db.execute(query, (study,)).fetchall()
            self._check_count(f"place of {study}", sum(row[3] for row in rows))
        for figure, *_, all_whole in rows:
            self._check(all_whole, "cell", f"of {figure}")
        return {(figure, level, state): count for figure, level, state, count, _ in rows}

    def failures(self, study: str, fine: Collection[str]) -> list[tuple[str, str, StoredCell]]:
        """Figure, case and cell of all cells that are in none of these states."""
        marks = ", ".join("?" * len(fine))
        with self._clear_errors("read"):
            return self._select(
                f"WHERE study = ? AND state NOT IN ({marks}) ORDER BY figure, cell.id", study, *fine
            )

    def forecasts(self, program: str) -> dict[tuple[str, str], Plain]:
        """What this version of the program forecast before: by task and machine."""
        whole = checksums.is_whole("forecast")
        with self._clear_errors("read"):
            rows = self._db.execute(
                f"SELECT task, machine, data, {whole} FROM forecast WHERE program = ?", (program,)
            ).fetchall()
        for task, machine, _, is_whole in rows:
            self._check(is_whole, "forecast", f"for {machine}: {task[:60]}")
        return {(task, machine): json.loads(text) for task, machine, text, _ in rows}

    def add_forecasts(self, program: str, forecasts: Mapping[tuple[str, str], Plain]) -> None:
        rows = [(task, machine, program, json.dumps(each)) for (task, machine), each in forecasts.items()]
        with self._writing() as db:
            db.executemany(
                "INSERT INTO forecast (task, machine, program, data) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (task, machine, program) DO UPDATE SET data = excluded.data",
                rows,
            )

    # Processes of either

    def add(
        self,
        cell: int,
        report: ProcessReport,
        settled: Settled | None = None,
        known: Collection[int] | None = None,
    ) -> bool:
        """One process that is done, with all its samples, in one transaction; the last settles its cell.

        Another study may run the same cell at the same time. If the cell has other processes than those
        `known`, nothing is stored and the answer is False.
        """
        with self._writing() as db:
            if not self._is_known(db, cell, known):
                return False
            text = json.dumps(report.plain(samples=False))
            process = self._add(db, cell, report.number, DONE, "", text)
            for phase, samples in report.samples.items():
                db.execute(
                    "INSERT INTO sample (process, phase, steps, seconds) VALUES (?, ?, ?, ?)",
                    (process, phase, samples.steps, array("d", samples.seconds).tobytes()),
                )
            if settled is not None:
                self._settle(db, settled)
        return True

    def add_failure(
        self, number: int, settled: Settled, *, settles: bool = True, known: Collection[int] | None = None
    ) -> bool:
        """A process that failed; it settles its cell too, unless other processes of it are enough."""
        with self._writing() as db:
            if not self._is_known(db, settled.cell, known):
                return False
            self._add(db, settled.cell, number, settled.state, settled.error, "{}")
            if settles:
                self._settle(db, settled)
        return True

    def cell(self, number: int) -> StoredCell:
        """One cell as it stands now."""
        with self._clear_errors("read"):
            return self._select("WHERE cell.id = ?", number)[0][2]

    def numbers(self, cells: Iterable[int]) -> dict[int, set[int]]:
        """Which processes each cell has."""
        wanted, numbers = set(cells), dict[int, set[int]]()
        with self._clear_errors("read"):
            if len(wanted) == 1:
                query = "SELECT cell, number FROM process WHERE cell = ?"
                rows = self._db.execute(query, tuple(wanted)).fetchall()
            else:
                rows = self._db.execute("SELECT cell, number FROM process").fetchall()
                self._check_count("process", len(rows))
        for cell, number in rows:
            if cell in wanted:
                numbers.setdefault(cell, set()).add(number)
        return numbers

    def reports(self, cell: int) -> list[ProcessReport]:
        """The reports of a cell's processes that are done, samples included."""
        with self._clear_errors("read"):
            return self._reports([cell], ProcessReport.read).get(cell, [])

    def samples_of_all(self, cells: Sequence[int]) -> Iterator[list[ProcessReport]]:
        """The reports of each of many cells, with what belongs to their samples and nothing else. So many at
        once are in memory."""
        for start in range(0, len(cells), _AT_ONCE):
            some = cells[start : start + _AT_ONCE]
            with self._clear_errors("read"):
                known = self._reports(some, ProcessReport.read_of_samples)
            for cell in some:
                yield known.get(cell, [])

    def _reports(
        self, cells: Sequence[int], read: Callable[[Plain, Mapping[str, Samples]], ProcessReport]
    ) -> dict[int, list[ProcessReport]]:
        which = f"FROM process WHERE cell IN ({', '.join('?' * len(cells))}) AND state = ?"
        samples = defaultdict[int, dict[str, Samples]](dict)
        query = f"SELECT process, phase, steps, seconds, {checksums.is_whole('sample')} FROM sample "
        for process, phase, steps, blob, whole in self._db.execute(
            f"{query} WHERE process IN (SELECT id {which})", (*cells, DONE)
        ):
            self._check(whole, "sample", f"{phase} of process {process}")
            samples[process][phase] = Samples(steps=steps, seconds=tuple(array("d", blob)))
        reports = defaultdict[int, list[ProcessReport]](list)
        query = f"SELECT cell, id, number, report, {checksums.is_whole('process')} {which} ORDER BY number"
        for cell, process, number, text, whole in self._db.execute(query, (*cells, DONE)):
            self._check(whole, "process", process)
            data = json.loads(text)
            data["number"] = number
            reports[cell].append(read(data, samples.get(process, {})))
        return reports

    def groups(self, cells: Iterable[int], most: int | None) -> dict[int, list[tuple[float, ...]]]:
        """The steady samples of every process of these cells, at most so many of each, evenly taken."""
        wanted, groups = set(cells), dict[int, list[tuple[float, ...]]]()
        query = f"""
            SELECT cell, seconds, number, {checksums.is_whole("process")} AND {checksums.is_whole("sample")}
            FROM process JOIN sample ON process.id = process
            WHERE phase = ? AND state = ? ORDER BY cell, number
        """
        with self._clear_errors("read"):
            for cell, blob, number, whole in self._db.execute(query, (STEADY, DONE)):
                if cell in wanted:
                    self._check(whole, "process", f"{number} of cell {cell}")
                    seconds = array("d", blob)
                    chosen = seconds[:: -(-len(seconds) // most)] if most else seconds
                    groups.setdefault(cell, []).append(tuple(chosen))
        return groups

    # Damage

    def refuse_incomplete(self, cell: StoredCell, found: int, expected: int) -> None:
        """Raise an error if a cell has not as many processes as its summary counts."""
        if found != expected:
            raise self._damage(f"cell {cell.id} (key {cell.key}) has {found} of its {expected} processes")

    def _check(self, is_whole: object, table: str, key: object) -> None:
        if not is_whole:
            raise self._damage(f"{checksums.TABLES[table].title} {key} is not as it was written")

    def _check_count(self, name: str, found: int) -> None:
        expected = checksums.count(self._db, name)
        if found != expected:
            table, _, study = name.partition(" of ")
            where = f" of the study {study}" if study else ""
            raise self._damage(f"{found:,} of {expected:,} rows of the table {table}{where} are there")

    def _damage(self, what: str) -> StoreError:
        return StoreError(
            f"The store {self.path} is damaged: {what}.",
            hint=what_to_do(self.path),
        )

    # Inside a transaction

    def _is_known(self, db: sqlite3.Connection, cell: int, known: Collection[int] | None) -> bool:
        if known is None:
            return True
        return {n for (n,) in db.execute("SELECT number FROM process WHERE cell = ?", (cell,))} == set(known)

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
        db.execute("INSERT OR REPLACE INTO lock VALUES (?, ?, ?)", (name, ownership.own_name(), now()))

    def _holder(self, name: str) -> str:
        """Which other living process holds a lock, in words; empty where none does."""
        row = self._db.execute("SELECT owner, since FROM lock WHERE name = ?", (name,)).fetchone()
        if not row or not ownership.is_alive(str(row[0])):
            return ""
        return f"{ownership.show(row[0])} since {row[1]}"

    def _cells(self, study: str) -> list[tuple[str, str, StoredCell]]:
        with many_lasting_objects():
            cells = self._select("WHERE study = ? ORDER BY figure, cell.id", study)
        self._check_count(f"place of {study}", len(cells))
        return cells

    def _select(self, where: str, *values: Any) -> list[tuple[str, str, StoredCell]]:
        """Figure, case and cell of what matches; a single measurement has neither figure nor case."""
        facts = self._environments()
        whole = f"{checksums.is_whole('cell')} AND (study IS NULL OR {checksums.is_whole('place')})"
        query = f"""
            SELECT figure, line, cell.id, key, task, level, state, error, finished, environment,
                summary, result, {whole}
            FROM cell LEFT JOIN place ON cell.id = place.cell {where}
        """
        cells = []
        for figure, line, *row in self._db.execute(query, values):
            number, key, task, level, state, error, finished, environment, summary, result, is_whole = row
            self._check(is_whole and environment in facts, "cell", f"{number} (key {key})")
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

    def _environments(self) -> dict[int, Plain]:
        query = f"SELECT id, facts, {checksums.is_whole('environment')} FROM environment"
        facts = {}
        for number, text, whole in self._db.execute(query):
            self._check(whole, "environment", number)
            facts[number] = json.loads(text)
        return facts


def dump(record: Any) -> str:
    """A task or other plain data as text that is always the same for the same."""
    return json.dumps(records.plain(record), sort_keys=True)


def now() -> str:
    """This moment in UTC: texts of it sort by time, whatever the time zone."""
    return datetime.now(UTC).strftime(migration.TIME_FORMAT)


def _lock_name(cell: int) -> str:
    return f"measurement {cell}"
