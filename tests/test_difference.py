"""A difference names the part of a forecast that is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel as wt
from windtunnel.accuracy.difference import explain
from windtunnel.forecast.forecast import Forecast
from windtunnel.measurement.measure import Measurement
from windtunnel.results import Memory

COMMON: dict[str, Any] = {
    "job": "case",
    "machine": "here",
    "strategy": {},
    "batch": 1,
    "memory": Memory(peak_bytes=1.0),
    "bound_by": "compute",
}


def of_step(step: float) -> dict[str, Any]:
    return {**COMMON, "step_seconds": step, "low_seconds": step, "high_seconds": step}


def forecast(step: float, families: dict[str, float], host: float = 0.0, **parts: float) -> Forecast:
    return Forecast(**of_step(step), parts=parts, host_seconds=host, families=families)


def measured(
    step: float, families: dict[str, float], host: float = 0.0, kernels: float | None = 10.0, **parts: float
) -> Measurement:
    return Measurement(**of_step(step), parts=parts, host_seconds=host, families=families, kernels=kernels)


def test_the_family_with_the_largest_difference_is_named() -> None:
    difference = explain(
        forecast(10e-3, {"matmul": 6e-3, "convolution": 3e-3}, 2e-3),
        measured(14e-3, {"matmul": 6.1e-3, "convolution": 7e-3}, 2e-3),
    )
    assert difference.largest.name == "convolution" and difference.largest.seconds == pytest.approx(4e-3)
    assert "convolution: 7.00 ms measured, 3.00 ms predicted" in difference.sentence()
    assert str(difference).splitlines()[2].split()[0] == "convolution", "the largest difference comes first"


def test_a_device_that_waits_for_its_host_is_named() -> None:
    difference = explain(forecast(2e-3, {"matmul": 1e-3}, 2e-3), measured(4e-3, {"matmul": 1e-3}, 4e-3))
    assert difference.largest.name == "device waiting" and difference.share(
        difference.largest
    ) == pytest.approx(1.0)
    assert [(row.name, row.predicted, row.measured) for row in difference.beside] == [
        ("host busy", 2e-3, 4e-3)
    ]


def test_on_a_cpu_the_host_is_the_time_outside_ops() -> None:
    difference = explain(
        forecast(2e-3, {"matmul": 1.5e-3}, 0.5e-3), measured(2.5e-3, {"matmul": 1.5e-3}, 1e-3, kernels=None)
    )
    assert difference.largest.name == "host" and not difference.beside
    assert "launch costs included" in difference.note


@pytest.mark.parametrize("copy", [0.0, 3e-3])
def test_rows_sum_to_both_steps_and_shares_to_one(copy: float) -> None:
    one = forecast(10e-3, {"matmul": 6e-3, "softmax": 1e-3, "view": 0.0}, 2e-3, copy=copy)
    two = measured(11e-3, {"matmul": 5e-3, "softmax": 1e-6, "other": 2e-3}, 2e-3, copy=copy / 2)
    difference = explain(one, two)
    assert sum(row.predicted or 0.0 for row in difference.rows) == pytest.approx(10e-3)
    assert sum(row.measured or 0.0 for row in difference.rows) == pytest.approx(11e-3)
    assert sum(row.seconds for row in difference.rows) == pytest.approx(difference.seconds)
    assert sum(difference.share(row) for row in difference.rows) == pytest.approx(1.0)
    assert ("copy" in {row.name for row in difference.rows}) == bool(copy)


def test_steps_that_agree_are_reported_as_such() -> None:
    difference = explain(forecast(10e-3, {"matmul": 9e-3}), measured(10e-3, {"matmul": 9e-3}))
    assert "agree" in difference.sentence() and difference.share(difference.largest) == 0.0


def test_the_difference_of_a_real_step_is_plain_data_and_a_table(tmp_path: Path) -> None:
    job, strategy, here = (
        wt.Workload.named("fcn5", layers="64,64,64"),
        wt.Strategy(batch=16, threads=1),
        wt.Machine.here().with_cpu_only(),
    )
    protocol = wt.Protocol(processes=1, most_processes=1, seconds=0.1, warm_seconds=0.05)
    seen = wt.measure(job, here, strategy, protocol=protocol, store=wt.Store(tmp_path / "s.sqlite"))
    assert {"matmul", "streaming"} <= set(seen.families)
    assert seen.device_seconds == pytest.approx(sum(seen.families.values()))
    assert seen.device_seconds + (seen.host_seconds or 0.0) == pytest.approx(seen.step_seconds)
    expected = wt.predict(job, here, strategy)
    difference = explain(expected, seen)
    rows = json.loads(json.dumps(difference.plain()))["rows"]
    assert sum(row["measured"] for row in rows) == pytest.approx(seen.step_seconds)
    assert sum(row["predicted"] for row in rows) == pytest.approx(expected.step_seconds)
    assert {row["name"] for row in rows} <= {"host", "all others", *seen.families, *expected.families}
    assert "whole step" in str(difference) and difference.largest.name in difference.sentence()
