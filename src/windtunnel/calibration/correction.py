"""Learn a CPU from few rows: start from the slowdowns of a CPU that was probed before, and correct them.

For each kind of work, several corrections are fitted on a part of its rows and judged on the others: none,
one factor for one thread and one for more, small trees over the residuals, and trees that ignore the earlier
CPU. The one with the smallest error is used. So even twenty rows help, and a kind without rows keeps its
earlier slowdown.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.calibration.boosting import Boosting
from windtunnel.calibration.fit import TimedPiece
from windtunnel.calibration.probe import ProbeRow
from windtunnel.families import pieces_of
from windtunnel.forecast.profile import Kind, feature_names, feature_row
from windtunnel.forecast.roofline import Roofline
from windtunnel.forecast.trees import Numbers, Trees

_HELD_OUT = 6  # one of this number of shapes is held out
_LEAST_ROWS = 4
_LEAST_ROWS_OF_TREES = 16
_FOLDS = 4
_SIMPLER = 0.98  # a finer correction must lower the error by this much
_SHRINKAGE = 3.0  # rows that say "no correction", added to those of each factor
_NEVER = 1e30  # a threshold that no feature exceeds
_TREES = Boosting(trees=80, depth=4, rate=0.12)
_DEEP_TREES = Boosting(trees=160, depth=5, rate=0.1)
_MANY_ROWS = 400

# Arguments of a fit: features, logarithms of slowdowns, predictions of the earlier CPU's trees, and these
# trees.
Fit = Callable[[Numbers, Numbers, Numbers, "Trees | None"], Trees]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """All kinds after the probe, how each was learned, and rows that no fit has seen."""

    kinds: Mapping[str, Kind]
    learned: Mapping[str, str]
    held_out: tuple[ProbeRow, ...]


def is_held_out(row: ProbeRow) -> bool:
    """One of six shapes, the same with every number of threads, so that no fit has seen it."""
    return zlib.crc32(repr((row.name, row.shape)).encode()) % _HELD_OUT == 0


def correct_kinds(
    rows: Sequence[ProbeRow], rooflines: Mapping[int, Roofline], earlier: Mapping[str, Kind]
) -> Corrected:
    """The earlier CPU's kinds, corrected by the rows of this one; `rooflines` by number of threads."""
    fitted = [row for row in rows if not is_held_out(row)]
    kinds, learned = dict(earlier), dict[str, str]()
    for name, pairs in sorted(timed_pieces(fitted, rooflines).items()):
        if len(pairs) >= _LEAST_ROWS:
            choice, kind = _correct(name, pairs, rooflines, earlier.get(name))
            kinds[name] = kind
            if choice != "none":
                learned[name] = choice
    return Corrected(kinds=kinds, learned=learned, held_out=tuple(filter(is_held_out, rows)))


def timed_pieces(rows: Sequence[ProbeRow], rooflines: Mapping[int, Roofline]) -> dict[str, list[TimedPiece]]:
    """The rows of each kind of work; without those that are several pieces."""
    timed: dict[str, list[TimedPiece]] = defaultdict(list)
    for row in rows:
        pieces = pieces_of(row, rooflines[row.threads].cores)
        if len(pieces) == 1:
            timed[pieces[0].kind].append(TimedPiece(pieces[0], row))
    return timed


def row_errors(
    rows: Sequence[ProbeRow], rooflines: Mapping[int, Roofline], kinds: Mapping[str, Kind]
) -> list[float]:
    """How far the kinds are from timed rows, as logarithms of forecast over measured."""
    errors: list[float] = []
    for name, pairs in timed_pieces(rows, rooflines).items():
        if name in kinds:
            table, slowdown = _table(pairs, rooflines)
            errors += (kinds[name].slowdown.predict(table) - slowdown).tolist()
    return errors


def _correct(
    name: str, pairs: Sequence[TimedPiece], rooflines: Mapping[int, Roofline], earlier: Kind | None
) -> tuple[str, Kind]:
    table, slowdown = _table(pairs, rooflines)
    before = earlier.slowdown if earlier is not None else None
    prior = before.predict(table) if before is not None else np.zeros(len(pairs))
    folds = np.array([zlib.crc32(repr(row.shape).encode()) % _FOLDS for _, row in pairs])
    choice, errors = _choose(_candidates(len(pairs), before), (table, slowdown, prior), folds, before)
    trees = _candidates(len(pairs), before)[choice](table, slowdown, prior, before)
    flop, moved = ([value for value in values if value > 0] for values in _amounts(pairs))
    kind = Kind(
        features=feature_names(name),
        slowdown=trees,
        rows=len(pairs),
        spread=float(np.exp(np.quantile(np.abs(errors), 0.8))),
        flop=(min(flop, default=0.0), max(flop, default=0.0)),
        bytes=(min(moved, default=0.0), max(moved, default=0.0)),
        kernels={"": 0.0},
    )
    if earlier is None:
        return choice, kind
    wider = {
        which: (min(getattr(kind, which)[0], getattr(earlier, which)[0]), _most(kind, earlier, which))
        for which in ("flop", "bytes")
    }
    return choice, dataclasses.replace(
        kind, flop=wider["flop"], bytes=wider["bytes"], kernels=earlier.kernels, rows=kind.rows + earlier.rows
    )


def _most(kind: Kind, earlier: Kind, which: str) -> float:
    return float(max(getattr(kind, which)[1], getattr(earlier, which)[1]))


def _amounts(pairs: Sequence[TimedPiece]) -> tuple[list[float], list[float]]:
    return [piece.flop for piece, _ in pairs], [piece.bytes for piece, _ in pairs]


def _table(pairs: Sequence[TimedPiece], rooflines: Mapping[int, Roofline]) -> tuple[Numbers, Numbers]:
    """Features and logarithms of slowdowns."""
    table = np.array([feature_row(piece, row.threads) for piece, row in pairs])
    seconds = [math.log(row.seconds / rooflines[row.threads].seconds(piece)) for piece, row in pairs]
    return table, np.array(seconds)


def _candidates(rows: int, before: Trees | None) -> dict[str, Fit]:
    """The corrections to try with this number of rows, the simplest first."""
    candidates: dict[str, Fit] = {}
    if before is not None:
        candidates = {"none": _fit_nothing, "factor": _fit_thread_factors}
    if rows >= _LEAST_ROWS_OF_TREES:
        candidates |= {"trees": _fit_residual_trees} if before is not None else {}
        candidates |= {"own trees": _fit_new_trees}
    return candidates or {"own trees": _fit_new_trees}


def _choose(
    candidates: Mapping[str, Fit],
    data: tuple[Numbers, Numbers, Numbers],
    folds: Numbers,
    before: Trees | None,
) -> tuple[str, Numbers]:
    """The name of the correction with the smallest error on rows left out of its fit, and these errors."""
    table, slowdown, prior = data
    best, best_score, best_errors = "", math.inf, np.zeros(0)
    for name, fit in candidates.items():
        errors = np.zeros(len(slowdown))
        for fold in range(_FOLDS):
            left_out = folds == fold
            if not left_out.any():
                continue
            seen = ~left_out
            if not seen.any():
                errors[left_out] = prior[left_out] - slowdown[left_out]
                continue
            trees = fit(table[seen], slowdown[seen], prior[seen], before)
            errors[left_out] = trees.predict(table[left_out]) - slowdown[left_out]
        score = float(np.abs(np.clip(errors, -1.5, 1.5)).mean())
        if score < best_score * (_SIMPLER if best else 1.0):
            best, best_score, best_errors = name, score, errors
    return best, best_errors


def _fit_nothing(table: Numbers, slowdown: Numbers, prior: Numbers, before: Trees | None) -> Trees:
    assert before is not None
    return before


def _fit_thread_factors(table: Numbers, slowdown: Numbers, prior: Numbers, before: Trees | None) -> Trees:
    """One factor for one thread and one for more, nearer to 1 if there are few rows."""
    assert before is not None
    residuals, many = slowdown - prior, table[:, -1] > 1
    factors = _shrunk_median(residuals[~many]), _shrunk_median(residuals[many])
    return add_trees(before, thread_factors(table.shape[1], *factors))


def thread_factors(features: int, one: float, many: float) -> Trees:
    """A tree that splits only by threads, the last feature."""
    return Trees(
        base=0.0,
        features=np.array([[features - 1]]),
        thresholds=np.array([[1.0]]),
        leaves=np.array([[one, many]]),
    )


def _shrunk_median(values: Numbers) -> float:
    if not len(values):
        return 0.0
    return float(np.median(values)) * len(values) / (len(values) + _SHRINKAGE)


def _fit_residual_trees(table: Numbers, slowdown: Numbers, prior: Numbers, before: Trees | None) -> Trees:
    """Small trees over the residuals."""
    assert before is not None
    boosting = _DEEP_TREES if len(table) > _MANY_ROWS else _TREES
    return add_trees(before, boosting.fit(table, slowdown - prior))


def _fit_new_trees(table: Numbers, slowdown: Numbers, prior: Numbers, before: Trees | None) -> Trees:
    boosting = _DEEP_TREES if len(table) > _MANY_ROWS else _TREES
    return boosting.fit(table, slowdown)


def add_trees(left: Trees, right: Trees) -> Trees:
    """Trees whose prediction is the sum of both. Shallow trees get extra levels whose threshold no row
    exceeds."""
    depth = max(left.features.shape[1], right.features.shape[1])
    left, right = _deepen(left, depth), _deepen(right, depth)
    return Trees(
        base=left.base + right.base,
        features=np.concatenate([left.features, right.features]),
        thresholds=np.concatenate([left.thresholds, right.thresholds]),
        leaves=np.concatenate([left.leaves, right.leaves]),
    )


def _deepen(trees: Trees, depth: int) -> Trees:
    count, own = trees.features.shape
    if own == depth:
        return trees
    more = depth - own
    return Trees(
        base=trees.base,
        features=np.concatenate([trees.features, np.zeros((count, more), dtype=np.int64)], axis=1),
        thresholds=np.concatenate([trees.thresholds, np.full((count, more), _NEVER)], axis=1),
        leaves=np.concatenate([trees.leaves, np.zeros((count, (1 << depth) - (1 << own)))], axis=1),
    )
