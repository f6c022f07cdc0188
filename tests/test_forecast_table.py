"""200 forecasts (jobs x machines x strategies) as they were, so that a refactoring cannot change one
unnoticed.

Every eighth row is computed by default, all with WINDTUNNEL_ALL_FORECASTS=1. After an intended change, write
the table again with `python tests/test_forecast_table.py` and say in the changelog what changed.
"""

from __future__ import annotations

import csv
import functools
import json
import os
from pathlib import Path

import pytest

import windtunnel as wt
from windtunnel.prediction import forecast_trace, trace
from windtunnel.trace import Trace

TABLE = Path(__file__).parent / "golden" / "forecasts.csv"
KEYS = ("job", "settings", "machine", "strategy")
FIGURES = (
    "step_seconds",
    "low_seconds",
    "high_seconds",
    "device_seconds",
    "host_seconds",
    "peak_bytes",
    "total_bytes",
)
Row = dict[str, str]


def read_table() -> list[Row]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


@functools.lru_cache(maxsize=4)
def traced(job: str, settings: str, strategy: str, kind: str) -> Trace:
    return trace(wt.Workload.named(job, **json.loads(settings)), wt.Strategy(**json.loads(strategy)), kind)


def compute(row: Row) -> dict[str, str | float]:
    """The figures of a row, or the name of the error."""
    job, machine = (
        wt.Workload.named(row["job"], **json.loads(row["settings"])),
        wt.Machine.named(row["machine"]),
    )
    recorded = traced(row["job"], row["settings"], row["strategy"], machine.device.kind)
    try:
        forecast = forecast_trace(recorded, job, machine, wt.Strategy(**json.loads(row["strategy"])))
    except wt.WindtunnelError as error:
        return {"error": type(error).__name__}
    memory = {"peak_bytes": forecast.memory.peak_bytes, "total_bytes": forecast.memory.total_bytes}
    times = {name: getattr(forecast, name) for name in FIGURES if name.endswith("seconds")}
    return {**times, **memory, "bound_by": forecast.bound_by, "error": ""}


def chosen() -> list[Row]:
    return read_table()[:: 1 if os.environ.get("WINDTUNNEL_ALL_FORECASTS") else 8]


@pytest.mark.parametrize("row", chosen(), ids=lambda row: " ".join(row[key] for key in KEYS))
def test_a_forecast_is_what_it_was(row: Row) -> None:
    for name, value in compute(row).items():
        expected = pytest.approx(float(row[name]), rel=1e-9) if name in FIGURES else row[name]
        assert value == expected, name


def test_the_table_has_200_rows_of_all_kinds() -> None:
    rows = read_table()
    assert len(rows) == 200 and len({tuple(row[key] for key in KEYS) for row in rows}) == 200
    assert {wt.Machine.named(row["machine"]).device.kind for row in rows} == {"cpu", "gpu"}
    assert {"compute", "launch", "copy", "update"} >= {row["bound_by"] for row in rows if not row["error"]}


if __name__ == "__main__":
    table = [{**row, **dict.fromkeys(FIGURES, ""), "bound_by": "", **compute(row)} for row in read_table()]
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*KEYS, *FIGURES, "bound_by", "error"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
