"""How often `compare` is right: on simulated noise, and what the recorded comparisons show."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from windtunnel.measurement.pairs import PairReport
from windtunnel.measurement.report import ProcessReport, Samples

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import compare as recorded  # noqa: E402
import compare_rates  # noqa: E402

DESIGN = (ROOT / "docs/design.md").read_text(encoding="utf-8")
TRIALS = recorded.read(recorded.RESULTS)


def report(logs: Any) -> ProcessReport:
    """A process with one sample in each turn."""
    samples = {"first": Samples(seconds=(1.0,)), "steady": Samples(seconds=tuple(numpy.exp(logs)))}
    return ProcessReport(samples=samples, turns=(1,) * len(logs))


def test_the_simulation_computes_a_pairs_ratio_as_the_product_does() -> None:
    turns = numpy.random.default_rng(1).standard_normal((3, 2, 20))
    is_b = numpy.array([word == "B" for word in "ABBABAAB" * 2 + "ABBA"])
    for pairs, logs in zip(turns, compare_rates.pair_logs(turns), strict=True):
        for own, log in zip(pairs, logs, strict=True):
            assert PairReport(a=report(own[~is_b]), b=report(own[is_b])).log == pytest.approx(log)


def test_the_design_page_has_the_rates_on_simulated_noise_and_they_meet_the_bars() -> None:
    found = dict(compare_rates.simulated_rates())
    for name, rates in found.items():
        assert rates.alarms <= 0.05, name
        assert rates.detected[0] >= 0.80 and rates.detected[1] >= 0.95, name
        assert compare_rates.line(name, rates) in DESIGN, "Print them: python benchmarks/compare_rates.py"


def test_turns_of_equal_length_would_miss_slowdowns_beside_a_neighbour_that_comes_by_the_clock() -> None:
    """Were the noise too tame to show that, the bars above would mean nothing."""
    found = dict(compare_rates.simulated_rates(200, compare_rates.equal_lengths))
    by_clock = found["half of each 200 ms by the clock: twofold"]
    assert by_clock.detected[0] < 0.40 and by_clock.spread > 0.20


def test_pairs_that_differ_more_are_told_apart_less_often() -> None:
    draws = numpy.random.default_rng(2).standard_normal((200, compare_rates.PAIRS))
    near, far, hopeless = (compare_rates.rates(spread * draws) for spread in (0.02, 0.08, 0.50))
    assert near.detected[0] > far.detected[0] > hopeless.detected[0] and near.same > far.same
    assert max(near.alarms, far.alarms, hopeless.alarms) <= 0.08


def test_a_comparison_is_judged_after_three_pairs_where_they_are_clear() -> None:
    judged = compare_rates.judged
    assert judged([0.01, -0.01, 0.0, 9.0], 1.0) == "same", "the fourth pair is never asked"
    assert judged([0.01, -0.01, 0.0], 1.2) == "slower" and judged([0.01, -0.01, 0.0], 1 / 1.2) == "faster"
    assert judged([0.5, -0.5, 0.0], 1.2) == "can't tell"


# The comparisons that were made


def test_the_design_page_has_the_recorded_comparisons() -> None:
    words = " ".join(DESIGN.split())
    for text in (*recorded.lines(TRIALS), *compare_rates.recorded_table(TRIALS), compare_rates.bias(TRIALS)):
        for line in text.splitlines():
            assert line in DESIGN or line in words, f"Print it: python benchmarks/compare_rates.py\n  {line}"


def test_recorded_pairs_of_equal_sides_would_meet_the_bars() -> None:
    """Drawn again, since a few comparisons show no rate of 5 or 95 %."""
    again = compare_rates.drawn_again(TRIALS, 500, numpy.random.default_rng(1))
    rates = compare_rates.rates(again)
    assert rates.alarms <= 0.05 and rates.detected[0] >= 0.80 and rates.detected[1] >= 0.95
    equal = [trial for trial in TRIALS if trial.factor == 1.0]
    assert {round(abs(error), 9) for error in again.ravel()} <= {
        round(abs(error), 9) for trial in equal for error in trial.errors
    }


def test_recorded_comparisons_have_the_ratios_of_their_turns() -> None:
    assert TRIALS
    for trial in TRIALS:
        assert len(trial.pairs) == len(trial.turns) == len(trial.others)
        for ratio, (a, b) in zip(trial.pairs, trial.turns, strict=True):
            pair = PairReport(a=report(numpy.array(a)), b=report(numpy.array(b)))
            assert math.log(ratio) == pytest.approx(pair.log, abs=2e-4)
