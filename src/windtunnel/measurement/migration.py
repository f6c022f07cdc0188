"""Stores of earlier versions, converted in place to the tables of today; nothing they hold is lost.

Before version 2 there were two kinds of files: measurements, with one row for each sample, and studies. Their records
used other words, which are renamed here: way, unit, pulse and cuda.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from array import array
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from windtunnel.measurement.database import Schema, identity

MEASUREMENTS, STUDIES = 0x57494E44, 0x57494E53  # SQLite's application numbers: "WIND" and "WINS"
FORMER_NAME = "study.sqlite"
_STATES = {"complete": "done", "running": "waiting"}
_KEYS = {"way": "variant", "unit": "device_name"}
_SUMMARY_KEYS = {"felt": "loop_seconds", "peak": "peak_bytes"}
_SUMMARY_GONE = ("first",)  # the median of `firsts`


def convert_measurements(db: sqlite3.Connection, schema: Schema) -> None:
    """A store of measurements of version 1: tables measurement, process and sample."""
    for table in ("measurement", "process", "sample"):
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    db.execute("DROP INDEX IF EXISTS measurement_key")
    schema.create(db)
    query = "SELECT id, key, created, cell, state, error, result FROM old_measurement ORDER BY id"
    for number, key, created, cell, state, error, result in db.execute(query).fetchall():
        task = _renamed(json.loads(cell))
        facts = json.dumps(task.pop("environment", {}), sort_keys=True)
        db.execute("INSERT OR IGNORE INTO environment (facts) VALUES (?)", (facts,))
        db.execute(
            "INSERT INTO cell (id, kind, key, created, task, level, environment, state, error, finished, result) "
            "SELECT ?, 'single', ?, ?, ?, '', id, ?, ?, ?, ? FROM environment WHERE facts = ?",
            (
                *(number, key, created, json.dumps(task, sort_keys=True), _STATES.get(state, state), error),
                *(created, _text(result), facts),
            ),
        )
    for number, cell, place, state, report in db.execute("SELECT * FROM old_process").fetchall():
        text = json.dumps(_report(json.loads(report)))
        db.execute(
            "INSERT INTO process (id, cell, number, state, report) VALUES (?, ?, ?, ?, ?)",
            (number, cell, place, state, text),
        )
    rows = db.execute("SELECT * FROM old_sample ORDER BY process, phase, position")
    for (process, phase), samples in groupby(rows.fetchall(), key=lambda row: row[:2]):
        every = list(samples)
        seconds = array("d", [row[4] for row in every]).tobytes()
        db.execute("INSERT INTO sample VALUES (?, ?, ?, ?)", (process, phase, every[0][3], seconds))
    for table in ("sample", "process", "measurement"):
        db.execute(f"DROP TABLE old_{table}")


def convert_studies(db: sqlite3.Connection, schema: Schema) -> None:
    """A store of studies of version 1: the tables of today, but for the environment and the kind of a cell."""
    tables = ("meta", "lock", "surroundings", "cell", "place", "process", "sample", "forecast")
    for table in tables:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    schema.create(db)
    _copy_studies(db)
    for table in reversed(tables):
        db.execute(f"DROP TABLE old_{table}")


def is_taken_over(db: sqlite3.Connection, former: Path) -> bool:
    return bool(db.execute("SELECT 1 FROM meta WHERE name = ?", (_taken_over(former),)).fetchone())


def take_over(db: sqlite3.Connection, former: Path, schema: Schema) -> None:
    """Copy a former store of studies beside this one, once; the file itself stays as it is."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    if not is_taken_over(db, former) and _read(former, copy):
        convert_studies(copy, schema)
        _insert(db, copy)
        db.execute("INSERT INTO meta VALUES (?, datetime('now'))", (_taken_over(former),))
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


def _copy_studies(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO meta SELECT * FROM old_meta")
    db.execute("INSERT INTO lock SELECT * FROM old_lock")
    for number, facts in db.execute("SELECT id, facts FROM old_surroundings").fetchall():
        db.execute("INSERT INTO environment VALUES (?, ?)", (number, _text(facts)))
    columns = "id, key, created, level, surroundings, state, error, finished, task, summary"
    for *row, task, summary in db.execute(f"SELECT {columns} FROM old_cell").fetchall():
        db.execute(
            "INSERT INTO cell (id, kind, key, created, level, environment, state, error, finished, task, summary)"
            " VALUES (?, 'study', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, _text(task), _summary(summary)),
        )
    db.execute("INSERT INTO place SELECT * FROM old_place")
    for *row, report in db.execute(
        "SELECT id, cell, number, state, error, report FROM old_process"
    ).fetchall():
        text = json.dumps(_report(json.loads(report)))
        db.execute("INSERT INTO process VALUES (?, ?, ?, ?, ?, ?)", (*row, text))
    db.execute("INSERT INTO sample SELECT * FROM old_sample")
    for task, machine, program, found in db.execute("SELECT * FROM old_forecast").fetchall():
        row = (_text(task), machine, program, _text(found))
        db.execute("INSERT OR IGNORE INTO forecast VALUES (?, ?, ?, ?)", row)


def _insert(db: sqlite3.Connection, copy: sqlite3.Connection) -> None:
    """Everything of another store of today's version, with new numbers; cells that are here already stay."""
    environments, cells, processes = dict[int, int](), dict[int, int](), dict[int, int]()
    db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", copy.execute("SELECT * FROM meta"))
    for number, facts in copy.execute("SELECT id, facts FROM environment"):
        db.execute("INSERT OR IGNORE INTO environment (facts) VALUES (?)", (facts,))
        row = db.execute("SELECT id FROM environment WHERE facts = ?", (facts,)).fetchone()
        environments[number] = row[0]
    columns = "environment, kind, key, created, task, level, state, error, finished, summary, result"
    for number, environment, *row in copy.execute(f"SELECT id, {columns} FROM cell"):
        marks = ", ".join("?" * 11)
        done = db.execute(
            f"INSERT OR IGNORE INTO cell ({columns}) VALUES ({marks})", (environments[environment], *row)
        )
        if done.rowcount == 1:
            cells[number] = int(done.lastrowid or 0)
    for study, figure, line, cell in copy.execute("SELECT * FROM place"):
        if cell in cells:
            db.execute("INSERT OR IGNORE INTO place VALUES (?, ?, ?, ?)", (study, figure, line, cells[cell]))
    for number, cell, *row in copy.execute("SELECT id, cell, number, state, error, report FROM process"):
        if cell in cells:
            done = db.execute(
                "INSERT INTO process (cell, number, state, error, report) VALUES (?, ?, ?, ?, ?)",
                (cells[cell], *row),
            )
            processes[number] = int(done.lastrowid or 0)
    for process, *row in copy.execute("SELECT * FROM sample"):
        if process in processes:
            db.execute("INSERT INTO sample VALUES (?, ?, ?, ?)", (processes[process], *row))
    rows = copy.execute("SELECT * FROM forecast")
    db.executemany("INSERT OR IGNORE INTO forecast VALUES (?, ?, ?, ?)", rows)


def _renamed(data: Any) -> Any:
    """The same plain data in today's words."""
    if isinstance(data, Mapping):
        return {_KEYS.get(key, key): _value(key, value) for key, value in data.items()}
    return [_renamed(each) for each in data] if isinstance(data, list) else data


def _value(key: str, value: Any) -> Any:
    return "gpu" if key == "device" and value == "cuda" else _renamed(value)


def _text(text: str | None) -> str | None:
    return None if text is None else json.dumps(_renamed(json.loads(text)), sort_keys=True)


def _summary(text: str | None) -> str | None:
    if text is None:
        return None
    old = {key: value for key, value in json.loads(text).items() if key not in _SUMMARY_GONE}
    return json.dumps({_SUMMARY_KEYS.get(key, key): _renamed(value) for key, value in old.items()})


def _report(old: Mapping[str, Any]) -> dict[str, Any]:
    """A process's report, which was its messages by kind."""
    report = {
        name: {k: v for k, v in _renamed(old[name]).items() if k != "kind"}
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
    return report | done | {key: old[key] for key in ("others", "node") if key in old}
