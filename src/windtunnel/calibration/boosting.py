"""Fit sums of small trees: gradient boosting with one question a level for all rows, on absolute or squared error.

Features are cut into bins by their quantiles once; each level then tries every bin's edge of every feature at the same time
with one count. Own code, since a probe must run where only NumPy is, and a few thousand rows take a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.forecast.trees import Numbers, Trees

_BINS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Boosting:
    """How to fit: more trees at a lower rate are finer; `shade` keeps leaves of few rows near zero. With `above` the fit aims at
    being exceeded by only that share of rows, rather than at their middle."""

    trees: int = 300
    depth: int = 6
    rate: float = 0.06
    shade: float = 3.0
    share: float = 0.7
    above: float | None = None

    def fit(self, rows: Numbers, targets: Numbers, seed: int = 0) -> Trees:
        """Trees whose sum follows the targets. Few rows get few trees."""
        rng = np.random.default_rng(seed)
        edges = [_edges(column) for column in rows.T]
        binned = np.stack(
            [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, rows.T, strict=True)],
            axis=1,
        )
        base = float(np.median(targets) if self.above is None else np.quantile(targets, 1 - self.above))
        left = targets - base
        count = self.trees if len(rows) >= 40 else self.trees // 4
        depth = min(self.depth, max(1, int(np.log2(max(len(rows), 2))) - 2))
        features, thresholds, leaves = (
            np.zeros((count, depth), dtype=np.int64),
            np.zeros((count, depth)),
            np.zeros((count, 1 << depth)),
        )
        for tree in range(count):
            chosen = rng.random(len(rows)) < self.share
            pull = self._pull(left)
            number = np.zeros(len(rows), dtype=np.int64)
            for level in range(depth):
                feature, bin_index = _best_question(
                    edges, binned, number, np.where(chosen, pull, 0.0), chosen, level, self.shade, rng
                )
                features[tree, level] = feature
                thresholds[tree, level] = edges[feature][bin_index] if len(edges[feature]) else 0.0
                number += (rows[:, feature] > thresholds[tree, level]).astype(np.int64) << level
            sums = np.bincount(number[chosen], weights=pull[chosen], minlength=1 << depth)
            counts = np.bincount(number[chosen], minlength=1 << depth)
            leaves[tree] = self.rate * sums / (counts + self.shade)
            left = left - leaves[tree][number]
        return Trees(base=base, features=features, thresholds=thresholds, leaves=leaves)

    def _pull(self, left: Numbers) -> Numbers:
        """Where each row would have the sum go: a far-off row pulls no harder than a factor of e."""
        near = np.clip(left, -1.0, 1.0)
        return (
            near
            if self.above is None
            else np.asarray(np.where(left > 0, (1 - self.above) * near, self.above * near))
        )


def _edges(column: Numbers) -> Numbers:
    """Where a question may cut: between quantiles, midway between neighbouring values."""
    values = np.unique(column)
    if len(values) > _BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, _BINS)))
    return np.asarray((values[1:] + values[:-1]) / 2)


def _best_question(
    edges: list[Numbers],
    binned: NDArray[np.int64],
    number: NDArray[np.int64],
    pull: Numbers,
    chosen: NDArray[np.bool_],
    level: int,
    shade: float,
    rng: np.random.Generator,
) -> tuple[int, int]:
    """The feature and edge that, asked of all leaves at once, explain most."""
    groups, width = 1 << level, _BINS + 1
    best, answer = -1.0, (0, 0)
    for feature in rng.permutation(binned.shape[1])[: max(3, int(binned.shape[1] * 0.7))]:
        cell = number * width + binned[:, feature]
        sums = np.bincount(cell, weights=pull, minlength=groups * width).reshape(groups, width).cumsum(axis=1)
        counts = (
            np.bincount(cell, weights=chosen.astype(np.float64), minlength=groups * width)
            .reshape(groups, width)
            .cumsum(axis=1)
        )
        if not len(edges[feature]):
            continue
        gain = (
            sums**2 / (counts + shade) + (sums[:, -1:] - sums) ** 2 / (counts[:, -1:] - counts + shade)
        ).sum(axis=0)
        edge = int(gain[: len(edges[feature])].argmax())
        if gain[edge] > best:
            best, answer = float(gain[edge]), (int(feature), edge)
    return answer
