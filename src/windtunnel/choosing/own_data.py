"""The user's data in three parts: to train on, to choose the network on, and for an exam on unused examples.

CSV and NumPy tables, folders with one folder of pictures for each class, and text files.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windtunnel import records
from windtunnel.choosing import columns, tables
from windtunnel.choosing.columns import LEAST_OF_CLASS, Preparation, TargetColumn, TargetRows
from windtunnel.choosing.tables import ARRAYS, TABLES, TEXTS, Table
from windtunnel.choosing.task import TaskKind
from windtunnel.errors import BadInput, UnknownName
from windtunnel.job.lesson import Dataset
from windtunnel.learning import data, files
from windtunnel.records import Plain

Form = Literal["table", "images", "text"]
Part = Mapping[str, Tensor]
PICTURE_SIZE = 32
MOST_PICTURES = 20_000
MOST_CHARACTERS = 2_000_000
SHORTEST_TEXT = 5_000  # characters: each of the three parts needs a few passages
_FEW_ROWS = 200
_MOST_BROKEN = 0.05  # of the pictures, above which the folder is refused
_PIECES = 50  # of a text; its end is often unlike its beginning, so every part has pieces of all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnData:
    """`classes`: their names; empty for a number or text. `baseline`: the score on the exam of always giving
    the most common answer. `preparation`: how new rows become inputs, as plain data. `notes`: what was done.
    """

    name: str
    form: Form
    learn: Part
    choose: Part
    exam: Part
    facts: Plain
    classes: tuple[str, ...] = ()
    baseline: float = 0.0
    preparation: Plain = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def is_number(self) -> bool:
        return self.form == "table" and not self.classes

    @property
    def examples(self) -> tuple[int, int, int]:
        """Rows, pictures or characters of the three parts."""
        first, second, third = (
            len(next(iter(part.values()))) for part in (self.learn, self.choose, self.exam)
        )
        return first, second, third

    def dataset(self, held_out: Part) -> Dataset:
        """To learn from, tested on one of the other parts."""
        return Dataset(name=self.name, train=self.learn, held_out=held_out, facts=self.facts)


def read_own(path: Path, *, target: str | None = None, header: bool | None = None, seed: int = 0) -> OwnData:
    """The data under `path`, divided by `seed`. `target` and `header` are of tables only."""
    if not path.exists():
        raise UnknownName(f"There is no file or folder {path}.", hint="Check the path given with --data.")
    suffix = path.suffix.lower()
    if (target is not None or header is not None) and (path.is_dir() or suffix in TEXTS):
        option = "--target" if target is not None else "--header"
        raise BadInput(f"{option} is for tables; {path} is none.", hint="Leave it out.")
    mark = fingerprint_of(path)
    if path.is_dir():
        return _picture_folder(path, seed, mark)
    if suffix in TABLES:
        return _from_table(path.name, tables.read_csv(path, header, seed), target, seed, mark)
    if suffix in ARRAYS:
        return _from_arrays(path, target, seed, mark)
    if suffix in TEXTS:
        return _from_text(path, mark)
    raise BadInput(
        f"{path} is not a known kind of data.",
        hint="Give a table (FILE.csv, .tsv, .npy, .npz), a text (FILE.txt), "
        "or a folder with one folder of pictures for each class.",
    )


def check_content(kind: TaskKind, own: OwnData, name: str, *, has_outputs: bool) -> None:
    """Refuses a table that a task without a ladder can do nothing with."""
    if own.form != "table":
        return
    prepared = records.read(Preparation, own.preparation, name)
    words = [column.name for column in prepared.inputs if column.categories]
    if kind.makes_pictures and words:
        raise BadInput(
            f"The task {kind.name!r} needs pictures, but {name} has columns of words: {', '.join(words)}.",
            hint="Give a folder of pictures, or a table of numbers only with one picture in each row.",
        )
    if kind.outputs.startswith("classes") and not own.classes and not has_outputs:
        raise BadInput(
            f"The task {kind.name!r} needs classes, but the column {prepared.target.name!r} of {name} holds "
            "numbers.",
            hint="Name a column of classes with --target, or give --outputs. "
            "--task 'classify tables' predicts numbers too.",
        )


def divide(labels: Sequence[Any] | None, count: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Places of the rows to learn from (three fifths), to choose on and to test on (one fifth each).

    With labels, each class is divided by itself, so that all parts have all classes.
    """
    draw = random.Random(seed)
    groups: dict[Any, list[int]] = {}
    for place in range(count):
        groups.setdefault(labels[place] if labels is not None else None, []).append(place)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for _, places in sorted(groups.items(), key=lambda item: str(item[0])):
        draw.shuffle(places)
        fifth = max(1, len(places) // 5)
        for part, some in zip(
            parts, (places[2 * fifth :], places[:fifth], places[fifth : 2 * fifth]), strict=True
        ):
            part += some
    return parts


def _from_table(name: str, table: Table, target: str | None, seed: int, mark: str) -> OwnData:
    wanted = columns.read_target(table, target, name)
    usable, dropped = columns.choose_columns(table, wanted, name)
    dropped += columns.telling(table, wanted, usable)
    parts = divide(wanted.labels or None, len(wanted.rows), seed)
    rows = [[wanted.rows[i] for i in part] for part in parts]
    inputs, changed = columns.fit_inputs(table, usable, rows[0], name)
    made, values = _target_values(wanted, parts[0])
    chosen = [table.columns[column.place] for column in inputs]
    tensors = [
        {
            "inputs": torch.tensor(columns.prepare(chosen, inputs, some), dtype=torch.float32),
            "targets": values[part],
        }
        for some, part in zip(rows, parts, strict=True)
    ]
    preparation = Preparation(inputs=inputs, target=made, named=table.named, columns=len(table.columns))
    notes = (*table.notes, *wanted.notes, *dropped, *changed, *_caution(tensors))
    return OwnData(
        name=name,
        form="table",
        learn=tensors[0],
        choose=tensors[1],
        exam=tensors[2],
        facts={"inputs": preparation.width, "outputs": len(made.classes) or 1},
        classes=made.classes,
        baseline=0.0 if made.is_number else _share_of_most_common(tensors),
        preparation=records.plain(preparation),
        notes=notes,
        fingerprint=mark,
    )


def _target_values(wanted: TargetRows, learn: Sequence[int]) -> tuple[TargetColumn, Tensor]:
    """The target as class numbers, or as numbers of mean 0 and deviation 1 on the rows to learn from."""
    if wanted.numbers is None:
        places = {label: n for n, label in enumerate(wanted.classes)}
        labels = torch.tensor([places[label] for label in wanted.labels])
        return TargetColumn(name=wanted.name, place=wanted.place, classes=wanted.classes), labels
    known = wanted.numbers[list(learn)]
    mean, deviation = float(known.mean()), float(known.std()) or 1.0
    made = TargetColumn(name=wanted.name, place=wanted.place, mean=mean, deviation=deviation)
    return made, torch.tensor((wanted.numbers - mean) / deviation, dtype=torch.float32)


def _caution(parts: Sequence[Part]) -> list[str]:
    """Cautions about the data: few rows, and rows of the exam that were trained on."""
    count = sum(len(part["inputs"]) for part in parts)
    notes = []
    if count < _FEW_ROWS:
        notes.append(f"{count} rows are few: another random division could give quite another result.")
    seen = {tuple(row) for row in parts[0]["inputs"].tolist()}
    again = sum(tuple(row) in seen for row in parts[2]["inputs"].tolist())
    if again * 10 > len(parts[2]["inputs"]):
        notes.append(
            f"{again} of {len(parts[2]['inputs'])} rows of the exam have the same inputs as a row that was "
            "learned from; new rows may be harder."
        )
    return notes


def _share_of_most_common(parts: Sequence[Part]) -> float:
    most = int(parts[0]["targets"].mode().values)
    return float((parts[2]["targets"] == most).float().mean())


def _from_arrays(path: Path, target: str | None, seed: int, mark: str) -> OwnData:
    arrays = tables.read_numpy(path)
    values = next((arrays[key] for key in ("images", "x", "X", "table") if key in arrays), None)
    labels = next((arrays[key] for key in ("labels", "y") if key in arrays), None)
    if values is None or values.ndim < 2 or (labels is None and values.ndim != 2) or values.dtype.kind == "U":
        _refuse_arrays(path, arrays)
    if not values.size:
        _refuse_arrays(path, arrays)
    if labels is not None and labels.size != len(values):
        _refuse_arrays(path, arrays)
    kept = tables.sampled(len(values), int(np.prod(values.shape[1:])), seed)
    said = (
        [] if len(kept) == len(values) else [f"Of {len(values):,} rows, {len(kept):,} were drawn at random."]
    )
    values, labels = values[kept], None if labels is None else labels.reshape(-1)[kept]
    if values.ndim == 2:
        table = tables.from_arrays(values, labels)
        made = Table(columns=table.columns, places=table.places, named=False, notes=tuple(said))
        return _from_table(path.name, made, target, seed, mark)
    assert labels is not None
    shown = _as_pictures(path, arrays, values)
    return _pictures(path.name, shown, [str(label) for label in labels.tolist()], seed, (mark, said))


def array_pictures(path: Path) -> tuple[Tensor, list[str]]:
    """The pictures of a NumPy file with values from 0 to 1, and their labels if it has any."""
    arrays = tables.read_numpy(path)
    values = next((arrays[key] for key in ("images", "x", "X", "table") if key in arrays), None)
    labels = next((arrays[key] for key in ("labels", "y") if key in arrays), None)
    if values is None or values.ndim < 3:
        _refuse_arrays(path, arrays)
    return _as_pictures(path, arrays, values), [] if labels is None else [str(x) for x in labels.tolist()]


def _as_pictures(path: Path, arrays: Mapping[str, NDArray[Any]], values: NDArray[Any]) -> Tensor:
    """(example, channel, row, column), from 0 to 1: values above 1 are taken to be bytes."""
    pictures = values[:, None] if values.ndim == 3 else values
    if pictures.ndim == 4 and pictures.shape[1] == pictures.shape[2] and pictures.shape[3] in (1, 3):
        pictures = np.moveaxis(pictures, 3, 1)  # as image libraries have them: channels last
    shown = torch.tensor(pictures.astype(np.float32) / (255.0 if float(pictures.max()) > 1 else 1.0))
    if shown.dim() != 4 or shown.shape[2] != shown.shape[3] or not bool(shown.isfinite().all()):
        _refuse_arrays(path, arrays)
    return shown


def _refuse_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> NoReturn:
    content = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
    raise BadInput(
        f"{path} holds {content}.",
        hint="Give a table with the target in its last column, or an .npz file with x and y, "
        "or with square images and labels, of one length.",
    )


def _picture_folder(path: Path, seed: int, mark: str) -> OwnData:
    found = files.class_folders(path)
    total = sum(len(some) for some in found.values())
    draw, pictures, labels, said, broken = random.Random(seed), [], [], [], list[Path]()
    for label, some in found.items():
        if total > MOST_PICTURES:
            some = sorted(draw.sample(some, max(LEAST_OF_CLASS, MOST_PICTURES * len(some) // total)))
        for file in some:
            try:
                pictures.append(files.read_picture(file, PICTURE_SIZE, 3))
            except BadInput:
                broken.append(file)
            else:
                labels.append(label)
    if total > MOST_PICTURES:
        said.append(f"Of {total:,} pictures, {len(labels):,} were drawn at random.")
    if len(broken) > _MOST_BROKEN * (len(labels) + len(broken)):
        files.read_picture(broken[0], PICTURE_SIZE, 3)  # says what is wrong with it
    if broken:
        names = ", ".join(str(file.relative_to(path)) for file in broken[:3])
        said.append(f"{len(broken):,} pictures cannot be read and are left out: {names}.")
    said.append(f"Pictures are read in colour and scaled to {PICTURE_SIZE} x {PICTURE_SIZE}.")
    return _pictures(path.name, torch.stack(pictures), labels, seed, (mark, said))


def _pictures(
    name: str, pictures: Tensor, labels: list[str], seed: int, about: tuple[str, list[str]]
) -> OwnData:
    mark, notes = about
    counts = Counter(labels)
    rare = [label for label, count in counts.items() if count < LEAST_OF_CLASS]
    if len(counts) < 2 or rare:
        problem = (
            f"has one class only ({labels[0]!r})"
            if len(counts) < 2
            else f"has {counts[rare[0]]} pictures of class {rare[0]!r}; {LEAST_OF_CLASS} are needed of each"
        )
        raise BadInput(f"{name} {problem}.", hint="Give two classes or more, with more pictures of each.")
    classes = tuple(sorted(counts))
    numbers = torch.tensor([classes.index(label) for label in labels])
    parts = [
        {"images": pictures[part], "labels": numbers[part]} for part in divide(labels, len(labels), seed)
    ]
    most = int(parts[0]["labels"].mode().values)
    channels, size = pictures.shape[1:3]
    return OwnData(
        name=name,
        form="images",
        learn=parts[0],
        choose=parts[1],
        exam=parts[2],
        facts={"classes": len(classes), "channels": channels, "size": size},
        classes=classes,
        baseline=float((parts[2]["labels"] == most).float().mean()),
        notes=tuple(notes),
        fingerprint=mark,
    )


def _from_text(path: Path, mark: str) -> OwnData:
    """Of every ten pieces of the text eight are learned from, one is to choose on, one is the exam."""
    whole = files.read_characters(path, SHORTEST_TEXT, MOST_CHARACTERS + 1)
    notes = (tables.OLD_TEXT,) if files.encoding_of(path) == "cp1252" else ()
    if len(whole) > MOST_CHARACTERS:
        whole = whole[:MOST_CHARACTERS]
        notes = (*notes, f"Only the first {MOST_CHARACTERS:,} characters are used.")
    size = -(-len(whole) // _PIECES)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    learn, choose, test = (
        "".join(piece for n, piece in enumerate(pieces) if n % 10 in places)
        for places in ((0, 1, 2, 3, 5, 6, 7, 8), (4,), (9,))
    )
    known = data.from_text(path.name, learn, choose)
    alphabet = str(known.facts["alphabet"])
    exam = data.encode(test, alphabet)
    most = int(known.train["text"].mode().values)
    return OwnData(
        name=path.name,
        form="text",
        learn=known.train,
        choose=known.held_out,
        exam={"text": exam},
        facts={"alphabet": alphabet},
        baseline=float((exam == most).float().mean()),
        notes=notes,
        fingerprint=mark,
    )


def fingerprint_of(path: Path) -> str:
    """Changes when the data does: of a file its content, of a folder the names and sizes of its files."""
    made = hashlib.sha256()
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            made.update(f"{file.relative_to(path)}:{file.stat().st_size}\n".encode())
    else:
        with path.open("rb") as opened:
            while block := opened.read(1 << 20):
                made.update(block)
    return made.hexdigest()[:16]
