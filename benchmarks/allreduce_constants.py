"""Choose the constants of collectives on published all-reduce times.

    python benchmarks/allreduce_constants.py FOLDER

FOLDER has the published files (see `windtunnel validate --on all-reduce`). Only the rows that are not judged
are used. Each constant in turn is set to the value of a fine grid around it at which the mean error is
smallest, until none changes. forecast/paths.py and forecast/collectives.py hold the result, rounded.

RDMA_SHARE is not fitted so: by its largest sizes, 32 B200 reach 0.95 of their network's rate.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from windtunnel.accuracy import allreduce
from windtunnel.forecast import collectives, paths

SHARES = (
    "SWITCH_SHARE",
    "FEW_RANKS_LOSS",
    "LINK_SHARE",
    "PCIE_SHARE",
    "PCIE_ROOT_SHARE",
    "HOST_SHARE",
    "CARD_SHARE",
    "REDUCTION_SHARE",
)
PROTOCOLS = (("_LL128", "ring_share"), ("_LL128", "tree_share"))
FACTORS = (0.85, 0.92, 0.96, 0.98, 0.99, 1.01, 1.02, 1.04, 1.08, 1.15)
MOST_ERROR = 0.5  # a row that is further off counts as this much: some curves have outliers


def main(folder: Path) -> None:
    measured, _ = allreduce.read(folder)
    rows = [each for each, is_judged in allreduce.split(measured) if not is_judged]
    print(f"{len(rows)} rows, mean error {mean_error(rows):.4f}")
    names = [*SHARES, *PROTOCOLS, "_PIPELINE_SECONDS"]
    changed = True
    while changed:
        changed = False
        for name in names:
            changed = improve(name, rows) or changed
        print(f"mean error {mean_error(rows):.4f}", flush=True)
    for name in names:
        print(name, f"{get(name):.4g}")


def mean_error(rows: list[allreduce.Measured]) -> float:
    errors = [abs(math.log(allreduce.predicted_seconds(each) / each.seconds)) for each in rows]
    return sum(min(error, MOST_ERROR) for error in errors) / len(rows)


def improve(name: str | tuple[str, str], rows: list[allreduce.Measured]) -> bool:
    """Set the constant to the best value of the grid; whether it changed."""
    before, least = get(name), mean_error(rows)
    best = before
    for factor in FACTORS:
        put(name, before * factor)
        error = mean_error(rows)
        if error < least - 1e-6:
            best, least = before * factor, error
    put(name, best)
    return best != before


def get(name: str | tuple[str, str]) -> float:
    if isinstance(name, tuple):
        return float(getattr(getattr(collectives, name[0]), name[1]))
    return float(getattr(paths if hasattr(paths, name) else collectives, name))


def put(name: str | tuple[str, str], value: float) -> None:
    if isinstance(name, tuple):
        setattr(collectives, name[0], getattr(collectives, name[0])._replace(**{name[1]: value}))
        return
    for module in (paths, collectives):  # collectives imports some by name
        if hasattr(module, name):
            setattr(module, name, value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
