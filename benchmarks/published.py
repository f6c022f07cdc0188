"""Forecasts beside published training steps on GPUs that nobody probed here.

python benchmarks/published.py FOLDER [--kind tuning] [--group "RTX 3090"] [--seconds 600] [--rows]

FOLDER holds the tables that `published_tables.py` reads. Constants were chosen on rows of kind tuning; those
of kind truth chose nothing. Steps come in a random but fixed order, so a time limit (`--seconds`) judges a
fair part of them. A step that raises an error, such as one that is forecast not to fit, is printed and left
out.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from published_tables import PublishedStep, as_measured, place_of, published

import windtunnel as wt
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.prediction import forecast_trace, trace


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

    @property
    def group(self) -> str:
        return f"{self.step.group}, {self.step.kind}"


def judge(step: PublishedStep) -> Judged | str:
    machine = wt.Machine.named(step.machine)
    try:
        job = step.job()
        recorded = trace(job, step.strategy, "gpu")
        forecast = forecast_trace(recorded, job, machine, step.strategy)
    except wt.WindtunnelError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return Judged(
        step=step,
        forecast=forecast,
        roofline=(roofline_seconds(recorded, machine, step.strategy) or math.nan) / step.seconds - 1,
    )


def judge_all(steps: list[PublishedStep], seconds: float) -> Iterator[Judged | str]:
    began = time.monotonic()
    for step in steps:
        if time.monotonic() - began > seconds:
            return
        result = judge(step)
        yield f"{step.network} on {step.machine}: {result}" if isinstance(result, str) else result


def summary(title: str, judged: list[Judged]) -> str:
    errors = [each.error for each in judged]
    absolute = sorted(map(abs, errors))
    baseline = statistics.median(abs(each.roofline) for each in judged)
    inside = sum(each.is_inside for each in judged) / len(judged)
    return (
        f"{title:40}{len(judged):5} rows  median {statistics.median(absolute):6.1%}  "
        f"90th {absolute[int(0.9 * (len(absolute) - 1))]:6.1%}  bias {statistics.median(errors):+6.1%}  "
        f"inside {inside:4.0%}  roofline {baseline:6.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=("tuning", "truth"))
    parser.add_argument("--group", default="", help="only groups whose name has this in it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no step after this time")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    as_measured()
    steps = [
        step
        for step in published(options.folder)
        if options.kind in (None, step.kind) and options.group in step.group
    ]
    steps.sort(key=lambda step: place_of(f"{step.network} {step.group} {step.strategy.batch}"))
    groups: dict[str, list[Judged]] = {}
    for result in judge_all(steps, options.seconds):
        if isinstance(result, str):
            print(result, flush=True)
            continue
        groups.setdefault(result.group, []).append(result)
        if options.rows:
            print(f"{result.group:40}{result.step.network:44}{1 + result.error:6.2f}", flush=True)
    for group, each in sorted(groups.items()):
        print(summary(group, each))
    everything = [one for each in groups.values() for one in each]
    if everything:
        print(summary("all", everything))


if __name__ == "__main__":
    main()
