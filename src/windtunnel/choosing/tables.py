"""A table as it is in a file: CSV with any usual separator, or NumPy numbers.

Files of any size are read: of a very long file a random sample of rows is kept, with a note.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.choosing.cells import is_missing, read_number, reading
from windtunnel.errors import BadInput
from windtunnel.learning.files import encoding_of, read_arrays

Numbers = NDArray[np.float64]
TABLES, ARRAYS, TEXTS = (".csv", ".tsv"), (".npy", ".npz"), (".txt", ".md", ".py", ".text")  # names end so
SEPARATORS = (",", ";", "\t", "|")
MOST_ROWS = 100_000  # of a file, kept; a small network learns little from more, and they fit in any memory
MOST_CELLS = 5_000_000  # parsed in about 5 s of one core
MOST_READ = 2_000_000  # rows read before the reader stops
OLD_TEXT = "The file is not UTF-8; it was read as Windows text (cp1252)."
_SNIFFED = 50  # lines from which the separator is found
_MOST_RAGGED = 0.05  # share of lines of another width above which the file is refused
_LEAST_NUMBERS = 0.95  # share of cells that are numbers in a column of numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column. `numbers` has NaN where a value is missing, and is None for a column of text.

    invalid_cells  cells of a column of numbers that are neither a number nor missing
    reading        how a number that is not written plainly is read, by an example
    """

    name: str
    texts: tuple[str, ...]
    numbers: Numbers | None = None
    invalid_cells: int = 0
    reading: str = ""

    def __len__(self) -> int:
        return len(self.texts) if self.numbers is None else len(self.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`places`: the number of each row in the file. `named`: whether the first line gave the names."""

    columns: tuple[TableColumn, ...]
    places: tuple[int, ...]
    named: bool
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


@dataclass(slots=True)
class _Lines:
    """The rows of a file as text while it is read."""

    rows: list[list[str]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_csv(path: Path, header: bool | None = None, seed: int = 0, *, whole: bool = False) -> Table:
    """Reads rows of numbers and words. `header`: whether the first line has names; None: found out.

    `whole`: every row is kept, to answer for each.
    """
    encoding = encoding_of(path)
    notes = [OLD_TEXT] if encoding == "cp1252" else []
    try:
        separator = _separator(path, encoding)
        with path.open(encoding=encoding, newline="") as file:
            lines = csv.reader(file, delimiter=separator, skipinitialspace=True)
            rows = (row for row in lines if any(cell.strip() for cell in row))
            seed_or_all = None if whole else seed
            found = _collect(path, rows, header, seed_or_all)
            return _parsed(path, found, separator, notes, guessed=header is None)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path} cannot be read as a table: {error}.",
            hint="Save it from your spreadsheet as CSV, in UTF-8.",
        ) from error


def read_numpy(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npy or .npz file by name; an .npy file has one, called table."""
    arrays = read_arrays(path)
    wrong = [
        f"{name} of type {array.dtype}" for name, array in arrays.items() if array.dtype.kind not in "buifU"
    ]
    if wrong or not arrays:
        raise BadInput(f"{path} holds {', '.join(wrong) or 'nothing'}.", hint="Save arrays of numbers.")
    return arrays


def from_arrays(values: NDArray[Any], target: NDArray[Any] | None = None) -> Table:
    """A table of the columns of a matrix, with a target column after them."""
    columns = [
        TableColumn(name=f"column_{n}", texts=(), numbers=_finite(values[:, n - 1]))
        for n in range(1, values.shape[1] + 1)
    ]
    if target is not None and target.dtype.kind == "U":
        columns.append(TableColumn(name="y", texts=tuple(str(word) for word in target.tolist())))
    elif target is not None:
        columns.append(TableColumn(name="y", texts=(), numbers=_finite(target)))
    return Table(columns=tuple(columns), places=tuple(range(len(values))), named=False)


def _finite(values: NDArray[Any]) -> Numbers:
    """Numbers in which what is not finite is missing, as in a CSV file."""
    numbers = values.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def sampled(count: int, width: int, seed: int) -> list[int]:
    """Which of `count` rows are kept, in order."""
    most = most_rows(width)
    if count <= most:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), most))


def most_rows(width: int) -> int:
    return max(1000, min(MOST_ROWS, MOST_CELLS // max(width, 1)))


def parse_column(name: str, cells: Sequence[str], comma: bool) -> TableColumn:
    """A column of numbers if nearly all of its cells are numbers, else of text."""
    texts = tuple("" if is_missing(cell) else cell.strip() for cell in cells)
    values = [read_number(cell, comma) for cell in texts]
    given = sum(cell != "" for cell in texts)
    found = sum(value is not None for value in values)
    if given and found < _LEAST_NUMBERS * given:
        return TableColumn(name=name, texts=texts)
    numbers = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    readings = (reading(cell, value) for cell, value in zip(texts, values, strict=True) if value is not None)
    example = next(filter(None, readings), "")
    return TableColumn(name=name, texts=texts, numbers=numbers, invalid_cells=given - found, reading=example)


def as_numbers(column: TableColumn) -> Numbers:
    """The numbers of a column; words in it count as missing."""
    if column.numbers is not None:
        return column.numbers
    values = [read_number(text, False) for text in column.texts]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _separator(path: Path, encoding: str) -> str:
    """The separator that divides the first lines into the most columns of one width."""
    with path.open(encoding=encoding, newline="") as file:
        lines = [line for line, _ in zip(file, range(_SNIFFED), strict=False)]
    if not any(line.strip() for line in lines):
        raise BadInput(f"{path} is empty.", hint="Give a table with one example in each row.")
    widths: dict[str, tuple[float, int]] = {}
    for separator in SEPARATORS:
        counts = [len(row) for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
        usual = max(set(counts), key=counts.count)
        widths[separator] = (counts.count(usual) / len(counts) if usual > 1 else 0.0, usual)
    return max(SEPARATORS, key=lambda separator: widths[separator])


def _collect(
    path: Path, rows: Iterator[list[str]], header: bool | None, seed: int | None
) -> tuple[_Lines, bool]:
    """All rows, or of a long file a random sample (reservoir sampling), and whether a header came first.

    Without a seed no sample is drawn.
    """
    first = next(rows, None)
    if first is None:
        raise BadInput(f"{path} is empty.", hint="Give a table with one example in each row.")
    named = header if header is not None else not any(read_number(cell, True) is not None for cell in first)
    lines, draw = _Lines(), random.Random(seed)
    most = MOST_READ if seed is None else most_rows(len(first))
    seen = 0
    for row in rows if named else _chain(first, rows):
        if seen < most:
            lines.rows.append(row)
            lines.places.append(seen)
        elif (place := draw.randrange(seen + 1)) < most:
            lines.rows[place], lines.places[place] = row, seen
        seen += 1
        if seen >= MOST_READ:
            break
    if seen > most:
        order = sorted(range(most), key=lambda i: lines.places[i])
        lines.rows = [lines.rows[i] for i in order]
        lines.places = [lines.places[i] for i in order]
        more = " first" if seen >= MOST_READ else ""
        lines.notes.append(
            f"Of the{more} {seen:,} rows, {most:,} were drawn at random; the others are left out."
        )
    if named:
        lines.rows.insert(0, first)
        lines.places.insert(0, -1)
    return lines, named


def _parsed(
    path: Path, collected: tuple[_Lines, bool], separator: str, notes: list[str], *, guessed: bool
) -> Table:
    """The table. `guessed`: nobody said whether the first line has names."""
    lines, named = collected
    width = len(lines.rows[0])
    kept = [i for i, row in enumerate(lines.rows) if len(row) == width]
    ragged = len(lines.rows) - len(kept)
    if ragged > _MOST_RAGGED * len(lines.rows):
        other = next(i for i, row in enumerate(lines.rows) if len(row) != width)
        raise BadInput(
            f"{path}: the first line has {width} columns, row {lines.places[other] + 1} has "
            f"{len(lines.rows[other])}; {ragged:,} of {len(lines.rows):,} rows differ.",
            hint="Give every row the same number of columns. Put texts that hold the separator in quotes.",
        )
    if width < 2:
        raise BadInput(
            f"{path} has one column; at least two are needed, one to learn from and the target.",
            hint="Separate the columns by commas, semicolons or tabs.",
        )
    notes = [*notes, *lines.notes]
    if ragged:
        notes.append(f"{ragged:,} rows with another number of columns are left out.")
    if named and guessed and _is_row(lines.rows[0], [lines.rows[i] for i in kept[1:]]):
        named, lines.places[0] = False, 0
        lines.places[1:] = [place + 1 for place in lines.places[1:]]
        notes.append(
            "The first line is taken as a row: all its words stand in later rows too (else: --header)."
        )
    names = _unique_names(lines.rows[0]) if named else [f"column_{n}" for n in range(1, width + 1)]
    body = kept[1:] if named else kept
    comma = separator != ","
    columns = [
        parse_column(name, [lines.rows[i][number] for i in body], comma) for number, name in enumerate(names)
    ]
    while len(columns) > 2 and not any(columns[-1].texts) and columns[-1].name == f"column_{len(columns)}":
        columns.pop()  # what a separator at the end of each line makes
    places = tuple(lines.places[i] for i in body)
    return Table(columns=tuple(columns), places=places, named=named, notes=tuple(notes))


def _is_row(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line without numbers is a row: each of its words stands in its column again."""
    return all(any(row[number] == cell for row in rows) for number, cell in enumerate(first))


def _unique_names(cells: Sequence[str]) -> list[str]:
    names: list[str] = []
    for number, cell in enumerate(cells, 1):
        name = cell.strip() or f"column_{number}"
        names.append(f"{name}_{number}" if name in names else name)
    return names


def _chain(first: list[str], rows: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rows
