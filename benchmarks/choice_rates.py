"""Do the verdicts of the study `choice-2026` depend on the learning rate?

Each of its networks keeps its own rate at every width and depth. Here the cells that decide whether too many
nodes do harm are trained again with a third of that rate and with three times as much, from the first three
seeds of the study. Only skill is compared: nothing is timed.

    python benchmarks/choice_rates.py --results docs/results/choice-rates.json    (a cell that is in it stays)
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from windtunnel import networks
from windtunnel.learning.trial import TrialRun, run_trial
from windtunnel.study.run.train_cells import TrainPoint, points_of
from windtunnel.study.study import Study

SEEDS = range(3)
FACTORS = (1 / 3, 1.0, 3.0)
# The sides of a claim: figure, case, axis, and the two values that it compares.
COMPARED = (
    ("width", "deep ffn on digits", "width", (128, 512)),
    ("width", "rbm on digits", "width", (128, 1024)),
)


def cells() -> Iterator[tuple[TrainPoint, int, float]]:
    points = points_of(Study.named("choice-2026"))
    for figure, case, axis, values in COMPARED:
        for point in points:
            if (point.figure, point.case.name) == (figure, case) and point.at[axis] in values:
                for factor in FACTORS:
                    yield point, int(str(point.at[axis])), factor


def skill(point: TrainPoint, factor: float, seed: int) -> float:
    """Of one training with the network's own rate times `factor`."""
    case = point.case
    own = networks.named(case.network).settings().rate
    trial = point.trial(seed)
    assert isinstance(trial, TrialRun)
    settings = {**trial.settings, "rate": own * factor}
    outcome = run_trial(TrialRun(**{**_fields(trial), "settings": settings}))
    perfect = 1.0 if outcome.better == "higher" else 0.0
    return (outcome.score - case.baseline) / (perfect - case.baseline)


def _fields(trial: TrialRun) -> dict[str, object]:
    names = ("network", "data", "rounds", "steps", "target", "seed")
    return {name: getattr(trial, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    path = parser.parse_args().results
    torch.set_num_threads(1)
    rows = json.loads(path.read_text()) if path.is_file() else []
    known = {(row["case"], row["value"], row["factor"]) for row in rows}
    for point, value, factor in cells():
        if (point.case.name, value, round(factor, 3)) in known:
            continue
        skills = [round(skill(point, factor, seed), 5) for seed in SEEDS]
        rows.append({"case": point.case.name, "value": value, "factor": round(factor, 3), "skills": skills})
        mean = statistics.mean(skills)
        print(f"{point.case.name:22} {value:>5} rate x {factor:.2f}: {mean:.3f}", flush=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
