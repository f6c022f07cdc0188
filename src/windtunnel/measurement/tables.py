"""The tables of a store, and the earlier versions it is converted from."""

from __future__ import annotations

from windtunnel.measurement import checksums, migration
from windtunnel.measurement.database import Schema

VERSION = 3
_TABLES = """
CREATE TABLE tally (name TEXT PRIMARY KEY, rows INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    checksum TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE lock (name TEXT PRIMARY KEY, owner TEXT NOT NULL, since TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE environment (
    id INTEGER PRIMARY KEY,
    facts TEXT NOT NULL UNIQUE,
    checksum TEXT NOT NULL DEFAULT ''
);
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
    result TEXT,
    checksum TEXT NOT NULL DEFAULT ''
);
CREATE INDEX cell_key ON cell (key);
CREATE UNIQUE INDEX cell_of_study ON cell (key) WHERE kind = 'study';
CREATE TABLE place (
    study TEXT NOT NULL,
    figure TEXT NOT NULL,
    line TEXT NOT NULL,
    cell INTEGER NOT NULL REFERENCES cell (id),
    checksum TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (study, figure, line, cell)
) WITHOUT ROWID;
CREATE TABLE process (
    id INTEGER PRIMARY KEY,
    cell INTEGER NOT NULL REFERENCES cell (id),
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    report TEXT NOT NULL,
    checksum TEXT NOT NULL DEFAULT '',
    UNIQUE (cell, number)
);
CREATE TABLE sample (
    process INTEGER NOT NULL REFERENCES process (id),
    phase TEXT NOT NULL,
    steps INTEGER NOT NULL,
    seconds BLOB NOT NULL,
    checksum TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (process, phase)
) WITHOUT ROWID;
CREATE TABLE forecast (
    task TEXT NOT NULL,
    machine TEXT NOT NULL,
    program TEXT NOT NULL,
    data TEXT NOT NULL,
    checksum TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (task, machine, program)
) WITHOUT ROWID
"""
SCHEMA: Schema = Schema(
    tables=tuple(_TABLES.split(";")),
    triggers=tuple(checksums.triggers()),
    prepare=checksums.install,
    application=migration.MEASUREMENTS,
    version=VERSION,
    migrations={
        (migration.MEASUREMENTS, 1): lambda db: migration.convert_measurements(db, SCHEMA),
        (migration.STUDIES, 1): lambda db: migration.convert_studies(db, SCHEMA),
        (migration.MEASUREMENTS, 2): lambda db: migration.add_checksums(db, SCHEMA),
    },
)
