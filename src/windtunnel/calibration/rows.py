"""Rows of a probe as a compressed table of text, so that they can be read, compared and fitted again."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path

from windtunnel.calibration.probe import ProbeRow
from windtunnel.errors import BadRecord
from windtunnel.families import has_known_sizes, registry
from windtunnel.records import read_text, write_text

_COLUMNS = (
    *("name", "family", "phase", "dtype", "shape", "calls", "flop", "read_bytes", "written_bytes"),
    *("seconds", "kernels", "workspace_bytes", "threads"),
)


def save(path: Path, rows: Iterable[ProbeRow], previous: Path | None = None) -> None:
    """Write one line for each row, sizes joined by x. A path that ends with .gz is compressed.

    The file before is kept as `previous`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        writer.writerow([_shown(getattr(row, name)) for name in _COLUMNS])
    write_text(path, text.getvalue(), previous)


def load(path: Path) -> list[ProbeRow]:
    """Rows that `save` wrote. An invalid line raises an error that names it."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise BadRecord(f"{path} is not a table of a probe: its first line must name {', '.join(_COLUMNS)}.")
    return [_read(line, path, number) for number, line in enumerate(reader, 2)]


def _read(line: dict[str, str], path: Path, number: int) -> ProbeRow:
    try:
        row = ProbeRow(
            name=line["name"],
            family=line["family"],
            phase=line["phase"],
            dtype=line["dtype"],
            shape=tuple(int(n) for n in line["shape"].split("x") if n),
            calls=int(line["calls"]),
            flop=float(line["flop"]),
            read_bytes=float(line["read_bytes"]),
            written_bytes=float(line["written_bytes"]),
            seconds=float(line["seconds"]),
            kernels=float(line["kernels"]),
            workspace_bytes=float(line["workspace_bytes"]),
            threads=int(line["threads"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise BadRecord(f"{path} line {number} cannot be read: {error}") from error
    if not 0 < row.seconds < float("inf"):
        raise BadRecord(f"{path} line {number}: seconds must be above 0, not {row.seconds}.")
    family = registry.get(row.family)
    if family is not None and len(row.shape) + len(family.later_sizes) == len(family.size_names(row.name)):
        row = dataclasses.replace(row, shape=(*row.shape, *family.later_sizes))
    if family is not None and not has_known_sizes(row):
        names = ", ".join(family.size_names(row.name))
        raise BadRecord(f"{path} line {number}: {row.name} has {len(row.shape)} sizes, not {names}.")
    return row


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
