"""Where measurements lie: each with its processes and every raw sample."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from windtunnel.measurement.database import Database

VERSION = 1
_APPLICATION = 0x57494E44  # "WIND"
_SCHEMA = """
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    created TEXT NOT NULL,
    owner TEXT NOT NULL,
    cell TEXT NOT NULL,
    state TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    result TEXT
);
CREATE INDEX measurement_key ON measurement (key);
CREATE TABLE process (
    id INTEGER PRIMARY KEY,
    measurement INTEGER NOT NULL REFERENCES measurement (id),
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    report TEXT NOT NULL,
    UNIQUE (measurement, number)
);
CREATE TABLE sample (
    process INTEGER NOT NULL REFERENCES process (id),
    phase TEXT NOT NULL,
    position INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (process, phase, position)
) WITHOUT ROWID;
"""


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


def _own_name() -> str:
    return f"{platform.node()}:{os.getpid()}"


def _is_at_work(owner: str) -> bool:
    """Whether another process that writes here is alive; on another host that cannot be seen, so it is taken to be."""
    import psutil

    host, _, pid = owner.rpartition(":")
    return owner != _own_name() and (host != platform.node() or psutil.pid_exists(int(pid)))


class Store(Database):
    """Measurements, the processes of each and every raw sample."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(
            path or default_path(),
            _SCHEMA,
            what="a store of windtunnel",
            application=_APPLICATION,
            version=VERSION,
        )

    def begin(self, key: str, cell: dict[str, Any]) -> int:
        """A new measurement, running."""
        with self._writing() as db:
            row = db.execute(
                "INSERT INTO measurement (key, created, owner, cell, state) VALUES (?, ?, ?, ?, 'running')",
                (key, time.strftime("%Y-%m-%dT%H:%M:%S%z"), _own_name(), json.dumps(cell)),
            )
            return int(row.lastrowid or 0)

    def take_over(self, key: str) -> int | None:
        """The latest measurement of this key that was interrupted with at least one process done, from now on ours.

        One whose owner is still at work is not interrupted, and is left alone.
        """
        query = """
            SELECT id, owner FROM measurement m WHERE key = ? AND state = 'running'
            AND EXISTS (SELECT 1 FROM process p WHERE p.measurement = m.id AND p.state = 'done') ORDER BY id DESC
        """
        with self._writing() as db:
            for row, owner in db.execute(query, (key,)).fetchall():
                if not _is_at_work(owner):
                    db.execute("UPDATE measurement SET owner = ? WHERE id = ?", (_own_name(), row))
                    return int(row)
        return None

    def add_process(self, measurement: int, number: int, state: str, report: dict[str, Any]) -> None:
        """One child's report with all its samples, in one transaction."""
        slim = {key: value for key, value in report.items() if key != "samples"}
        with self._writing() as db:
            row = db.execute(
                "INSERT INTO process (measurement, number, state, report) VALUES (?, ?, ?, ?)",
                (measurement, number, state, json.dumps(slim)),
            )
            for phase, entry in report.get("samples", {}).items():
                rows = [(row.lastrowid, phase, i, entry["steps"], s) for i, s in enumerate(entry["seconds"])]
                db.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", rows)

    def reports(self, measurement: int) -> list[dict[str, Any]]:
        """The reports of all processes that were done, samples included."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT id, number, report FROM process WHERE measurement = ? AND state = 'done' ORDER BY number",
                (measurement,),
            ).fetchall()
            return [
                {**json.loads(report), "number": number, "samples": self._samples(process)}
                for process, number, report in rows
            ]

    def finish(
        self, measurement: int, state: str, *, error: str = "", result: dict[str, Any] | None = None
    ) -> None:
        """Name how a measurement ended: complete, or failed in some way."""
        with self._writing() as db:
            db.execute(
                "UPDATE measurement SET state = ?, error = ?, result = ? WHERE id = ?",
                (state, error, json.dumps(result) if result else None, measurement),
            )

    def results(self) -> list[dict[str, Any]]:
        """All measurements, newest first."""
        with self._told("read"):
            rows = self._db.execute(
                "SELECT id, created, cell, state, error, result FROM measurement ORDER BY id DESC"
            ).fetchall()
        keys = ("id", "created", "cell", "state", "error", "result")
        return [
            {
                **dict(zip(keys, row, strict=True)),
                "cell": json.loads(row[2]),
                "result": json.loads(row[5]) if row[5] else None,
            }
            for row in rows
        ]

    def _samples(self, process: int) -> dict[str, Any]:
        samples: dict[str, Any] = {}
        for phase, steps, seconds in self._db.execute(
            "SELECT phase, steps, seconds FROM sample WHERE process = ? ORDER BY phase, position", (process,)
        ):
            samples.setdefault(phase, {"steps": steps, "seconds": []})["seconds"].append(seconds)
        return samples
