"""The files of a data set: found in a folder, or written as a specification says; and the page cache.

A specification is KIND:COUNTxBYTES, such as jpeg:2000x110KB, with @FOLDER for where to write.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from windtunnel import units
from windtunnel.errors import BadInput, StoreError, Unavailable
from windtunnel.ownership import temporary_folder

Kind = Literal["raw", "npy", "jpeg"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_SUFFIXES: dict[str, Kind] = {
    ".npy": "npy",
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".bmp", ".webp"), "jpeg"),
}
_SPEC = re.compile(r"^(?P<kind>[a-z]+):(?P<count>\d{1,9})x(?P<bytes>[^@]+)(?:@(?P<folder>.+))?$")
_MOST_COUNT = 1_000_000
_LEAST_BYTES = {"raw": 1, "npy": 132, "jpeg": 1000}  # a header of .npy has 128 bytes
_LOOKED_AT = 200  # files whose pages are looked up in the page cache


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFiles:
    """Files of one kind, each of them one example. `name` is what the user wrote."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    kind: Kind
    total_bytes: int

    @property
    def example_bytes(self) -> float:
        return self.total_bytes / len(self.files)

    def __str__(self) -> str:
        size = units.show(self.example_bytes, "B")
        return f"{self.name}: {len(self.files):,} {self.kind} files of {size} on average"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """Files to be written: this many of a kind and size."""

    kind: Kind
    count: int
    example_bytes: int
    folder: str = ""


def read_spec(text: str) -> FileSpec | None:
    """The specification that the text is; None where it is none, but perhaps a folder."""
    match = _SPEC.match(text)
    if match is None:
        return None
    if match["kind"] not in KINDS:
        raise BadInput(
            f"--data {text}: files can be {', '.join(KINDS)}, not {match['kind']}.",
            hint="For example --data jpeg:2000x110KB.",
        )
    kind: Kind = next(known for known in KINDS if known == match["kind"])
    count, size = int(match["count"]), int(units.parse(match["bytes"], "B"))
    if not 1 <= count <= _MOST_COUNT:
        raise BadInput(f"--data {text}: the number of files must be from 1 to {_MOST_COUNT:,}, not {count}.")
    if size < _LEAST_BYTES[kind]:
        raise BadInput(
            f"--data {text}: a {kind} file has at least {_LEAST_BYTES[kind]} bytes, not {size}.",
            hint="For example --data jpeg:2000x110KB.",
        )
    return FileSpec(kind=kind, count=count, example_bytes=size, folder=match["folder"] or "")


@contextlib.contextmanager
def data_files(text: str) -> Iterator[DataFiles]:
    """The files of a folder, or those of a specification, which are removed afterwards."""
    spec = read_spec(text)
    if spec is None:
        yield find_files(Path(text))
        return
    parent = Path(spec.folder or tempfile.gettempdir())
    try:
        room = shutil.disk_usage(parent).free
    except OSError as error:
        raise BadInput(
            f"--data {text}: {parent} cannot be used: {error.strerror}.", hint="Name a folder that exists."
        ) from error
    if spec.count * spec.example_bytes > room:
        raise BadInput(
            f"--data {text}: the files have {units.show(spec.count * spec.example_bytes, 'B')}; "
            f"{parent} has {units.show(room, 'B')} left.",
            hint="Write fewer or smaller files, or add @FOLDER.",
        )
    with temporary_folder(parent, "data") as folder:
        try:
            write_files(spec, folder)
        except OSError as error:
            raise StoreError(
                f"--data {text}: its files cannot be written in {parent}: {error.strerror or error}.",
                hint="Free some space, write fewer or smaller files, or add @FOLDER.",
            ) from error
        files = find_files(folder)
        yield DataFiles(
            name=text, folder=files.folder, files=files.files, kind=files.kind, total_bytes=files.total_bytes
        )


def find_files(folder: Path) -> DataFiles:
    """All files of the commonest kind under a folder, in the order of their names."""
    if not folder.exists():
        raise BadInput(
            f"--data {folder}: there is no such folder.",
            hint="Name a folder of files, or a specification such as jpeg:2000x110KB.",
        )
    if not folder.is_dir():
        raise BadInput(f"--data {folder} is a file.", hint="Name the folder in which the examples lie.")
    by_kind: dict[Kind, list[tuple[Path, int]]] = {}
    for path in _walk(folder):
        size = path.stat().st_size
        if size:
            by_kind.setdefault(_SUFFIXES.get(path.suffix.lower(), "raw"), []).append((path, size))
    if not by_kind:
        raise BadInput(
            f"--data {folder} holds no file with any content.",
            hint="Name a folder of files, or a specification such as jpeg:2000x110KB.",
        )
    kind, found = max(by_kind.items(), key=lambda item: len(item[1]))
    found.sort()
    _try_to_read(found[0][0])
    return DataFiles(
        name=str(folder),
        folder=folder.resolve(),
        files=tuple(path for path, _ in found),
        kind=kind,
        total_bytes=sum(size for _, size in found),
    )


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise BadInput(
            f"--data {error.filename} cannot be read: {error.strerror}.",
            hint="Give yourself the right to read it, or name another folder.",
        )

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def _try_to_read(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise BadInput(
            f"--data {path} cannot be read: {error.strerror}.",
            hint="Give yourself the right to read it, or name another folder.",
        ) from error


def write_files(spec: FileSpec, folder: Path) -> None:
    """Files of random content. JPEG files are one picture, stored again and again."""
    import numpy

    rng = numpy.random.default_rng(0)
    picture = jpeg_of(spec.example_bytes) if spec.kind == "jpeg" else b""
    for number in range(spec.count):
        path = folder / f"{number:07}.{'jpg' if spec.kind == 'jpeg' else 'bin'}"
        if spec.kind == "npy":
            numpy.save(path.with_suffix(".npy"), rng.integers(0, 256, spec.example_bytes - 128, numpy.uint8))
        else:
            path.write_bytes(picture or rng.bytes(spec.example_bytes))


def jpeg_of(size: int) -> bytes:
    """A JPEG picture of about this many bytes: smooth shapes with noise, in the proportions of a photograph.

    Photographs take about 0.6 bytes a pixel at quality 90 (500 x 375 pixels: 110 kB), so the picture has as
    many pixels as that needs; then the noise is adjusted.
    """
    import io

    import numpy

    image = pillow()
    height = max(8, round((size / 0.6 * 3 / 4) ** 0.5))
    width = max(8, round(height * 4 / 3))
    rng = numpy.random.default_rng(0)
    y, x = numpy.mgrid[0:height, 0:width]
    smooth = numpy.stack(
        [127 + 100 * numpy.sin(x / (20 + 9 * c) + c) * numpy.cos(y / 25) for c in range(3)], 2
    )
    noise = rng.normal(size=smooth.shape)
    best, low, high = b"", 0.0, 60.0
    for _ in range(9):
        strength = (low + high) / 2
        stream, pixels = io.BytesIO(), numpy.clip(smooth + strength * noise, 0, 255).astype(numpy.uint8)
        image.fromarray(pixels).save(stream, "JPEG", quality=90)
        best = stream.getvalue()
        low, high = (strength, high) if len(best) < size else (low, strength)
    return best


def pillow() -> Any:
    """Pillow's Image module, which may not be installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise Unavailable(
            "Pictures need Pillow, which is not installed.", hint="Install it with: pip install pillow"
        ) from error
    return Image


def drop_from_cache(files: Sequence[Path]) -> None:
    """Ask the system to forget what it holds of these files. Pages not yet written must be synced first."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_share(files: Sequence[Path]) -> float | None:
    """The share of these files that the page cache holds; None where the system does not tell.

    Looks at some of the files, evenly taken.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    pages = held = 0
    for path in files[:: max(1, len(files) // _LOOKED_AT)]:
        with (
            path.open("rb") as file,
            mmap.mmap(
                file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
            ) as memory,
        ):
            count = -(-len(memory) // mmap.PAGESIZE)
            vector = (ctypes.c_ubyte * count)()
            window = (ctypes.c_char * len(memory)).from_buffer(memory)
            failed = mincore(ctypes.byref(window), ctypes.c_size_t(len(memory)), vector)
            del window
            if failed:
                return None
            pages += count
            held += sum(page & 1 for page in vector)
    return held / pages if pages else None
