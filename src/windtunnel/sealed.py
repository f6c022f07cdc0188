"""Files with a checksum, in formats that had none in an earlier version.

A file of that version gets its checksum when it is first read, with a note. A copy of the old file is kept
next to it. If this copy exists, the file had a checksum, so a file without one is damaged.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from windtunnel import records
from windtunnel.errors import BadRecord, Note, StoreError
from windtunnel.records import SEAL, Plain


def load(path: Path, check: Callable[[Plain], None], *, version: int, again: str) -> Plain:
    """Plain data of a file that has a checksum since format `version`. `check` raises an error for data that
    cannot be used; `again` says how to write the file again."""
    data = records.load(path)
    check(data)
    if data.get("format", 0) == version - 1 and SEAL not in data:
        _give(path, {**data, "format": version}, again)
    elif SEAL not in data or data.get("format") != version:
        raise BadRecord(f"{path} is damaged: its checksum or its format is missing.", hint=again)
    return data


def _give(path: Path, data: Plain, again: str) -> None:
    """Add a checksum to a file of the earlier version, once, and note it."""
    kept = unsealed(path)
    if kept.exists():
        raise BadRecord(
            f"{path} is damaged: it has no checksum, and it had one.",
            hint=f"{again}, or restore a copy. The file of the earlier version is {kept}.",
        )
    said = f"It has one now. The file as it was is kept as {kept.name}."
    try:
        records.write_whole(kept, path.read_bytes())
        try:
            records.save_sealed(path, data)
        except BaseException:
            kept.unlink(missing_ok=True)
            raise
    except (OSError, StoreError) as error:
        said = f"It cannot be given one: {getattr(error, 'message', error)}"
        if not os.access(path.parent, os.W_OK):
            said = "It cannot be given one: its folder cannot be written."
    warn(f"{path} is of an earlier version and had no checksum: no one can tell whether it changed. {said}")


def unsealed(path: Path) -> Path:
    """The path of the kept copy of a file of the earlier version: cpu.json.gz becomes
    cpu.unsealed.json.gz."""
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.unsealed{dot}{rest}")


def warn(text: str) -> None:
    """Warn the caller of something that is not an error. The command line prints it on standard error."""
    warnings.warn(Note(text), stacklevel=3)
