"""Conversion of stores of earlier versions to today's tables, in place and without loss.

Before version 2 there were two kinds of files: measurements, with one row for each sample, and studies. Their
records used other names, which are renamed here: way, unit, pulse and cuda.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from windtunnel import ownership
from windtunnel.errors import StoreError
from windtunnel.measurement import checksums
from windtunnel.measurement.database import Schema, identity

MEASUREMENTS, STUDIES = 0x57494E44, 0x57494E53  # SQLite's application numbers: "WIND" and "WINS"
FORMER_NAME = "study.sqlite"
_STATES = {"complete": "done", "running": "waiting"}
_KEYS = {"way": "variant", "unit": "device_name"}
_SUMMARY_KEYS = {"felt": "loop_seconds", "peak": "peak_bytes"}
_SUMMARY_GONE = ("first",)  # the median of `firsts`
_TIMES = ("created", "finished")
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


def convert_measurements(db: sqlite3.Connection, schema: Schema) -> None:
    """A store of measurements of version 1: tables measurement, process and sample."""
    tables = ("measurement", "process", "sample")
    _rename(db, tables)
    db.execute("DROP INDEX IF EXISTS measurement_key")
    schema.create(db)
    query = "SELECT id, key, created, cell, state, error, result FROM old_measurement ORDER BY id"
    for number, key, created, cell, state, error, result in db.execute(query).fetchall():
        task = _renamed(json.loads(cell))
        facts = _dump(task.pop("environment", {}))
        _put(
            db,
            "cell",
            id=number,
            kind="single",
            key=key,
            created=in_utc(created),
            task=_dump(task),
            level="",
            environment=environment_of(db, facts),
            state=_STATES.get(state, state),
            error=error,
            finished=in_utc(created),
            result=_text(result),
        )
    for number, cell, place, state, report in db.execute("SELECT * FROM old_process").fetchall():
        _put(db, "process", id=number, cell=cell, number=place, state=state, report=_report(report))
    rows = db.execute("SELECT * FROM old_sample ORDER BY process, phase, position").fetchall()
    for (process, phase), group in groupby(rows, key=lambda row: row[:2]):
        samples = list(group)
        seconds = array("d", [row[4] for row in samples]).tobytes()
        _put(db, "sample", process=process, phase=phase, steps=samples[0][3], seconds=seconds)
    _drop(db, tables)


def convert_studies(db: sqlite3.Connection, schema: Schema) -> None:
    """A store of studies of version 1: the tables of today but for environment and kind of a cell."""
    tables = ("meta", "lock", "surroundings", "cell", "place", "process", "sample", "forecast")
    _rename(db, tables)
    schema.create(db)
    db.execute("INSERT INTO meta (name, value) SELECT * FROM old_meta")
    db.execute("INSERT INTO lock SELECT * FROM old_lock")
    for number, facts in db.execute("SELECT id, facts FROM old_surroundings").fetchall():
        _put(db, "environment", id=number, facts=_text(facts))
    names = ("id", "key", "created", "level", "state", "error", "finished")
    query = f"SELECT surroundings, task, summary, {', '.join(names)} FROM old_cell"
    for facts, task, summary, *row in db.execute(query).fetchall():
        values = dict(zip(names, row, strict=True))
        values |= {name: in_utc(values[name]) for name in _TIMES}
        texts = {"task": _text(task), "summary": _summary(summary)}
        _put(db, "cell", kind="study", environment=facts, **values, **texts)
    db.execute("INSERT INTO place (study, figure, line, cell) SELECT * FROM old_place")
    query = "SELECT id, cell, number, state, error, report FROM old_process"
    for *row, report in db.execute(query).fetchall():
        number, cell, place, state, error = row
        values = {"id": number, "cell": cell, "number": place, "state": state, "error": error}
        _put(db, "process", **values, report=_report(report))
    db.execute("INSERT INTO sample (process, phase, steps, seconds) SELECT * FROM old_sample")
    for task, machine, program, data in db.execute("SELECT * FROM old_forecast").fetchall():
        _put(db, "forecast", task=_text(task), machine=machine, program=program, data=_text(data))
    _drop(db, tables)


def add_checksums(db: sqlite3.Connection, schema: Schema) -> None:
    """A store of version 2: the tables of today without checksums, and with local times. No one can tell
    whether its rows changed before."""
    for (owner,) in db.execute("SELECT owner FROM lock").fetchall():
        if ownership.is_alive(owner):
            raise StoreError(
                f"An earlier version of windtunnel is writing this store: {ownership.show(owner)}.",
                hint="Wait until it ends: this version converts the store.",
            )
    schema.prepare(db)
    for table in checksums.TABLES:
        db.execute(f"ALTER TABLE {table} ADD COLUMN {checksums.COLUMN} TEXT NOT NULL DEFAULT ''")
    db.execute(next(text for text in schema.tables if "TABLE tally" in text))
    rows = db.execute("SELECT id, created, finished FROM cell").fetchall()
    changed = [(in_utc(created), in_utc(finished), number) for number, created, finished in rows]
    db.executemany("UPDATE cell SET created = ?, finished = ? WHERE id = ?", changed)
    checksums.seal_all(db)
    for statement in schema.triggers:
        db.execute(statement)


def in_utc(text: str) -> str:
    """A time of an earlier version, which was local time with its distance from UTC, in UTC.

    >>> in_utc("2026-11-15T10:22:48+0100")
    '2026-11-15T09:22:48+0000'
    """
    try:
        moment = datetime.strptime(text, TIME_FORMAT)
    except ValueError:
        return text
    return moment.astimezone(UTC).strftime(TIME_FORMAT)


def is_taken_over(db: sqlite3.Connection, former: Path) -> bool:
    return bool(db.execute("SELECT 1 FROM meta WHERE name = ?", (_taken_over(former),)).fetchone())


def take_over(db: sqlite3.Connection, former: Path, schema: Schema) -> None:
    """Copy a former store of studies into this one, once. The former file is not changed."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    if not is_taken_over(db, former) and _read(former, copy):
        convert_studies(copy, schema)
        _insert(db, copy)
        _put(db, "meta", name=_taken_over(former), value=datetime.now(UTC).strftime(TIME_FORMAT))
    copy.close()


def _taken_over(former: Path) -> str:
    return f"taken over {former.name}"


def _read(former: Path, copy: sqlite3.Connection) -> bool:
    """Read a file into `copy`; whether it is a former store of studies that can be read now."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{former}?mode=ro", uri=True)) as other:
            other.backup(copy)
        return identity(copy) == (STUDIES, 1)
    except sqlite3.Error:
        return False


def _insert(db: sqlite3.Connection, copy: sqlite3.Connection) -> None:
    """Insert all rows of another store of today's version with new numbers; existing cells are kept."""
    rows = copy.execute("SELECT name, value FROM meta")
    db.executemany("INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", rows)
    cells, processes = _insert_cells(db, copy), dict[int, int]()
    for study, figure, line, cell in copy.execute("SELECT study, figure, line, cell FROM place"):
        if cell in cells:
            _put(db, "place", study=study, figure=figure, line=line, cell=cells[cell])
    query = "SELECT id, cell, number, state, error, report FROM process"
    for number, cell, place, state, error, report in copy.execute(query):
        if cell in cells:
            processes[number] = _put(
                db, "process", cell=cells[cell], number=place, state=state, error=error, report=report
            )
    for process, phase, steps, seconds in copy.execute("SELECT process, phase, steps, seconds FROM sample"):
        if process in processes:
            _put(db, "sample", process=processes[process], phase=phase, steps=steps, seconds=seconds)
    rows = copy.execute("SELECT task, machine, program, data FROM forecast")
    text = "INSERT OR IGNORE INTO forecast (task, machine, program, data) VALUES (?, ?, ?, ?)"
    db.executemany(text, rows)


def _insert_cells(db: sqlite3.Connection, copy: sqlite3.Connection) -> dict[int, int]:
    """Cells that are new here: their numbers there and here."""
    facts = dict(copy.execute("SELECT id, facts FROM environment"))
    known = {key for (key,) in db.execute("SELECT key FROM cell WHERE kind = 'study'")}
    names = ("kind", "key", "created", "task", "level", "state", "error", "finished", "summary", "result")
    cells = {}
    for number, environment, *row in copy.execute(f"SELECT id, environment, {', '.join(names)} FROM cell"):
        values = dict(zip(names, row, strict=True))
        if values["key"] not in known:
            here = environment_of(db, facts[environment])
            cells[number] = _put(db, "cell", environment=here, **values)
    return cells


def _rename(db: sqlite3.Connection, tables: tuple[str, ...]) -> None:
    for table in tables:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")


def _drop(db: sqlite3.Connection, tables: tuple[str, ...]) -> None:
    for table in reversed(tables):
        db.execute(f"DROP TABLE old_{table}")


def _put(db: sqlite3.Connection, table: str, **values: Any) -> int:
    """Insert a row; give its number."""
    marks = ", ".join("?" * len(values))
    row = db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    return int(row.lastrowid or 0)


def environment_of(db: sqlite3.Connection, facts: str) -> int:
    """The number of the environment with these facts, which is added where it is new."""
    db.execute("INSERT OR IGNORE INTO environment (facts) VALUES (?)", (facts,))
    return int(db.execute("SELECT id FROM environment WHERE facts = ?", (facts,)).fetchone()[0])


def _renamed(data: Any) -> Any:
    """The same plain data in today's words."""
    if isinstance(data, Mapping):
        return {_KEYS.get(key, key): _value(key, value) for key, value in data.items()}
    return [_renamed(each) for each in data] if isinstance(data, list) else data


def _value(key: str, value: Any) -> Any:
    return "gpu" if key == "device" and value == "cuda" else _renamed(value)


def _dump(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def _text(text: str | None) -> str | None:
    return None if text is None else _dump(_renamed(json.loads(text)))


def _summary(text: str | None) -> str | None:
    if text is None:
        return None
    old = {key: value for key, value in json.loads(text).items() if key not in _SUMMARY_GONE}
    return _dump({_SUMMARY_KEYS.get(key, key): _renamed(value) for key, value in old.items()})


def _report(text: str) -> str:
    """A process's report, which was its messages by kind."""
    old = json.loads(text)
    report = {
        name: {key: value for key, value in _renamed(old[name]).items() if key != "kind"}
        for name in ("ready", "memory", "compiled", "losses")
        if name in old
    }
    if "parts" in old:
        report["profiled"] = {key: value for key, value in old["parts"].items() if key != "kind"}
    if "compile" in old:
        report["compile_seconds"] = old["compile"]["seconds"]
    if "pulse" in old:
        pulse = old["pulse"]
        seconds = {"seconds": pulse["seconds"]} if "seconds" in pulse else {}
        report["reference_loop"] = {"readings": pulse.get("felt", []), **seconds}
    done = {key: value for key, value in old.get("done", {}).items() if key in ("stopped", "linear")}
    return json.dumps(report | done | {key: old[key] for key in ("others", "node") if key in old})
