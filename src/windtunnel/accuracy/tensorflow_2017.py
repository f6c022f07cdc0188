"""Efficiency of 2 to 64 GPUs in TensorFlow's own benchmarks of 2017: K80 and P100, synthetic data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from windtunnel.accuracy import published
from windtunnel.accuracy.runs import Limit, Row, Runs, RunsValidation
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import ParameterServer
from windtunnel.strategy import Exchange, Strategy

FILE = "tensorflow_benchmarks_2017_k80_p100.csv"
_JOBS = {
    "InceptionV3": ("torchvision:inception_v3", {"image": 299}),
    "ResNet-50": ("torchvision:resnet50", {}),
    "ResNet-152": ("torchvision:resnet152", {}),
    "AlexNet": ("torchvision:alexnet", {}),
    "VGG16": ("torchvision:vgg16", {}),
}
_NODES = {"DGX-1": ("dgx-1-p100", "p100"), "GCE": ("p2.8xlarge", "k80"), "EC2": ("p2.8xlarge", "k80")}


def validate(folder: Path) -> RunsValidation:
    """Judge efficiencies: the throughput of n GPUs over n times that of one."""
    found = [row for row in published.read_rows(folder, FILE) if row["data"] == "synthetic"]
    found = [row for row in found if row["images_per_s"] not in ("", "N/A")]
    alone = {_key(row): float(row["images_per_s"]) for row in found if row["gpus"] == "1"}
    many = [row for row in found if row["gpus"] != "1" and _key(row) in alone]
    measured = [float(r["images_per_s"]) / int(r["gpus"]) / alone[_key(r)] for r in many]
    mean = sum(measured) / len(measured)
    runs, rows = Runs(), []
    for row, efficiency in zip(many, measured, strict=True):
        node, device = next(value for key, value in _NODES.items() if key in row["system"])
        job, settings = _JOBS[row["model"]]
        batch, devices = int(row["batch_per_gpu"]), int(row["gpus"])
        exchange, server = _update(row["system"], row["model"])
        single = dataclasses.replace(Machine.named(device), parameter_server=server)
        one = runs.forecast(job, settings, single, Strategy(batch=batch, exchange=exchange))
        nodes = max(1, devices // 8)
        machine = Machine.named(f"{nodes}x{node}" if nodes > 1 else node)
        # TensorFlow of May 2017 has NCCL 024d1e26 (workspace.bzl): one ring, sorted by NVML's index.
        topology = dataclasses.replace(machine.topology, one_ring=True)
        machine = dataclasses.replace(machine, parameter_server=server, topology=topology)
        strategy = Strategy(batch=batch * devices, data_parallel=devices, exchange=exchange)
        several = runs.forecast(job, settings, machine, strategy)
        rows.append(
            Row(
                series="efficiency",
                case=f"{row['system'][:18]} {row['model']} {batch} x {devices}",
                measured=efficiency,
                predicted=one.step_seconds / several.step_seconds,
                baseline=mean,
                unit="share",
                is_judged=not _chose_clock(row),
            )
        )
    return RunsValidation(
        title="Efficiency of data parallelism in TensorFlow's benchmarks of 2017",
        use="Judged, but not blind: rules were changed after a look at this file. The clock of a K80 with"
        " both dies busy was chosen on the seven rows of 2 GPUs on GCE, which are not judged.",
        baseline="the mean efficiency of these rows",
        rows=tuple(rows),
        limits=(Limit("efficiency", "mean", 0.03),),
    )


def _update(system: str, model: str) -> tuple[Exchange, ParameterServer]:
    """How each run exchanged gradients, and where its weights were: `variable_update` and
    `local_parameter_device` of the benchmark's page, github tensorflow/docs d13c500b2.

    parameter_server        all variables are read from the server when a step begins
    replicated              each GPU has its variables; a gradient is summed when all GPUs have it
    distributed_replicated  each GPU has its variables; parameter servers run on the hosts of the workers
    """
    if "DGX-1" in system and model in ("AlexNet", "VGG16"):
        return "tensors", "none"  # replicated, with NCCL
    if "p2.8xlarge" in system and "cluster" not in system:
        if model in ("ResNet-50", "ResNet-152"):
            return "server", "none"  # replicated, without NCCL
        if model in ("AlexNet", "VGG16"):
            return "server-after", "none"  # parameter_server on the GPUs
    return "server-after", "host"


def _chose_clock(row: dict[str, str]) -> bool:
    """Whether the clock of a K80 with both dies busy was chosen on this row."""
    return "GCE" in row["system"] and row["gpus"] == "2"


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["system"], row["model"], row["batch_per_gpu"]
