"""From a probe's rows to kinds of work: how much slower than its roofline each is, and its workspace."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windtunnel.calibration.boosting import Boosting
from windtunnel.calibration.probe import ProbeRow
from windtunnel.families import Piece, pieces_of, registry
from windtunnel.forecast.profile import (
    MOST_SPREAD,
    Kind,
    feature_names,
    feature_row,
    workspace_bytes,
    workspace_key,
    workspace_ratio,
)
from windtunnel.forecast.roofline import Roofline
from windtunnel.forecast.trees import Numbers, Trees

_LEAST_ROWS = 8
_FOLDS = 4
# The workspace of a kind is learned if this share of its rows takes more than this number of bytes.
_LARGE_BYTES, _LARGE_SHARE = 2**20, 0.01
_EXCEEDED_BY = 0.12
_EXACT = 0.02
# A workspace this far from the learned one is kept as it was measured.
_FAR_BYTES, _FAR_SHARE = 4 * 2**20, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How finely to fit: the trees for a kind of few rows and of many, and how deep they are."""

    few: int = 250
    many: int = 700
    depth: int = 7


class TimedPiece(NamedTuple):
    """A piece of work and the row in which it was timed."""

    piece: Piece
    row: ProbeRow


def fit_kinds(
    rows: Sequence[ProbeRow], rooflines: Mapping[int, Roofline], effort: Effort | None = None
) -> dict[str, Kind]:
    """One model for each kind of work that was timed often enough; `rooflines` by number of threads."""
    effort = effort or Effort()
    timed: dict[str, list[TimedPiece]] = defaultdict(list)
    for row in rows:
        pieces = pieces_of(row, rooflines[row.threads].cores)
        if all(piece == pieces[0] for piece in pieces):
            timed[pieces[0].kind].append(TimedPiece(pieces[0], _share_of(row, len(pieces))))
    return {
        name: _fit_kind(name, pairs, rooflines, effort)
        for name, pairs in timed.items()
        if len(pairs) >= _LEAST_ROWS
    }


def _share_of(row: ProbeRow, pieces: int) -> ProbeRow:
    """The row of one of several equal pieces."""
    if pieces == 1:
        return row
    return dataclasses.replace(row, seconds=row.seconds / pieces, kernels=row.kernels / pieces)


def find_workspaces(rows: Sequence[ProbeRow], kinds: Mapping[str, Kind], cores: int) -> dict[str, float]:
    """Measured workspaces far from the learned ones, by key: the same sizes get the same algorithm again."""
    timed: dict[str, dict[str, TimedPiece]] = defaultdict(dict)
    for row in rows:
        family = registry.get(row.family)
        if family is None or not family.repeats_workspaces:
            continue
        pieces = pieces_of(row, cores)
        if len(pieces) == 1:
            timed[pieces[0].kind][workspace_key(pieces[0])] = TimedPiece(pieces[0], row)
    far = {}
    for name, pairs in timed.items():
        trees = kinds[name].workspace if name in kinds else None
        if trees is None:
            continue
        ratios = trees.predict(np.array([feature_row(piece, 1) for piece, _ in pairs.values()]))
        for (key, (piece, row)), ratio in zip(pairs.items(), ratios.tolist(), strict=True):
            distance = abs(row.workspace_bytes - workspace_bytes(piece, ratio))
            if distance > max(_FAR_BYTES, _FAR_SHARE * piece.bytes):
                far[key] = row.workspace_bytes
    return far


def _fit_kind(
    name: str, pairs: Sequence[TimedPiece], rooflines: Mapping[int, Roofline], effort: Effort
) -> Kind:
    table = np.array([feature_row(piece, row.threads) for piece, row in pairs])
    slowdown = np.array(
        [math.log(row.seconds / rooflines[row.threads].seconds(piece)) for piece, row in pairs]
    )
    boosting = Boosting(trees=effort.many if len(pairs) > 1500 else effort.few, depth=effort.depth, rate=0.1)
    rough = Boosting(trees=effort.few // 2, depth=effort.depth, rate=0.2)
    return Kind(
        features=feature_names(name),
        slowdown=boosting.fit(table, slowdown),
        rows=len(pairs),
        spread=_spread(rough, table, slowdown),
        flop=_range(piece.flop for piece, _ in pairs),
        bytes=_range(piece.bytes for piece, _ in pairs),
        kernels=_kernels(pairs),
        workspace=_fit_workspace(name, pairs, table, effort),
        launches=_fit_launches(name, pairs, table, effort),
        per_example=_fit_per_example(pairs, table),
    )


def _fit_launches(name: str, pairs: Sequence[TimedPiece], table: Numbers, effort: Effort) -> Trees | None:
    """How many kernels a call starts: one for every timestep, or one that lasts, as the library chooses."""
    if not registry.of_kind(name).launches_by_size or not all(row.kernels > 0 for _, row in pairs):
        return None
    counts = np.array([math.log2(row.kernels) for _, row in pairs])
    return Boosting(trees=effort.few // 2, depth=min(effort.depth, 5), rate=0.15).fit(table, counts)


def _fit_workspace(name: str, pairs: Sequence[TimedPiece], table: Numbers, effort: Effort) -> Trees | None:
    """A workspace above most measured values, because a step must not fail if the library chooses a larger
    one."""
    if registry.of_kind(name).is_sequence:
        return None  # the family has a formula
    if sum(row.workspace_bytes > _LARGE_BYTES for _, row in pairs) < _LARGE_SHARE * len(pairs):
        return None
    ratios = np.array([workspace_ratio(piece, row.workspace_bytes) for piece, row in pairs])
    boosting = Boosting(trees=effort.few // 3, depth=effort.depth, rate=0.3, exceeded_by=_EXCEEDED_BY)
    return boosting.fit(table, ratios)


def _fit_per_example(pairs: Sequence[TimedPiece], table: Numbers) -> Trees | None:
    """Whether weight gradients were computed separately for every example, recognised by their exact
    workspace."""
    is_per_example = np.array([float(_is_per_example(*pair)) for pair in pairs])
    if is_per_example.sum() < _LEAST_ROWS:
        return None
    return Boosting(trees=60, depth=6, rate=0.2).fit(table, is_per_example)


def _is_per_example(piece: Piece, row: ProbeRow) -> bool:
    distance = abs(row.workspace_bytes - piece.per_example_bytes)
    return row.workspace_bytes > _LARGE_BYTES and distance < _EXACT * piece.per_example_bytes


def _spread(boosting: Boosting, table: Numbers, slowdown: Numbers) -> float:
    """Four of five held-out rows are within this factor of their forecasts."""
    fold = np.arange(len(slowdown)) % _FOLDS
    np.random.default_rng(0).shuffle(fold)
    errors = np.zeros(len(slowdown))
    for number in range(_FOLDS):
        fitted = fold != number
        trees = boosting.fit(table[fitted], slowdown[fitted])
        errors[~fitted] = trees.predict(table[~fitted]) - slowdown[~fitted]
    return min(MOST_SPREAD, float(np.exp(np.quantile(np.abs(errors), 0.8))))


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = [value for value in values if value > 0]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _kernels(pairs: Sequence[TimedPiece]) -> dict[str, float]:
    """How many kernels a call starts, by number format and over all."""
    by_format: dict[str, list[float]] = defaultdict(list)
    for piece, row in pairs:
        by_format[piece.dtype].append(row.kernels)
        by_format[""].append(row.kernels)
    return {name: float(statistics.median(counts)) for name, counts in by_format.items()}
