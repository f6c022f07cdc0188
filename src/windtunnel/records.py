"""Convert frozen dataclasses to and from TOML and JSON.

Reading is strict: an unknown key is an error that names the most similar known key.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import tomllib
import types
import typing
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from windtunnel import units
from windtunnel.errors import BadInput, BadRecord, nearest

R = TypeVar("R")
Plain = dict[str, Any]  # a table of JSON or TOML: scalars, lists and tables by name
# Keys of files and settings that had another name in earlier versions.
RENAMED = {
    "unit": "device",
    "units": "devices",
    "issue": "launch_costs",
    "way": "variant",
    "haze": "instance_noise",
}


def read(cls: type[R], data: Mapping[str, object], where: str) -> R:
    """Build a record of `cls` from plain data. `where` names the input in error messages."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise BadRecord(f"{where}: unknown key {key!r}.", hint=hint_for_key(key, fields))
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise BadRecord(f"{where}: {name!r} is missing.", hint=f"Keys: {', '.join(fields)}.")
    return cls(**{key: convert(value, hints[key], f"{where}: {key}") for key, value in data.items()})


def hint_for_key(key: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown key: its new name if it was renamed, else the most similar key."""
    names = set(known)
    renamed = RENAMED.get(key)
    return f"{key!r} is now called {renamed!r}." if renamed in names else nearest(key, names)


def parse_settings(words: Iterable[str]) -> dict[str, str]:
    """Split `key=value` words of a command line. Values stay text: the job's settings class converts them."""
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadInput(
                f"{word!r} is not a setting.", hint="Write settings as key=value, for example n_rec=50."
            )
        settings[key] = value
    return settings


def convert(value: object, hint: Any, where: str) -> Any:
    """Convert `value` to the type that the annotation `hint` names, or raise BadRecord."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return units.parse(_number_or_text(value, where), args[1])
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, args, where)
    if origin is Literal:
        return _convert_choice(value, args, where)
    if origin is tuple:
        return _convert_tuple(value, args[0], where)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return _convert_mapping(value, args[1] if args else Any, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise BadRecord(f"{where} must be a table, not {value!r}.")
        return read(hint, value, where)
    return value if hint in (Any, object) else _convert_scalar(value, hint, where)


def plain(record: object) -> Any:
    """Convert a record to dicts, lists and scalars. Fields that are None are left out."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        pairs = ((f.name, getattr(record, f.name)) for f in dataclasses.fields(record))
        return {name: plain(value) for name, value in pairs if value is not None}
    if isinstance(record, Mapping):
        return {str(key): plain(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [plain(value) for value in record]
    return record


def digest(data: object) -> str:
    """Return a short hash of plain data that is the same in every process."""
    text = json.dumps(plain(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(path: Path) -> Plain:
    """Read plain data from a TOML or JSON file, which may be compressed."""
    text = read_text(path)
    try:
        data = json.loads(text) if _is_json(path) else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise BadRecord(f"{path} is not valid {path.suffix.lstrip('.') or 'TOML'}: {error}.") from error
    if not isinstance(data, dict):
        raise BadRecord(f"{path} must hold a table at its top, not {type(data).__name__}.")
    return data


def save(path: Path, data: object) -> None:
    """Write plain data as TOML or JSON, atomically."""
    body = plain(data)
    write_text(path, json.dumps(body, indent=1) + "\n" if _is_json(path) else to_toml(body))


def _is_json(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".json")


def read_text(path: Path) -> str:
    """The text of a file. A file whose name ends with .gz is decompressed."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadRecord(f"{path} cannot be read: {error}.") from error


def write_text(path: Path, text: str) -> Path:
    """Write a file whole, compressed if its name ends with .gz; the same text gives the same bytes."""
    data = text.encode()
    return write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def write_whole(path: Path, body: str | bytes) -> Path:
    """Write a file atomically: a full disk or a killed process leaves the old file unchanged.

    Write a temporary file in the same folder, sync it to disk, then rename it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(body if isinstance(body, bytes) else body.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def to_toml(data: Mapping[str, object], prefix: str = "") -> str:
    """Format plain data as TOML: scalars, lists and nested tables."""
    lines = [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in data.items() if not isinstance(v, Mapping)]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in data.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_toml_key(key)}"
            text += f"\n[{name}]\n" + to_toml(value, f"{name}.")
    return text


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return f"{value:.1f}"
    return json.dumps(value)


def _number_or_text(value: object, where: str) -> float | str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadRecord(f"{where} must be a quantity, not {value!r}.")
    return value


def _convert_union(value: object, args: tuple[Any, ...], where: str) -> Any:
    others = [arg for arg in args if arg is not type(None)]
    if value is None:
        if len(others) < len(args):
            return None
        raise BadRecord(f"{where} must not be empty.")
    for other in others[:-1]:
        try:
            return convert(value, other, where)
        except BadRecord:
            continue
    return convert(value, others[-1], where)


def _convert_choice(value: object, choices: tuple[Any, ...], where: str) -> Any:
    for choice in choices:
        if value == choice or str(value) == str(choice):
            return choice
    raise BadRecord(f"{where} cannot be {value!r}.", hint=nearest(str(value), [str(c) for c in choices]))


def _convert_tuple(value: object, inner: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    if not isinstance(value, (list, tuple)):
        raise BadRecord(f"{where} must be a list, not {value!r}.")
    return tuple(convert(item, inner, f"{where}[{i}]") for i, item in enumerate(value))


def _convert_mapping(value: object, inner: Any, where: str) -> Plain:
    if not isinstance(value, Mapping):
        raise BadRecord(f"{where} must be a table, not {value!r}.")
    return {str(key): convert(item, inner, f"{where}.{key}") for key, item in value.items()}


def _convert_scalar(value: Any, hint: Any, where: str) -> Any:
    """Convert to bool, int, float or str. Numbers may be text, since all words of a command line are text."""
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                str(value).lower()
            ]
        if hint is int and not isinstance(value, bool):
            number = float(value) if not isinstance(value, int) else value
            if number == int(number):
                return int(number)
            raise ValueError
        if hint is float and not isinstance(value, bool):
            return float(value)
        if hint is str and isinstance(value, str):
            return value
    except (KeyError, ValueError, TypeError, OverflowError):
        pass
    raise BadRecord(f"{where} must be {words.get(hint, hint)}, not {value!r}.")
