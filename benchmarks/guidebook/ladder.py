"""Shallow against deep networks on five small data sets: what the ladder of `windtunnel advise` reaches."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = {
    "iris": "iris",
    "wine": "wine",
    "breast_cancer": "breast cancer",
    "digits": "digits as a table",
    "diabetes": "diabetes, a number",
}
SEEDS = (0, 1, 2)
_NO_LIMIT = 3600.0  # seconds: the time must not decide which networks are trained


def ladder(say: Callable[[str], None]) -> dict[str, Any]:
    """For each data set and seed the score of every network, from no hidden layer on, and of the exam."""
    import torch
    from sklearn import datasets

    from windtunnel.choosing.ladder import LadderOptions, run_ladder
    from windtunnel.choosing.own_data import read_own

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these networks are too small for more
    found = dict[str, Any]()
    for name in DATA:
        bunch = getattr(datasets, f"load_{name}")()
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{name}.npz"
                np.savez(path, x=bunch.data, y=bunch.target)
                options = LadderOptions(folder=Path(folder) / "kept", seconds=_NO_LIMIT, seed=seed)
                result = run_ladder(read_own(path, seed=seed), options)
            scores = [round(rung.score, 6) for rung in result.rungs]
            found[f"{name}.{seed}"] = {
                "scores": scores,
                "chosen": result.chosen,
                "exam": round(result.exam.score, 6),
                "baseline": round(result.exam.baseline, 6),
            }
            say(f"ladder, {name}, seed {seed}: {scores}")
    torch.set_num_threads(threads)
    return found


class LadderFigures:
    """The kept scores: means over the seeds."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    def scores(self, name: str) -> list[float]:
        """The mean score by hidden layers, as far as every seed climbed."""
        climbs = self._climbs(name)
        reached = min(len(climb) for climb in climbs)
        return [statistics.fmean(climb[layers] for climb in climbs) for layers in range(reached)]

    def gain(self, name: str) -> float:
        """The mean over the seeds of what the best deeper network adds to the one without a hidden layer."""
        return statistics.fmean(max(climb[1:]) - climb[0] for climb in self._climbs(name))

    def little(self, most: float = 0.02) -> int:
        """In how many data sets depth adds at most this much."""
        return sum(self.gain(name) <= most for name in DATA)

    def largest(self) -> str:
        """The data set that gains most."""
        return max(DATA, key=self.gain)

    def largest_words(self) -> str:
        return DATA[self.largest()]

    def _climbs(self, name: str) -> Sequence[list[float]]:
        return [row["scores"] for key, row in self.kept.items() if key.startswith(f"{name}.")]
