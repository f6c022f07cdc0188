"""Forecasts of inference on small boards against figures that others published.

    python benchmarks/inference_boards.py      # writes docs/results/inference-boards.json

The width of the intervals of small boards was chosen on these figures, nothing else. On the Jetson Nano the
published networks have weights in fp16. The forecast knows fp16 only as autocast, which casts weights again
in every step; fp32 is shown too, since one table does not say its format. The two published tables of the
Jetson Nano differ by a factor of two for the same networks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import windtunnel as wt
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.agreement import agree, error_of, quantile
from windtunnel.prediction import forecast_trace, trace
from windtunnel.strategy import Precision

TORCH2TRT = "github NVIDIA-AI-IOT/torch2trt 5eeddca, benchmarks/JETSON_NANO.md: float16, batch 1, 224 x 224"
# It says milliseconds, but its numbers can only be images a second: those of TensorRT are the larger ones.
# Its vgg11 and vgg13 are those of torch2trt's own table, so they are left out here.
FORK = "README of ENAP Optimize, a fork of torch2trt: PyTorch 1.6 on a Jetson Nano, format not stated"
ARM = "learn.arm.com, ExecuTorch on Arm, MobileNetV2 deployment results: PyTorch eager, mean of 50 runs"
# Images a second.
NANO = {
    "alexnet": 46.4,
    "squeezenet1_0": 44.0,
    "squeezenet1_1": 76.6,
    "resnet18": 29.4,
    "resnet34": 15.5,
    "resnet50": 12.4,
    "resnet101": 7.18,
    "resnet152": 4.96,
    "densenet121": 11.5,
    "densenet169": 8.25,
    "densenet201": 6.84,
    "densenet161": 4.71,
    "vgg11": 8.9,
    "vgg13": 6.53,
    "vgg16": 5.09,
    "vgg11_bn": 8.74,
    "vgg13_bn": 6.31,
    "vgg16_bn": 4.96,
}
NANO_BY_FORK = {
    "alexnet": 30.8,
    "squeezenet1_0": 22.4,
    "squeezenet1_1": 25.1,
    "resnet18": 15.4,
    "resnet34": 6.43,
    "resnet50": 7.4,
    "resnet101": 3.08,
    "resnet152": 1.97,
    "densenet121": 5.6,
    "densenet169": 4.29,
    "densenet201": 3.43,
    "densenet161": 2.13,
    "vgg16": 3.19,
    "vgg19": 2.59,
    "vgg11_bn": 5.76,
    "vgg13_bn": 4.05,
    "vgg16_bn": 3.13,
    "vgg19_bn": 2.55,
    "mobilenet_v2": 29.5,
}


_FORMATS: tuple[Precision, ...] = ("fp16", "fp32")
ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "inference-boards.json"


class PublishedLatency(NamedTuple):
    """Seconds of one inference at batch 1."""

    machine: str
    job: str
    precision: Precision
    seconds: float
    source: str


def rows() -> list[PublishedLatency]:
    nano = [
        PublishedLatency("jetson-nano", f"torchvision:{name}", precision, 1 / rate, source)
        for source, rates in ((TORCH2TRT, NANO), (FORK, NANO_BY_FORK))
        for precision in _FORMATS
        for name, rate in rates.items()
    ]
    return [*nano, PublishedLatency("raspberry-pi-5", "torchvision:mobilenet_v2", "fp32", 72.55e-3, ARM)]


def judge(row: PublishedLatency) -> dict[str, Any]:
    """One row with its forecast and its roofline."""
    machine, job = wt.Machine.named(row.machine), wt.Workload.named(row.job)
    strategy = wt.Strategy(batch=1, precision=row.precision, inference=True)
    recorded = trace(job, strategy, machine.device.kind)
    forecast = forecast_trace(recorded, job, machine, strategy)
    return {
        **row._asdict(),
        "forecast_seconds": forecast.step_seconds,
        "low_seconds": forecast.low_seconds,
        "high_seconds": forecast.high_seconds,
        "roofline_seconds": roofline_seconds(recorded, machine, strategy),
        "bound_by": forecast.bound_by,
    }


def summaries(judged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors of the forecast and of the roofline, by source and format."""
    found = []
    for source, precision in dict.fromkeys((row["source"], row["precision"]) for row in judged):
        some = [row for row in judged if (row["source"], row["precision"]) == (source, precision)]
        summary = {"machine": some[0]["machine"], "source": source, "precision": precision, "rows": len(some)}
        for name in ("forecast", "roofline"):
            errors = agree([error_of(row[f"{name}_seconds"], row["seconds"]) for row in some])
            summary[name] = {"median": errors.median, "ninetieth": errors.ninetieth, "bias": errors.bias}
        inside = [row["low_seconds"] <= row["seconds"] <= row["high_seconds"] for row in some]
        found.append({**summary, "inside": sum(inside)})
    return found


def main() -> None:
    judged = [judge(row) for row in rows()]
    found = {"summaries": summaries(judged), "rows": judged}
    DATA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for summary in found["summaries"]:
        print(summary)
    factors = sorted(abs(math.log(row["forecast_seconds"] / row["seconds"])) for row in judged[:-1])
    print(f"four of five Jetson Nano rows are within a factor of {math.exp(quantile(factors, 0.8)):.2f}")


if __name__ == "__main__":
    main()
