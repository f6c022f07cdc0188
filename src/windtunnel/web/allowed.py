"""Which jobs a browser may name: built-in networks, networks of known libraries, files named at the start.

The browser sends words, never a path or code. A job file is found only by the label under which the command
line registered it; a library's network only by a plain name, which the library itself must list.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel import networks
from windtunnel.errors import BadInput, BadJob, UnknownName, nearest
from windtunnel.job.workload import job_file

LIBRARIES = ("torchvision", "timm", "transformers", "llm")
# The only settings of a transformers network that a browser may set: sizes, never names of code or files.
_TEXT_SETTINGS = frozenset(
    {"length", "task", "rate", "layers", "hidden", "heads", "vocabulary", "hidden_size", "num_hidden_layers"}
    | {"num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings"}
)
_NETWORK = re.compile(r"[A-Za-z0-9_-]{1,100}")  # without a dot: no file and no attribute can be named
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_NUMBER = r"-?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,3})?"
_WORD = r"[A-Za-z][A-Za-z0-9_-]{0,39}"
_VALUE = re.compile(rf"(?:{_NUMBER}|{_WORD})(?:,(?:{_NUMBER}|{_WORD}))*")
_MOST_FILES = 2000
MOST_SETTINGS, MOST_VALUE = 32, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedJobs:
    """`files` maps the label of a registered file to its full address, path/to/file.py:function."""

    files: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def with_files(addresses: Sequence[str]) -> AllowedJobs:
        """Register files of the command line; an address that is none is an error."""
        files: dict[str, str] = {}
        for address in addresses:
            path, _, function = address.rpartition(":")
            if not path.endswith(".py") or not function.isidentifier():
                raise BadJob(
                    f"--job {address}: this is no job file.", hint="Write it as path/to/file.py:function."
                )
            found = job_file(path)
            files[_label(found, function, files)] = f"{found}:{function}"
        return AllowedJobs(files=files)

    def address(self, name: str) -> str:
        """What `Workload.named` gets for the name that a browser sent; an error if it may not name it."""
        if name in self.files:
            return self.files[name]
        library, colon, network = name.partition(":")
        if colon and library in LIBRARIES and _NETWORK.fullmatch(network):
            return name
        if name in networks.names():
            return name
        known = (*networks.names(), *self.files)
        raise UnknownName(
            f"No job is called {name[:60]!r}.",
            hint=f"{nearest(name[:60], known)} A library's network: torchvision:resnet50. A file of your "
            "own: start the page with windtunnel serve --job path/to/file.py:function.",
        )

    def stamp(self, name: str) -> str:
        """Changes when a registered file, or another Python file beside it, changes; empty for other jobs."""
        if name not in self.files:
            return ""
        folder = Path(self.files[name].rpartition(":")[0]).parent
        newest, count = 0, 0
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in itertools.islice(entries, _MOST_FILES):
                if entry.name.endswith(".py"):
                    newest, count = max(newest, entry.stat().st_mtime_ns), count + 1
        return f"{count}-{newest}"

    def label(self, address: str) -> str:
        """The name under which the browser knows a job; an address that it may not know is an error."""
        for label, own in self.files.items():
            if own == address:
                return label
        self.address(address)
        return address


def _label(path: Path, function: str, taken: Mapping[str, str]) -> str:
    """The file's own name without its folder; a number tells two of the same name apart."""
    label, number = f"{path.name}:{function}", 1
    while label in taken:
        number += 1
        label = f"{path.name}:{function} ({number})"
    return label


def read_settings(text: str, job: str) -> tuple[tuple[str, str], ...]:
    """Settings as a browser sends them, `key=value key=value`, in the order of their names."""
    found: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise BadInput(
                f"{word[:60]!r} is not a setting.", hint="Write settings as key=value: n_rec=50 n_steps=100"
            )
        if len(value) > MOST_VALUE or not _VALUE.fullmatch(value):
            raise BadInput(
                f"The setting {key} cannot be {value[:60]!r} here.",
                hint="The page takes numbers and words, and lists of them: 50, 0.1, relu, 128,64",
            )
        if job.startswith("transformers:") and key not in _TEXT_SETTINGS:
            raise BadInput(
                f"The setting {key} of a transformers network cannot be set here.",
                hint=f"{nearest(key, _TEXT_SETTINGS)} On the command line, every setting can.",
            )
        found[key] = value
    if len(found) > MOST_SETTINGS:
        raise BadInput(f"A job has at most {MOST_SETTINGS} settings here, not {len(found)}.")
    return tuple(sorted(found.items()))
