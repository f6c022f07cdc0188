"""docs/exchange.md says what the committed runs of real workers say."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import exchange_real  # noqa: E402


def test_the_table_of_real_workers_is_that_of_the_committed_rows() -> None:
    page = (ROOT / "docs/exchange.md").read_text(encoding="utf-8")
    (path,) = (ROOT / "docs/results").glob("exchange-real-*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert exchange_real.table(found) in page, "python benchmarks/exchange_real.py prints it"
    summary = " ".join(exchange_real.text(found).split())
    error = summary.split("median error of a step ")[1].split("%")[0]
    assert f"the median error is {error} %" in " ".join(page.split())
    inside = summary.split("five seeds: ")[1]
    assert f"agree in {inside} runs" in " ".join(page.split())
    alone = [abs(row["alone_seconds"] / row["measured_seconds"] - 1) for row in found["rows"]]
    assert f"is {100 * statistics.median(alone):.0f} % off at the median" in " ".join(page.split())
