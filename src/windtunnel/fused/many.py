"""Trains many networks at once (seeds, rates, tasks), each on its own core.

The engines release Python's GIL, so threads are enough: no data is copied between processes, and each kernel
is compiled once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from windtunnel.errors import BadInput
from windtunnel.fused.train import Diverged, TrainedNetwork, TrainingRun, train_one


def train_many(runs: Iterable[TrainingRun], *, workers: int | None = None) -> list[TrainedNetwork | Diverged]:
    """Trains all runs, at most `workers` at a time (default: the number of cores), and keeps their order.

    The result of a run that diverges is its error; the other runs continue.
    """
    listed = list(runs)
    if workers is not None and workers < 1:
        raise BadInput(f"fused training: workers must be above 0, not {workers}.")
    with ThreadPoolExecutor(workers or _core_count()) as pool:
        return list(pool.map(_result, listed))


def _core_count() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _result(run: TrainingRun) -> TrainedNetwork | Diverged:
    try:
        return train_one(run)
    except Diverged as error:
        return error
