"""Ways to exchange gradients on 4 to 32 RTX 2080 Ti over 10 Gbit/s Ethernet (Shi et al. 2020)."""

from __future__ import annotations

from pathlib import Path

from windtunnel.accuracy import published
from windtunnel.accuracy.runs import Limit, Row, Runs, RunsValidation, added_by_workers
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Exchange, Strategy

FILE = "exchange_methods_2080ti_10gbe.csv"
_JOBS: dict[str, tuple[str, dict[str, object]]] = {
    "ResNet-50": ("torchvision:resnet50", {}),
    "BERT-Base": ("transformers:bert", {"length": 64}),
    "BERT-Large": (
        "transformers:bert",
        {"length": 64, "layers": 24, "hidden": 1024, "heads": 16, "intermediate_size": 4096},
    ),
}
# ByteScheduler divides tensors and changes their order, which the forecast does not know.
_METHODS: dict[str, Exchange] = {
    "BSP-A2A": "after",
    "WFBP-A2A": "tensors",
    "MG-WFBP": "buckets",
    "BSP-PS": "server-after",
    "WFBP-PS": "server",
}


def validate(folder: Path) -> RunsValidation:
    """Judge how throughput changes with GPUs; the published time of one GPU is given, as to the baseline."""
    published_rows = published.read_rows(folder, FILE)
    alone = {row["dnn"]: float(row["throughput"]) for row in published_rows if row["gpus"] == "1"}
    runs, rows = Runs(), []
    judged = [row for row in published_rows if row["gpus"] != "1" and row["method"] in _METHODS]
    for row in judged:
        job, settings = _JOBS[row["dnn"]]
        batch, devices = int(row["bs"]), int(row["gpus"])
        one = runs.step(job, settings, Machine.named("rtx2080ti"), Strategy(batch=batch))
        strategy = Strategy(batch=batch * devices, exchange=_METHODS[row["method"]])
        machine = Machine.named(f"{devices // 4}xrtx2080ti-node-10gbe")
        many = runs.step(job, settings, machine, strategy)
        published_alone = batch / alone[row["dnn"]]
        # Only what workers add to the step of one is forecast; its own time is the published one.
        added = added_by_workers(one, many)
        rows.append(
            Row(
                series="time",
                case=f"{row['dnn']} {row['method']} {devices} gpus",
                measured=batch * devices / float(row["throughput"]),
                predicted=published_alone + added.seconds,
                baseline=published_alone,
                low=published_alone + added.low,
                high=published_alone + added.high,
            )
        )
    return RunsValidation(
        title="Exchange methods on RTX 2080 Ti over 10 Gbit/s Ethernet (Shi et al. 2020)",
        use="Judged, but not blind: rules were changed after a look at this file.",
        baseline="linear scaling of the published time of one GPU",
        rows=tuple(rows),
        limits=(Limit("time", "median", 0.10), Limit("time", "p90", 0.25)),
        left_out=("ByteScheduler",),
    )
