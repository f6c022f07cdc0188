"""Convert the columns of a table to inputs and a target of a network, with notes on each.

Statistics (medians, means, categories) come from the rows to learn from only. The preparation is plain data,
so that a saved network treats new rows in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.choosing.cells import is_date
from windtunnel.choosing.tables import Numbers, Table, TableColumn, as_numbers
from windtunnel.errors import BadInput, UnknownName, nearest

MOST_CATEGORIES = 20  # words of a text column, or whole numbers of a target, that count as classes
MOST_CLASSES = 100
LEAST_OF_CLASS = 5  # rows; fewer cannot be learned from, chosen on and tested on
LEAST_ROWS = 30
MOST_INPUTS = 5_000
_MOST_MISSING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumn:
    """A column of numbers (filled, scaled to mean 0 and deviation 1), or of categories (one input each)."""

    name: str
    place: int
    categories: tuple[str, ...] = ()
    fill: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def width(self) -> int:
        return len(self.categories) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """What is to be predicted: one of the classes, or a number if there are none."""

    name: str
    place: int
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def is_number(self) -> bool:
        return not self.classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Everything needed to turn rows of a file into inputs. `named`: columns are found by name."""

    inputs: tuple[InputColumn, ...]
    target: TargetColumn
    named: bool
    columns: int

    @property
    def width(self) -> int:
        return sum(column.width for column in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """The target before the rows are divided: which rows of the table are usable, and their values."""

    name: str
    place: int
    rows: tuple[int, ...]
    labels: tuple[str, ...] = ()
    numbers: Numbers | None = None
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.labels), key=_numeric_first))


def read_target(table: Table, name: str | None, where: str) -> TargetRows:
    """The target column, by name or place; default: the last. Classes or a number: decided by its values."""
    place = _place_of(table, name, where)
    column = table.columns[place]
    missing = np.isnan(column.numbers) if column.numbers is not None else [not t for t in column.texts]
    rows = [i for i in range(len(column)) if not missing[i]]
    notes = []
    if len(rows) < len(column):
        notes.append(f"{len(column) - len(rows):,} rows without a value of the target are left out.")
    if len(rows) < LEAST_ROWS:
        raise BadInput(
            f"{where} has {len(rows)} rows with a value of the target {column.name!r}; at least "
            f"{LEAST_ROWS} are needed to learn and to test.",
            hint="Collect more examples, one in each row, or name another column with --target.",
        )
    distinct = _distinct(column, rows)
    if len(distinct) == 1:
        raise BadInput(
            f"{where}: the target {column.name!r} has one class only ({distinct[0]!r}), "
            "so there is nothing to tell apart.",
            hint="Give rows of two classes or more, or name another column with --target.",
        )
    if _is_number(column, rows, len(distinct)):
        assert column.numbers is not None
        return TargetRows(
            name=column.name, place=place, rows=tuple(rows), numbers=column.numbers[rows], notes=tuple(notes)
        )
    return _class_rows(column, place, rows, notes, where)


def choose_columns(table: Table, target: TargetRows, where: str) -> tuple[list[int], list[str]]:
    """The places of the usable input columns, and what is said of the others."""
    usable, notes = [], []
    for place, column in enumerate(table.columns):
        if place == target.place:
            continue
        reason = _reason_to_drop(column, table, target.rows)
        if reason:
            notes.append(f"Column {column.name!r} is left out: {reason}.")
        else:
            usable.append(place)
    if not usable:
        raise BadInput(
            f"{where}: no column is left to learn from.\n    " + "\n    ".join(notes),
            hint="Give columns of numbers, or of a few words each.",
        )
    return usable, notes


def telling(table: Table, target: TargetRows, usable: Sequence[int]) -> list[str]:
    """Cautions about columns that alone tell the target: often they are only known with the answer."""
    return [
        f"Column {table.columns[place].name!r} alone tells {target.name!r}. If it is known only when the "
        "answer is, leave it out of the file."
        for place in usable
        if _tells(table.columns[place], target)
    ]


def _tells(column: TableColumn, target: TargetRows) -> bool:
    rows = list(target.rows)
    if target.numbers is not None:
        return column.numbers is not None and bool(np.allclose(column.numbers[rows], target.numbers))
    cells = [column.texts[i] for i in rows] if column.numbers is None else column.numbers[rows].tolist()
    pairs = set(zip(cells, target.labels, strict=True))
    return len(pairs) == len(set(cells)) <= MOST_CATEGORIES


def fit_inputs(
    table: Table, usable: Sequence[int], rows: Sequence[int], where: str
) -> tuple[tuple[InputColumn, ...], list[str]]:
    """The preparation of each column from the rows to learn from, and what is said of it."""
    columns = []
    for place in usable:
        column = table.columns[place]
        if column.numbers is None:
            counts = Counter(column.texts[i] for i in rows)
            words = tuple(sorted(word for word in counts if word))
            columns.append(InputColumn(name=column.name, place=place, categories=words))
        else:
            columns.append(_fit_numbers(column, place, column.numbers[list(rows)]))
    width = sum(column.width for column in columns)
    if width > MOST_INPUTS:
        raise BadInput(
            f"{where} gives {width:,} inputs; at most {MOST_INPUTS:,} are used.",
            hint="Leave out columns, or give the rows as pictures (an .npz file with images and labels).",
        )
    return tuple(columns), [note for note in (_note_on(table.columns[c.place], c) for c in columns) if note]


def prepare(columns: Sequence[TableColumn], inputs: Sequence[InputColumn], rows: Sequence[int]) -> Numbers:
    """The inputs of a network: one row for each of `rows`. Unknown words give zeros."""
    parts = []
    for column, made in zip(columns, inputs, strict=True):
        if made.categories:
            known = {word: n for n, word in enumerate(made.categories)}
            part = np.zeros((len(rows), len(known)))
            for line, row in enumerate(rows):
                if (place := known.get(column.texts[row])) is not None:
                    part[line, place] = 1.0
        else:
            values = as_numbers(column)[list(rows)]
            filled = np.where(np.isnan(values), made.fill, values)
            part = ((filled - made.mean) / made.deviation).clip(-1e3, 1e3)[:, None]
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _place_of(table: Table, name: str | None, where: str) -> int:
    if name is None:
        return len(table.columns) - 1
    if name in table.names:
        return table.names.index(name)
    if name.isdigit() and 1 <= int(name) <= len(table.columns):
        return int(name) - 1
    raise UnknownName(
        f"{where} has no column {name!r}.",
        hint=f"{nearest(name, table.names)} Columns: {shortened(table.names)}.",
    )


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Names in one line; of many only the first and the last."""
    return ", ".join(names if len(names) <= most else (*names[: most - 2], "...", names[-1]))


def _distinct(column: TableColumn, rows: Sequence[int]) -> list[str]:
    if column.numbers is None:
        return sorted({column.texts[i] for i in rows})
    return [class_text(value) for value in np.unique(column.numbers[list(rows)])]


def _is_number(column: TableColumn, rows: Sequence[int], distinct: int) -> bool:
    """Whole numbers of few values are classes; all other numbers are a number to predict."""
    if column.numbers is None:
        return False
    values = column.numbers[list(rows)]
    return distinct > MOST_CATEGORIES or bool((values != np.round(values)).any())


def _class_rows(
    column: TableColumn, place: int, rows: Sequence[int], notes: list[str], where: str
) -> TargetRows:
    labels = [column.texts[i] if column.numbers is None else class_text(column.numbers[i]) for i in rows]
    counts = Counter(labels)
    enough = {label for label, count in counts.items() if count >= LEAST_OF_CLASS}
    if len(enough) < 2 or len(enough) > MOST_CLASSES:
        raise BadInput(
            f"{where}: the target {column.name!r} has {len(counts):,} values in {len(rows):,} rows, "
            f"{len(enough):,} of them with {LEAST_OF_CLASS} rows or more.",
            hint=f"A target has 2 to {MOST_CLASSES} classes, or is a number. Name its column with --target.",
        )
    rare = sorted(set(counts) - enough)
    if rare:
        left_out = sum(counts[label] for label in rare)
        notes = [
            *notes,
            f"{left_out:,} rows of classes with fewer than {LEAST_OF_CLASS} rows are left out: "
            f"{shortened(rare, 5)}.",
        ]
    kept = [(row, label) for row, label in zip(rows, labels, strict=True) if label in enough]
    return TargetRows(
        name=column.name,
        place=place,
        rows=tuple(row for row, _ in kept),
        labels=tuple(label for _, label in kept),
        notes=tuple(notes),
    )


def _reason_to_drop(column: TableColumn, table: Table, rows: Sequence[int]) -> str:
    if column.numbers is not None:
        values = column.numbers[list(rows)]
        missing, given = int(np.isnan(values).sum()), values[~np.isnan(values)]
        distinct = len(np.unique(given))
    else:
        words = [column.texts[i] for i in rows]
        missing = sum(not word for word in words)
        distinct = len({word for word in words if word})
    if missing > _MOST_MISSING * len(rows):
        return f"{missing:,} of {len(rows):,} values are missing"
    if distinct < 2:
        return "all its values are the same"
    if column.numbers is None and distinct > MOST_CATEGORIES and all(map(is_date, filter(None, words))):
        return (
            "it holds dates or times. Give what matters of them in columns of their own, such as the month "
            "or the hour. Rows of all dates are learned from, so rows of a later time may be harder"
        )
    if column.numbers is None and distinct > MOST_CATEGORIES:
        return f"{distinct:,} different texts, too many for categories"
    if column.numbers is not None and len(table.places) > 1:
        steps = column.numbers - np.array(table.places)
        if not np.isnan(steps).any() and bool((steps == steps[0]).all()):
            return "it numbers the rows"
    return ""


def _fit_numbers(column: TableColumn, place: int, values: Numbers) -> InputColumn:
    given = values[~np.isnan(values)]
    fill = float(np.median(given)) if len(given) else 0.0
    filled = np.where(np.isnan(values), fill, values)
    deviation = float(filled.std())
    return InputColumn(
        name=column.name,
        place=place,
        fill=fill,
        mean=float(filled.mean()),
        deviation=deviation if deviation > 0 else 1.0,
    )


def _note_on(column: TableColumn, made: InputColumn) -> str:
    """What is said of a column that was changed; columns of plain numbers are not mentioned."""
    if made.categories:
        missing = sum(not text for text in column.texts)
        beside = f"; {missing:,} missing values count as none of them" if missing else ""
        words = shortened(made.categories, 4)
        count = len(made.categories)
        return f"Column {column.name!r} is text: one input for each of {count} words ({words}){beside}."
    assert column.numbers is not None
    said = [column.reading] if column.reading else []
    if missing := int(np.isnan(column.numbers).sum()):
        invalid_cells = f", {column.invalid_cells:,} of them words" if column.invalid_cells else ""
        said.append(f"{missing:,} missing values{invalid_cells} are filled with the median, {made.fill:g}")
    return f"Column {column.name!r}: {'; '.join(said)}." if said else ""


def class_text(value: float) -> str:
    """The name of a class that is a whole number in the file."""
    return f"{value:g}" if value != int(value) or abs(value) >= 1e15 else str(int(value))


def _numeric_first(label: str) -> tuple[int, float, str]:
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
