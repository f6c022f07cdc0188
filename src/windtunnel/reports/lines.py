"""The rows of a study put in order for reading: a figure has lines, a line has one row for every cell. No arithmetic but ratios."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from windtunnel.study.rows import Origin, Row

Cell = tuple[Any, ...]
ORIGINS: tuple[Origin, ...] = ("published", "measured", "forecast")
PER_EXAMPLE = "seconds for an example"
# Without a time, and yet no failure: it waits, or it could not be asked here, or the authors printed nothing.
APART = ("not installed", "no gpu here", "unsupported", "not available")
NEVER_FAILED = ("done", "waiting", *APART)
_PARTS: tuple[
    tuple[str, Callable[[Any], str]], ...
] = (  # what tells lines apart, in the order in which a name says it
    ("device", lambda word: {"gpu": "GPU", "cpu": "CPU"}.get(word, word)),
    ("device_name", str),
    ("threads", lambda n: f"{n} thread{'' if n == 1 else 's'}"),
    ("data", lambda word: f"{word} data"),
    ("batch", lambda n: f"batch {n}"),
    ("optimizer", str),
    ("job", str),
)


class Figure(Protocol):
    """What a report asks of a figure of a study; what is missing has a fallback."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """All rows that differ in nothing but the figure's axes."""

    name: str
    origin: Origin
    label: str
    case: str
    rows: Mapping[Cell, Row]
    is_apart: bool = False  # none of it could be asked here, all for one reason

    @property
    def title(self) -> str:
        return self.name if self.origin == "measured" else f"{self.name} ({self.origin})"

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state not in NEVER_FAILED]

    def seconds(self, cell: Cell) -> float | None:
        """Seconds per example in that cell, where there are any."""
        row = self.rows.get(cell)
        return row.example_seconds if row is not None and row.state == "done" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One figure ready to be laid out. `scale` turns seconds per example into what the paper prints."""

    name: str
    title: str
    source: str = ""
    axes: tuple[str, ...] = ()
    scale: float = 1.0
    counted: str = PER_EXAMPLE
    note: str = ""
    logarithmic: bool = False
    quoted: tuple[Any, ...] = ()
    cells: tuple[Cell, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def in_own_unit(self) -> bool:
        """Whether the paper counts otherwise than by the example."""
        return self.scale != 1.0

    @property
    def shown(self) -> list[Line]:
        """Lines that have something to show; the others are named under what could not be measured."""
        return [line for line in self.lines if not line.is_apart]

    @property
    def published(self) -> list[Line]:
        return [line for line in self.shown if line.origin == "published"]

    @property
    def todays(self) -> list[Line]:
        return [line for line in self.shown if line.origin != "published"]

    @property
    def heading(self) -> str:
        """Figure 2: Shared dataset."""
        number = re.fullmatch(r"(figure|table)-0*(\d+)", self.name)
        return (
            f"{number[1].capitalize()} {number[2]}: {self.title}"
            if number and not self.title.lower().startswith(number[1])
            else self.title
        )

    def beside(self, line: Line, cell: Cell) -> float | None:
        """The published seconds per example that this line is held against in this cell: its own case's, else the same kind of device's, else
        the only ones there are. None where that leaves a choice."""
        others = [other for other in self.published if other.seconds(cell) is not None]
        row = line.rows[cell]
        for chosen in (
            [o for o in others if o.case == line.case],
            [o for o in others if o.rows[cell].device == row.device],
            others,
        ):
            if len(chosen) == 1:
                return chosen[0].seconds(cell)
        return None

    def ratio(self, line: Line, cell: Cell) -> float | None:
        """Today's seconds over the published ones."""
        here, there = line.seconds(cell), self.beside(line, cell)
        return here / there if here is not None and there else None

    def ratios(self, line: Line) -> list[float]:
        return [ratio for ratio in (self.ratio(line, cell) for cell in line.rows) if ratio is not None]

    def middle_ratio(self, line: Line) -> float | None:
        ratios = self.ratios(line)
        return statistics.median(ratios) if ratios else None

    def values(self, axis: str) -> list[Any]:
        """Every value that this axis takes, in order."""
        place = self.axes.index(axis)
        return sorted({cell[place] for cell in self.cells}, key=in_order)

    def words(self, cell: Cell) -> str:
        """The cell as a person says it: n_rec 10, n_steps 20."""
        return (
            ", ".join(f"{axis} {value}" for axis, value in zip(self.axes, cell, strict=True))
            or "the only cell"
        )


def sheet(figure: Figure, rows: Iterable[Row]) -> Sheet:
    """The rows of one figure as lines over its axes."""
    rows = list(rows)
    axes = axes_of(figure, rows)
    found = lines(rows, axes)
    cells = sorted(
        {cell for line in found for cell in line.rows}, key=lambda cell: [in_order(value) for value in cell]
    )
    return Sheet(
        name=figure.name,
        title=getattr(figure, "title", "") or figure.name,
        source=getattr(figure, "source", "") or "",
        axes=axes,
        note=getattr(figure, "note", "") or "",
        quoted=tuple(getattr(figure, "quoted", ()) or ()),
        scale=getattr(figure, "published_scale", None) or 1.0,
        counted=getattr(figure, "published_unit", "") or PER_EXAMPLE,
        cells=tuple(cells),
        lines=tuple(found),
    )


def _is_apart(rows: Iterable[Row]) -> bool:
    states = {row.state for row in rows}
    return len(states) == 1 and states <= set(APART)


def axes_of(figure: Figure, rows: Sequence[Row]) -> tuple[str, ...]:
    """What the figure says it sweeps, the first name where it sweeps two alike ("n_in,n_out"); else what its rows sweep."""
    told = getattr(figure, "axes", None) or [
        axis.split(",")[0] for axis in getattr(figure, "grid", None) or ()
    ]
    return tuple(told) or swept(rows)


def plotted(figure: Figure, plot: Any, rows: Iterable[Row], scales: Mapping[str, Figure]) -> Sheet:
    """A picture that is drawn from the rows of other figures: each of its lines names a figure, a case, and what is held."""
    chosen = [row for line in plot.lines for row in rows if _belongs(row, line)]
    first = scales.get(plot.lines[0].figure, figure) if plot.lines else figure
    drawn = sheet(figure, ())
    found = lines(chosen, (plot.x,))
    cells = sorted({cell for line in found for cell in line.rows}, key=lambda cell: in_order(cell[0]))
    scale: dict[str, Any] = {
        "scale": getattr(first, "published_scale", None) or 1.0,
        "counted": getattr(first, "published_unit", "") or PER_EXAMPLE,
    }
    scale["logarithmic"] = bool(getattr(plot, "logarithmic", False))
    return dataclasses.replace(drawn, axes=(plot.x,), cells=tuple(cells), lines=tuple(found), **scale)


def _belongs(row: Row, line: Any) -> bool:
    """Whether a row is part of a plot's line."""
    if (
        row.figure != line.figure
        or row.case != line.case
        or (line.label and row.label != line.label and row.origin != "published")
    ):
        return False
    return all(value_of(row, name) == value for axis, value in line.fixed.items() for name in axis.split(","))


def lines(rows: Sequence[Row], axes: Sequence[str]) -> list[Line]:
    """Rows that share everything but the axes make a line; published ones come first, forecasts last."""
    groups: dict[tuple[Any, ...], dict[Cell, Row]] = {}
    following = _following(rows, axes)
    for row in rows:
        groups.setdefault(_identity(row, (*axes, *following)), {})[
            tuple(value_of(row, axis) for axis in axes)
        ] = row
    firsts = [next(iter(group.values())) for group in groups.values()]
    found = [
        Line(
            name=name,
            origin=first.origin,
            label=first.label,
            case=first.case,
            rows=group,
            is_apart=_is_apart(group.values()),
        )
        for first, name, group in zip(
            firsts, names(firsts, (*axes, *following)), groups.values(), strict=True
        )
    ]
    return sorted(found, key=lambda line: (ORIGINS.index(line.origin), line.name))


def swept(rows: Sequence[Row]) -> tuple[str, ...]:
    """The settings that take more than one value, for a figure that does not say its axes."""
    seen: dict[str, set[Any]] = {}
    for row in rows:
        for key, value in row.settings.items():
            seen.setdefault(key, set()).add(_hashable(value))
    return tuple(key for key, values in seen.items() if len(values) > 1)


def value_of(row: Row, axis: str) -> Any:
    """An axis is a setting of the job, or else a field of the row (threads, batch)."""
    return _hashable(row.settings[axis] if axis in row.settings else getattr(row, axis, "not said"))


def in_order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then words by letter."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (not number, value if number else str(value))


def names(firsts: Sequence[Row], axes: Sequence[str] = ()) -> list[str]:
    """The shortest names that tell lines of one origin apart: the label, what it ran on where that counts, and then only what is needed."""
    answer: dict[int, str] = {}
    for origin in ORIGINS:
        some = [(place, row) for place, row in enumerate(firsts) if row.origin == origin]
        found = _told_apart([row for _, row in some], axes)
        answer |= {place: name for (place, _), name in zip(some, found, strict=True)}
    return [answer[place] for place in range(len(firsts))]


def _told_apart(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Names that grow word by word, each only where two are still the same."""
    found = [row.label or row.case or row.job for row in rows]
    for name, column in _columns(rows, axes):
        groups: dict[str, set[str]] = {}
        for so_far, word in zip(found, column, strict=True):
            groups.setdefault(so_far, set()).add(word)
        always = _is_always_said(name, rows, column)
        found = [
            f"{so_far}, {word}" if word and (always or len(groups[so_far]) > 1) else so_far
            for so_far, word in zip(found, column, strict=True)
        ]
    return found


def _is_always_said(name: str, rows: Sequence[Row], column: Sequence[str]) -> bool:
    """A forecast or a published time means nothing without its device_name; a measured one says CPU or GPU where there are both."""
    if not rows or rows[0].origin == "measured":
        return name == "device" and len(set(column)) > 1
    return name == "device_name"


def _columns(rows: Sequence[Row], axes: Sequence[str]) -> list[tuple[str, list[str]]]:
    columns = {
        name: [show(value) if (value := getattr(row, name)) not in (None, "") else "" for row in rows]
        for name, show in _PARTS
        if name not in axes
    }
    first = ("device", "device_name") if rows and rows[0].origin == "measured" else ("device_name", "device")
    keys = sorted({key for row in rows for key in row.settings} - set(axes))
    settings = [
        (key, [_setting_words(key, row.settings[key]) if key in row.settings else "" for row in rows])
        for key in keys
    ]
    before = [(name, columns.pop(name)) for name in first if name in columns]
    return [*before, *settings, *columns.items(), ("case", [row.case for row in rows])]


def _setting_words(key: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{key} {value}"


def _identity(row: Row, axes: Sequence[str]) -> tuple[Any, ...]:
    settings = tuple(
        sorted((key, _hashable(value)) for key, value in row.settings.items() if key not in axes)
    )
    fields = tuple(getattr(row, name) for name, _ in _PARTS if name not in axes)
    return (row.origin, row.case, row.label, *fields, settings)


def _following(rows: Sequence[Row], axes: Sequence[str]) -> tuple[str, ...]:
    """Settings that only follow the axes (n_out where n_in = n_out is swept): they tell no lines apart."""
    seen: dict[str, dict[Cell, set[Any]]] = {}
    for row in rows:
        cell = tuple(value_of(row, axis) for axis in axes)
        for key, value in row.settings.items():
            seen.setdefault(key, {}).setdefault(cell, set()).add(_hashable(value))
    return tuple(
        key
        for key, by_cell in seen.items()
        if key not in axes
        and all(len(values) == 1 for values in by_cell.values())
        and len(set().union(*by_cell.values())) > 1
    )


def _hashable(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float, str, bool)) else str(value)
