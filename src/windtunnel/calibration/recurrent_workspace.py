"""Fit the coefficients of the workspace formula of recurrent calls from a probe's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from windtunnel.calibration.probe import ProbeRow
from windtunnel.families import has_known_sizes
from windtunnel.families.recurrent import RecurrentSizes, workspace_terms, workspace_type
from windtunnel.forecast.trees import Numbers

_LEAST_ROWS = 15
# Share of rows that need no more workspace than forecast: a step must not fail by the choice of algorithm.
_COVERED_SHARE = 0.88


def fit_workspace_coefficients(rows: Sequence[ProbeRow]) -> dict[str, tuple[float, ...]]:
    """The coefficients of each type of call that was timed often enough."""
    by_type: dict[str, list[ProbeRow]] = defaultdict(list)
    for row in rows:
        if row.family == "recurrent" and has_known_sizes(row) and row.workspace_bytes > 0:
            backward, sizes = row.phase == "backward", RecurrentSizes(*row.shape)
            by_type[workspace_type(sizes, row.dtype, backward=backward, kernels=row.kernels)].append(row)
    return {name: _fit(rows) for name, rows in sorted(by_type.items()) if len(rows) >= _LEAST_ROWS}


def _fit(rows: Sequence[ProbeRow]) -> tuple[float, ...]:
    """Least squares of relative errors, so that a small call counts as much as a large one."""
    taken = np.array([row.workspace_bytes for row in rows])
    terms = [workspace_terms(RecurrentSizes(*row.shape), row.dtype) for row in rows]
    shares = np.array(terms) / taken[:, None]
    times = _not_negative(shares, np.ones(len(rows)))
    return tuple(round(float(each), 3) for each in times / np.quantile(shares @ times, 1 - _COVERED_SHARE))


def _not_negative(table: Numbers, targets: Numbers) -> Numbers:
    """Least squares without the columns whose coefficient would be negative: nothing has a negative size."""
    left = [column for column in range(table.shape[1]) if table[:, column].any()]
    while True:
        solution = np.linalg.lstsq(table[:, left], targets, rcond=None)[0]
        if (solution >= 0).all():
            break
        left.pop(int(np.argmin(solution)))
    coefficients = np.zeros(table.shape[1])
    coefficients[left] = solution
    return coefficients
