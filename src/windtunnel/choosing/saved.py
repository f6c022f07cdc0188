"""A network that the ladder chose: one file of weights with everything needed to use it on new data.

Weights are safetensors; the rest is JSON in the same file's header, so both are always of one network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel import records
from windtunnel.choosing import columns, dense, own_data, tables
from windtunnel.choosing.columns import Preparation
from windtunnel.choosing.ladder_result import Exam, RungResult
from windtunnel.choosing.own_data import OwnData
from windtunnel.choosing.rungs import Rung, model_for
from windtunnel.choosing.tables import ARRAYS, TABLES, Table
from windtunnel.errors import BadInput, UnknownName, text_of
from windtunnel.learning import checkpoint, data, files
from windtunnel.records import Plain

NAME = "network.safetensors"
_CONTEXT = 64  # characters of a text that the network is shown
_WRITTEN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a saved network is, and how new data becomes its inputs."""

    data: str
    form: str
    rung: Rung
    facts: Plain
    classes: tuple[str, ...] = ()
    preparation: Plain = dataclasses.field(default_factory=dict)
    score: float = 0.0
    exam: Exam | None = None
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAnswer:
    """One answer. `certainty`: the share that the network gives its class. `wanted`: what the file says."""

    row: str
    predicted: str
    certainty: float | None = None
    wanted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedNetwork:
    """A network with its description, ready to answer."""

    path: Path
    model: nn.Module
    description: Description

    @property
    def preparation(self) -> Preparation:
        return records.read(Preparation, self.description.preparation, str(self.path))


def describe(own: OwnData, rung: Rung, result: RungResult, exam: Exam | None) -> Description:
    return Description(
        data=own.name,
        form=own.form,
        rung=rung,
        facts=own.facts,
        classes=own.classes,
        preparation=own.preparation,
        score=result.score,
        exam=exam,
        fingerprint=own.fingerprint,
    )


def save(folder: Path, model: nn.Module, description: Description) -> Path:
    """Writes the network atomically."""
    path = folder / NAME
    checkpoint.save(path, {"model": dict(model.state_dict())}, records.plain(description))
    return path


def load(place: Path) -> SavedNetwork:
    """The network in a folder of the ladder, or in its file."""
    path = place / NAME if place.is_dir() else place
    if not path.exists():
        if (place / checkpoint.NAME).exists():
            raise BadInput(
                f"{place} is of `windtunnel network train`, which does not keep how its data was prepared.",
                hint="Train on your file with: windtunnel advise --task unclear --data FILE",
            )
        raise UnknownName(
            f"There is no saved network in {place}.",
            hint="Give the folder that `windtunnel advise --data FILE` names in its line `saved`.",
        )
    trees, note = checkpoint.load(path)
    try:
        description = records.read(Description, note, str(path))
    except BadInput as error:
        raise BadInput(f"{path} is not a network of the ladder: {error.message}", hint=error.hint) from error
    with torch.device("meta"):  # without its memory, until its size is known to be that of the weights
        checkpoint.check_fit(model_for(description.rung, description.facts), trees["model"], path)
    model = model_for(description.rung, description.facts)
    model.load_state_dict(trees["model"])
    return SavedNetwork(path=path, model=model.eval(), description=description)


def answer(network: SavedNetwork, path: Path) -> tuple[list[NetworkAnswer], list[str]]:
    """Answers for each row or picture of new data, with notes on the data. A text is continued."""
    if not path.exists():
        raise UnknownName(f"There is no file or folder {path}.", hint="Check the path given with --data.")
    form = network.description.form
    try:
        return {"table": _answer_rows, "images": _answer_pictures, "text": _continue_text}[form](
            network, path
        )
    except (KeyError, IndexError, RuntimeError) as error:  # the file was written by something else
        raise BadInput(
            f"{network.path} does not fit itself: its description is not of its network "
            f"({type(error).__name__}: {text_of(error)}).",
            hint="Train it again with: windtunnel advise --task unclear --data FILE",
        ) from error


def _answer_rows(network: SavedNetwork, path: Path) -> tuple[list[NetworkAnswer], list[str]]:
    made = network.preparation
    table = _new_rows(path, made)
    places, notes = _matched(table, made, path)
    notes += _input_cautions(table, places, made)
    count = len(table.places)
    inputs = columns.prepare([table.columns[place] for place in places], made.inputs, range(count))
    given = dense.outputs_of(network.model, torch.tensor(inputs, dtype=torch.float32))
    wanted = _wanted(table, made, count)
    if made.target.is_number:
        numbers = (given.squeeze(1) * made.target.deviation + made.target.mean).tolist()
        return [
            NetworkAnswer(row=str(place + 1), predicted=f"{number:.6g}", wanted=right)
            for place, number, right in zip(table.places, numbers, wanted, strict=True)
        ], [*table.notes, *notes]
    shares = torch.softmax(given, 1)
    best = shares.argmax(1).tolist()
    return [
        NetworkAnswer(
            row=str(table.places[n] + 1),
            predicted=made.target.classes[place],
            certainty=float(shares[n, place]),
            wanted=wanted[n],
        )
        for n, place in enumerate(best)
    ], [*table.notes, *notes]


def _new_rows(path: Path, made: Preparation) -> Table:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return tables.read_csv(path, header=made.named, whole=True)
    if suffix in ARRAYS:
        arrays = tables.read_numpy(path)
        values = next((arrays[key] for key in ("x", "X", "table") if key in arrays), None)
        if values is not None and values.ndim == 2 and values.dtype.kind != "U":
            return tables.from_arrays(values, arrays.get("y"))
    raise BadInput(
        f"{path} is not a table.", hint="Give FILE.csv, FILE.npy or FILE.npz with rows to predict."
    )


def _matched(table: Table, made: Preparation, path: Path) -> tuple[list[int], list[str]]:
    """The place of each column that the network needs: by name, or by its place if there are no names."""
    if not made.named:
        width = len(table.columns)
        if width not in (made.columns, made.columns - 1):
            raise BadInput(
                f"{path} has {width} columns; the network was trained on {made.columns}.",
                hint="Give the same columns in the same order; the one to predict may be missing.",
            )
        shift = made.columns - width
        return [c.place - (shift if c.place > made.target.place else 0) for c in made.inputs], []
    missing = [column.name for column in made.inputs if column.name not in table.names]
    if missing:
        raise BadInput(
            f"{path} has no column {columns.shortened(missing, 6)!s}.",
            hint=f"Its first line must name these columns: "
            f"{columns.shortened([c.name for c in made.inputs])}.",
        )
    known = {column.name for column in made.inputs} | {made.target.name}
    extra = [name for name in table.names if name not in known]
    notes = [f"Columns that the network does not use: {columns.shortened(extra, 6)}."] if extra else []
    return [table.names.index(column.name) for column in made.inputs], notes


def _input_cautions(table: Table, places: Sequence[int], made: Preparation) -> list[str]:
    """Notes on unknown or missing values, and what the network received instead."""
    notes = []
    for place, column in zip(places, made.inputs, strict=True):
        new = table.columns[place]
        if column.categories:
            strange = sorted({text for text in new.texts if text and text not in column.categories})
            if strange:
                words = columns.shortened(strange, 4)
                notes.append(f"Column {column.name!r} has words that it never learned: {words}.")
        elif missing := sum(value != value for value in tables.as_numbers(new).tolist()):
            notes.append(f"Column {column.name!r}: {missing:,} missing values are taken as {column.fill:g}.")
    return notes


def _wanted(table: Table, made: Preparation, count: int) -> Sequence[str | None]:
    """What the file itself says, where it has the column to predict."""
    target = made.target
    if made.named:
        place = table.names.index(target.name) if target.name in table.names else None
    else:
        place = target.place if len(table.columns) == made.columns else None
    if place is None:
        return [None] * count
    column = table.columns[place]
    if column.numbers is None and not target.is_number:
        return [text or None for text in column.texts]
    show = str if target.is_number else columns.class_text
    return [None if number != number else show(number) for number in tables.as_numbers(column).tolist()]


def _answer_pictures(network: SavedNetwork, path: Path) -> tuple[list[NetworkAnswer], list[str]]:
    facts, classes = network.description.facts, network.description.classes
    answers = []
    for name, picture, label in _shown_pictures(path, facts):
        with torch.no_grad():
            shares = torch.softmax(network.model(picture.unsqueeze(0))[0], 0)
        best = int(shares.argmax())
        wanted = label if label in classes else None
        answers.append(
            NetworkAnswer(row=name, predicted=classes[best], certainty=float(shares[best]), wanted=wanted)
        )
    return answers, []


def _shown_pictures(path: Path, facts: Plain) -> Iterator[tuple[str, Tensor, str]]:
    """Name, picture and label (of an archive, else the folder's name) of each picture."""
    if path.suffix.lower() in ARRAYS:
        pictures, labels = own_data.array_pictures(path)
        size = (facts["channels"], facts["size"], facts["size"])
        if tuple(pictures.shape[1:]) != size:
            raise BadInput(
                f"{path} has pictures of {tuple(pictures.shape[1:])}; the network was trained on {size}.",
                hint="Scale the pictures first.",
            )
        for number, picture in enumerate(pictures):
            yield str(number + 1), picture, labels[number] if labels else ""
        return
    found = sorted(p for p in path.rglob("*") if files.is_picture(p)) if path.is_dir() else [path]
    if not found:
        raise BadInput(f"{path} has no pictures.", hint="Give a folder of pictures, or one picture.")
    for file in found:
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        yield name, files.read_picture(file, facts["size"], facts["channels"]), file.parent.name


@torch.no_grad()
def _continue_text(network: SavedNetwork, path: Path) -> tuple[list[NetworkAnswer], list[str]]:
    """The text that the network generates after the end of the file, sampled from its predictions."""
    alphabet = str(network.description.facts["alphabet"])
    try:
        start = path.read_text(encoding=files.encoding_of(path))[-_CONTEXT:]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as text: {error}.", hint="Give a text file.") from error
    if not start:
        raise BadInput(f"{path} is empty.", hint="Give a text that the network goes on with.")
    ids, draw = data.encode(start, alphabet).tolist(), torch.Generator().manual_seed(0)
    for _ in range(_WRITTEN):
        scores = network.model(torch.tensor([ids[-_CONTEXT:]]))[0][0, -1]
        # Scores divided by less than 1 favour likely characters, as in the samples of `network train`.
        ids.append(int(torch.multinomial(torch.softmax(scores / 0.7, 0), 1, generator=draw)))
    return [NetworkAnswer(row=path.name, predicted=data.decode(ids[len(start) :], alphabet))], []
