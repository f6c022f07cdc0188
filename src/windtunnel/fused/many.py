"""Many networks at once: seeds, rates, tasks, each trained by itself on a core of its own, in one call.

The engines run outside of Python's lock, so threads are enough: nothing is copied between processes and the code is compiled once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from windtunnel.errors import BadInput
from windtunnel.fused import train as training
from windtunnel.fused.settings import Examples, Network, Optimizer, Weights
from windtunnel.fused.train import Exploded, Trained


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One training: what `train` takes."""

    network: Network
    examples: Examples
    weights: Weights | None = None
    optimizer: Optimizer | None = None
    epochs: int = 1
    batch: int = 1
    seed: int | None = 0

    def run(self) -> Trained:
        weights = self.weights or Weights.random(self.network, self.seed or 0)
        return training.train(
            self.network,
            weights,
            self.examples,
            optimizer=self.optimizer,
            epochs=self.epochs,
            batch=self.batch,
            seed=self.seed,
        )


def train_many(jobs: Iterable[Job], *, workers: int | None = None) -> list[Trained | Exploded]:
    """Train all of them, at most `workers` at a time (as many as there are cores), and give them back in the order they came.

    A network that explodes is a result like others: its error stands at its place and the rest go on.
    """
    listed: Sequence[Job] = list(jobs)
    if workers is not None and workers < 1:
        raise BadInput(f"fused training: workers must be above 0, not {workers}.")
    with ThreadPoolExecutor(
        workers or len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else workers or os.cpu_count()
    ) as pool:
        return list(pool.map(_outcome, listed))


def _outcome(job: Job) -> Trained | Exploded:
    try:
        return job.run()
    except Exploded as error:
        return error
