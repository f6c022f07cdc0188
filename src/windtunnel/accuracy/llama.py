"""Llama-shaped models of 1 and 3 billion parameters on 8 to 32 H100 (Hugging Face, ultrascale playbook)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.accuracy import published
from windtunnel.accuracy.runs import STEPS_SPREAD, Limit, Row, Runs, RunsValidation
from windtunnel.forecast.forecast import Forecast
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

FILE = "llama_h100_1_to_4_nodes.csv"
LENGTH = 4096
_MODELS: Mapping[str, Mapping[str, object]] = {
    "1B": {"layers": 16, "width": 2048, "heads": 32, "inner": 8192},
    # Heads are not published. Runs with 32 tensor-parallel workers need a multiple of 32.
    "3B": {"layers": 28, "width": 3072, "heads": 32, "inner": 8192},
}
# MFU and tokens a second of the rows give 1.34 billion parameters for "1B": embeddings count once.
_COMMON: Mapping[str, object] = {"vocabulary": 131072, "length": LENGTH, "tied": True}
_MEMORY_UNIT = 1e9
# With micro-batches of one sequence and 4 or 8 tensor-parallel workers a micro-batch takes 71 to 74 ms (1B)
# or 121 to 125 ms (3B) on one node: the host is the limit, by nanotron's own Python code. One factor on
# launch costs, chosen on the rows of one node with micro-batches of one and tensor parallelism of 4 and 8.
HOST_FACTOR = 2.55
CHOSEN_NODES = "1"
# That each card of a device adds posts to a ring over nodes (`forecast/paths.py`) was seen on these rows.
_CHOSEN_RING = ("2", "16")


def is_judged(row: Mapping[str, str]) -> bool:
    """Whether no constant or rule was chosen on the time of this row."""
    return row["nodes"] != CHOSEN_NODES and (row["nodes"], row["tp"]) != _CHOSEN_RING


def validate(folder: Path) -> RunsValidation:
    """Judge forecasts by the runs without a pipeline."""
    published_rows = [row for row in published.read_rows(folder, FILE) if row["pp"] == "1"]
    ran = [row for row in published_rows if row["status"] == "ok"]
    mean = sum(float(row["mfu_pct"]) for row in ran) / len(ran)
    runs, rows, too_large = Runs(), list[Row](), 0
    for row in ran:
        forecast = forecast_run(runs, row)
        too_large += forecast.memory.fits is False
        degrees = f"dp {row['dp']} tp {row['tp']} zero {row['zero']}"
        case = f"{row['model']} {row['nodes']} nodes mbs {row['mbs']} {degrees}"
        seconds = int(row["gbs"]) * LENGTH / (float(row["tok_s_gpu"]) * int(row["nodes"]) * 8)
        rows.append(
            Row(
                series="time",
                case=case,
                measured=seconds,
                predicted=forecast.step_seconds,
                baseline=seconds * float(row["mfu_pct"]) / mean,
                low=forecast.low_seconds,
                high=forecast.high_seconds,
                is_judged=is_judged(row),
            )
        )
        if row["mem_gb"]:
            rows.append(
                Row(
                    series="memory",
                    case=case,
                    measured=float(row["mem_gb"]) * _MEMORY_UNIT,
                    predicted=forecast.memory.peak_bytes,
                    unit="B",
                )
            )
    return RunsValidation(
        title="Llama 1B and 3B on 8 to 32 H100, no pipeline (Hugging Face, ultrascale playbook)",
        use="The speed of the host and the power of products were chosen on rows of one node, posts of rings "
        "on 16 tensor-parallel workers over two nodes; time is judged on the other rows of 2 and 4 nodes.",
        baseline="constant MFU, the mean of these rows",
        rows=tuple(rows),
        limits=(
            Limit("time", "mean", 0.08),
            Limit("time", "p90", 0.16),
            Limit("memory", "median", 0.08),
        ),
        shares=(("runs that ran and are forecast not to fit", too_large, len(ran), 0.03),),
    )


def forecast_run(runs: Runs, row: Mapping[str, str]) -> Forecast:
    """The forecast of one row."""
    tensor = int(row["tp"])
    strategy = Strategy(
        batch=int(row["mbs"]) * int(row["grad_acc"]) * int(row["dp"]),
        accumulate=int(row["grad_acc"]),
        data_parallel=int(row["dp"]),
        tensor_parallel=tensor,
        sequence_parallel=tensor > 1,
        pipeline_parallel=int(row["pp"]),
        shard="optimizer" if row["zero"] == "1" and int(row["dp"]) > 1 else "none",
    )
    machine = Machine.named(f"{row['nodes']}xp5.48xlarge").with_host_factor(HOST_FACTOR, STEPS_SPREAD)
    return runs.forecast("llm:llama", {**_MODELS[row["model"]], **_COMMON}, machine, strategy)
