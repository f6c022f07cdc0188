"""Answers of contained processes, kept on disk: the second forecast of a job needs no PyTorch.

An entry holds as long as the job's file and all that it read stay as they were (`watch`). Its key has the
job, its settings, what of the strategy matters, the versions of all installed packages and of this package's
sources. It has a checksum; a damaged entry counts as absent. The folder is bounded: what was not used for the
longest time goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from windtunnel import folders, ownership, records
from windtunnel.isolation.watch import is_unchanged

VARIABLE, OFF = "WINDTUNNEL_CACHE", "off"
_MOST_BYTES = 256 * 2**20
_MOST_ENTRIES = 4096
_NEW, _SUFFIX = ".new-", ".answer"
_INSTALLED = (".dist-info", ".egg-info", ".pth")


def folder_from(environment: Mapping[str, str]) -> Path | None:
    """Where answers are kept; None if they are not."""
    chosen = environment.get(VARIABLE, "")
    if chosen == OFF:
        return None
    if chosen:
        return Path(chosen)
    with contextlib.suppress(RuntimeError):  # a user without a home
        return folders.cache(environment) / "traces"
    return None


class AnswerCache:
    """Looks up and keeps answers. Whatever goes wrong with the disk only costs the time of a new trace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, question: object) -> bytes | None:
        """The answer to the same question, if nothing that it depends on has changed."""
        path = self._path(question)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            facts = json.loads(head)
            whole = facts["sha256"] == _checksum(facts["seen"], body)
            if whole and is_unchanged(facts["seen"]):
                os.utime(path)
                return body
            if not whole:
                path.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return None

    def put(self, question: object, seen: Mapping[str, str], body: bytes) -> None:
        head = json.dumps({"sha256": _checksum(seen, body), "seen": seen}).encode()
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._path(question), head + b"\n" + body)
            self._prune()

    def note(self, command: object) -> None:
        """Remember that all answers for this command line are kept."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._path(["command", command]), b"")

    def knows(self, command: object) -> bool:
        return self._path(["command", command]).exists()

    def _path(self, question: object) -> Path:
        return self.folder / f"{records.digest([question, versions()])}{_SUFFIX}"

    def _prune(self) -> None:
        entries = []
        for entry in os.scandir(self.folder):
            if entry.name.startswith(_NEW):
                if ownership.is_abandoned(entry.name.removeprefix(_NEW).rpartition("-")[0]):
                    with contextlib.suppress(OSError):  # of a process that was killed while it wrote
                        os.unlink(entry)
            elif entry.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    facts = entry.stat()
                    entries.append((facts.st_mtime_ns, facts.st_size, entry.path))
        entries.sort(reverse=True)
        total = 0
        for number, (_, size, path) in enumerate(entries):
            total += size
            if total > _MOST_BYTES or number >= _MOST_ENTRIES:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all. Without a sync, since a checksum tells what a power cut has damaged."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_NEW}{ownership.own_mark()}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _checksum(seen: Mapping[str, str], body: bytes) -> str:
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode() + b"\n" + body).hexdigest()


@cache
def versions() -> list[object]:
    """What answers depend on besides the job: Python, installed packages, our own sources, the processor."""
    package = Path(__file__).parent.parent
    sources = [
        [path, facts.st_size, facts.st_mtime_ns]
        for path, facts in sorted((str(path), path.stat()) for path in package.rglob("*.py"))
    ]
    return [sys.version, sys.prefix, records.digest(sources), _packages(), _processor()]


def _packages() -> list[str]:
    """The names of installed packages hold their versions. An editable PyTorch shows by its version file."""
    names = []
    for folder in sys.path:
        if folder.endswith(("site-packages", "dist-packages")) and os.path.isdir(folder):
            names += [name for name in os.listdir(folder) if name.endswith(_INSTALLED)]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        with contextlib.suppress(OSError):
            names.append(Path(spec.origin).with_name("version.py").read_text())
    return sorted(names)


def _processor() -> str:
    """Libraries choose kernels by the processor's flags; the folder may be shared by several machines."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = file.read(8192).splitlines()
        return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return ""
