"""MPT models under FSDP on 8 to 128 A100 of 40 GB (MosaicML, llm-foundry)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.accuracy import published
from windtunnel.accuracy.runs import Limit, Row, Runs, RunsValidation
from windtunnel.forecast.forecast import Forecast
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

FILE = "mpt_fsdp_a100_40gb.csv"
# Layers, width, heads: github mosaicml/llm-foundry, scripts/train/yamls/pretrain.
_MODELS = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}


def validate(folder: Path) -> RunsValidation:
    """Judge forecasts by the runs of the folder."""
    published_rows = published.read_rows(folder, FILE)
    mean = sum(float(row["MFU"]) for row in published_rows) / len(published_rows)
    runs, rows = Runs(), []
    for row in published_rows:
        forecast = forecast_run(runs, row)
        seconds = float(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
        rows.append(
            Row(
                series="time",
                case=f"{row['Model']} length {row['SeqLen (T)']} on {row['# GPUs']}, "
                f"{row['MicroBatchSize']} x {row['GradAccum']}",
                measured=seconds,
                predicted=forecast.step_seconds,
                baseline=seconds * float(row["MFU"]) / mean,
                low=forecast.low_seconds,
                high=forecast.high_seconds,
                is_judged=not _is_chosen_on(row),
            )
        )
    return RunsValidation(
        title="MPT under FSDP on A100 of 40 GB (MosaicML, llm-foundry)",
        use="The power of products on A100 was chosen on rows of 8 GPUs with up to 1,024 tokens and without "
        "checkpointing; the others are judged.",
        baseline="constant MFU, the mean of these rows",
        rows=tuple(rows),
        limits=(Limit("time", "mean", 0.07),),
    )


def _is_chosen_on(row: Mapping[str, str]) -> bool:
    is_short = int(row["SeqLen (T)"]) <= 1024 and row["# GPUs"] == "8"
    return is_short and row["Activation Checkpointing"] == "False"


def forecast_run(runs: Runs, row: Mapping[str, str]) -> Forecast:
    """The forecast of one row: eight GPUs a node, 1,600 Gbit/s between nodes."""
    layers, width, heads = _MODELS[row["Model"]]
    devices = int(row["# GPUs"])
    settings = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "length": int(row["SeqLen (T)"]),
        "attention": "first-flash",  # attn_impl: triton, in scripts/train/benchmarking of that time
    }
    strategy = Strategy(
        batch=int(row["GlobalBatchSize"]),
        accumulate=int(row["GradAccum"]),
        data_parallel=devices,
        shard="weights",
        recompute="whole-blocks" if row["Activation Checkpointing"] == "True" else "none",
    )
    return runs.forecast("llm:mpt", settings, Machine.named(f"{devices // 8}xnd96asr-v4"), strategy)
