"""A study's rows as CSV, JSON or Parquet files, and as a dataframe."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import BadInput, BadRecord, Unavailable, nearest
from windtunnel.foreign import shown_in_table
from windtunnel.study.rows import StudyRow, TrainedSeeds

FORMATS = ("csv", "json", "parquet")
FlatRow = dict[str, object]
_NESTED = ("settings", "strategy", "environment", "groups", "training")


def flat(rows: Sequence[StudyRow]) -> list[FlatRow]:
    """One flat record for each row, all with the same keys.

    A setting with the name of a field becomes `setting_NAME`. Samples are only counted.
    """
    own = [f.name for f in fields(StudyRow) if f.name not in _NESTED]
    settings = sorted({name for row in rows for name in row.settings})
    ways = sorted({name for row in rows for name in row.strategy})
    facts = sorted({name for row in rows for name in row.environment})
    is_trained = any(row.training is not None for row in rows)
    learned = [f.name for f in fields(TrainedSeeds)] if is_trained else []
    flat_rows = []
    for row in rows:
        record: FlatRow = {name: getattr(row, name) for name in own}
        record["example_seconds"] = row.example_seconds
        record["processes"], record["samples"] = len(row.groups), sum(len(group) for group in row.groups)
        record |= {
            name if name not in record else f"setting_{name}": _scalar(row.settings.get(name))
            for name in settings
        }
        record |= {f"training_{name}": _scalar(getattr(row.training, name, None)) for name in learned}
        record |= {f"strategy_{name}": _scalar(row.strategy.get(name)) for name in ways}
        record |= {f"environment_{name}": _scalar(row.environment.get(name)) for name in facts}
        flat_rows.append(record)
    return flat_rows


def frame(rows: Sequence[StudyRow]) -> Any:
    """The flat records as a pandas dataframe."""
    try:
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable(
            "A dataframe needs pandas, which is not installed.",
            hint='Install it: pip install "windtunnel[export]"',
        ) from error
    return pandas.DataFrame(flat(rows))


def write(rows: Sequence[StudyRow], path: str | Path) -> Path:
    """Write rows in the format of the file's suffix. If writing fails, the old file is unchanged."""
    path = Path(path)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        raise BadInput(
            f"{path} does not end in {', '.join('.' + f for f in FORMATS)}.",
            hint=nearest(suffix, FORMATS) if suffix else "For example results.csv",
        )
    formats: dict[str, Callable[[Sequence[StudyRow]], bytes | Iterable[str]]]
    formats = {"csv": _csv, "json": _json, "parquet": _parquet}
    return records.write_whole(path, formats[suffix](rows))


def read(path: str | Path) -> list[StudyRow]:
    """The rows that `write` wrote as JSON."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Name a file that study export wrote as JSON.",
        ) from error
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise BadRecord(
            f"{path} holds no rows of a study.",
            hint="Write them with: windtunnel study export STUDY --out FILE.json",
        )
    _refuse_scaled(path, data)
    rows = []
    for number, plain in enumerate(data, 1):
        row = records.read(StudyRow, plain, f"{path}: row {number}")
        problem = _problem(row)
        if problem:
            raise BadRecord(
                f"{path}: row {number} ({row.figure}, {row.case}): {problem}.",
                hint="Write the file again with: windtunnel study export STUDY --out FILE.json",
            )
        rows.append(row)
    return rows


def _problem(row: StudyRow) -> str:
    """Why a row is invalid; empty if it is valid."""
    for name in ("batch", "devices", "threads"):
        count = getattr(row, name)
        if count is not None and count < 1:
            return f"{name} must be at least 1, not {count}"
    times = ("step_seconds", "low_seconds", "high_seconds", "first_seconds", "peak_bytes")
    for name in times:
        value = getattr(row, name)
        if value is not None and not 0 < value < math.inf:
            return f"{name} must be above 0 and finite, not {value}"
    if row.low_seconds and row.high_seconds and row.low_seconds > row.high_seconds:
        return f"low_seconds {row.low_seconds:g} is above high_seconds {row.high_seconds:g}"
    if row.state == "done" and row.step_seconds is None and not row.training:
        return "it is done, but has no step_seconds"
    if not all(0 < seconds < math.inf for group in row.groups for seconds in group):
        return "a sample is not a valid time of a step"
    return ""


def _refuse_scaled(path: str | Path, data: Sequence[Any]) -> None:
    """Windtunnel 0.1 divided times by the slowdown of its reference loop and wrote that as `slowed`."""
    tables = [row["environment"] for row in data if isinstance(row.get("environment"), dict)]
    scaled = sum("slowed" in table for table in tables)
    if scaled:
        raise BadRecord(
            f"{path} holds {scaled:,} times that windtunnel 0.1 scaled; the clock measured others.",
            hint="Write them again from their store, which holds the raw samples: windtunnel study export"
            " STUDY --store STORE --out FILE.json",
        )


def _csv(rows: Sequence[StudyRow]) -> Iterable[str]:
    flat_rows = flat(rows)
    names = list(flat_rows[0]) if flat_rows else [f.name for f in fields(StudyRow)]
    return csv_lines(names, flat_rows)


def csv_lines(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """The lines of a CSV file, one after another."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=names)
    writer.writeheader()
    for row in rows:
        writer.writerow(_in_table(row))
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _in_table(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a CSV file, in which no text can be taken for a formula."""
    return {name: shown_in_table(value) if isinstance(value, str) else value for name, value in row.items()}


def _json(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Whole rows with their samples, one to a line."""
    for number, row in enumerate(rows):
        yield ",\n" if number else "[\n"
        yield json.dumps(records.plain(row))
    yield "\n]\n" if rows else "[\n\n]\n"


def _parquet(rows: Sequence[StudyRow]) -> bytes:
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable(
            "Parquet needs pyarrow, which is not installed.",
            hint='Install it: pip install "windtunnel[export]", or write .csv or .json.',
        ) from error
    data: list[FlatRow] = [
        {**record, "groups": [list(group) for group in row.groups]}
        for record, row in zip(flat(rows), rows, strict=True)
    ]
    sink = pyarrow.BufferOutputStream()
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_one_type_a_column(data)), sink)
    except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise BadInput(
            f"These rows cannot be written as Parquet: {error}.", hint="Write .csv or .json."
        ) from error
    return bytes(sink.getvalue())


def _one_type_a_column(data: list[FlatRow]) -> list[FlatRow]:
    """A Parquet column has one type: where numbers and text mix, all become text."""
    mixed = set()
    for name in data[0] if data else ():
        types = {type(record[name]) for record in data if record[name] is not None}
        if len(types) > 1 and not types <= {int, float}:
            mixed.add(name)
    return [
        {name: str(value) if name in mixed and value is not None else value for name, value in record.items()}
        for record in data
    ]


def _scalar(value: object) -> object:
    """Lists and tables become JSON text, so that a record stays flat."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return json.dumps(records.plain(value))
