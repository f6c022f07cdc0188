"""Measures inference of about ten networks on this machine's CPU, at batch 1 and 32, beside the forecast.

    python benchmarks/inference_cpu.py [--only JOB,JOB] [--threads N] [--seconds S] [--json FILE]

Prints the median error, the 90th percentile, the bias, and the same of the roofline. Run it on a quiet
machine: about 20 measurements of three processes each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import windtunnel as wt
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.agreement import agree, error_of
from windtunnel.errors import WindtunnelError
from windtunnel.prediction import forecast_trace, trace

JOBS = (
    *("ffn", "fcn5", "dcn", "lstm", "rnn", "recursive"),
    *("alexnet", "googlenet", "resnet18", "resnet50", "vit", "bert"),
)
BATCHES = (1, 32)
Row = dict[str, object]


def measure(name: str, batch: int, options: argparse.Namespace, store: wt.Store) -> Row:
    """One network at one batch: forecast, roofline and measurement."""
    machine, job = wt.Machine.here().with_cpu_only(), wt.Workload.named(name)
    strategy = wt.Strategy(batch=batch, inference=True, threads=options.threads)
    recorded = trace(job, strategy, "cpu")
    forecast = forecast_trace(recorded, job, machine, strategy)
    protocol = wt.Protocol(processes=options.processes, seconds=options.seconds)
    measured = wt.measure(job, machine, strategy, protocol=protocol, store=store)
    return {
        "job": name,
        "batch": batch,
        "threads": options.threads,
        "measured_seconds": measured.step_seconds,
        "measured_low": measured.low_seconds,
        "measured_high": measured.high_seconds,
        "forecast_seconds": forecast.step_seconds,
        "forecast_low": forecast.low_seconds,
        "forecast_high": forecast.high_seconds,
        "roofline_seconds": roofline_seconds(recorded, machine, strategy),
    }


def summarise(rows: list[Row]) -> list[str]:
    lines = []
    for name in ("forecast", "roofline"):
        errors = [
            error_of(float(str(row[f"{name}_seconds"])), float(str(row["measured_seconds"]))) for row in rows
        ]
        found = agree(errors)
        lines.append(
            f"{name}: {found.rows} rows, median error {found.median:.1%}, 90th {found.ninetieth:.1%}, "
            f"bias {found.bias:+.1%}"
        )
    inside = sum(
        float(str(row["forecast_low"]))
        <= float(str(row["measured_seconds"]))
        <= float(str(row["forecast_high"]))
        for row in rows
    )
    return [*lines, f"inside of the interval: {inside} of {len(rows)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs = [name for name in options.only.split(",") if name] or list(JOBS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        store = wt.Store(Path(folder) / "store.sqlite")
        for name in jobs:
            for batch in BATCHES:
                try:
                    row = measure(name, batch, options, store)
                except WindtunnelError as error:
                    print(f"{name} batch {batch}: {error.message.splitlines()[0]}", flush=True)
                    continue
                rows.append(row)
                seconds = {
                    key: float(str(row[f"{key}_seconds"])) for key in ("measured", "forecast", "roofline")
                }
                texts = ", ".join(f"{key} {value * 1e3:.3g} ms" for key, value in seconds.items())
                print(f"{name} batch {batch}: {texts}", flush=True)
    if rows:
        print("\n".join(summarise(rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
