"""From rows to the size of an effect with its interval, for each kind of claim. Arithmetic on logarithms of seconds.

Every number is taken once from what the rows tell and once from each draw of them, by the same function along the last axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy

from windtunnel.study import selection
from windtunnel.study.rows import Row
from windtunnel.study.statistics.resampling import Drawn, Floats, draw, span

if TYPE_CHECKING:
    from windtunnel.study.claims import Claim

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The effect in one framework on one device."""

    where: str
    effect: float
    low: float
    high: float
    draws: Floats
    rows: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    parts: tuple[Part, ...] = ()
    rows: int = 0
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number to be judged: its logarithm as told and as drawn (one row, or one row over another)."""

    where: str
    line: Key
    x: float
    logs: Floats  # told first, then the draws
    freedom: int
    rows: tuple[Row, ...] = field(repr=False)


def find(claim: Claim, rows: Sequence[Row], cores: int | None = None) -> Answer:
    """The claim's effect in each of its parts, or what is missing for it."""
    if claim.kind in ("threads", "oversubscribed"):
        return _answer(
            _cells(claim, rows, ("threads",), over="threads"),
            lambda cells: _threads(claim, cells, cores),
            "no line with threads up to and beyond the cores",
        )
    if claim.kind in ("slowest", "fastest"):
        return _rank(claim, rows)
    if claim.kind == "cold":
        rows = [row for row in rows if row.first_seconds]
        cells = [_cold(cell) for cell in _cells(claim, rows, ())]
        return _answer(cells, lambda found: _taken(claim, found), "no rows that keep their first step apart")
    two_sided = bool(claim.pairs or (claim.first and claim.second))
    cells, missing = (
        _pairs(claim, rows) if two_sided else (_cells(claim, rows, (claim.over, *claim.free)), "")
    )
    kinds: dict[str, Callable[[list[Cell]], Part | None]] = {
        "ratio": lambda found: _taken(claim, found),
        "difference": lambda found: _difference(claim, found),
        "slope": lambda found: _over_lines(claim, found, _slope, 2),
        "linear": lambda found: _over_lines(claim, found, _straightness, 3),
        "doubling": lambda found: _doubling(found),
        "crossover": lambda found: _crossover(found),
    }
    return _answer(
        cells, kinds[claim.kind], missing or f"no line over {claim.over or 'its settings'} has enough points"
    )


def pooled(parts: Sequence[Part]) -> tuple[float, float, float]:
    """The median of the parts with its interval; of a single part, its own."""
    if len(parts) == 1:
        return parts[0].effect, parts[0].low, parts[0].high
    effect = float(numpy.median([part.effect for part in parts]))
    low, high = (
        float(numpy.median([part.low for part in parts])),
        float(numpy.median([part.high for part in parts])),
    )
    return effect, min(low, effect), max(high, effect)


def _answer(cells: Sequence[Cell], measure: Callable[[list[Cell]], Part | None], missing: str) -> Answer:
    parts = []
    for _, some in _grouped(cells, lambda cell: cell.where):
        part = measure(some)
        if part is not None:
            parts.append(part)
    return Answer(parts=tuple(parts), rows=sum(part.rows for part in parts), missing=missing)


def _cells(claim: Claim, rows: Iterable[Row], without: Sequence[str], over: str = "") -> list[Cell]:
    """A cell for each row; where several rows fit one cell, the fastest."""
    over = over or claim.over
    found = []
    for key, row in _fastest(rows, [name for name in without if name != over]).items():
        drawn = draw(row, repr(key))
        line = selection.key_of(row, (*without, over))
        found.append(_cell(claim, row, (row,), line, drawn.middle, drawn.draws, drawn.freedom, over))
    return found


def _pairs(claim: Claim, rows: Sequence[Row]) -> tuple[list[Cell], str]:
    """A cell for each match of a row of `first` with one of `second`."""
    without = (*claim.first, *claim.second, *claim.free, *(("label",) if claim.pairs else ()))
    found: list[Cell] = []
    missing, same = "", False
    for one, other in _sides(claim, rows):
        left, right = _fastest(one, without), _fastest(other, without)
        if not left or not right:
            missing = missing or f"no row has {_words(claim.first if not left else claim.second)}"
            continue
        for key in left.keys() & right.keys():
            if claim.apart and selection.value_of(left[key], claim.apart) == selection.value_of(
                right[key], claim.apart
            ):
                same = True
                continue
            found.append(_over(claim, left[key], right[key], without))
    if not found and same:
        return [], f"both sides ran on the same {claim.apart}, and the claim is about two"
    return sorted(found, key=lambda cell: repr(cell.line)), missing or "no cell has both sides"


def _over(claim: Claim, one: Row, other: Row, without: Sequence[str]) -> Cell:
    a, b = draw(one, repr(selection.key_of(one))), draw(other, repr(selection.key_of(other)))
    line = selection.key_of(one, (*without, claim.over))
    return _cell(
        claim, one, (one, other), line, a.middle - b.middle, a.draws - b.draws, _freedom(a, b), claim.over
    )


def _cell(
    claim: Claim,
    row: Row,
    rows: tuple[Row, ...],
    line: Key,
    middle: float,
    draws: Floats,
    freedom: int,
    over: str,
) -> Cell:
    x = selection.value_of(row, over) if over else None
    chosen = {*claim.first, *claim.second}
    names = [
        str(selection.value_of(row, name))
        for name in claim.per
        if name not in chosen and not (name == "label" and claim.pairs)
    ]
    if claim.pairs:
        names.insert(0, f"{rows[0].label} / {rows[-1].label}")
    return Cell(
        where=" ".join(names),
        line=line,
        x=float(x) if isinstance(x, (int, float)) else math.nan,
        logs=numpy.concatenate([[middle], draws]),
        freedom=freedom,
        rows=rows,
    )


def _freedom(*drawn: Drawn) -> int:
    return sum(each.freedom for each in drawn)


def _sides(claim: Claim, rows: Sequence[Row]) -> list[tuple[list[Row], list[Row]]]:
    if not claim.pairs:
        return [
            (
                [r for r in rows if selection.fits(r, claim.first)],
                [r for r in rows if selection.fits(r, claim.second)],
            )
        ]
    found = []
    for left, right in claim.pairs:
        one = [r for r in rows if selection.fits(r, {**claim.first, "label": left})]
        other = [r for r in rows if selection.fits(r, {**claim.second, "label": right})]
        for a, b in itertools.product(sorted({r.label for r in one}), sorted({r.label for r in other})):
            found.append(([r for r in one if r.label == a], [r for r in other if r.label == b]))
    return found


def _fastest(rows: Iterable[Row], without: Sequence[str]) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    for row in rows:
        key = selection.key_of(row, without)
        if key not in found or _seconds(row) < _seconds(found[key]):
            found[key] = row
    return found


def _seconds(row: Row) -> float:
    assert row.step_seconds is not None
    return row.step_seconds


def _part(
    where: str, values: Floats, freedom: int, cells: Sequence[Cell], note: str, *, ratio: bool = False
) -> Part:
    """`values` has the number as told first, then as drawn. A ratio's interval is found in logarithms: none falls below 0."""
    if ratio:
        low, high = (math.exp(end) for end in span(math.log(values[0]), numpy.log(values[1:]), freedom))
    else:
        low, high = span(float(values[0]), values[1:], freedom)
    rows = len({id(row) for cell in cells for row in cell.rows})
    return Part(
        where=where, effect=float(values[0]), low=low, high=high, draws=values[1:], rows=rows, note=note
    )


def _range(values: Floats, counted: str) -> str:
    from windtunnel.study.claims import show

    return f"{show(float(values.min()))} to {show(float(values.max()))} over {len(values)} {counted}{'s' if len(values) != 1 else ''}"


def _take(claim: Claim, matrix: Floats) -> Floats:
    takes: dict[str, Callable[..., Floats]] = {
        "median": numpy.median,
        "largest": numpy.max,
        "smallest": numpy.min,
    }
    return takes[claim.take](matrix, axis=0)


def _taken(claim: Claim, cells: list[Cell]) -> Part:
    matrix = numpy.exp(numpy.stack([cell.logs for cell in cells]))
    return _part(
        cells[0].where,
        _take(claim, matrix),
        sum(cell.freedom for cell in cells),
        cells,
        _range(matrix[:, 0], "cell"),
        ratio=True,
    )


def _difference(claim: Claim, cells: list[Cell]) -> Part:
    """Seconds of first less those of second, for `times` examples; the second's own noise is small beside that of the ratio."""
    seconds = numpy.array([_seconds(cell.rows[1]) / cell.rows[1].batch for cell in cells])[:, None]
    matrix = claim.times * seconds * (numpy.exp(numpy.stack([cell.logs for cell in cells])) - 1.0)
    return _part(
        cells[0].where,
        _take(claim, matrix),
        sum(cell.freedom for cell in cells),
        cells,
        _range(matrix[:, 0], "cell"),
    )


def _cold(cell: Cell) -> Cell:
    first = cell.rows[0].first_seconds
    assert first is not None
    return Cell(
        where=cell.where,
        line=cell.line,
        x=cell.x,
        logs=math.log(first) - cell.logs,
        freedom=cell.freedom,
        rows=cell.rows,
    )


def _lines(cells: Sequence[Cell], least: int) -> list[list[Cell]]:
    """Cells that share everything but the swept setting, in its order; lines too short to say anything are left out."""
    lines = (
        sorted(some, key=lambda cell: cell.x) for _, some in _grouped(cells, lambda cell: repr(cell.line))
    )
    return [line for line in lines if len({cell.x for cell in line}) >= least]


def _over_lines(
    claim: Claim, cells: list[Cell], measure: Callable[[Floats, Floats], Floats], least: int
) -> Part | None:
    lines = _lines(cells, least)
    if not lines:
        return None
    matrix = numpy.stack(
        [
            measure(numpy.array([cell.x for cell in line]), numpy.stack([cell.logs for cell in line]))
            for line in lines
        ]
    )
    used = [cell for line in lines for cell in line]
    return _part(
        cells[0].where,
        _take(claim, matrix),
        sum(cell.freedom for cell in used),
        used,
        _range(matrix[:, 0], "line"),
    )


def _slope(x: Floats, logs: Floats) -> Floats:
    """Least squares in logarithms."""
    away = numpy.log(x) - numpy.log(x).mean()
    return numpy.asarray(away @ logs / (away @ away))


def _straightness(x: Floats, logs: Floats) -> Floats:
    """R squared of seconds against x."""
    seconds = numpy.exp(logs)
    about = seconds - seconds.mean(axis=0)
    away = x - x.mean()
    slope = away @ about / (away @ away)
    left = about - away[:, None] * slope
    return numpy.asarray(1.0 - (left**2).sum(axis=0) / numpy.maximum((about**2).sum(axis=0), 1e-300))


def _doubling(cells: list[Cell]) -> Part | None:
    matrix, used = [], list[Cell]()
    for line in _lines(cells, 2):
        at = {cell.x: cell for cell in line}
        for x in at:
            if 2 * x in at:
                matrix.append(1.0 - numpy.exp(at[2 * x].logs - at[x].logs))
                used += [at[x], at[2 * x]]
    if not matrix:
        return None
    stacked = numpy.stack(matrix)
    return _part(
        cells[0].where,
        numpy.median(stacked, axis=0),
        sum(cell.freedom for cell in used),
        used,
        _range(stacked[:, 0], "doubling"),
    )


def _threads(claim: Claim, cells: list[Cell], cores: int | None) -> Part | None:
    """Up to the physical cores: the smallest gain of a step to more threads. Beyond: seconds there over seconds at the cores."""
    matrix, used = [], list[Cell]()
    for line in _lines(cells, 2):
        physical = _cores(claim, line[0].rows[0], cores)
        if physical is None:
            continue
        up_to, beyond = (
            [cell for cell in line if cell.x <= physical],
            [cell for cell in line if cell.x > physical],
        )
        if claim.kind == "threads" and len(up_to) >= 2:
            matrix.append(
                numpy.min([numpy.exp(a.logs - b.logs) for a, b in itertools.pairwise(up_to)], axis=0)
            )
            used += up_to
        if claim.kind == "oversubscribed" and beyond and up_to and up_to[-1].x == physical:
            matrix.append(numpy.exp(beyond[0].logs - up_to[-1].logs))
            used += [up_to[-1], beyond[0]]
    if not matrix:
        return None
    stacked = numpy.stack(matrix)
    return _part(
        cells[0].where,
        _take(claim, stacked),
        sum(cell.freedom for cell in used),
        used,
        _range(stacked[:, 0], "line"),
        ratio=True,
    )


def _cores(claim: Claim, row: Row, cores: int | None) -> int | None:
    """Physical cores: the authors' for their rows, those of the machine for others."""
    if row.origin == "published":
        return claim.cores
    told = row.environment.get("cores")
    return int(told) if told else cores


def _crossover(cells: list[Cell]) -> Part | None:
    """Where first stops being the faster. Rows end somewhere: a line that never crosses says only "beyond the last" or "before the first"."""
    from windtunnel.study.claims import show

    lines = _lines(cells, 2)
    if not lines:
        return None
    crossings = numpy.median(
        [[_crossing(line, i) for i in range(len(line[0].logs))] for line in lines], axis=0
    )
    xs = [cell.x for line in lines for cell in line]
    low, high = (float(v) for v in numpy.quantile(crossings, [0.025, 0.975], method="inverted_cdf"))
    effect = float(crossings[0])
    note = f"over {len(lines)} line{'s' if len(lines) > 1 else ''} from {show(min(xs))} to {show(max(xs))}"
    if math.isinf(effect):
        note = f"first is faster up to {show(max(xs))}, {note}"
    elif effect == 0.0:
        effect, note = -math.inf, f"second is faster from {show(min(xs))} on, {note}"
    used = [cell for line in lines for cell in line]
    rows = len({id(row) for cell in used for row in cell.rows})
    low = max(xs) if math.isinf(low) else (-math.inf if low == 0.0 else low)
    high = min(xs) if high == 0.0 else high
    return Part(
        where=cells[0].where, effect=effect, low=low, high=high, draws=crossings[1:], rows=rows, note=note
    )


def _crossing(line: Sequence[Cell], i: int) -> float:
    """From where on first is the slower, between two points on a straight line of logarithms; infinite where it never is."""
    last = None
    for place, cell in enumerate(line):
        if cell.logs[i] < 0:
            last = place
    if last is None:
        return 0.0
    if last == len(line) - 1:
        return math.inf
    a, b = line[last], line[last + 1]
    share = -a.logs[i] / (b.logs[i] - a.logs[i])
    return float(math.exp(math.log(a.x) + share * (math.log(b.x) - math.log(a.x))))


def _rank(claim: Claim, rows: Sequence[Row]) -> Answer:
    """The share of cells in which first is slower, or faster, than every second."""
    without = (*claim.first, *claim.second, *claim.free)
    firsts = [row for row in rows if selection.fits(row, claim.first)]
    seconds = [
        row for row in rows if selection.fits(row, claim.second) and not selection.fits(row, claim.first)
    ]
    beside: dict[Key, list[Row]] = {}
    for row in seconds:
        beside.setdefault(selection.key_of(row, without), []).append(row)
    cells = []
    for key, row in _fastest(firsts, without).items():
        if key in beside:
            drawn, others = (
                draw(row, repr(selection.key_of(row))),
                [draw(other, repr(selection.key_of(other))) for other in beside[key]],
            )
            cells.append(_cell(claim, row, (row, *beside[key]), key, *_beaten(claim, drawn, others), ""))
    if not cells:
        return Answer(
            missing=f"no row has {_words(claim.first if not firsts else claim.second)}"
            if not (firsts and seconds)
            else "no cell has both sides"
        )
    return _answer(cells, _share, "")


def _beaten(claim: Claim, own: Drawn, others: Sequence[Drawn]) -> tuple[float, Floats, int]:
    """1 where own is at the end of the order that the claim names, 0 where it is not; as told, and as drawn."""
    sign = 1.0 if claim.kind == "slowest" else -1.0
    told = float(all(sign * own.middle >= sign * other.middle for other in others))
    drawn = numpy.all([sign * own.draws >= sign * other.draws for other in others], axis=0).astype(float)
    return told, drawn, _freedom(own, *others)


def _share(cells: list[Cell]) -> Part:
    matrix = numpy.stack([cell.logs for cell in cells])
    won = int(matrix[:, 0].sum())
    part = _part(
        cells[0].where,
        matrix.mean(axis=0),
        sum(cell.freedom for cell in cells),
        cells,
        f"{won} of {len(cells)} cells",
    )
    return Part(
        where=part.where,
        effect=part.effect,
        low=max(0.0, part.low),
        high=min(1.0, part.high),
        draws=part.draws,
        rows=part.rows,
        note=part.note,
    )


def _grouped(cells: Iterable[Cell], by: Callable[[Cell], Any]) -> list[tuple[Any, list[Cell]]]:
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(by(cell), []).append(cell)
    return sorted(groups.items(), key=lambda item: str(item[0]))


def _words(wanted: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in wanted.items()) or "the other side"
