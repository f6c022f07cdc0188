"""Ten runs of Megatron-LM on 32 to 3,072 A100, up to a trillion parameters (Narayanan et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.accuracy import published
from windtunnel.accuracy.runs import Limit, Row, Runs, RunsValidation
from windtunnel.forecast.forecast import Forecast
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

FILE = "megatron_narayanan2021_a100.csv"
VOCABULARY, LENGTH = 51200, 2048
# Sequences of a micro-batch, and groups of layers of each stage in an interleaved schedule: the authors'
# scripts for these runs, github NVIDIA/Megatron-LM 79a3bb6, examples/sc21/run_table_1.sh.
_MICRO_BATCHES = {"1.7B": 16, "3.6B": 16, "7.5B": 16, "18B": 8, "39B": 4, "76B": 2, "145B": 2}
_GROUPS = {"76B": 3, "145B": 2, "310B": 2, "530B": 3}


def validate(folder: Path) -> RunsValidation:
    """Judge forecasts by the runs of the folder."""
    published_rows = published.read_rows(folder, FILE)
    runs, rows = Runs(), []
    mean = sum(float(row["tflops_per_gpu"]) for row in published_rows) / len(published_rows)
    for row in published_rows:
        forecast = forecast_run(runs, row)
        work = flop(row) / int(row["gpus_A100_80GB"]) / 1e12
        rows.append(
            Row(
                series="time",
                case=f"{row['model']} on {row['gpus_A100_80GB']}, "
                f"tensor {row['TP_remembered']}, pipeline {row['PP_remembered']}",
                measured=work / float(row["tflops_per_gpu"]),
                predicted=forecast.step_seconds,
                baseline=work / mean,
                low=forecast.low_seconds,
                high=forecast.high_seconds,
            )
        )
    return RunsValidation(
        title="Megatron-LM on A100 (Narayanan et al. 2021)",
        use="Judged, but not blind: rules were changed after a look at this file.",
        baseline="constant MFU, the mean of these rows",
        rows=tuple(rows),
        limits=(Limit("time", "mean", 0.04), Limit("time", "worst", 0.10)),
    )


def flop(row: Mapping[str, str]) -> float:
    """The authors' count of a step: 96 B s l h^2 (1 + s/6h + V/16lh), recomputation included."""
    batch, layers, width = int(row["batch"]), int(row["layers"]), int(row["hidden"])
    more = 1 + LENGTH / (6 * width) + VOCABULARY / (16 * layers * width)
    return 96.0 * batch * LENGTH * layers * width**2 * more


def forecast_run(runs: Runs, row: Mapping[str, str]) -> Forecast:
    """The forecast of one row."""
    devices, tensor, pipeline = (
        int(row[key]) for key in ("gpus_A100_80GB", "TP_remembered", "PP_remembered")
    )
    settings = {
        "layers": row["layers"],
        "width": row["hidden"],
        "heads": row["heads"],
        "vocabulary": VOCABULARY,
        "length": LENGTH,
        "gradients": "fp16",
    }
    micro_batch, groups = _MICRO_BATCHES.get(row["model"], 1), _GROUPS.get(row["model"], 1)
    strategy = Strategy(
        batch=int(row["batch"]),
        accumulate=int(row["batch"]) // (devices // (tensor * pipeline)) // micro_batch,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        pipeline_schedule="interleaved" if groups > 1 else "1f1b",
        virtual_stages=groups,
        recompute="blocks",
    )
    return runs.forecast("llm:gpt", settings, Machine.named(f"{devices // 8}xdgx-a100"), strategy)
