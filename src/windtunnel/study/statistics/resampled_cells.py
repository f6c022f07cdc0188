"""The cells that a claim is judged on: rows, or quotients of two rows, with draws of their logarithms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy

from windtunnel.study import selection
from windtunnel.study.claims import Claim
from windtunnel.study.rows import StudyRow
from windtunnel.study.selection import CellKey
from windtunnel.study.statistics.resampling import Floats, Resampled, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledCell:
    """The logarithm of one row's seconds, or of one row's over another's: measured first, then the draws."""

    where: str
    line: CellKey
    x: float
    logs: Floats
    degrees_of_freedom: int
    rows: tuple[StudyRow, ...] = field(repr=False)


def cells_of(
    claim: Claim, rows: Iterable[StudyRow], without: Sequence[str], over: str = ""
) -> list[ResampledCell]:
    """One cell for each row; where several rows match one cell, the fastest."""
    over = over or claim.over
    cells = []
    for key, row in fastest(rows, [name for name in without if name != over]).items():
        line = selection.key_of(row, (*without, over))
        cells.append(cell_of(claim, (row,), line, draw(row, repr(key)), over))
    return cells


def pairs_of(claim: Claim, rows: Sequence[StudyRow]) -> tuple[list[ResampledCell], str]:
    """One cell for each match of a row of `first` with one of `second`."""
    without = (*claim.first, *claim.second, *claim.free, *(("label",) if claim.pairs else ()))
    cells: list[ResampledCell] = []
    missing, same = "", False
    for firsts, seconds in _sides(claim, rows):
        left, right = fastest(firsts, without), fastest(seconds, without)
        if not left or not right:
            missing = missing or f"no row has {filter_words(claim.first if not left else claim.second)}"
            continue
        for key in left.keys() & right.keys():
            one, other = left[key], right[key]
            if claim.apart and selection.value_of(one, claim.apart) == selection.value_of(other, claim.apart):
                same = True
                continue
            cells.append(_quotient(claim, one, other, without))
    if not cells and same:
        field_name = claim.apart.replace("_", " ")
        return [], f"both sides ran on the same {field_name}, and the claim is about two"
    return sorted(cells, key=lambda cell: repr(cell.line)), missing or "no cell has both sides"


def _quotient(claim: Claim, one: StudyRow, other: StudyRow, without: Sequence[str]) -> ResampledCell:
    """Seconds of one row over those of the other."""
    a, b = draw_row(one), draw_row(other)
    drawn = Resampled(
        middle=a.middle - b.middle,
        draws=a.draws - b.draws,
        degrees_of_freedom=a.degrees_of_freedom + b.degrees_of_freedom,
    )
    return cell_of(claim, (one, other), selection.key_of(one, (*without, claim.over)), drawn, claim.over)


def cell_of(
    claim: Claim, rows: tuple[StudyRow, ...], line: CellKey, drawn: Resampled, over: str = ""
) -> ResampledCell:
    x = selection.value_of(rows[0], over) if over else None
    chosen = {*claim.first, *claim.second}
    names = [
        _name_value(rows[0], name)
        for name in claim.per
        if name not in chosen and not (name == "label" and claim.pairs)
    ]
    if claim.pairs:
        names.insert(0, f"{rows[0].label} / {rows[-1].label}")
    return ResampledCell(
        where=" ".join(names),
        line=line,
        x=float(x) if isinstance(x, (int, float)) else math.nan,
        logs=numpy.concatenate([[drawn.middle], drawn.draws]),
        degrees_of_freedom=drawn.degrees_of_freedom,
        rows=rows,
    )


def _name_value(row: StudyRow, name: str) -> str:
    value = str(selection.value_of(row, name))
    return value.upper() if name == "device" else value


def draw_row(row: StudyRow) -> Resampled:
    return draw(row, repr(selection.key_of(row)))


def _sides(claim: Claim, rows: Sequence[StudyRow]) -> list[tuple[list[StudyRow], list[StudyRow]]]:
    if not claim.pairs:
        return [
            (
                [r for r in rows if selection.fits(r, claim.first)],
                [r for r in rows if selection.fits(r, claim.second)],
            )
        ]
    sides = []
    for left, right in claim.pairs:
        one = [r for r in rows if selection.fits(r, {**claim.first, "label": left})]
        other = [r for r in rows if selection.fits(r, {**claim.second, "label": right})]
        for a, b in itertools.product(sorted({r.label for r in one}), sorted({r.label for r in other})):
            sides.append(([r for r in one if r.label == a], [r for r in other if r.label == b]))
    return sides


def fastest(rows: Iterable[StudyRow], without: Sequence[str]) -> dict[CellKey, StudyRow]:
    """The fastest row of each cell."""
    best: dict[CellKey, StudyRow] = {}
    for row in rows:
        key = selection.key_of(row, without)
        if key not in best or seconds_of(row) < seconds_of(best[key]):
            best[key] = row
    return best


def seconds_of(row: StudyRow) -> float:
    assert row.step_seconds is not None
    return row.step_seconds


def filter_words(wanted: Mapping[str, object]) -> str:
    """A claim's filters in words."""
    return ", ".join(f"{name} {value}" for name, value in wanted.items()) or "the other side"
