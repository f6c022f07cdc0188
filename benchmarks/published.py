"""Forecasts beside published training steps on GPUs that nobody probed here.

python benchmarks/published.py FOLDER [--share 0.2] [--part 0] [--rows]

FOLDER holds `timm_train_rtx3090.csv` (layout, model, train_step_time_ms, batch, image) and
`convnets_train_rtx2080ti.csv` (precision, model, ms; batch 12). The hash of a network's name decides in
which part of the networks it is: `--share 0.2 --part 3` takes the fourth fifth. A step that raises an error,
such as one that is forecast not to fit, is printed and left out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import windtunnel as wt
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.prediction import forecast_trace, trace

FORMATS = {"float": "fp32", "half": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    machine: str
    job: str
    settings: dict[str, object]
    strategy: wt.Strategy
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    step: PublishedStep
    forecast: wt.Forecast
    roofline: float

    @property
    def error(self) -> float:
        return self.forecast.step_seconds / self.step.seconds - 1

    @property
    def is_inside(self) -> bool:
        return self.forecast.low_seconds <= self.step.seconds <= self.forecast.high_seconds


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


def published(folder: Path) -> Iterator[PublishedStep]:
    for row in table(folder / "timm_train_rtx3090.csv"):
        layout = "channels_last" if row["layout"] == "nhwc" else None
        yield PublishedStep(
            machine="rtx3090",
            job=f"timm:{row['model']}",
            settings={"image": int(row["image"])},
            strategy=wt.Strategy(batch=int(row["batch"]), precision="fp16", layout=layout),
            seconds=float(row["train_step_time_ms"]) / 1e3,
        )
    for row in table(folder / "convnets_train_rtx2080ti.csv"):
        if row["precision"] in FORMATS:
            yield PublishedStep(
                machine="rtx2080ti",
                job=f"torchvision:{row['model']}",
                settings={},
                strategy=wt.Strategy(batch=12, precision=FORMATS[row["precision"]]),
                seconds=float(row["ms"]) / 1e3,
            )


def is_drawn(step: PublishedStep, share: float, part: int) -> bool:
    place = int(hashlib.blake2b(step.job.encode(), digest_size=4).hexdigest(), 16) / 2**32
    return part * share <= place < (part + 1) * share


def judge(step: PublishedStep) -> Judged | str:
    machine = wt.Machine.named(step.machine)
    try:
        job = wt.Workload.named(step.job, **step.settings)
        recorded = trace(job, step.strategy, "gpu")
        forecast = forecast_trace(recorded, job, machine, step.strategy)
    except wt.WindtunnelError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return Judged(
        step=step,
        forecast=forecast,
        roofline=(roofline_seconds(recorded, machine, step.strategy) or math.nan) / step.seconds - 1,
    )


def summary(title: str, judged: list[Judged]) -> str:
    errors = [each.error for each in judged]
    absolute = sorted(map(abs, errors))
    baseline = statistics.median(abs(each.roofline) for each in judged)
    inside = sum(each.is_inside for each in judged) / len(judged)
    return (
        f"{title:36}{len(judged):5} rows  median {statistics.median(absolute):6.1%}  "
        f"90th {absolute[int(0.9 * (len(absolute) - 1))]:6.1%}  bias {statistics.median(errors):+6.1%}  "
        f"inside {inside:4.0%}  roofline {baseline:6.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    judged: dict[str, list[Judged]] = {}
    for step in published(options.folder):
        if not is_drawn(step, options.share, options.part):
            continue
        result = judge(step)
        if isinstance(result, str):
            print(f"{step.job} on {step.machine}: {result}", flush=True)
            continue
        strategy = step.strategy
        group = f"{step.machine} {strategy.precision} {strategy.layout or 'contiguous'}"
        judged.setdefault(group, []).append(result)
        if options.rows:
            print(f"{group:36}{step.job:44}{1 + result.error:6.2f}", flush=True)
    for group, each in judged.items():
        print(summary(group, each))
    print(summary("all", [one for each in judged.values() for one in each]))


if __name__ == "__main__":
    main()
