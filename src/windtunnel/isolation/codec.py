"""A trace as bytes: columns of plain data in compressed JSON, without pickle. What comes back is equal."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windtunnel.records import Plain
from windtunnel.trace import Allocation, Collective, Compilation, Gradient, Op, StoredExample, Trace

# A column whose values repeat is a table of the values and a position in it for each row.
_REPEATED = ("name", "family", "phase", "dtype", "shape", "module", "mark", "waits", "collective", "block")
_TUPLES = ("shape", "allocated", "freed", "waits")
_OP_FIELDS = tuple(field.name for field in dataclasses.fields(Op))
_OWN_COLUMNS = ("ops", "allocations", "gradients", "owners", "compilation", "stored")
_SCALARS = tuple(f.name for f in dataclasses.fields(Trace) if f.name not in _OWN_COLUMNS)


def encode(trace: Trace) -> bytes:
    """The trace as bytes."""
    return pack(_plain(trace))


def decode(body: bytes) -> Trace:
    """The trace that `encode` was given."""
    return _trace(unpack(body))


def pack(data: Plain) -> bytes:
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), level=1)


def unpack(body: bytes) -> Plain:
    data = json.loads(zlib.decompress(body))
    if not isinstance(data, dict):
        raise ValueError("not a table")
    return data


def _plain(trace: Trace) -> Plain:
    return {
        **{name: getattr(trace, name) for name in _SCALARS},
        "ops": {name: _column(trace.ops, name) for name in _OP_FIELDS},
        "allocations": [
            list(trace.allocations),
            [each.bytes for each in trace.allocations.values()],
            _repeated([each.part for each in trace.allocations.values()]),
        ],
        "gradients": [list(gradient) for gradient in trace.gradients],
        "owners": [list(trace.owners), list(trace.owners.values())],
        "compilation": None if trace.compilation is None else dataclasses.asdict(trace.compilation),
        "stored": None if trace.stored is None else dataclasses.asdict(trace.stored),
    }


def _column(ops: Iterable[Op], name: str) -> Any:
    values = [getattr(op, name) for op in ops]
    return _repeated(values) if name in _REPEATED else values


def _repeated(values: list[Any]) -> Any:
    table: dict[Any, int] = {}
    places = [table.setdefault(value, len(table)) for value in values]
    return [list(table), places]


def _trace(data: Plain) -> Trace:
    numbers, sizes, parts = data["allocations"]
    allocations = {
        number: Allocation(bytes=size, part=part)
        for number, size, part in zip(numbers, sizes, _expanded(parts), strict=True)
    }
    scalars = {name: data[name] for name in _SCALARS}
    return Trace(
        **{**scalars, "held": tuple(scalars["held"]), "cautions": tuple(scalars["cautions"])},
        ops=_ops(data["ops"]),
        allocations=allocations,
        gradients=tuple(Gradient(*values) for values in data["gradients"]),
        owners=dict(zip(*data["owners"], strict=True)),
        compilation=_optional(Compilation, data["compilation"]),
        stored=_optional(StoredExample, data["stored"]),
    )


def _optional(kind: Callable[..., Any], data: Mapping[str, Any] | None) -> Any:
    return None if data is None else kind(**data)


def _ops(columns: Mapping[str, Any]) -> tuple[Op, ...]:
    lists = []
    for name in _OP_FIELDS:
        column = columns[name]
        if name in _REPEATED:
            table, places = column
            column = _expanded([[_value(name, value) for value in table], places])
        elif name in _TUPLES:
            column = list(map(tuple, column))
        lists.append(column)
    return tuple(Op(**dict(zip(_OP_FIELDS, values, strict=True))) for values in zip(*lists, strict=True))


def _value(name: str, value: Any) -> Any:
    if name == "collective":
        return None if value is None else Collective(*value)
    return tuple(value) if name in _TUPLES else value


def _expanded(column: Any) -> list[Any]:
    table, places = column
    return [table[place] for place in places]
