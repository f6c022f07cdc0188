"""Fit sums of small trees: gradient boosting on absolute error, with one split per level for all rows.

Features are cut into bins by their quantiles once. Each level then evaluates every edge of every feature from
one histogram. This is our own code because a probe must run on a node that has only NumPy. A few thousand
rows take a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.forecast.trees import Numbers, Trees

_BINS = 48
_FEATURE_SHARE, _LEAST_FEATURES = 0.7, 3  # that a level tries
_ENOUGH_ROWS = 40
_FEW_ROWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Boosting:
    """How to fit. More trees at a lower rate are finer. `shrinkage` keeps leaves of few rows near zero.
    `subsample` is the share of rows that a tree sees. With `exceeded_by` it fits the quantile that this share
    of rows exceeds, instead of the median."""

    trees: int = 300
    depth: int = 6
    rate: float = 0.06
    shrinkage: float = 3.0
    subsample: float = 0.7
    exceeded_by: float | None = None

    def fit(self, rows: Numbers, targets: Numbers, seed: int = 0) -> Trees:
        """Trees whose sum follows the targets. Few rows get few trees."""
        rng = np.random.default_rng(seed)
        bins = _Bins.of(rows)
        quantile = 0.5 if self.exceeded_by is None else 1 - self.exceeded_by
        base = float(np.median(targets) if self.exceeded_by is None else np.quantile(targets, quantile))
        residuals = targets - base
        count = self.trees if len(rows) >= _ENOUGH_ROWS else self.trees // 4
        depth = min(self.depth, max(1, int(np.log2(max(len(rows), 2))) - 2))
        trees = Trees(
            base=base,
            features=np.zeros((count, depth), dtype=np.int64),
            thresholds=np.zeros((count, depth)),
            leaves=np.zeros((count, 1 << depth)),
        )
        for tree in range(count):
            chosen = rng.random(len(rows)) < self.subsample
            gradient = self._negative_gradient(residuals)
            leaf = np.zeros(len(rows), dtype=np.int64)
            for level in range(depth):
                sample = _Sample(leaf, 1 << level, np.where(chosen, gradient, 0.0), chosen.astype(np.float64))
                feature, threshold = bins.best_question(sample, self.shrinkage, rng)
                trees.features[tree, level], trees.thresholds[tree, level] = feature, threshold
                leaf += (rows[:, feature] > threshold).astype(np.int64) << level
            sums = np.bincount(leaf[chosen], weights=gradient[chosen], minlength=1 << depth)
            counts = np.bincount(leaf[chosen], minlength=1 << depth)
            trees.leaves[tree] = self.rate * sums / (counts + self.shrinkage)
            residuals = residuals - trees.leaves[tree][leaf]
        return trees

    def _negative_gradient(self, residuals: Numbers) -> Numbers:
        """The negative gradient of the loss for each row, limited so that outliers count no more than a
        residual of 1."""
        near = np.clip(residuals, -1.0, 1.0)
        if self.exceeded_by is None:
            return near
        return np.asarray(np.where(residuals > 0, (1 - self.exceeded_by) * near, self.exceeded_by * near))


class _Sample(NamedTuple):
    """The rows of a tree at one level: the leaf of each, the number of leaves, pulls and weights."""

    leaf: NDArray[np.int64]
    leaves: int
    gradient: Numbers
    weights: Numbers


class _Bins(NamedTuple):
    """For each feature the edges where a question may cut, and the bin of every row."""

    edges: list[Numbers]
    numbers: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Numbers) -> _Bins:
        edges = [_edges(column) for column in rows.T]
        places = [
            np.searchsorted(edge, column, side="left") for edge, column in zip(edges, rows.T, strict=True)
        ]
        return cls(edges, np.stack(places, axis=1))

    def best_question(self, sample: _Sample, shrinkage: float, rng: np.random.Generator) -> tuple[int, float]:
        """The feature and threshold that reduce the loss most if they split all leaves at once."""
        features = self.numbers.shape[1]
        candidates = rng.permutation(features)[: max(_LEAST_FEATURES, int(features * _FEATURE_SHARE))]
        candidates = np.array([feature for feature in candidates if len(self.edges[feature])], dtype=np.int64)
        # For few rows all features at once, because the calls take most time; for many rows one by one, so
        # that the data stay in the caches.
        size = len(candidates) if len(self.numbers) <= _FEW_ROWS else 1
        best, answer = -1.0, (0, 0)
        for begin in range(0, len(candidates), max(size, 1)):
            some = candidates[begin : begin + size]
            gains = self._gains(some, sample, shrinkage)
            place = int(gains.argmax())
            if gains.flat[place] > best:
                best, answer = float(gains.flat[place]), (int(some[place // _BINS]), place % _BINS)
        feature, edge = answer
        edges = self.edges[feature]
        return feature, float(edges[edge]) if len(edges) else 0.0

    @staticmethod
    def _repeat(weights: Numbers, features: NDArray[np.int64]) -> Numbers:
        return weights if len(features) == 1 else np.tile(weights, len(features))

    def _gains(self, features: NDArray[np.int64], sample: _Sample, shrinkage: float) -> Numbers:
        """The gain of each edge (column) of each feature (row); -2 if a feature has fewer edges."""
        width, shape = _BINS + 1, (len(features), sample.leaves, _BINS + 1)
        cells = (np.arange(len(features))[:, None] * sample.leaves + sample.leaf) * width
        cells += self.numbers[:, features].T
        cells, least = cells.ravel(), shape[0] * shape[1] * width
        sums, counts = (
            np.bincount(cells, weights=weights, minlength=least).reshape(shape).cumsum(axis=2)
            for weights in (self._repeat(sample.gradient, features), self._repeat(sample.weights, features))
        )
        below = sums**2 / (counts + shrinkage)
        above = (sums[:, :, -1:] - sums) ** 2 / (counts[:, :, -1:] - counts + shrinkage)
        gains: Numbers = (below + above).sum(axis=1)[:, :_BINS]
        known = np.array([len(self.edges[feature]) for feature in features])
        return np.asarray(np.where(np.arange(_BINS) < known[:, None], gains, -2.0))


def _edges(column: Numbers) -> Numbers:
    """Where a question may cut: midway between quantiles."""
    values = np.unique(column)
    if len(values) > _BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, _BINS)))
    return np.asarray((values[1:] + values[:-1]) / 2)
