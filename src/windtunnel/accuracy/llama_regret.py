"""Which of the measured runs of Llama 1B and 3B would the forecast choose, and what would that cost?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.accuracy import llama, published
from windtunnel.accuracy.regret import MeasuredStrategy, RegretValidation, grouped, regret_rows
from windtunnel.accuracy.runs import Runs

# Groups of all runs, and groups in which one more thing is given.
_SERIES = {
    "all runs": (),
    "same pipeline degree": ("pp",),
    "same tensor degree": ("tp",),
    "same micro-batch": ("mbs",),
}


def validate(folder: Path) -> RegretValidation:
    """The regret over models and numbers of nodes; every run has a batch of 256 sequences."""
    rows = [row for row in published.read_rows(folder, llama.FILE) if row["status"] == "ok"]
    whole = [row for row in rows if _examples(row) == int(row["gbs"])]
    runs = Runs()
    ways = [(row, _way(runs, row)) for row in whole]
    found = []
    for name, keys in _SERIES.items():
        given = ("model", "nodes", *keys)
        groups = grouped((" ".join(row[key] for key in given), way) for row, way in ways)
        found += regret_rows(name, groups)
    return RegretValidation(
        title="Regret on Llama 1B and 3B, 8 to 32 H100 (Hugging Face, ultrascale playbook)",
        use="The speed of the host and rules of rings were chosen on some of these times (see llama), none "
        "on their order. Runs with a pipeline come from code of different ages.",
        simple_rule="the fewest tensor- and pipeline-parallel workers, then the largest micro-batch",
        rows=tuple(found),
        left_out=(f"{len(rows) - len(whole)} runs whose batch is not the product of their degrees",)
        if len(whole) < len(rows)
        else (),
    )


def _examples(row: Mapping[str, str]) -> int:
    return int(row["mbs"]) * int(row["grad_acc"]) * int(row["dp"])


def _way(runs: Runs, row: Mapping[str, str]) -> MeasuredStrategy:
    forecast = llama.forecast_run(runs, row)
    model_parallel = int(row["tp"]) * int(row["pp"])
    return MeasuredStrategy(
        case=f"dp {row['dp']} tp {row['tp']} pp {row['pp']} mbs {row['mbs']} zero {row['zero']}",
        measured_seconds=int(row["gbs"]) * llama.LENGTH / (float(row["tok_s_gpu"]) * int(row["nodes"]) * 8),
        predicted_seconds=forecast.step_seconds,
        fits=forecast.memory.fits is not False,
        simple_order=(model_parallel, -int(row["mbs"]), int(row["zero"])),
    )
