"""From a probe's rows to a profile: for each kind of work, how far it stays from its roofline and what workspace it takes."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.calibration.boosting import Boosting
from windtunnel.calibration.probe import Row
from windtunnel.forecast.features import Piece, Roofline, pieces_of
from windtunnel.forecast.profile import Kind, workspace_bytes, workspace_key, workspace_ratio
from windtunnel.forecast.trees import Numbers, Trees

_LEAST_ROWS = 8
_FOLDS = 4
_ROOMY_BYTES, _ROOMY_SHARE = 2**20, 0.01
_EXCEEDED = 0.12
_EXACT = 0.02
_FAR_BYTES, _FAR_SHARE = 4 * 2**20, 0.15  # a workspace this far from what was learned is kept as it was seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How finely to fit: trees for a kind of few rows and of many, and how deep."""

    few: int = 250
    many: int = 700
    depth: int = 7


def fit_kinds(
    rows: Sequence[Row], rooflines: Mapping[int, Roofline], effort: Effort | None = None
) -> dict[str, Kind]:
    """One model for each kind of work that was timed often enough; `rooflines` by number of threads."""
    effort = effort or Effort()
    gathered: dict[str, list[tuple[Piece, Row]]] = defaultdict(list)
    for row in rows:
        pieces = pieces_of(
            row.name,
            row.family,
            row.dtype,
            row.shape,
            row.flop,
            row.read_bytes,
            row.written_bytes,
            row.calls,
            rooflines[row.threads].cores,
        )
        if len(pieces) == 1:
            gathered[pieces[0].kind].append((pieces[0], row))
    return {
        name: _fit_kind(pairs, rooflines, effort)
        for name, pairs in gathered.items()
        if len(pairs) >= _LEAST_ROWS
    }


def find_workspaces(rows: Sequence[Row], kinds: Mapping[str, Kind], cores: int) -> dict[str, float]:
    """The workspaces of convolutions that were seen to be far from what was learned: the same sizes get the same algorithm again."""
    seen: dict[str, dict[str, tuple[Piece, float]]] = defaultdict(dict)
    for row in rows:
        if row.family == "convolution":
            pieces = pieces_of(
                row.name,
                row.family,
                row.dtype,
                row.shape,
                row.flop,
                row.read_bytes,
                row.written_bytes,
                row.calls,
                cores,
            )
            if len(pieces) == 1:
                seen[pieces[0].kind][workspace_key(pieces[0])] = pieces[0], row.workspace_bytes
    found = {}
    for name, pairs in seen.items():
        trees = kinds[name].workspace if name in kinds else None
        if trees is None:
            continue
        table = np.array([(*piece.features, 1.0) for piece, _ in pairs.values()])
        for (key, (piece, taken)), number in zip(pairs.items(), trees.predict(table).tolist(), strict=True):
            if abs(taken - workspace_bytes(piece, number)) > max(_FAR_BYTES, _FAR_SHARE * piece.bytes):
                found[key] = taken
    return found


def _fit_kind(pairs: Sequence[tuple[Piece, Row]], rooflines: Mapping[int, Roofline], effort: Effort) -> Kind:
    table = np.array([(*piece.features, float(row.threads)) for piece, row in pairs])
    slowdown = np.array(
        [math.log(row.seconds / rooflines[row.threads].seconds(piece)) for piece, row in pairs]
    )
    boosting = Boosting(trees=effort.many if len(pairs) > 1500 else effort.few, depth=effort.depth, rate=0.1)
    rough = Boosting(trees=effort.few // 2, depth=effort.depth, rate=0.2)
    return Kind(
        slowdown=boosting.fit(table, slowdown),
        rows=len(pairs),
        spread=_spread(rough, table, slowdown),
        flop=_range(piece.flop for piece, _ in pairs),
        bytes=_range(piece.bytes for piece, _ in pairs),
        kernels=_kernels(pairs),
        workspace=_fit_workspace(pairs, table, effort),
        launches=_fit_launches(pairs, table, effort),
        apart=_fit_apart(pairs, table),
    )


def _fit_launches(pairs: Sequence[tuple[Piece, Row]], table: Numbers, effort: Effort) -> Trees | None:
    """A recurrent call starts kernels for every timestep, or a single one that lasts, as the library likes."""
    if not pairs[0][0].kind.startswith("recurrent") or not all(row.kernels > 0 for _, row in pairs):
        return None
    counts = np.array([math.log2(row.kernels) for _, row in pairs])
    return Boosting(trees=effort.few // 2, depth=min(effort.depth, 5), rate=0.15).fit(table, counts)


def _fit_workspace(pairs: Sequence[tuple[Piece, Row]], table: Numbers, effort: Effort) -> Trees | None:
    """Workspace, aiming above most of what was seen: whether a step fits must not hang on a lucky choice of algorithm."""
    if pairs[0][0].kind.startswith(("recurrent", "fused")):
        return None  # a sum of its parts: see `forecast.recurrent`
    if sum(row.workspace_bytes > _ROOMY_BYTES for _, row in pairs) < _ROOMY_SHARE * len(pairs):
        return None
    taken = np.array([workspace_ratio(piece, row.workspace_bytes) for piece, row in pairs])
    return Boosting(trees=effort.few // 3, depth=effort.depth, rate=0.3, above=_EXCEEDED).fit(table, taken)


def _fit_apart(pairs: Sequence[tuple[Piece, Row]], table: Numbers) -> Trees | None:
    """Which weight gradients were summed for each example apart: their workspace is then exactly that."""
    seen = np.array([float(_is_apart(piece, row.workspace_bytes)) for piece, row in pairs])
    if seen.sum() < _LEAST_ROWS:
        return None
    return Boosting(trees=60, depth=6, rate=0.2).fit(table, seen)


def _is_apart(piece: Piece, workspace: float) -> bool:
    return workspace > _ROOMY_BYTES and abs(workspace - piece.apart_bytes) < _EXACT * piece.apart_bytes


def _spread(boosting: Boosting, table: Numbers, slowdown: Numbers) -> float:
    """The factor within which four of five rows lie that a fit has not seen."""
    fold = np.arange(len(slowdown)) % _FOLDS
    np.random.default_rng(0).shuffle(fold)
    off = np.zeros(len(slowdown))
    for number in range(_FOLDS):
        seen = fold != number
        off[~seen] = boosting.fit(table[seen], slowdown[seen]).predict(table[~seen]) - slowdown[~seen]
    return float(np.exp(np.quantile(np.abs(off), 0.8)))


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = [value for value in values if value > 0]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _kernels(pairs: Sequence[tuple[Piece, Row]]) -> dict[str, float]:
    """How many kernels a call starts, by number format and over all."""
    by_format: dict[str, list[float]] = defaultdict(list)
    for piece, row in pairs:
        by_format[piece.dtype].append(row.kernels)
        by_format[""].append(row.kernels)
    return {name: float(statistics.median(counts)) for name, counts in by_format.items()}
