"""docs/exchange.md says what the committed runs of real workers say."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from windtunnel.exchange import host
from windtunnel.forecast import gloo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import exchange_constants  # noqa: E402
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


def test_the_constants_are_those_of_the_synthetic_rows() -> None:
    (path,) = (ROOT / "docs/results").glob("exchange-constants-*.json")
    found = exchange_constants.fit(json.loads(path.read_text(encoding="utf-8"))["rows"])
    used = {
        "hop": gloo.STEP_SECONDS,
        "byte": 1 / gloo.LOOPBACK_RATE,
        "wrapper": host.WRAPPER.fixed,
        "wrapper.tensor": host.WRAPPER.tensor,
        "average": host.AVERAGE.fixed,
        "average.tensor": host.AVERAGE.tensor,
        "average.byte": host.AVERAGE.byte,
        "end": host.WORKER_END.fixed,
        "end.tensor": host.WORKER_END.tensor,
        "end.byte": host.WORKER_END.byte,
        "beside": host.BESIDE,
        "turn": host.TURN,
        "messages": host.SERVER_MESSAGES.fixed,
        "messages.byte": host.SERVER_MESSAGES.byte,
        "change": host.SERVER_CHANGE.fixed,
        "change.tensor": host.SERVER_CHANGE.tensor,
    }
    assert used == pytest.approx(found, rel=0.1)
