"""Filters on the fields and settings of rows, and the key by which two rows are the same cell."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from windtunnel import units
from windtunnel.study.rows import StudyRow

# These distinguish cells; figure, case and origin only say where a cell is shown.
IDENTITY = (
    *("job", "label", "device", "device_name", "machine", "devices"),
    *("threads", "batch", "data", "optimizer"),
)
FIELDS = frozenset((*IDENTITY, "figure", "case", "study", "origin", "state"))
CellKey = tuple[tuple[str, object], ...]


def value_of(row: StudyRow, name: str) -> object:
    """A field of the row, a setting of its job, or one of its strategy; None where it has none of these."""
    if name in FIELDS:
        value: object = getattr(row, name)
        return value
    return row.settings.get(name, row.strategy.get(name))


def fits(row: StudyRow, wanted: Mapping[str, object]) -> bool:
    """Whether a row passes all filters.

    A filter is a value, a list of values, a range of numbers ("10..200", "1000..") or a pattern ("keras-*").
    """
    return all(_fits(value_of(row, name), filter_) for name, filter_ in wanted.items())


def _fits(value: object, wanted: object) -> bool:
    if isinstance(wanted, (list, tuple)):
        return any(_fits(value, each) for each in wanted)
    if isinstance(wanted, str) and isinstance(value, (int, float)) and not isinstance(value, bool):
        ends = units.parse_range(wanted)
        if ends is None:
            return str(value) == wanted
        low, high = ends
        return (low is None or value >= low) and (high is None or value <= high)
    if isinstance(wanted, str) and isinstance(value, str):
        return fnmatch.fnmatchcase(value, wanted)
    return bool(value == wanted)


def key_of(row: StudyRow, without: Sequence[str] = ()) -> CellKey:
    """What two rows must share to be the same cell, except the names in `without`."""
    fields = tuple((name, value_of(row, name)) for name in IDENTITY if name not in without)
    stated = {**row.strategy, **row.settings}
    return fields + tuple((name, _hashable(stated[name])) for name in sorted(stated) if name not in without)


def _hashable(value: object) -> object:
    if isinstance(value, Mapping):
        return tuple((name, _hashable(value[name])) for name in sorted(value))
    return tuple(_hashable(each) for each in value) if isinstance(value, (list, tuple)) else value
