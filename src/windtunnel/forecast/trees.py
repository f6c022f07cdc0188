"""Sums of small decision trees as plain numbers: the form in which a profile keeps what a probe learned.

Every tree asks the same few questions of all rows ("is feature f above t?"), one per level. The answers as
bits are the number of the leaf. So a tree of depth 6 has 6 questions and 64 values, fits on one line of text,
and is evaluated for many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """`features` and `thresholds` have a row for each tree and a column for each level; `leaves` has a row of
    values for each tree."""

    base: float
    features: NDArray[np.int64]
    thresholds: Numbers
    leaves: Numbers

    def predict(self, rows: Sequence[Sequence[float]] | Numbers) -> Numbers:
        """One number for each row of features."""
        table = np.asarray(rows, dtype=np.float64)
        if not len(table):
            return np.zeros(0)
        if not self.features.size:
            return np.full(len(table), self.base)
        above = table[:, self.features] > self.thresholds  # rows x trees x levels
        number = above @ (1 << np.arange(self.features.shape[1]))
        return np.asarray(self.base + self.leaves[np.arange(len(self.leaves)), number].sum(axis=1))
