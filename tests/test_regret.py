"""Regret: what a choice by forecast costs, on made-up runs; the real files are asked where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windtunnel.accuracy import published
from windtunnel.accuracy.published import validate_published
from windtunnel.accuracy.regret import MeasuredStrategy, RegretValidation, grouped, regret_rows

REAL = os.environ.get(published.VARIABLE, "")


def way(measured: float, predicted: float, order: int, fits: bool = True) -> MeasuredStrategy:
    return MeasuredStrategy(f"{measured}", measured, predicted, fits, (order,))


def validation(*ways: MeasuredStrategy) -> RegretValidation:
    rows = regret_rows("all", grouped(("a", each) for each in ways))
    return RegretValidation(title="t", use="u", simple_rule="s", rows=tuple(rows))


def test_the_run_that_is_forecast_to_be_fastest_is_chosen() -> None:
    (row,) = validation(way(1.0, 2.0, 1), way(1.5, 3.0, 0), way(2.0, 4.0, 2)).rows
    assert (row.regret, row.simple, row.random, row.runs) == (0.0, 0.5, 0.5, 3)


def test_a_run_that_is_forecast_not_to_fit_is_not_chosen() -> None:
    (row,) = validation(way(1.0, 1.0, 1, fits=False), way(1.2, 3.0, 0)).rows
    assert row.regret == pytest.approx(0.2)


def test_a_group_of_one_is_no_choice() -> None:
    assert validation(way(1.0, 1.0, 1)).failures == ("no rows",)


def test_a_large_regret_and_one_above_the_simple_rules_fail() -> None:
    bad = validation(way(1.0, 2.0, 0), way(1.2, 1.0, 1))
    assert len(bad.failures) == 2 and "NOT MET" in bad.text()
    good = validation(way(1.0, 1.0, 0), way(1.2, 2.0, 1))
    assert good.failures == () and "Met" in good.text(rows=True)
    assert good.plain(rows=True)["series"]["all"]["median"] == 0.0  # type: ignore[index]


@pytest.mark.skipif(not REAL, reason=f"{published.VARIABLE} names no folder of published measurements")
def test_forecasts_choose_among_published_runs_with_little_regret() -> None:
    assert validate_published("gpt-small-regret", Path(REAL)).failures == ()
