"""How many times over the parts of a recurrent call make up its workspace, from a probe's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from windtunnel.calibration.probe import Row
from windtunnel.forecast import recurrent
from windtunnel.forecast.trees import Numbers

_LEAST_ROWS = 15
_REACH = 0.88  # so many rows take no more: whether a step fits must not hang on a lucky choice of algorithm


def fit_sums(rows: Sequence[Row]) -> dict[str, tuple[float, ...]]:
    """For each sort of call that was seen often enough."""
    gathered: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.family == "recurrent" and len(row.shape) == 7 and row.workspace_bytes > 0:
            gathered[
                recurrent.key(row.shape, row.dtype, backward=row.phase == "backward", kernels=row.kernels)
            ].append(row)
    return {name: _fit(held) for name, held in sorted(gathered.items()) if len(held) >= _LEAST_ROWS}


def _fit(rows: Sequence[Row]) -> tuple[float, ...]:
    """By shares, so that a small call counts as much as a large one."""
    taken = np.array([row.workspace_bytes for row in rows])
    shares = np.array([recurrent.terms(row.shape, row.dtype) for row in rows]) / taken[:, None]
    times = _not_negative(shares, np.ones(len(rows)))
    return tuple(round(float(each), 3) for each in times / np.quantile(shares @ times, 1 - _REACH))


def _not_negative(table: Numbers, wanted: Numbers) -> Numbers:
    """Least squares without the columns that would be taken away: nothing has a negative size."""
    left = [column for column in range(table.shape[1]) if table[:, column].any()]
    while True:
        found = np.linalg.lstsq(table[:, left], wanted, rcond=None)[0]
        if (found >= 0).all():
            break
        left.pop(int(np.argmin(found)))
    times = np.zeros(table.shape[1])
    times[left] = found
    return times
