"""Which rows: filters on the fields and settings of rows, in plain data, and what makes two rows the same cell."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.study.rows import Row

# What tells cells apart; figure, case and origin only say where a cell is shown.
IDENTITY = ("job", "label", "device", "device_name", "threads", "batch", "data", "optimizer")
FIELDS = (*IDENTITY, "figure", "case", "study", "origin", "state")
_RANGE = re.compile(r"^(-?[\d.]+)?\.\.(-?[\d.]+)?$")


def value_of(row: Row, name: str) -> Any:
    """A field of the row, or a setting of its job; None where it has neither."""
    return getattr(row, name) if name in FIELDS else row.settings.get(name)


def fits(row: Row, wanted: Mapping[str, Any]) -> bool:
    """Whether a row is what the filters ask: a value, one of a list, a range of numbers ("10..200", "1000..") or a pattern ("keras-*")."""
    return all(_fits(value_of(row, name), told) for name, told in wanted.items())


def _fits(value: Any, told: Any) -> bool:
    if isinstance(told, (list, tuple)):
        return any(_fits(value, each) for each in told)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(told, str) and number:
        match = _RANGE.match(told)
        if match:
            return (not match[1] or value >= float(match[1])) and (not match[2] or value <= float(match[2]))
        return str(value) == told
    if isinstance(told, str) and isinstance(value, str):
        return fnmatch.fnmatchcase(value, told)
    return bool(value == told)


def key_of(row: Row, without: Sequence[str] = ()) -> tuple[Any, ...]:
    """What two rows must share to be the same cell, apart from the names in `without`."""
    fields = tuple((name, value_of(row, name)) for name in IDENTITY if name not in without)
    return fields + tuple(
        (name, _hashable(row.settings[name])) for name in sorted(row.settings) if name not in without
    )


def _hashable(value: Any) -> Any:
    return tuple(_hashable(each) for each in value) if isinstance(value, (list, tuple)) else value
