"""The rows of a study in order for reading: a figure has lines, a line has one row for each cell."""

from __future__ import annotations

import dataclasses
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.study import selection
from windtunnel.study.rows import NOT_RUNNABLE, Origin, StudyRow

if TYPE_CHECKING:
    from windtunnel.study.study import Figure, Plot, Quoted

AxisValues = tuple[object, ...]  # a cell's value on each axis of its figure
ORIGINS: tuple[Origin, ...] = ("published", "measured", "forecast")
# The fields that distinguish lines, in the order in which a name states them.
_NAMED_FIELDS: dict[str, Callable[[object], str]] = {
    "device": lambda word: str(word).upper(),
    "device_name": str,
    "threads": lambda n: f"{n} thread{'' if n == 1 else 's'}",
    "data": lambda word: f"{word} data",
    "batch": lambda n: f"batch {n}",
    "optimizer": str,
    "job": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLine:
    """All rows that differ only in the figure's axes.

    `not_runnable`: this machine can run none of them, all for one reason. `times` are seconds per example,
    where there are any.
    """

    name: str
    origin: Origin
    label: str
    case: str
    rows: Mapping[AxisValues, StudyRow]
    not_runnable: bool = False
    times: Mapping[AxisValues, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        done = ((cell, row.example_seconds) for cell, row in self.rows.items() if row.state == "done")
        times = {cell: seconds for cell, seconds in done if seconds is not None}
        object.__setattr__(self, "times", times)

    @property
    def title(self) -> str:
        return self.name if self.origin == "measured" else f"{self.name} ({self.origin})"

    @property
    def failed(self) -> list[StudyRow]:
        return [row for row in self.rows.values() if row.failed]

    def seconds(self, cell: AxisValues) -> float | None:
        """Seconds per example in that cell, where there are any."""
        return self.times.get(cell)


def without_common_end(titles: Sequence[str]) -> tuple[list[str], str]:
    """Titles without the words that all of them end with, and these words: a legend has little room."""
    split = [title.split(", ") for title in titles]
    count = 0
    while len(titles) > 1 and all(len(words) > count + 1 for words in split):
        if len({words[-count - 1] for words in split}) > 1:
            break
        count += 1
    if not count:
        return list(titles), ""
    return [", ".join(words[:-count]) for words in split], ", ".join(split[0][-count:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One figure ready for layout. `scale` turns seconds per example into `counted`, the paper's unit."""

    name: str
    title: str
    source: str = ""
    axes: tuple[str, ...] = ()
    scale: float = 1.0
    counted: str = "seconds for an example"
    note: str = ""
    logarithmic: bool = False
    quoted: tuple[Quoted, ...] = ()
    cells: tuple[AxisValues, ...] = ()
    lines: tuple[FigureLine, ...] = ()
    # Lines with something to show, and the published ones of them: every cell is compared with these.
    shown: tuple[FigureLine, ...] = field(init=False, repr=False, compare=False)
    published: tuple[FigureLine, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shown = tuple(line for line in self.lines if not line.not_runnable)
        object.__setattr__(self, "shown", shown)
        published = tuple(line for line in shown if line.origin == "published")
        object.__setattr__(self, "published", published)

    @property
    def in_own_unit(self) -> bool:
        """Whether the paper's unit is not seconds per example."""
        return self.scale != 1.0

    @property
    def current(self) -> list[FigureLine]:
        """Measured and forecast lines."""
        return [line for line in self.shown if line.origin != "published"]

    @property
    def heading(self) -> str:
        """Figure 2: Shared dataset."""
        number = re.fullmatch(r"(figure|table)-0*(\d+)", self.name)
        if number is None or self.title.lower().startswith(number[1]):
            return self.title
        return f"{number[1].capitalize()} {number[2]}: {self.title}"

    def in_unit(self, example_seconds: float) -> float:
        """Seconds per example in the paper's unit."""
        return example_seconds * self.scale

    def times(self, line: FigureLine) -> list[float]:
        """All times of a line in the paper's unit."""
        return [self.in_unit(seconds) for seconds in line.times.values()]

    def published_seconds(self, line: FigureLine, cell: AxisValues) -> float | None:
        """The published seconds per example to compare this cell with.

        Those of the same case, else of the same kind of device, else the only ones. None if several remain.
        """
        others = [other for other in self.published if other.seconds(cell) is not None]
        if not others:
            return None
        device = line.rows[cell].device
        for candidates in (
            [other for other in others if other.case == line.case],
            [other for other in others if other.rows[cell].device == device],
            others,
        ):
            if len(candidates) == 1:
                return candidates[0].seconds(cell)
        return None

    def ratio(self, line: FigureLine, cell: AxisValues) -> float | None:
        """Seconds of this line over the published ones."""
        if not self.published:
            return None
        own, published = line.seconds(cell), self.published_seconds(line, cell)
        return own / published if own is not None and published else None

    def ratios(self, line: FigureLine) -> list[float]:
        return [ratio for ratio in (self.ratio(line, cell) for cell in line.rows) if ratio is not None]

    def median_ratio(self, line: FigureLine) -> float | None:
        ratios = self.ratios(line)
        return statistics.median(ratios) if ratios else None

    def values(self, axis: str) -> list[object]:
        """All values of this axis, in order."""
        place = self.axes.index(axis)
        return sorted({cell[place] for cell in self.cells}, key=in_order)

    def words(self, cell: AxisValues) -> str:
        """The cell in words: n_rec 10, n_steps 20."""
        pairs = zip(self.axes, cell, strict=True)
        return ", ".join(f"{axis} {value}" for axis, value in pairs) or "the only cell"


def sheet(figure: Figure, rows: Iterable[StudyRow]) -> Sheet:
    """The rows of one figure as lines over its axes."""
    rows = list(rows)
    axes = tuple(axis.split(",")[0] for axis in figure.grid) or swept(rows)
    lines = lines_of(rows, axes)
    return Sheet(
        name=figure.name,
        title=figure.title,
        source=figure.source,
        axes=axes,
        note=figure.note,
        quoted=figure.quoted,
        scale=figure.published_scale,
        counted=figure.published_unit,
        cells=_cells(lines),
        lines=tuple(lines),
    )


def plotted(
    figure: Figure,
    plot: Plot,
    rows: Iterable[StudyRow],
    figures: Mapping[str, Figure],
) -> Sheet:
    """A plot of the paper from rows of other figures; each line names a figure, a case and fixed settings."""
    rows = list(rows)
    chosen = [
        row
        for line in plot.lines
        for row in rows
        if (row.figure, row.case) == (line.figure, line.case)
        and (row.origin == "published" or line.label in ("", row.label))
        and _has(row, line.fixed)
    ]
    lines = lines_of(chosen, (plot.x,))
    first = figures.get(plot.lines[0].figure, figure) if plot.lines else figure
    return dataclasses.replace(
        sheet(figure, ()),
        axes=(plot.x,),
        cells=_cells(lines),
        lines=tuple(lines),
        scale=first.published_scale,
        counted=first.published_unit,
        logarithmic=plot.logarithmic,
    )


def _cells(lines: Sequence[FigureLine]) -> tuple[AxisValues, ...]:
    cells = {cell for line in lines for cell in line.rows}
    return tuple(sorted(cells, key=lambda cell: [in_order(value) for value in cell]))


def _has(row: StudyRow, fixed: Mapping[str, object]) -> bool:
    """Whether a row has these settings; an axis "n_in,n_out" names two."""
    return all(axis_value(row, name) == value for axis, value in fixed.items() for name in axis.split(","))


def lines_of(rows: Sequence[StudyRow], axes: Sequence[str]) -> list[FigureLine]:
    """Rows that share everything but the axes make a line; published lines come first, forecasts last."""
    cells = [tuple([axis_value(row, axis) for axis in axes]) for row in rows]
    ignored = (*axes, *_following(rows, cells, axes))
    groups: dict[tuple[object, ...], dict[AxisValues, StudyRow]] = {}
    for row, cell, identity in zip(rows, cells, _identities(rows, ignored), strict=True):
        groups.setdefault(identity, {})[cell] = row
    firsts = [next(iter(group.values())) for group in groups.values()]
    lines = [
        FigureLine(
            name=name,
            origin=first.origin,
            label=first.label,
            case=first.case,
            rows=group,
            not_runnable=_is_not_runnable(group.values()),
        )
        for first, name, group in zip(firsts, names(firsts, ignored), groups.values(), strict=True)
    ]
    return sorted(lines, key=lambda line: (ORIGINS.index(line.origin), line.name))


def _is_not_runnable(rows: Iterable[StudyRow]) -> bool:
    states = {row.state for row in rows}
    return len(states) == 1 and states <= set(NOT_RUNNABLE)


def swept(rows: Sequence[StudyRow]) -> tuple[str, ...]:
    """The settings with more than one value, for a figure that does not state its axes."""
    values: dict[str, set[object]] = {}
    for row in rows:
        for key, value in row.settings.items():
            values.setdefault(key, set()).add(_scalar(value))
    return tuple(key for key, some in values.items() if len(some) > 1)


def axis_value(row: StudyRow, axis: str) -> object:
    """The row's value on an axis: a setting of the job, or a field of the row (threads, batch)."""
    value = selection.value_of(row, axis)
    return "not stated" if value is None else _scalar(value)


def in_order(value: object) -> tuple[bool, float, str]:
    """A sort key: numbers by size, then words by letter."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return False, value, ""
    return True, 0.0, str(value)


def names(firsts: Sequence[StudyRow], axes: Sequence[str] = ()) -> list[str]:
    """The shortest unique names for lines, given a row of each: the label, then only what is needed."""
    answer: dict[int, str] = {}
    for origin in ORIGINS:
        some = [(place, row) for place, row in enumerate(firsts) if row.origin == origin]
        unique = _unique_names([row for _, row in some], axes)
        answer |= {place: name for (place, _), name in zip(some, unique, strict=True)}
    return [answer[place] for place in range(len(firsts))]


def _unique_names(rows: Sequence[StudyRow], axes: Sequence[str]) -> list[str]:
    """Names that grow by one word at a time, only where two are still the same."""
    # A case of several devices says in its name how it differs from the others.
    unique = [row.case if row.machine else row.label or row.case or row.job for row in rows]
    for name, column in _columns(rows, axes):
        groups: dict[str, set[str]] = {}
        for so_far, word in zip(unique, column, strict=True):
            groups.setdefault(so_far, set()).add(word)
        always = _is_always_stated(name, rows, column)
        unique = [
            f"{so_far}, {word}" if word and (always or len(groups[so_far]) > 1) else so_far
            for so_far, word in zip(unique, column, strict=True)
        ]
    return unique


def _is_always_stated(name: str, rows: Sequence[StudyRow], column: Sequence[str]) -> bool:
    """Forecast and published lines state the device's name; measured ones CPU or GPU, if there are both."""
    if not rows or rows[0].origin == "measured":
        return name == "device" and len(set(column)) > 1
    return name == "device_name"


def _columns(rows: Sequence[StudyRow], axes: Sequence[str]) -> list[tuple[str, list[str]]]:
    columns = {
        name: [_field_words(name, selection.value_of(row, name)) for row in rows]
        for name in _NAMED_FIELDS
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


def _field_words(name: str, value: object) -> str:
    return "" if value in (None, "") else _NAMED_FIELDS[name](value)


def _setting_words(key: str, value: object) -> str:
    return value if isinstance(value, str) else f"{key} {value}"


def _identities(rows: Sequence[StudyRow], axes: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """What all rows of a line share."""
    named = [name for name in _NAMED_FIELDS if name not in axes]
    # With weak scaling the batch follows the number of devices.
    weak = [name for name in named if name != "batch"]
    fields, fields_of_weak = (operator.attrgetter(*some, "case") for some in (named, weak))
    for row in rows:
        settings = tuple(sorted((key, str(value)) for key, value in row.settings.items() if key not in axes))
        get = fields_of_weak if row.strategy.get("scaling") == "weak" else fields
        yield row.origin, row.label, get(row), settings


def _following(rows: Sequence[StudyRow], cells: Sequence[AxisValues], axes: Sequence[str]) -> tuple[str, ...]:
    """Settings that only follow the axes (n_out where n_in = n_out is swept) do not distinguish lines."""
    first: dict[str, dict[AxisValues, object]] = {}
    differing = set(axes)
    for row, cell in zip(rows, cells, strict=True):
        for key, value in row.settings.items():
            if key not in differing:
                scalar = _scalar(value)
                if first.setdefault(key, {}).setdefault(cell, scalar) != scalar:
                    differing.add(key)
    return tuple(
        key for key, values in first.items() if key not in differing and len(set(values.values())) > 1
    )


def _scalar(value: object) -> object:
    return value if value is None or isinstance(value, (int, float, str, bool)) else str(value)
