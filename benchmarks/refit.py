"""Fit a profile of the catalogue again from its probe's rows; its dates, latencies and spreads stay.

    python benchmarks/refit.py h200                  (reads benchmarks/probes/h200*.csv.gz)
    python benchmarks/refit.py h200 generated        (reads benchmarks/probes/h200-generated*.csv.gz only)

Use it when features or the fit have changed. With the name of one table, kinds without rows in it stay.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from windtunnel import records
from windtunnel.calibration import fit, rows
from windtunnel.calibration.recurrent_workspace import fit_workspace_coefficients
from windtunnel.forecast import profile_format
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.profile import Profile, feature_names
from windtunnel.machine import profiles
from windtunnel.machine.machine import Machine

# A CPU's rows are few and noisy: shallow trees do better on its tuning rows.
EFFORT = {"cpu": fit.Effort(few=120, many=240, depth=4), "gpu": fit.Effort()}


def load_whatever_fits(name: str) -> Profile:
    """The profile without those kinds whose features this version no longer has."""
    data = records.load(profiles.catalog_path(name))
    kinds = {
        kind: fitted
        for kind, fitted in data["kinds"].items()
        if tuple(fitted["features"]) == feature_names(kind)
    }
    return profile_format.read({**data, "kinds": kinds}, name)


def main(name: str, only: str = "") -> None:
    machine, old = Machine.named(name), load_whatever_fits(name)
    pattern = f"{name}-{only}*.csv.gz" if only else f"{name}*.csv.gz"
    tables = sorted((Path(__file__).parent / "probes").glob(pattern))
    if not tables:
        raise SystemExit(f"There is no table {pattern} in benchmarks/probes.")
    timed = [row for table in tables for row in rows.load(table)]
    begin = time.perf_counter()
    device = machine.device
    rooflines = {count: roofline_of(machine, old, count) for count in {row.threads for row in timed}}
    kinds = fit.fit_kinds(timed, rooflines, EFFORT[device.kind])
    fitted = dataclasses.replace(old, kinds={**(old.kinds if only else {}), **kinds})
    if not only:
        fitted = dataclasses.replace(
            fitted,
            workspaces=fit.find_workspaces(timed, kinds, device.cores or 1) if device.kind == "gpu" else {},
            workspace_coefficients=fit_workspace_coefficients(timed),
        )
    profiles.save(profiles.catalog_path(name), fitted, {})
    print(f"{len(timed):,} rows, {len(kinds)} kinds, {time.perf_counter() - begin:.0f} s")
    for name, kind in sorted(kinds.items()):
        print(f"  {name:<32}{kind.rows:>7,} rows, four of five within {kind.spread - 1:.0%}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
