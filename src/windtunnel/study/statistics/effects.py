"""From rows to the size of an effect with its interval, for each kind of claim, in logarithms of seconds.

Each number is computed from the measured rows and from each resampling of them, by one function along the
last axis: index 0 is the measured value, the others are the draws.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy

from windtunnel.study import selection
from windtunnel.study.claims import Claim, show
from windtunnel.study.rows import StudyRow
from windtunnel.study.selection import CellKey
from windtunnel.study.statistics.resampled_cells import (
    ResampledCell,
    cell_of,
    cells_of,
    draw_row,
    fastest,
    filter_words,
    pairs_of,
    seconds_of,
)
from windtunnel.study.statistics.resampling import Floats, Resampled, span


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect in one framework on one device, with its interval and the draws behind it."""

    where: str
    effect: float
    low: float
    high: float
    draws: Floats
    rows: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effect of each part of a claim, or the reason why there is none (`missing`)."""

    parts: tuple[Effect, ...] = ()
    rows: int = 0
    missing: str = ""


def find(claim: Claim, rows: Sequence[StudyRow], cores: int | None = None) -> Effects:
    """The claim's effect in each of its parts, or the reason why there is none."""
    if claim.of != "step_seconds":
        from windtunnel.study.statistics import learned

        return learned.find(claim, rows)
    if claim.kind in ("threads", "oversubscribed"):
        return _effects(
            cells_of(claim, rows, ("threads",), over="threads"),
            lambda cells: _threads(claim, cells, cores),
            "no line with threads up to and beyond the cores",
        )
    if claim.kind in ("slowest", "fastest"):
        return _rank(claim, rows)
    if claim.kind == "cold":
        rows = [row for row in rows if row.first_seconds]
        cells = [_cold(cell) for cell in cells_of(claim, rows, ())]
        return _effects(cells, lambda group: _ratio(claim, group), "no row has the time of its first step")
    two_sided = bool(claim.pairs or (claim.first and claim.second))
    cells, missing = (
        pairs_of(claim, rows) if two_sided else (cells_of(claim, rows, (claim.over, *claim.free)), "")
    )
    kinds: dict[str, Callable[[list[ResampledCell]], Effect | None]] = {
        "ratio": lambda group: _ratio(claim, group),
        "difference": lambda group: _difference(claim, group),
        "slope": lambda group: _over_lines(claim, group, _slope, 2),
        "linear": lambda group: _over_lines(claim, group, _straightness, 3),
        "doubling": _doubling,
        "crossover": _crossover,
    }
    return _effects(
        cells, kinds[claim.kind], missing or f"no line over {claim.over or 'its settings'} has enough points"
    )


def pooled(parts: Sequence[Effect]) -> tuple[float, float, float]:
    """The median of the parts with its interval; for a single part, its own."""
    if len(parts) == 1:
        return parts[0].effect, parts[0].low, parts[0].high
    effect, low, high = (
        float(numpy.median(values))
        for values in (
            [part.effect for part in parts],
            [part.low for part in parts],
            [part.high for part in parts],
        )
    )
    return effect, min(low, effect), max(high, effect)


def _effects(
    cells: Sequence[ResampledCell], measure: Callable[[list[ResampledCell]], Effect | None], missing: str
) -> Effects:
    groups = _grouped(cells, lambda cell: cell.where)
    parts = tuple(part for group in groups if (part := measure(group)) is not None)
    return Effects(parts=parts, rows=sum(part.rows for part in parts), missing=missing)


def _effect(cells: Sequence[ResampledCell], values: Floats, note: str, *, ratio: bool = False) -> Effect:
    """`values`: the measured number, then the draws.

    A ratio's interval is taken in logarithms: it stays above 0.
    """
    degrees_of_freedom = sum(cell.degrees_of_freedom for cell in cells)
    if ratio:
        low, high = (
            math.exp(end) for end in span(math.log(values[0]), numpy.log(values[1:]), degrees_of_freedom)
        )
    else:
        low, high = span(float(values[0]), values[1:], degrees_of_freedom)
    return Effect(
        where=cells[0].where,
        effect=float(values[0]),
        low=low,
        high=high,
        draws=values[1:],
        rows=_count_rows(cells),
        note=note,
    )


def _count_rows(cells: Iterable[ResampledCell]) -> int:
    return len({id(row) for cell in cells for row in cell.rows})


def _range(values: Floats, counted: str) -> str:
    ends = f"{show(float(values.min()))} to {show(float(values.max()))}"
    return f"{ends} over {len(values)} {counted}{'s' if len(values) != 1 else ''}"


def _take(claim: Claim, matrix: Floats) -> Floats:
    takes: dict[str, Callable[..., Floats]] = {
        "median": numpy.median,
        "largest": numpy.max,
        "smallest": numpy.min,
    }
    return takes[claim.take](matrix, axis=0)


def _ratio(claim: Claim, cells: list[ResampledCell]) -> Effect:
    matrix = numpy.exp(numpy.stack([cell.logs for cell in cells]))
    return _effect(cells, _take(claim, matrix), _range(matrix[:, 0], "cell"), ratio=True)


def _difference(claim: Claim, cells: list[ResampledCell]) -> Effect:
    """Seconds of first minus those of second, for `times` examples.

    Noise of second alone is small, left out.
    """
    seconds = numpy.array([seconds_of(cell.rows[1]) / cell.rows[1].batch for cell in cells])[:, None]
    matrix = claim.times * seconds * (numpy.exp(numpy.stack([cell.logs for cell in cells])) - 1.0)
    return _effect(cells, _take(claim, matrix), _range(matrix[:, 0], "cell"))


def _cold(cell: ResampledCell) -> ResampledCell:
    first = cell.rows[0].first_seconds
    assert first is not None
    return dataclasses.replace(cell, logs=math.log(first) - cell.logs)


def _lines(cells: Sequence[ResampledCell], least: int) -> list[list[ResampledCell]]:
    """Lines of at least `least` points: cells that share all but the swept setting, in its order."""
    groups = _grouped(cells, lambda cell: repr(cell.line))
    lines = (sorted(group, key=lambda cell: cell.x) for group in groups)
    return [line for line in lines if len({cell.x for cell in line}) >= least]


def _over_lines(
    claim: Claim, cells: list[ResampledCell], measure: Callable[[Floats, Floats], Floats], least: int
) -> Effect | None:
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
    return _effect(used, _take(claim, matrix), _range(matrix[:, 0], "line"))


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


def _doubling(cells: list[ResampledCell]) -> Effect | None:
    shares, used = list[Floats](), list[ResampledCell]()
    for line in _lines(cells, 2):
        at = {cell.x: cell for cell in line}
        for x in at:
            if 2 * x in at:
                shares.append(1.0 - numpy.exp(at[2 * x].logs - at[x].logs))
                used += [at[x], at[2 * x]]
    if not shares:
        return None
    matrix = numpy.stack(shares)
    return _effect(used, numpy.median(matrix, axis=0), _range(matrix[:, 0], "doubling"))


def _threads(claim: Claim, cells: list[ResampledCell], cores: int | None) -> Effect | None:
    """Up to the physical cores: the smallest gain from more threads.

    Beyond: seconds over those at the cores.
    """
    ratios, used = list[Floats](), list[ResampledCell]()
    for line in _lines(cells, 2):
        physical = _cores(claim, line[0].rows[0], cores)
        if physical is None:
            continue
        up_to = [cell for cell in line if cell.x <= physical]
        beyond = [cell for cell in line if cell.x > physical]
        if claim.kind == "threads" and len(up_to) >= 2:
            gains = [numpy.exp(a.logs - b.logs) for a, b in itertools.pairwise(up_to)]
            ratios.append(numpy.min(gains, axis=0))
            used += up_to
        if claim.kind == "oversubscribed" and beyond and up_to and up_to[-1].x == physical:
            ratios.append(numpy.exp(beyond[0].logs - up_to[-1].logs))
            used += [up_to[-1], beyond[0]]
    if not ratios:
        return None
    matrix = numpy.stack(ratios)
    return _effect(used, _take(claim, matrix), _range(matrix[:, 0], "line"), ratio=True)


def _cores(claim: Claim, row: StudyRow, cores: int | None) -> int | None:
    """Physical cores: the authors' for published rows, the measuring machine's for others."""
    if row.origin == "published":
        return claim.cores
    stated = row.environment.get("cores")
    return int(stated) if stated else cores


def _crossover(cells: list[ResampledCell]) -> Effect | None:
    """The value at which first stops being faster. A line without a crossing gives only a bound."""
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
    return Effect(
        where=cells[0].where,
        effect=effect,
        low=max(xs) if math.isinf(low) else (-math.inf if low == 0.0 else low),
        high=min(xs) if high == 0.0 else high,
        draws=crossings[1:],
        rows=_count_rows(cell for line in lines for cell in line),
        note=note,
    )


def _crossing(line: Sequence[ResampledCell], i: int) -> float:
    """The x from which first stays slower, interpolated in logarithms; 0 for always, infinite for never."""
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


def _rank(claim: Claim, rows: Sequence[StudyRow]) -> Effects:
    """The share of cells in which first is slower, or faster, than every second."""
    without = (*claim.first, *claim.second, *claim.free)
    firsts = [row for row in rows if selection.fits(row, claim.first)]
    seconds = [
        row for row in rows if selection.fits(row, claim.second) and not selection.fits(row, claim.first)
    ]
    rivals: dict[CellKey, list[StudyRow]] = {}
    for row in seconds:
        rivals.setdefault(selection.key_of(row, without), []).append(row)
    cells = []
    for key, row in fastest(firsts, without).items():
        if key in rivals:
            drawn = _is_extreme(claim, draw_row(row), [draw_row(rival) for rival in rivals[key]])
            cells.append(cell_of(claim, (row, *rivals[key]), key, drawn))
    if cells:
        return _effects(cells, _share, "")
    if firsts and seconds:
        return Effects(missing="no cell has both sides")
    return Effects(missing=f"no row has {filter_words(claim.first if not firsts else claim.second)}")


def _is_extreme(claim: Claim, own: Resampled, others: Sequence[Resampled]) -> Resampled:
    """1 if `own` is at the end that the claim names, otherwise 0: as measured and in each draw."""
    sign = 1.0 if claim.kind == "slowest" else -1.0
    return Resampled(
        middle=float(all(sign * own.middle >= sign * other.middle for other in others)),
        draws=numpy.all([sign * own.draws >= sign * other.draws for other in others], axis=0).astype(float),
        degrees_of_freedom=own.degrees_of_freedom + sum(other.degrees_of_freedom for other in others),
    )


def _share(cells: list[ResampledCell]) -> Effect:
    matrix = numpy.stack([cell.logs for cell in cells])
    part = _effect(cells, matrix.mean(axis=0), f"{int(matrix[:, 0].sum())} of {len(cells)} cells")
    return dataclasses.replace(part, low=max(0.0, part.low), high=min(1.0, part.high))


def _grouped(cells: Iterable[ResampledCell], by: Callable[[ResampledCell], str]) -> list[list[ResampledCell]]:
    groups: dict[str, list[ResampledCell]] = {}
    for cell in cells:
        groups.setdefault(by(cell), []).append(cell)
    return [groups[name] for name in sorted(groups)]
