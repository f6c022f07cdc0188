"""Find damage in a store, and rebuild a store from its undamaged rows.

A row is damaged if its checksum differs, if SQLite cannot read it, or if a row that it refers to is damaged.
The repair writes a new file. The old one is kept next to it, and damaged rows are written to a text file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel import ownership, records
from windtunnel.displays import Displayed
from windtunnel.errors import StoreError
from windtunnel.measurement import checksums
from windtunnel.measurement.cells import DONE, WAITING
from windtunnel.measurement.checksums import TABLES
from windtunnel.measurement.database import has_checksums, identity, refuse_empty, store_option
from windtunnel.measurement.store import Store
from windtunnel.measurement.tables import SCHEMA

_SHOWN = 20
_LEFT = "It was left as it is."
_OTHER = "Restore a copy of it, or use another with --store FILE."
# Which column of a table refers to which table.
_REFERS = {
    "cell": ("environment", "environment"),
    "place": ("cell", "cell"),
    "process": ("cell", "cell"),
    "sample": ("process", "process"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRow:
    """A damaged row: its table and key."""

    table: str
    key: str

    def __str__(self) -> str:
        return f"{TABLES[self.table].title} {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck(Displayed):
    """The result of checking a store. `problems` are those that do not concern a single row."""

    path: Path
    rows: int
    damaged: tuple[DamagedRow, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.damaged and not self.problems

    def plain(self) -> records.Plain:
        return {**records.plain(self), "path": str(self.path), "whole": self.is_whole}

    def __str__(self) -> str:
        if self.is_whole:
            return f"{self.path}: all {self.rows:,} rows are undamaged."
        lines = [f"{self.path} is damaged: {len(self.damaged):,} of {self.rows:,} rows that can be read"]
        lines += [f"  {problem}" for problem in self.problems]
        lines += [f"  {row}" for row in self.damaged[:_SHOWN]]
        if len(self.damaged) > _SHOWN:
            lines.append(f"  and {len(self.damaged) - _SHOWN:,} more; --json lists all")
        return "\n".join([*lines, f"Keep what is whole: windtunnel store repair{store_option(self.path)}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRepair(Displayed):
    """The result of a repair: rows kept and set aside. `waiting` cells lost a process and will be measured
    again."""

    path: Path
    kept: int
    aside: int
    waiting: int = 0
    copy: Path | None = None
    aside_file: Path | None = None

    def plain(self) -> records.Plain:
        paths = {name: str(getattr(self, name)) for name in ("path", "copy", "aside_file")}
        return {**records.plain(self), **paths}

    def __str__(self) -> str:
        if self.copy is None:
            return f"{self.path}: nothing is damaged, nothing was changed."
        lines = [f"{self.path}: {self.kept:,} rows kept, {self.aside:,} damaged rows set aside"]
        if self.waiting:
            lines.append(f"  {self.waiting:,} cells lost a process; the next run measures it again")
        lines.append(f"  the store as it was   {self.copy}")
        if self.aside_file:
            lines.append(f"  the damaged rows      {self.aside_file}")
        return "\n".join(lines)


def check(path: Path) -> StoreCheck:
    """Read every row of a store and compare it with its checksum; changes nothing."""
    with _opened(path) as db:
        problems = _structure(db)
        rows, damaged = 0, list[DamagedRow]()
        for table in TABLES:
            found = 0
            for key, _, whole in _walk(db, table, problems.append):
                found += 1
                if not whole:
                    damaged.append(DamagedRow(table=table, key=key))
            rows += found
            problems += _count_problem(db, table, found)
    return StoreCheck(path=path, rows=rows, damaged=tuple(damaged), problems=tuple(dict.fromkeys(problems)))


def repair(path: Path) -> StoreRepair:
    """Rebuild the store from its undamaged rows. The old file and the damaged rows are kept."""
    found = check(path)
    if found.is_whole:
        return StoreRepair(path=path, kept=found.rows, aside=0)
    _refuse_held(path)
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    with _clear_errors(path), ownership.temporary_folder(path.parent, "repair") as folder:
        new, building = folder / path.name, _Building()
        Store(new).close()
        with _opened(path) as old, contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
            checksums.install(db)
            db.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                building.copy(old, db, table)
            building.let_wait(db)
            db.execute("COMMIT")
        if not building.kept and not building.aside:
            raise StoreError(f"Of the store {path} no row can be read. {_LEFT}", hint=_OTHER)
        copy = path.with_name(f"{path.name}.damaged-{moment}")
        shutil.copy2(path, copy)
        aside = path.with_name(f"{path.name}.aside-{moment}.jsonl") if building.aside else None
        if aside:
            records.write_whole(aside, "".join(json.dumps(row) + "\n" for row in building.aside))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}-journal")
        shutil.copymode(path, new)
        os.replace(new, path)
    return StoreRepair(
        path=path,
        kept=building.kept,
        aside=len(building.aside),
        waiting=len(building.waiting),
        copy=copy,
        aside_file=aside,
    )


@dataclass(slots=True)
class _Building:
    """A store that is being rebuilt: the rows in it, and the rows set aside."""

    kept: int = 0
    aside: list[records.Plain] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    present: dict[str, set[Any]] = field(default_factory=dict)

    def copy(self, old: sqlite3.Connection, db: sqlite3.Connection, table: str) -> None:
        columns = TABLES[table].columns
        text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        here = self.present.setdefault(table, set())
        for _, values, whole in _walk(old, table):
            row = dict(zip(columns, values, strict=True))
            parent = _REFERS.get(table)
            known = parent is None or row[parent[0]] in self.present[parent[1]]
            if whole and known and self._insert(db, text, values):
                here.add(row.get("id"))
                self.kept += 1
            else:
                self.aside.append({"table": table, **{name: _text(value) for name, value in row.items()}})

    def _insert(self, db: sqlite3.Connection, text: str, values: tuple[Any, ...]) -> bool:
        try:
            db.execute(text, values)
        except sqlite3.IntegrityError:  # a second copy of a row, out of its place
            return False
        return True

    def let_wait(self, db: sqlite3.Connection) -> None:
        """Remove processes without samples, and reset cells that have fewer processes than they count to
        waiting."""
        bare = "SELECT id FROM process WHERE state = ? AND id NOT IN (SELECT process FROM sample)"
        for (number,) in db.execute(bare, (DONE,)).fetchall():
            db.execute("DELETE FROM process WHERE id = ?", (number,))
        query = """
            SELECT cell.id, summary, (SELECT count(*) FROM process WHERE cell = cell.id AND process.state = ?)
            FROM cell WHERE state = ? AND kind = 'study'
        """
        for number, summary, processes in db.execute(query, (DONE, DONE)).fetchall():
            if summary is None or len(json.loads(summary)["medians"]) != processes:
                self.waiting.add(number)
        text = "UPDATE cell SET state = ?, summary = NULL WHERE id = ?"
        db.executemany(text, [(WAITING, number) for number in self.waiting])


def _walk(
    db: sqlite3.Connection, table: str, tell: Callable[[str], None] = lambda problem: None
) -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    """For every row that can be read: its key, its values, and whether it is undamaged.

    Where SQLite stops at a damaged page, the rows after it are read from the other end.
    """
    columns, key = TABLES[table].columns, TABLES[table].key
    values = ", ".join(f"{table}.{name}" for name in columns)
    query = f"SELECT {checksums.is_whole(table)}, {values} FROM {table} NOT INDEXED ORDER BY "
    seen = set()
    for order in ("ASC", "DESC"):
        try:
            for whole, *row in db.execute(query + ", ".join(f"{name} {order}" for name in key)):
                name = " ".join(
                    str(value) for column, value in zip(columns, row, strict=True) if column in key
                )
                if name not in seen:
                    seen.add(name)
                    yield name, tuple(row), bool(whole)
            return
        except sqlite3.Error as error:
            tell(f"the table {table} cannot be read to its end: {error}")


def _text(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _structure(db: sqlite3.Connection) -> list[str]:
    """Problems that SQLite's own check finds."""
    try:
        texts = [str(text) for (text,) in db.execute("PRAGMA integrity_check(10)")]
        found = [line for text in texts for line in text.splitlines() if not line.startswith("***")]
    except sqlite3.Error as error:
        found = [str(error)]
    problems = [f"SQLite: {text}" for text in found if text != "ok"]
    with contextlib.suppress(sqlite3.Error):  # what cannot be read is told when its rows are read
        own, usual = _shape(db), _usual_shape()
        problems += [
            f"{name} is not as windtunnel makes it" for name in usual if own.get(name) != usual[name]
        ]
    if not _is_of_today(db):
        problems.append("its numbers of program and version are not those of its tables")
    return problems


def _usual_shape() -> dict[str, object]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        SCHEMA.create(db)
        return _shape(db)


def _shape(db: sqlite3.Connection) -> dict[str, object]:
    """The structure of a store apart from its rows: columns, keys, and the triggers that write checksums."""
    shape: dict[str, object] = {}
    for table in TABLES:
        columns = {(name, key) for _, name, _, _, _, key in db.execute(f"PRAGMA table_info({table})")}
        indexes = [name for _, name, unique, *_ in db.execute(f"PRAGMA index_list({table})") if unique]
        keys = {tuple(row[2] for row in db.execute(f"PRAGMA index_info({name})")) for name in indexes}
        shape[f"the table {table}"] = columns, keys
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    return shape | {f"the trigger {name}": text for name, text in triggers}


def _is_of_today(db: sqlite3.Connection) -> bool:
    return identity(db) == (SCHEMA.application, SCHEMA.version)


def _count_problem(db: sqlite3.Connection, table: str, found: int) -> list[str]:
    try:
        expected = checksums.count(db, table)
    except (sqlite3.Error, ValueError, TypeError) as error:
        return [f"the counts of rows cannot be read: {error}"]
    return [] if found == expected else [f"the table {table} has {found:,} of {expected:,} rows"]


def _refuse_held(path: Path) -> None:
    """Refuse a store that another process writes."""
    owners = []
    with _opened(path) as db, contextlib.suppress(sqlite3.Error):
        owners = [str(owner) for (owner,) in db.execute("SELECT owner FROM lock")]
    for owner in owners:
        if ownership.is_alive(owner):
            raise StoreError(
                f"The store {path} is in use by {ownership.show(owner)}.",
                hint="Wait for it, then repair the store.",
            )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A store of this version, read without trusting it: texts may be invalid UTF-8."""
    if not path.is_file():
        raise StoreError(f"There is no store {path}.", hint="Name one with --store FILE.")
    with (
        _clear_errors(path),
        contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db,
    ):
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        db.execute("PRAGMA writable_schema = ON")  # else SQLite refuses all of a file that lost its end
        if not path.stat().st_size:
            refuse_empty(path)
        checksums.install(db)
        if not _is_of_today(db) and not has_checksums(db):
            raise StoreError(
                f"{path} is not a store of this version of windtunnel, or its first page is damaged.",
                hint="A store of an earlier version is converted when another command opens it.",
            )
        yield db


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"The store {path} cannot be read or repaired: {error}.",
            hint=f"{_LEFT} {_OTHER}",
        ) from error
