"""The tables of a store, and the earlier versions it is converted from."""

from __future__ import annotations

from windtunnel.measurement import migration
from windtunnel.measurement.database import Schema

VERSION = 2
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE lock (name TEXT PRIMARY KEY, owner TEXT NOT NULL, since TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE environment (id INTEGER PRIMARY KEY, facts TEXT NOT NULL UNIQUE);
CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    created TEXT NOT NULL,
    task TEXT NOT NULL,
    level TEXT NOT NULL,
    environment INTEGER NOT NULL REFERENCES environment (id),
    state TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    finished TEXT NOT NULL DEFAULT '',
    summary TEXT,
    result TEXT
);
CREATE INDEX cell_key ON cell (key);
CREATE UNIQUE INDEX cell_of_study ON cell (key) WHERE kind = 'study';
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
    data TEXT NOT NULL,
    PRIMARY KEY (task, machine, program)
) WITHOUT ROWID
"""
SCHEMA: Schema = Schema(
    tables=_TABLES,
    application=migration.MEASUREMENTS,
    version=VERSION,
    migrations={
        (migration.MEASUREMENTS, 1): lambda db: migration.convert_measurements(db, SCHEMA),
        (migration.STUDIES, 1): lambda db: migration.convert_studies(db, SCHEMA),
    },
)
