"""The user's own data: class folders of images, a text file, a CSV or NumPy file."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windtunnel.errors import BadInput, Unavailable, text_of
from windtunnel.job.lesson import Dataset
from windtunnel.learning import data

_Array = NDArray[Any]
SHORTEST_TEXT = 2_000
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_MODES = {1: "L", 3: "RGB"}
_LAYOUT = "Lay it out as FOLDER/class name/picture.png, with two classes or more."


def read(path: Path, kind: str | None, *, size: int | None = None, channels: int | None = None) -> Dataset:
    """The data under `path`, which must be of the kind of the data set `kind`."""
    if kind in ("arithmetic", "decision"):
        raise BadInput(
            f"{path} cannot be used: this network learns from generated {kind} data only.",
            hint=f"Omit --data, or use --data {kind}.",
        )
    if kind == "text":
        return _text(path)
    if path.is_dir():
        return _folder(path, size or 32, channels)
    if path.suffix.lower() in (".csv", ".tsv"):
        return _table(path, *_csv(path))
    if path.suffix.lower() in (".npy", ".npz"):
        return _table(path, *_numpy(path))
    if kind is None and path.suffix.lower() in (".txt", ".md", ".py"):
        return _text(path)
    raise BadInput(
        f"{path} is not a folder of images, a CSV file or a NumPy file.",
        hint=f"Give FILE.csv, FILE.npy or FILE.npz (last column: the label). {_LAYOUT}",
    )


def _text(path: Path) -> Dataset:
    """The last tenth is held out."""
    if path.is_dir():
        raise BadInput(
            f"{path} is a folder; this network learns from one text file.",
            hint="Give a file, for example --data book.txt",
        )
    whole = read_characters(path)
    split = len(whole) * 9 // 10
    return data.from_text(path.name, whole[:split], whole[split:])


def read_characters(path: Path, least: int = SHORTEST_TEXT, most: int = -1) -> str:
    """The text of a file, at most `most` characters of it; an error if there are too few to learn from."""
    try:
        with path.open(encoding=encoding_of(path)) as file:
            whole = file.read(most)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read as text: {error}.", hint="Give a plain text file in UTF-8."
        ) from error
    if len(whole) < least:
        raise BadInput(
            f"{path} has {len(whole):,} characters; at least {least:,} are needed to learn from.",
            hint="Give a longer text.",
        )
    return whole


def encoding_of(path: Path) -> str:
    """UTF-8 with or without a byte-order mark, UTF-16 with one, else Windows' Western European code, which
    reads nearly any byte."""
    with path.open("rb") as file:
        start = file.read(65_536)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if b"\0" in start:
        raise BadInput(
            f"{path} holds bytes that are no text.",
            hint="A spreadsheet (.xlsx) must be saved as CSV first, a document (.docx) as plain text.",
        )
    try:
        start[: max(1, len(start) - 4)].decode("utf-8")  # the cut may divide a character
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def _folder(path: Path, size: int, channels: int | None) -> Dataset:
    pictures: list[Tensor] = []
    labels: list[int] = []
    for label, found in enumerate(class_folders(path).values()):
        pictures += [read_picture(file, size, channels or 3) for file in found]
        labels += [label] * len(found)
    return data.split(path.name, torch.stack(pictures), torch.tensor(labels))


def class_folders(path: Path) -> dict[str, list[Path]]:
    """The pictures of each class by the name of its folder; at least two classes of two pictures."""
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(folders) < 2:
        raise BadInput(
            f"{path} has {len(folders)} class folder{'' if len(folders) == 1 else 's'}; "
            "at least 2 are needed.",
            hint=_LAYOUT,
        )
    found = {folder.name: sorted(p for p in folder.iterdir() if is_picture(p)) for folder in folders}
    for name, pictures in found.items():
        if len(pictures) < 2:
            raise BadInput(
                f"{path / name} has {len(pictures)} pictures; "
                "each class needs two or more, one to train on and one to hold out.",
                hint=_LAYOUT,
            )
    return found


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in _PICTURES


def read_picture(path: Path, size: int, channels: int) -> Tensor:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise Unavailable("Reading pictures needs Pillow, which is not installed.", hint=data.HINT) from error
    if channels not in _MODES:
        raise BadInput(
            f"Pictures have 1 or 3 channels, not {channels}.",
            hint="Use channels=1 for grey, channels=3 for colour.",
        )
    try:
        with Image.open(path) as picture:
            pixels = (
                np.asarray(picture.convert(_MODES[channels]).resize((size, size)), dtype=np.float32) / 255
            )
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:
        raise BadInput(
            f"{path} cannot be read as a picture: {error}.", hint="Remove it, or save it again as PNG."
        ) from error
    return torch.from_numpy(pixels).reshape(size, size, channels).permute(2, 0, 1)


def _csv(path: Path) -> tuple[_Array, list[str]]:
    """Numbers, with the label in the last column. A first row without any number is a header."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(i, row) for i, row in enumerate(csv.reader(file, delimiter=delimiter), 1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path} cannot be read as CSV: {error}.", hint="Save it as UTF-8, comma separated."
        ) from error
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        rows = rows[1:]
    if not rows:
        raise BadInput(f"{path} is empty.", hint="Give rows of numbers with the label in the last column.")
    width = len(rows[0][1])
    for number, row in rows:
        if len(row) != width or width < 2:
            raise BadInput(
                f"{path} line {number} has {len(row)} columns, line {rows[0][0]} has {width}; "
                "at least 2 are needed.",
                hint="Correct that line.",
            )
        for column, cell in enumerate(row[:-1], 1):
            if not _is_number(cell):
                raise BadInput(
                    f"{path} line {number}, column {column}: {cell!r} is not a number.",
                    hint="Only the last column, the label, may be a word.",
                )
    return np.array([[float(cell) for cell in row[:-1]] for _, row in rows]), [
        row[-1].strip() for _, row in rows
    ]


def read_arrays(path: Path) -> dict[str, _Array]:
    """The arrays of an .npy or .npz file by name; an .npy file has one, called table."""
    try:
        loaded = np.load(path, allow_pickle=False)
        return dict(loaded) if path.suffix.lower() == ".npz" else {"table": np.asarray(loaded)}
    except Exception as error:  # NumPy, zipfile, zlib and tokenize raise errors of their own
        raise BadInput(
            f"{path} cannot be read as NumPy data: {text_of(error)}.",
            hint="Save it with numpy.save or numpy.savez; objects are not read.",
        ) from error


def _numpy(path: Path) -> tuple[_Array, list[str]]:
    """A table with the label in its last column, or an archive with `images` (or x) and `labels` (or y)."""
    arrays: dict[str, Any] = dict(read_arrays(path))
    table = arrays.get("table")
    if table is not None and table.ndim == 2 and table.shape[1] > 1:
        values, labels = table[:, :-1], table[:, -1]
    else:
        values, labels = (
            next((arrays[k] for k in keys if k in arrays), None)
            for keys in (("images", "x"), ("labels", "y"))
        )
    if values is None or labels is None or values.ndim < 2 or len(values) != labels.size:
        content = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"
        raise BadInput(
            f"{path} holds {content}.",
            hint="Give a table with the label in its last column, "
            "or an .npz with images and labels of the same length.",
        )
    if values.dtype.kind not in "buif":
        raise BadInput(f"{path} holds values of type {values.dtype}, not numbers.", hint="Save numbers.")
    return values.astype(np.float64), [str(label) for label in labels.reshape(-1).tolist()]


def _table(path: Path, values: _Array, labels: list[str]) -> Dataset:
    """Scales the values to 0..1: together if each row is a square picture, else each column by itself."""
    names = sorted(set(labels))
    if len(values) == 0 or not np.isfinite(values).all():
        raise BadInput(
            f"{path} {'is empty' if len(values) == 0 else 'holds values that are not finite numbers'}.",
            hint="Give rows of finite numbers.",
        )
    rare = [name for name in names if labels.count(name) < 2]
    if len(names) < 2 or rare:
        problem = (
            f"has one class ({names[0]!r}) only"
            if len(names) < 2
            else f"has one example of class {rare[0]!r} only"
        )
        raise BadInput(
            f"{path} {problem}; the last column is the label.",
            hint="Give two classes or more, each with two examples or more.",
        )
    pictures = _as_pictures(values)
    whole = data.split(
        path.name,
        torch.tensor(pictures, dtype=torch.float64),
        torch.tensor([names.index(label) for label in labels]),
    )
    return _scaled(whole)


def _scaled(whole: Dataset) -> Dataset:
    """From 0 to 1 by the rows to learn from, a table column by column; held-out rows may lie outside."""
    learned = whole.train["images"]
    axes = (0, 1, 2, 3) if learned.shape[-1] == learned.shape[-2] else (0,)
    low, high = learned.amin(axes, keepdim=True), learned.amax(axes, keepdim=True)
    span = torch.where(high > low, high - low, torch.ones_like(high))
    train, held_out = (
        {**part, "images": ((part["images"] - low) / span).float()} for part in (whole.train, whole.held_out)
    )
    return dataclasses.replace(whole, train=train, held_out=held_out)


def _as_pictures(values: _Array) -> _Array:
    """(example, channel, row, column); values that are no square picture become a picture of one row."""
    if values.ndim == 4:
        return values
    if values.ndim == 3:
        return values[:, None]
    width = math.isqrt(values.shape[1])
    return (
        values.reshape(len(values), 1, width, width)
        if width * width == values.shape[1]
        else values.reshape(len(values), 1, 1, -1)
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
