"""Measured feeds beside their forecasts, on this machine.

python benchmarks/feed.py OUT.jsonl [--on cuda] [--seconds 500] [--folder FOLDER]

Each row is one job with its passes (no data, from memory, page cache, storage), the parts of the step and the
forecast of every pass; it is written as soon as it is measured. Cases that are in OUT.jsonl already are left
out, so that the same command continues. FOLDER: where the files of the data sets are written for a while.
Prints one line for each pass: measured, forecast, and the forecast that ignores the feed as baseline.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import windtunnel as wt
from windtunnel.feed.measured import FeedComparison, forecast_passes
from windtunnel.measurement.feed.files import data_files
from windtunnel.measurement.feed.measure import measure_feed
from windtunnel.measurement.feed.probe import probe_feed

PROTOCOL = wt.Protocol(processes=2, most_processes=3, seconds=2.0, warm_seconds=1.0, timeout_seconds=200)
# Job, settings, data, and options of the strategy; the options about copies are for GPUs only.
CASES: tuple[tuple[str, dict[str, object], str, dict[str, object]], ...] = (
    ("resnet50", {}, "jpeg:2000x110KB", {"batch": 64, "loaders": 8, "prefetch": 2, "precision": "bf16"}),
    ("resnet50", {}, "jpeg:2000x110KB", {"batch": 64, "loaders": 2, "precision": "bf16"}),
    ("resnet50", {}, "jpeg:2000x110KB", {"batch": 64, "loaders": 14, "prefetch": 2, "precision": "bf16"}),
    ("resnet50", {}, "jpeg:2000x110KB", {"batch": 64, "loaders": 0}),
    ("resnet18", {}, "npy:1000x600KB", {"batch": 128, "loaders": 8, "pinned": True, "precision": "bf16"}),
    ("resnet18", {}, "npy:1000x600KB", {"batch": 128, "loaders": 1}),
    ("fcn5", {}, "raw:2000x100KB", {"batch": 256, "loaders": 4, "prefetch": 1}),
    ("fcn5", {}, "raw:2000x100KB", {"batch": 256, "loaders": 0}),
    ("dcn", {"size": 32, "channels": 3}, "raw:5000x3KB", {"batch": 64, "loaders": 4}),
)
ON_CPU = (
    ("ffn", {}, "jpeg:300x110KB", {"batch": 16, "loaders": 0, "threads": 1}),
    ("ffn", {}, "jpeg:300x110KB", {"batch": 16, "loaders": 1, "threads": 1}),
    ("resnet18", {"size": 64}, "jpeg:300x30KB", {"batch": 16, "loaders": 1, "threads": 1}),
    ("resnet18", {"size": 64}, "npy:500x100KB", {"batch": 16, "loaders": 0}),
    ("fcn5", {}, "raw:500x100KB", {"batch": 64, "loaders": 1}),
)


def measure_case(
    job: str, settings: dict[str, object], data: str, options: dict[str, object], machine: wt.Machine
) -> dict[str, object]:
    workload = wt.Workload.named(job, **{key: str(value) for key, value in settings.items()})
    strategy = wt.Strategy(data="storage", **options)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder, data_files(data) as files:
        probe = probe_feed(workload, strategy, files)
        forecasts = forecast_passes(workload, machine, strategy, files, probe)
        store = wt.Store(Path(folder) / "store.sqlite")
        measured = measure_feed(workload, machine, strategy, files, protocol=PROTOCOL, store=store)
        store.close()
    return FeedComparison(measured=measured, forecasts=forecasts, probe=probe).plain()


def summary(row: dict[str, object]) -> list[str]:
    result = row["result"]
    assert isinstance(result, dict)
    predicted, lines = result["forecast"]["passes"], []
    for each in result["passes"]:
        seconds, forecast = each["step_seconds"], predicted[each["name"]]
        lines.append(
            f"{row['case']:100.100} {each['name']:10} {seconds * 1e3:9.2f} ms  forecast "
            f"{forecast / seconds - 1:+6.1%}  without feed {predicted['none'] / seconds - 1:+6.1%}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", default="cuda")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--folder", default="")
    options = parser.parse_args()
    end, machine = time.monotonic() + options.seconds, wt.Machine.find(options.on)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done, longest = {json.loads(line)["case"] for line in lines}, 0.0
    for job, settings, data, strategy in CASES if options.on != "cpu" else ON_CPU:
        case = json.dumps([job, settings, data, strategy])
        if case in done or time.monotonic() + longest > end:
            continue
        begin = time.monotonic()
        place = f"{data}@{options.folder}" if options.folder else data
        row: dict[str, object] = {"case": case, "machine": machine.title}
        try:
            row["result"] = measure_case(job, settings, place, strategy, machine)
            print("\n".join(summary(row)), flush=True)
        except wt.WindtunnelError as error:
            row["error"] = f"{type(error).__name__}: {error}"
            print(f"{case}: {row['error']}", flush=True)
        longest = max(longest, time.monotonic() - begin)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
