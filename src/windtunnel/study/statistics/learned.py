"""The size of an effect on trained networks, with its interval over seeds.

A value is the mean over seeds. Its interval comes from drawing the seeds again, widened for their small
number (see `resampling`). A seed that did not reach the target took more than its budget: its side of a
ratio is only bounded, and so is the effect.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy

from windtunnel.study import selection
from windtunnel.study.claims import Claim
from windtunnel.study.rows import StudyRow, TrainedSeeds
from windtunnel.study.selection import CellKey
from windtunnel.study.statistics.effects import Effect, Effects
from windtunnel.study.statistics.resampled_cells import filter_words
from windtunnel.study.statistics.resampling import DRAWS, Floats, span

LEAST_SEEDS = 3  # scores on few held-out examples repeat: two seeds may agree by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedValues:
    """One row's values by seed, in the order of `seeds`; `missed` counts seeds that missed the target."""

    row: StudyRow
    seeds: tuple[int, ...]
    values: Floats
    missed: int = 0

    @property
    def drawn(self) -> Floats:
        """The mean as measured, then its draws."""
        return _drawn(self.values, repr(selection.key_of(self.row)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """The effect in one cell, as measured and resampled. An end of which only a bound is known is open."""

    where: str
    drawn: Floats
    degrees_of_freedom: int
    rows: tuple[StudyRow, ...]
    open_low: bool = False
    open_high: bool = False
    note: str = ""


def find(claim: Claim, rows: Sequence[StudyRow]) -> Effects:
    """The claim's effect in each of its parts, or the reason why there is none."""
    known = [one for row in rows if (one := values_of(claim, row)) is not None]
    cells, missing = _beyond(claim, known) if claim.kind == "beyond" else _pairs(claim, known)
    groups: dict[str, list[_Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.where, []).append(cell)
    parts = tuple(_effect(claim, groups[where]) for where in sorted(groups))
    return Effects(parts=parts, rows=sum(part.rows for part in parts), missing=missing)


def values_of(claim: Claim, row: StudyRow) -> SeedValues | None:
    """The claim's quantity by seed; None if there are too few seeds."""
    training = row.training
    if training is None:
        return None
    values, missed = _VALUES[claim.of](training)
    kept = list(range(len(training.seeds)))
    if claim.of == "seconds":  # steps and scores do not depend on other programs, seconds do
        kept = [place for place in kept if training.quiet[place]]
    if len(kept) < LEAST_SEEDS:
        return None
    return SeedValues(
        row=row,
        seeds=tuple(training.seeds[place] for place in kept),
        values=numpy.array([values[place] for place in kept]),
        missed=sum(missed[place] for place in kept),
    )


_Measured = tuple[Sequence[float], Sequence[bool]]


def _skills(training: TrainedSeeds) -> _Measured:
    return training.skills, [False] * len(training.seeds)


def _lost(training: TrainedSeeds) -> _Measured:
    pairs = zip(training.best_scores, training.scores, strict=True)
    lost = [training.skill(best) - training.skill(last) for best, last in pairs]
    return lost, [False] * len(training.seeds)


def _steps(training: TrainedSeeds) -> _Measured:
    missed = [steps < 0 for steps in training.target_steps]
    return [training.budget_steps if steps < 0 else steps for steps in training.target_steps], missed


def _seconds(training: TrainedSeeds) -> _Measured:
    missed = [seconds < 0 for seconds in training.target_seconds]
    pairs = zip(training.target_seconds, training.seconds, strict=True)
    return [whole if seconds < 0 else seconds for seconds, whole in pairs], missed


_VALUES: Mapping[str, Callable[[TrainedSeeds], _Measured]] = {
    "skill": _skills,
    "lost": _lost,
    "steps": _steps,
    "seconds": _seconds,
}


def _drawn(values: Floats, seed: str) -> Floats:
    rng, count = numpy.random.default_rng(zlib.crc32(seed.encode())), len(values)
    means = values[rng.integers(0, count, (DRAWS, count))].mean(axis=1)
    middle = values.mean()
    return numpy.concatenate([[middle], middle + math.sqrt(count / (count - 1)) * (means - middle)])


def _pairs(claim: Claim, known: Sequence[SeedValues]) -> tuple[list[_Cell], str]:
    """First against second in every cell that has both."""
    without = (*claim.first, *claim.second, *claim.free)
    firsts, seconds = (
        _by_key([one for one in known if selection.fits(one.row, side)], without)
        for side in (claim.first, claim.second)
    )
    if not firsts or not seconds:
        lacking = filter_words(claim.first if not firsts else claim.second)
        quiet = " on a quiet machine" if claim.of == "seconds" else ""
        return [], f"no row with {LEAST_SEEDS} seeds{quiet} has {lacking}"
    cells = [
        cell
        for key in sorted(firsts.keys() & seconds.keys(), key=repr)
        for one, other in itertools.product(firsts[key], seconds[key])
        if (cell := _compared(claim, one, other)) is not None
    ]
    return cells, "no cell has both sides, or neither side reached the target"


def _by_key(some: Iterable[SeedValues], without: Sequence[str]) -> dict[CellKey, list[SeedValues]]:
    by_key: dict[CellKey, list[SeedValues]] = {}
    for one in some:
        # Two cases may differ in more than their settings, such as their budget.
        case = () if "case" in without else (("case", one.row.case),)
        by_key.setdefault((*case, *selection.key_of(one.row, without)), []).append(one)
    return by_key


def _compared(claim: Claim, one: SeedValues, other: SeedValues) -> _Cell | None:
    if one.missed == len(one.seeds) and other.missed == len(other.seeds):
        return None  # both took more than the budget: nothing is known of their ratio
    left, right = one.drawn, other.drawn
    drawn = left / numpy.maximum(right, 1e-12) if claim.kind == "ratio" else left - right
    return _Cell(
        where=_where(claim, one.row),
        drawn=drawn,
        degrees_of_freedom=len(one.seeds) + len(other.seeds) - 2,
        rows=(one.row, other.row),
        open_low=other.missed > 0,
        open_high=one.missed > 0,
        note=_missed_words(one, other),
    )


def _missed_words(one: SeedValues, other: SeedValues) -> str:
    missed, seeds = one.missed + other.missed, len(one.seeds) + len(other.seeds)
    return f"{missed} of {seeds} trainings did not reach the target" if missed else ""


def _where(claim: Claim, row: StudyRow) -> str:
    chosen = {*claim.first, *claim.second}
    return " ".join(str(selection.value_of(row, name)) for name in claim.per if name not in chosen)


# Beyond the optimum


def _beyond(claim: Claim, known: Sequence[SeedValues]) -> tuple[list[_Cell], str]:
    """The largest value of `over` against the best one; with both sides, first less second."""
    missing = f"no line over {claim.over} has three values that reached the target"
    if not claim.first:
        lines = _by_key(known, (claim.over, *claim.free)).values()
        return [cell for line in lines if (cell := _past_best(claim, line)) is not None], missing
    without = (*claim.first, *claim.second, *claim.free, claim.over)
    sides = [
        _by_key([one for one in known if selection.fits(one.row, side)], without)
        for side in (claim.first, claim.second)
    ]
    cells = []
    for key in sides[0].keys() & sides[1].keys():
        one, other = (_past_best(claim, side[key]) for side in sides)
        if one is not None and other is not None:
            cells.append(
                _Cell(
                    where=_where(claim, one.rows[0]),
                    drawn=one.drawn - other.drawn,
                    degrees_of_freedom=one.degrees_of_freedom + other.degrees_of_freedom,
                    rows=(*one.rows, *other.rows),
                    open_low=one.open_low or other.open_low,
                    open_high=one.open_high or other.open_high,
                    note=f"first: {one.note}; second: {other.note}",
                )
            )
    return cells, missing


def _past_best(claim: Claim, line: Sequence[SeedValues]) -> _Cell | None:
    """Choose the best value by all seeds but one and judge it by that seed, for each seed in turn.

    If the same seeds chose and judged it, the best value would look better than it is.
    """
    ordered = sorted(line, key=lambda one: _x(one.row, claim.over))
    reached = [one for one in ordered if one.missed < len(one.seeds)]
    seeds = sorted(set.intersection(*(set(one.seeds) for one in ordered)))
    if len(ordered) < 3 or len(seeds) < LEAST_SEEDS or not reached:
        return None
    table = numpy.array([[one.values[one.seeds.index(seed)] for seed in seeds] for one in ordered])
    better = table if claim.of == "skill" else -table
    others = (better.sum(axis=1, keepdims=True) - better) / (len(seeds) - 1)
    best = others.argmax(axis=0)
    at_best, at_end = table[best, numpy.arange(len(seeds))], table[-1]
    values = at_end / at_best if claim.of in ("steps", "seconds") else at_end - at_best
    is_last = bool((best == len(ordered) - 1).all())
    return _Cell(
        where=_where(claim, ordered[-1].row),
        drawn=_drawn(values, repr(selection.key_of(ordered[-1].row))),
        degrees_of_freedom=len(seeds) - 1,
        rows=tuple(one.row for one in ordered),
        open_low=is_last,
        open_high=is_last or (ordered[-1].missed > 0 and claim.of in ("steps", "seconds")),
        note=_optimum_words([_x(ordered[place].row, claim.over) for place in best], ordered, claim.over),
    )


def _optimum_words(best: Sequence[float], ordered: Sequence[SeedValues], over: str) -> str:
    last = _x(ordered[-1].row, over)
    if set(best) == {last}:
        return f"best at {last:,g}, the largest: no optimum within the range"
    places = " or ".join(f"{place:,g}" for place in sorted(set(best)))
    return f"best at {places}, compared at {last:,g}"


def _x(row: StudyRow, over: str) -> float:
    value = selection.value_of(row, over)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _effect(claim: Claim, cells: Sequence[_Cell]) -> Effect:
    matrix = numpy.stack([cell.drawn for cell in cells])
    takes: dict[str, Callable[..., Floats]] = {
        "median": numpy.median,
        "largest": numpy.max,
        "smallest": numpy.min,
    }
    values = numpy.round(takes[claim.take](matrix, axis=0), 5)  # rows have five digits
    low, high = span(float(values[0]), values[1:], sum(cell.degrees_of_freedom for cell in cells))
    seeds = max(len(row.training.seeds) for cell in cells for row in cell.rows if row.training)
    notes = [f"{len(cells)} comparison{'s' if len(cells) > 1 else ''}, up to {seeds} seeds"]
    notes += list(dict.fromkeys(cell.note for cell in cells if cell.note))[:2]
    return Effect(
        where=cells[0].where,
        effect=float(values[0]),
        low=-math.inf if any(cell.open_low for cell in cells) else low,
        high=math.inf if any(cell.open_high for cell in cells) else high,
        draws=values[1:],
        rows=len({id(row) for cell in cells for row in cell.rows}),
        note="; ".join(notes),
    )
