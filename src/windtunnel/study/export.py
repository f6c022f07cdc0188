"""A study's rows in the files that other tools read: CSV, JSON, Parquet; and as a dataframe."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import BadInput, BadRecord, StoreError, Unavailable, nearest
from windtunnel.study.rows import Row

FORMATS = ("csv", "json", "parquet")


def flat(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One flat record for each row, all with the same keys; a setting that is also a field's name is told as `setting_name`."""
    own = [f.name for f in fields(Row) if f.name not in ("settings", "environment", "groups")]
    settings = sorted({name for row in rows for name in row.settings})
    around = sorted({name for row in rows for name in row.environment})
    found = []
    for row in rows:
        record = {name: getattr(row, name) for name in own}
        record["example_seconds"] = row.example_seconds
        record["processes"], record["samples"] = len(row.groups), sum(len(group) for group in row.groups)
        record |= {
            name if name not in record else f"setting_{name}": _scalar(row.settings.get(name))
            for name in settings
        }
        record |= {f"environment_{name}": _scalar(row.environment.get(name)) for name in around}
        found.append(record)
    return found


def write(rows: Sequence[Row], path: str | Path) -> Path:
    """Write rows in the form that the file's ending names. The old file stays whole until the new one is."""
    path = Path(path)
    form = path.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise BadInput(
            f"{path} ends in none of {', '.join('.' + f for f in FORMATS)}.",
            hint=nearest(form, FORMATS) if form else "For example results.csv",
        )
    body = {"csv": _csv, "json": _json, "parquet": _parquet}[form](rows)
    try:
        return records.write_whole(path, body)
    except OSError as error:
        raise StoreError(
            f"{path} could not be written: {error.strerror or error}.",
            hint="What was there before is unharmed.",
        ) from error


def read(path: str | Path) -> list[Row]:
    """The rows that `write` wrote as JSON."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Name a file that study export wrote as JSON.",
        ) from error
    except ValueError:
        told = None
    if not isinstance(told, list) or not all(isinstance(row, dict) for row in told):
        raise BadRecord(
            f"{path} holds no rows of a study.",
            hint="Write them with: windtunnel study export STUDY --out FILE.json",
        )
    return [records.read(Row, row, f"{path}: row {number}") for number, row in enumerate(told, 1)]


def frame(rows: Sequence[Row]) -> Any:
    """A pandas dataframe of the flat records."""
    try:
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable(
            "A dataframe needs pandas, which is not installed.",
            hint='Install it: pip install "windtunnel[export]"',
        ) from error
    return pandas.DataFrame(flat(rows))


def _csv(rows: Sequence[Row]) -> bytes:
    records_ = flat(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(records_[0]) if records_ else [f.name for f in fields(Row)])
    writer.writeheader()
    writer.writerows(records_)
    return text.getvalue().encode()


def _json(rows: Sequence[Row]) -> bytes:
    """The rows whole, raw samples too, one to a line."""
    return ("[\n" + ",\n".join(json.dumps(records.plain(row)) for row in rows) + "\n]\n").encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable(
            "Parquet needs pyarrow, which is not installed.",
            hint='Install it: pip install "windtunnel[export]", or write .csv or .json.',
        ) from error
    data = [
        {**record, "groups": [list(group) for group in row.groups]}
        for record, row in zip(flat(rows), rows, strict=True)
    ]
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_one_kind(data)), sink)
    return bytes(sink.getvalue())


def _one_kind(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A column has one type in Parquet: where numbers and words meet, all become words."""
    mixed = set()
    for name in data[0] if data else ():
        kinds = {type(record[name]) for record in data if record[name] is not None}
        if len(kinds) > 1 and not kinds <= {int, float}:
            mixed.add(name)
    return [
        {name: str(value) if name in mixed and value is not None else value for name, value in record.items()}
        for record in data
    ]


def _scalar(value: Any) -> Any:
    """Lists and tables become JSON text, so that a record stays flat."""
    return (
        value
        if value is None or isinstance(value, (bool, int, float, str))
        else json.dumps(records.plain(value))
    )
