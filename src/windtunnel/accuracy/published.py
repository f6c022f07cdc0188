"""Forecasts against published measurements, which do not come with the package.

The files are read from a folder that the user names (`--published`, or the variable WINDTUNNEL_PUBLISHED).
A file serves to choose constants or to judge forecasts. Where one serves for both, its rows are split by a
rule that is stated beside the table, and only the judged rows count.
"""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from windtunnel import records, units
from windtunnel.agreement import Agreement, Tolerance, agree, error_of, exceeded
from windtunnel.displays import Displayed
from windtunnel.errors import BadInput, BadRecord, Unavailable, nearest, text_of

VARIABLE = "WINDTUNNEL_PUBLISHED"
# Each table is a module of this package with a function `validate(folder)`.
TABLES = {
    "all-reduce": "allreduce",
    "megatron": "megatron",
    "llama": "llama",
    "gpt-small": "gpt_small",
    "llama-regret": "llama_regret",
    "gpt-small-regret": "gpt_small_regret",
    "mpt": "mpt",
    "exchange": "exchange",
    "tensorflow-2017": "tensorflow_2017",
    "storage-feed": "storage_feed",
    "diloco": "diloco",
}


# What reading a value raises that cannot be what was published: text for a number, an unknown name, a zero.
_OF_WRONG_VALUES = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_RESTORE = "Restore the file, or name another folder with --published."


class PublishedFileRow(dict[str, str]):
    """A row of a file as text, by column. It knows its `place`."""

    def __init__(self, values: dict[str, str], *, place: str) -> None:
        super().__init__(values)
        self.place = place

    def __missing__(self, column: str) -> str:
        raise BadRecord(f"{self.place}: there is no column {column!r}.", hint=_RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published measurement: its series, what it is, and the three times.

    `is_judged` is false for rows that constants were chosen on.
    """

    series: str
    case: str
    measured_seconds: float
    predicted_seconds: float
    baseline_seconds: float
    is_judged: bool = True

    @property
    def error(self) -> float:
        return error_of(self.predicted_seconds, self.measured_seconds)

    @property
    def baseline_error(self) -> float:
        return error_of(self.baseline_seconds, self.measured_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedValidation(Displayed):
    """How far forecasts are from a set of published measurements. Prints itself.

    split     which rows constants were chosen on and which are judged
    baseline  the simplest forecast of these rows, in words
    """

    title: str
    split: str
    baseline: str
    rows: tuple[PublishedRow, ...]
    tolerance: Tolerance
    left_out: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[PublishedRow, ...]:
        return tuple(row for row in self.rows if row.is_judged)

    @property
    def failures(self) -> tuple[str, ...]:
        """The broken tolerances in words; empty where all are met."""
        if not self.judged:
            return ("no rows",)
        broken = exceeded(_errors(self.judged), self.tolerance)
        return (f"{self.title}: {', '.join(broken)}",) if broken else ()

    def plain(self, rows: bool = False) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            "split": self.split,
            "baseline": self.baseline,
            "judged": _plain_errors(self.judged),
            "chosen_on": _plain_errors([row for row in self.rows if not row.is_judged]),
            "series": {name: _plain_errors(some) for name, some in self._series().items()},
            "tolerance": records.plain(self.tolerance),
            "left_out": list(self.left_out),
            "failures": list(self.failures),
            **({"rows": [records.plain(row) for row in self.rows]} if rows else {}),
        }

    def text(self, rows: bool = False) -> str:
        heads = "".join(f" {head:>7}" for head in ("median", "90th", "worst", "bias"))
        lines = [
            self.title,
            self.split,
            f"Errors are predicted / measured - 1. baseline: median error of {self.baseline}.",
            "",
            f"{'judged rows':44} {'rows':>5}{heads} {'baseline':>9}",
            *(_line(name, some) for name, some in self._series().items()),
            _line("all", self.judged),
            _line("rows that constants were chosen on", [row for row in self.rows if not row.is_judged]),
        ]
        if rows:
            lines += ["", f"{'':60} {'predicted / measured':>21} {'error':>7} {'baseline':>9}"]
            lines += [_row_line(row) for row in self.rows]
        lines += [f"left out: {text}" for text in self.left_out]
        verdict = f"NOT MET: {self.tolerance}" if self.failures else f"met: {self.tolerance}"
        return "\n".join([*lines, "", f"Tolerance of the judged rows {verdict}."])

    def __str__(self) -> str:
        return self.text()

    def _series(self) -> dict[str, list[PublishedRow]]:
        names = dict.fromkeys(row.series for row in self.judged)
        return {name: [row for row in self.judged if row.series == name] for name in names}


class Validated(Protocol):
    """What a table returns: it prints itself and says which limits are broken."""

    @property
    def failures(self) -> tuple[str, ...]: ...
    def plain(self, rows: bool = False) -> dict[str, object]: ...
    def text(self, rows: bool = False) -> str: ...


def validate_published(table: str, folder: Path | None = None) -> Validated:
    """Forecast the rows of a published table (one of TABLES) and compare."""
    if table not in TABLES:
        raise BadInput(f"There is no published table {table!r}.", hint=nearest(table, TABLES))
    module, place = importlib.import_module(f"windtunnel.accuracy.{TABLES[table]}"), find_folder(folder)
    try:
        validation: Validated = module.validate(place)
    except (BadInput, *_OF_WRONG_VALUES) as error:
        if str(place) in str(error):  # it names the file itself
            raise
        raise _wrong_value(table, place, error) from error
    return validation


def find_folder(given: Path | None = None) -> Path:
    """The folder of published measurements: as given, else that of the environment variable."""
    folder = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if folder is None:
        raise Unavailable(
            "Published measurements do not come with the package, and no folder is given.",
            hint=f"Name their folder with --published, or with the variable {VARIABLE}.",
        )
    if not folder.is_dir():
        raise BadInput(f"The folder {folder} does not exist.", hint="Name the folder with --published.")
    return folder


def read_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of the folder. Lines that begin with # say where its figures come from."""
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{folder / name} cannot be read: {error}.", hint="Name another folder with --published."
        ) from error
    try:
        rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    except csv.Error as error:
        raise BadRecord(f"{folder / name} is not valid CSV: {error}.", hint=_RESTORE) from error
    if not rows:
        raise BadRecord(f"{folder / name} has no rows.", hint=_RESTORE)
    return [
        PublishedFileRow(row, place=f"{folder / name}, row {number}") for number, row in enumerate(rows, 1)
    ]


def _wrong_value(table: str, folder: Path, error: Exception) -> BadRecord:
    """What reading a table raised, with the row that was read."""
    where, trace = str(folder), error.__traceback__
    while trace is not None:
        rows = [each for each in trace.tb_frame.f_locals.values() if isinstance(each, PublishedFileRow)]
        where = rows[-1].place if rows else where
        trace = trace.tb_next
    kind = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
    reason = f"{kind}{text_of(error)[:200]}"
    return BadRecord(f"{where}: the table {table} cannot have this value ({reason}).", hint=_RESTORE)


def _errors(rows: Iterable[PublishedRow]) -> Agreement:
    return agree([row.error for row in rows])


def _plain_errors(rows: Sequence[PublishedRow]) -> object:
    if not rows:
        return None
    baseline = agree([row.baseline_error for row in rows])
    return {"errors": records.plain(_errors(rows)), "baseline": records.plain(baseline)}


def _line(name: str, rows: Sequence[PublishedRow]) -> str:
    if not rows:
        return f"  {name:42} {0:>5}"
    errors, baseline = _errors(rows), agree([row.baseline_error for row in rows])
    numbers = f"{errors.median:>7.1%} {errors.ninetieth:>7.1%} {errors.worst:>+7.0%} {errors.bias:>+7.1%}"
    return f"  {name:42} {errors.rows:>5} {numbers} {baseline.median:>9.0%}"


def _row_line(row: PublishedRow) -> str:
    times = f"{units.show(row.predicted_seconds, 's')} / {units.show(row.measured_seconds, 's')}"
    name, role = f"{row.series}, {row.case}", "" if row.is_judged else "  chosen on"
    return f"{name:60.60} {times:>21} {row.error:>+7.1%} {row.baseline_error:>+9.1%}{role}"
