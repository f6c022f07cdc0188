"""Convert frozen dataclasses to and from TOML and JSON.

Reading is strict: an unknown key is an error that names the most similar known key.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import json
import os
import re
import secrets
import sys
import tomllib
import types
import typing
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from windtunnel import ownership, units
from windtunnel.errors import BadInput, BadRecord, StoreError, nearest

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
SEAL = "checksum"
_SEALED = re.compile(r'^\{\s*"checksum": "([0-9a-f]{32})",\n')
_TRIAL_BYTES = 2**16
_MOST_BYTES = 2**28  # of a file that is read at once: the largest profile has 9 MB
_SCALARS = frozenset((bool, int, float, str, type(None)))


def read(cls: type[R], data: Mapping[str, object], where: str) -> R:
    """Build a record of `cls` from plain data. `where` names the input in error messages."""
    return cls(**fields_of(cls, data, where))


def fields_of(cls: type[R], data: Mapping[str, object], where: str) -> Plain:
    """The fields of a record of `cls` from plain data, converted and checked."""
    hints, fields = _types_of(cls)  # type: ignore[arg-type]  # a class is hashable
    for key in data:
        if key not in fields:
            raise BadRecord(f"{where}: unknown key {key!r}.", hint=hint_for_key(key, fields))
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise BadRecord(f"{where}: {name!r} is missing.", hint=f"Keys: {', '.join(fields)}.")
    return {key: convert(value, hints[key], f"{where}: {key}") for key, value in data.items()}


@functools.cache
def _types_of(cls: Any) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """The annotations and fields of a class, looked up once: a store has thousands of records."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return hints, {field.name: field for field in dataclasses.fields(cls) if field.init}


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
    if type(value) is hint and hint in _SCALARS:  # nothing to convert: most values of a store
        return value
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


@functools.cache
def _names_of(kind: Any) -> tuple[str, ...] | None:
    """The names of a record's fields, looked up once; None if the type is not a record."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def plain(record: object) -> Any:
    """Convert a record to dicts, lists and scalars. Fields that are None are left out."""
    if type(record) in _SCALARS:
        return record
    names = _names_of(type(record))  # type: ignore[arg-type]  # a class is hashable
    if names is not None:
        pairs = ((name, getattr(record, name)) for name in names)
        return {
            name: value if type(value) in _SCALARS else plain(value)
            for name, value in pairs
            if value is not None
        }
    if isinstance(record, Mapping):
        return {str(key): plain(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [value if type(value) in _SCALARS else plain(value) for value in record]
    return record


def digest(data: object) -> str:
    """Return a short hash of plain data that is the same in every process."""
    text = json.dumps(plain(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(path: Path) -> Plain:
    """Read plain data from a TOML or JSON file, which may be compressed. A checksum in it is verified."""
    text = read_text(path)
    try:
        data = json.loads(text) if _is_json(path) else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = _reason(error)
        raise BadRecord(f"{path} is not valid {path.suffix.lstrip('.') or 'TOML'}: {reason}.") from error
    if not isinstance(data, dict):
        raise BadRecord(f"{path} must hold a table at its top, not {type(data).__name__}.")
    if SEAL in data and _is_json(path):
        _check_seal(path, text)
    return data


def _reason(error: Exception) -> str:
    """Why a text is not plain data. Python's own message would name settings of Python."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    limit = sys.get_int_max_str_digits()
    if f"({limit} digits)" in str(error):
        return f"it has a number of more than {limit:,} digits"
    return str(error)


def save(path: Path, data: object) -> None:
    """Write plain data as TOML or JSON, atomically."""
    body = plain(data)
    write_text(path, json.dumps(body, indent=1) + "\n" if _is_json(path) else to_toml(body))


def save_sealed(path: Path, data: object, previous: Path | None = None) -> None:
    """Write plain data as JSON with a checksum of the text as its first entry, which `load` verifies."""
    write_text(path, seal(json.dumps(plain(data), indent=1) + "\n"), previous)


def seal(text: str) -> str:
    """The text of a JSON table with a checksum of all that follows as its first entry.

    The checksum is of the text and not of the values, so that verifying it costs next to nothing.
    """
    rest = text.removeprefix("{")
    return f'{{\n "{SEAL}": "{_checksum(rest)}",\n{rest}'


def _check_seal(path: Path, text: str) -> None:
    match = _SEALED.match(text)
    if match is None or match[1] != _checksum(text[match.end() :]):
        raise BadRecord(
            f"{path} is damaged: it is not as it was written, its checksum differs.",
            hint="Write it again with the command that made it, or restore a copy.",
        )


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _is_json(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".json")


def read_text(path: Path) -> str:
    """The text of a file. A file whose name ends with .gz is decompressed."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise BadRecord(f"{path} has more than {_MOST_BYTES:,} bytes.", hint="Name another file.")
        return data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadRecord(f"{path} cannot be read: {reason}.") from error


def write_text(path: Path, text: str, previous: Path | None = None) -> Path:
    """Write a file whole, compressed if its name ends with .gz; the same text gives the same bytes."""
    data = text.encode()
    return write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data, previous)


def write_whole(path: Path, body: str | bytes | Iterable[str], previous: Path | None = None) -> Path:
    """Write a file atomically: a full disk or a killed process leaves the old file unchanged.

    Write a temporary file in the same folder, sync it to disk, then rename it. A long body may come in
    pieces. With `previous`, the old file is kept under that name. A link stays: the file that it names is
    written. A device or a pipe (/dev/null) is written directly.
    """
    pieces = [body] if isinstance(body, (bytes, str)) else body
    data = (piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    try:
        if _is_special(path):
            with open(path, "wb") as file:
                file.writelines(data)
            return path
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        temporary = _write_beside(path, data)
        try:
            if previous is not None and path.is_file():
                os.replace(path, previous)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        kept = "The old file is unchanged. " if path.exists() else ""
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}.",
            hint=f"{kept}Free some space, or name another file.",
        ) from error
    return path


def try_writing(path: Path, size: int = _TRIAL_BYTES) -> None:
    """Write `size` bytes next to a file and remove them, so that an OSError comes now and not after long
    work."""
    if _is_special(path):
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    _write_beside(path, [bytes(size)]).unlink()


def _is_special(path: Path) -> bool:
    """Whether this is a device or a pipe, which must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_beside(path: Path, data: Iterable[bytes]) -> Path:
    """A new temporary file in the same folder. An existing file or link is never followed or overwritten."""
    temporary = path.with_name(f"{_temporary_prefix(path)}{ownership.own_mark()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            for piece in data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:100]}.part-"


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files that killed processes left when they wrote this file."""
    prefix = _temporary_prefix(path)
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and ownership.is_abandoned(name.removeprefix(prefix).rpartition("-")[0]):
            path.with_name(name).unlink(missing_ok=True)


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
