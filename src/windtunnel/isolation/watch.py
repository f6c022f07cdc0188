"""What a job reads beside its own file: other files, folders and environment variables.

A trace that is kept holds only as long as all of these stay as they were. The job's own modules count, the
libraries do not: their versions are part of the key.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel import child_lifetime
from windtunnel.job.workload import is_users

Seen = dict[str, str]
_MOST_SEEN = 2000
_WHOLE_BYTES = 8 * 2**20  # of a larger file only size and time of its last change count
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/etc/", sys.prefix, sys.base_prefix)
_BETWEEN = ("os.py", "_collections_abc.py", "<frozen os>", "<frozen _collections_abc>")
_WRITING = os.O_WRONLY | os.O_RDWR
ABSENT = "absent"


class Watch:
    """Notes what is read in this process from `start` on."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.folders: dict[str, None] = {}
        self.variables: dict[str, None] = {}
        self.written: set[str] = set()

    def start(self) -> None:
        sys.addaudithook(self._hear)
        self._watch_environment()

    def seen(self) -> Seen | None:
        """What was read, with a digest of each; None if it is too much to be followed."""
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if isinstance(name, str) and name.endswith(".py"):
                self._note(self.files, name)
        files = [name for name in self.files if name not in self.written]
        if len(files) + len(self.folders) + len(self.variables) > _MOST_SEEN:
            return None
        keys = [f"file {name}" for name in files]
        keys += [f"folder {name}" for name in self.folders]
        keys += [f"variable {name}" for name in self.variables]
        return {key: digest_of(key) for key in keys}

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._hear_open(*arguments)
        elif event in ("os.listdir", "os.scandir"):
            frame = sys._getframe(1)
            if not frame.f_code.co_filename.startswith("<frozen"):  # imports list folders, too
                self._note(self.folders, arguments[0])

    def _hear_open(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, (str, bytes)):
            return
        name = os.fsdecode(path)
        if name.endswith(".pyc"):
            return
        if isinstance(flags, int) and flags & _WRITING:
            self.written.add(os.path.abspath(name))
        else:
            self._note(self.files, name)

    def _note(self, where: dict[str, None], path: Any) -> None:
        try:
            name = os.path.abspath(os.fsdecode(path if path is not None else "."))
        except (TypeError, ValueError, OSError):
            return
        if _is_followed(name):
            where[name] = None

    def _watch_environment(self) -> None:
        kind: Any = type(os.environ)
        read, variables = kind.__getitem__, self.variables

        def noted(self: Any, key: Any) -> Any:
            if isinstance(key, str) and key != child_lifetime.MARK and _is_asked_by_user():
                variables[key] = None
            return read(self, key)

        kind.__getitem__ = noted


def _is_asked_by_user() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and _is_followed(frame.f_code.co_filename)


@functools.cache
def _is_followed(name: str) -> bool:
    return is_users(name) and not name.startswith(_SYSTEM)


def digest_of(key: str) -> str:
    """What one thing that a job read is now."""
    kind, _, name = key.partition(" ")
    try:
        if kind == "variable":
            value = os.environ.get(name)
            return ABSENT if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()
        if kind == "folder":
            return hashlib.sha256("\n".join(sorted(os.listdir(name))).encode("utf-8", "replace")).hexdigest()
        return _file_digest(Path(name))
    except OSError:
        return ABSENT


def _file_digest(path: Path) -> str:
    facts = path.stat()
    if not path.is_file():
        return "no plain file"
    if facts.st_size > _WHOLE_BYTES:
        return f"{facts.st_size} bytes of {facts.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_unchanged(seen: Mapping[str, str]) -> bool:
    """Whether all that a job read is still the same."""
    return all(digest_of(key) == digest for key, digest in seen.items())
