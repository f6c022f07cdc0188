"""Fit a profile of the catalogue again from its probe's rows; dates, pauses and spreads of the profile stay as they are.

    python benchmarks/refit.py h200                  (reads benchmarks/probes/h200.csv)

For when features or the fit have changed: the rows say what the machine did, whatever is made of them.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from windtunnel.calibration import fit, rows
from windtunnel.calibration.sums import fit_sums
from windtunnel.forecast.price import roofline_of
from windtunnel.machine import profiles
from windtunnel.machine.machine import CATALOG, Machine

# A CPU's rows are few and noisy: shallow trees, which did better on its tuning rows.
EFFORT = {"cpu": fit.Effort(few=120, many=240, depth=4), "gpu": fit.Effort()}


def main(name: str) -> None:
    machine, old = Machine.named(name), profiles.load(name)
    seen = rows.load(Path(__file__).parent / "probes" / f"{name}.csv")
    begin = time.perf_counter()
    kinds = fit.fit_kinds(
        seen,
        {count: roofline_of(machine, old, count) for count in {row.threads for row in seen}},
        EFFORT[machine.device.kind],
    )
    workspaces = (
        fit.find_workspaces(seen, kinds, machine.device.cores or 1) if machine.device.kind == "gpu" else {}
    )
    fitted = dataclasses.replace(old, kinds=kinds, workspaces=workspaces, sums=fit_sums(seen))
    profiles.save(CATALOG / "profiles" / f"{name}.json", fitted, {})
    print(f"{len(seen):,} rows, {len(kinds)} kinds, {time.perf_counter() - begin:.0f} s")
    for kind, found in sorted(kinds.items()):
        print(f"  {kind:<32}{found.rows:>7,} rows, four of five within {found.spread - 1:.0%}")


if __name__ == "__main__":
    main(sys.argv[1])
