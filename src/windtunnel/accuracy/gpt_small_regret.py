"""Which of the measured runs of small GPT models would the forecast choose, and what would that cost?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.accuracy import gpt_small, published
from windtunnel.accuracy.regret import MeasuredStrategy, RegretValidation, grouped, regret_rows
from windtunnel.accuracy.runs import Runs


def validate(folder: Path) -> RegretValidation:
    """The regret over layers, numbers of GPUs and batches."""
    rows, runs = published.read_rows(folder, gpt_small.FILE), Runs()
    ways = [(row, _way(runs, row)) for row in rows]
    found = []
    for series, is_chosen_on in (("16 layers (judged)", False), ("12 layers (host chosen on)", True)):
        own = [x for x in ways if (x[0]["layers"] == gpt_small.CHOSEN_LAYERS) is is_chosen_on]
        groups = grouped((f"{row['gpus']} GPUs, batch {row['global_batch']}", way) for row, way in own)
        found += regret_rows(series, groups)
    return RegretValidation(
        title="Regret on small GPT models, 2 to 8 A100 of one node (Bang et al. 2023)",
        use="The speed of the host was chosen on the times of 12 layers, nothing on their order.",
        simple_rule="the fewest tensor- and pipeline-parallel workers, then the largest micro-batch",
        rows=tuple(found),
    )


def _way(runs: Runs, row: Mapping[str, str]) -> MeasuredStrategy:
    forecast = gpt_small.forecast_run(runs, row)
    degrees = f"t {row['tensor']} d {row['data']} p {row['pipeline']}"
    return MeasuredStrategy(
        case=f"{degrees} micro-batch {row['micro_batch']}",
        measured_seconds=float(row["iteration_ms"]) * 1e-3,
        predicted_seconds=forecast.step_seconds,
        fits=forecast.memory.fits is not False,
        simple_order=(int(row["tensor"]) * int(row["pipeline"]), -int(row["micro_batch"])),
    )
