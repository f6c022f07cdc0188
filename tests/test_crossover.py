"""Where does one overtake the other? Asked of curves whose crossing is known, then of this machine."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from typer.testing import CliRunner

from windtunnel.cli import app
from windtunnel.errors import BadInput, DoesNotFit, MeasurementFailed, Unavailable
from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.strategy import Strategy
from windtunnel.study.crossover.crossing import Crossover, StepTiming
from windtunnel.study.crossover.crossover import find
from windtunnel.study.crossover.sides import Sides

Curve = Callable[[int], float]
RANGE = ("n_rec", 10, 5000)


def cpu(value: int) -> float:
    """A start of 1 ms and work that grows with the square: beside 5 ms it crosses at n_rec = 632."""
    return 1e-3 + 1e-8 * value**2


def gpu(_: int) -> float:
    return 5e-3


def timing(seconds: float, spread: float, origin: str) -> StepTiming:
    return StepTiming(
        seconds=seconds,
        low_seconds=seconds * math.exp(-spread),
        high_seconds=seconds * math.exp(spread),
        origin=origin,
    )  # type: ignore[arg-type]


class Stand:
    """Two curves to be asked by forecast and, with noise, by measurement; counts what was asked."""

    def __init__(
        self,
        one: Curve,
        other: Curve,
        *,
        bias: float = 1.0,
        noise: float = 0.0,
        spread: float = 0.01,
        absent: str = "",
    ) -> None:
        self.curves = {"cpu": one, "cuda": other}
        self.bias, self.noise, self.spread, self.absent = bias, noise, spread, absent
        self.rng, self.asked = numpy.random.default_rng(3), list[tuple[str, int]]()

    def forecast(self, side: str, value: int) -> StepTiming:
        return timing(self.curves[side](value) * (self.bias if side == "cpu" else 1.0), 0.2, "forecast")

    def measure(self, side: str, value: int, again: int) -> StepTiming:
        if side == self.absent:
            raise Unavailable("There is no GPU here.")
        self.asked.append((side, value))
        return timing(
            self.curves[side](value) * math.exp(self.noise * self.rng.standard_normal()),
            self.spread,
            "measured",
        )

    def find(
        self,
        over: tuple[str, int, int] = RANGE,
        measured: bool = True,
        is_time_up: Callable[[], bool] = lambda: False,
    ) -> Crossover:
        return find(
            "rnn",
            over,
            ("cpu", "cuda"),
            forecast=self.forecast,
            measure=self.measure if measured else None,
            is_time_up=is_time_up,
        )


TRUTH = math.sqrt(4e-3 / 1e-8)


def test_the_forecast_alone_finds_where_two_curves_cross() -> None:
    found = Stand(cpu, gpu).find(measured=False)
    assert found.at == pytest.approx(TRUTH, rel=0.03) and found.crossings[0].faster == "cuda"
    assert found.crossings[0].low <= TRUTH <= found.crossings[0].high
    assert {point.origin for point in found.points} == {"forecast"} and found.origins == {
        "cpu": "forecast",
        "cuda": "forecast",
    }


@pytest.mark.parametrize("bias", [0.3, 1.0, 3.0])
def test_measurements_find_it_even_where_the_forecast_is_three_times_off(bias: float) -> None:
    stand = Stand(cpu, gpu, bias=bias)
    found = stand.find()
    assert found.at == pytest.approx(TRUTH, rel=0.1)
    assert (
        found.crossings[0].low <= TRUTH <= found.crossings[0].high
        and found.crossings[0].high / found.crossings[0].low < 1.6
    )
    assert len({value for _, value in stand.asked}) <= 10, "few measurements"
    assert found.forecast_at is not None and (
        bias == 1.0 or found.forecast_at != pytest.approx(TRUTH, rel=0.2)
    )


def test_the_other_order_finds_the_same_place_and_the_side_that_falls_behind() -> None:
    stand = Stand(gpu, cpu)
    found = stand.find()
    assert found.at == pytest.approx(TRUTH, rel=0.1) and found.crossings[0].faster == "cpu"


@pytest.mark.parametrize("seed", range(5))
def test_noise_widens_the_interval_and_it_still_holds_the_truth(seed: int) -> None:
    stand = Stand(cpu, gpu, noise=0.05, spread=0.1)
    stand.rng = numpy.random.default_rng(seed)
    found = stand.find()
    assert (
        len(found.crossings) == 1 and 0.97 * found.crossings[0].low <= TRUTH <= 1.03 * found.crossings[0].high
    )


def test_a_place_that_cannot_tell_is_measured_again_and_no_more_than_three_times() -> None:
    stand = Stand(gpu, lambda n: 5.05e-3, spread=0.1)
    found = stand.find()
    counts = [stand.asked.count(asked) for asked in set(stand.asked)]
    assert max(counts) == 3 and not found.crossings and "no clear difference" in found.sentence()


def test_where_they_never_cross_it_is_said_who_wins_everywhere_and_by_how_much() -> None:
    found = Stand(lambda n: 1e-3, gpu).find()
    assert found.at is None and not found.crossings
    assert (
        "cpu is faster from n_rec = 10 to 5,000: 5.00 times at" in found.sentence()
        and "do not cross" in found.sentence()
    )
    measured = [point.value for point in found.points if point.origin == "measured"]
    assert {10, 5000} <= set(measured) and len(measured) >= 4


def test_two_crossings_are_both_found() -> None:
    def bump(value: int) -> float:
        return 8e-3 if 60 < value < 900 else 2e-3

    found = Stand(bump, gpu).find()
    assert [crossing.faster for crossing in found.crossings] == ["cuda", "cpu"] and found.at is None
    assert (
        found.crossings[0].low <= 60 <= found.crossings[0].high
        and found.crossings[1].low <= 900 <= found.crossings[1].high
    )
    assert "2 crossings" in found.sentence()


def test_a_measurement_that_went_astray_is_measured_again_and_makes_no_crossing() -> None:
    stand = Stand(lambda n: 1e-3, gpu)
    plain, seen = stand.measure, list[int]()

    def once_astray(side: str, value: int, again: int) -> StepTiming:
        if side == "cpu" and value not in (10, 5000) and not seen:
            seen.append(value)
            return timing(20e-3, 0.01, "measured")
        return plain(side, value, again)

    stand.measure = once_astray  # type: ignore[method-assign]
    found = stand.find()
    assert seen and not found.crossings


def test_a_place_that_fails_is_named_and_the_search_goes_on_beside_it() -> None:
    stand = Stand(cpu, gpu, bias=2.0)
    plain = stand.measure

    def fails(side: str, value: int, again: int) -> StepTiming:
        if side == "cuda" and (500 <= value <= 560 or value > 3000):
            raise MeasurementFailed("A process was ended by SIGSEGV.", state="crashed")
        return plain(side, value, again)

    stand.measure = fails  # type: ignore[method-assign]
    found = stand.find()
    assert found.at == pytest.approx(TRUTH, rel=0.15)
    failed = [point for point in found.points if point.errors]
    assert all("cuda" not in point.timings for point in failed)
    assert not failed or any("SIGSEGV" in caution for caution in found.cautions)
    assert "failed" in str(found) or not failed


def test_what_does_not_fit_by_forecast_is_left_out_of_the_comparison() -> None:
    stand = Stand(cpu, gpu)
    plain = stand.forecast

    def too_large(side: str, value: int) -> StepTiming:
        if side == "cuda" and value > 2000:
            raise DoesNotFit("needs 90 GiB")
        return plain(side, value)

    stand.forecast = too_large  # type: ignore[method-assign]
    found = stand.find(measured=False)
    assert found.at == pytest.approx(TRUTH, rel=0.03)
    assert any("needs 90 GiB" in error for point in found.points for error in point.errors.values())


def test_without_a_gpu_its_side_is_forecast_and_marked_so() -> None:
    found = Stand(cpu, gpu, absent="cuda").find()
    assert found.origins["cpu"] == "measured" and found.origins["cuda"].startswith(
        "forecast, not measured: There is no GPU here."
    )
    origins = {
        side: {p.timings[side].origin for p in found.points if p.origin == "measured"}
        for side in ("cpu", "cuda")
    }
    assert origins == {"cpu": {"measured"}, "cuda": {"forecast"}}
    assert found.crossings[0].low <= TRUTH <= found.crossings[0].high


def test_a_side_that_is_never_surely_faster_still_crosses_where_the_numbers_do() -> None:
    """Beside a forecast that may be off by a half the CPU is nowhere surely ahead, and the interval says so
    by reaching to the end.
    """
    found = Stand(lambda n: 4.5e-3 + 1e-8 * n**2, gpu, absent="cuda").find()
    assert (
        found.crossings[0].low == 10
        and found.crossings[0].high > math.sqrt(0.5e-3 / 1e-8)
        and found.crossings[0].faster == "cuda"
    )


def test_when_time_allows_two_places_that_agree_the_forecast_is_given_and_said_to_be_one() -> None:
    expected, stand = Stand(cpu, gpu), Stand(lambda n: 1e-3, gpu)
    stand.forecast = expected.forecast  # type: ignore[method-assign]
    found = stand.find(is_time_up=lambda: True)
    assert {value for _, value in stand.asked} == {10, 632}
    assert found.at == found.forecast_at and any("by forecast" in caution for caution in found.cautions)


def test_two_places_that_differ_are_enough_for_a_wide_interval() -> None:
    found = Stand(cpu, gpu, bias=0.3).find(is_time_up=lambda: True)
    assert found.crossings[0].low == 10 and found.crossings[0].high == pytest.approx(1252, abs=20)


def test_without_any_forecast_measurements_alone_bisect_to_the_place() -> None:
    stand = Stand(cpu, gpu)

    def none(side: str, value: int) -> StepTiming:
        raise Unavailable("jax cannot be forecast.")

    stand.forecast = none  # type: ignore[method-assign]
    found = stand.find()
    assert found.at == pytest.approx(TRUTH, rel=0.1) and found.forecast_at is None
    assert any("jax cannot be forecast" in caution for caution in found.cautions)


def test_when_time_is_up_the_answer_so_far_is_given_and_said_to_be_so() -> None:
    stand = Stand(cpu, gpu, bias=3.0)
    found = stand.find(is_time_up=lambda: len(stand.asked) >= 4)
    assert len(stand.asked) <= 4 and any("time limit" in caution for caution in found.cautions)


@pytest.mark.parametrize("over", [("n_rec", 10, 10), ("n_rec", 0, 5), ("n_rec", 9, 3)])
def test_an_empty_range_is_refused(over: tuple[str, int, int]) -> None:
    with pytest.raises(BadInput):
        Stand(cpu, gpu).find(over)


def test_a_side_cannot_overtake_itself() -> None:
    with pytest.raises(BadInput, match="itself"):
        find("rnn", RANGE, ("cpu", "cpu"), forecast=Stand(cpu, gpu).forecast)


def test_small_ranges_of_whole_numbers_are_searched_to_the_end() -> None:
    found = Stand(lambda n: 1e-3 * n, lambda n: 3.5e-3).find(("n", 1, 8))
    assert found.crossings[0].low == 3 and found.crossings[0].high == 4


def windtunnel(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "windtunnel", *words], capture_output=True, text=True)


def test_the_command_finds_a_crossing_of_two_catalogue_machines_and_draws_it(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert is not installed (extra plots)")
    picture = tmp_path / "crossing.svg"
    done = windtunnel(
        "crossover",
        "rnn",
        "n_steps=3",
        "--over",
        "n_rec=50..4000",
        "--between",
        "ice-lake-2-cores,h200",
        "--no-measure",
        "--json",
        "--plot",
        str(picture),
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (
        data["origins"] == {"ice-lake-2-cores": "forecast", "h200": "forecast"}
        and data["at"] == data["crossings"][0]["at"]
    )
    ratios = [ratio["ratio"][0] for ratio in data["ratios"]]
    assert ratios[0] < 1 < ratios[-1], "a small network suits the CPU, a large one the GPU"
    assert "<svg" in picture.read_text() and "h200" in picture.read_text()


def test_a_framework_is_measured_in_a_process_of_its_own() -> None:
    quick = Protocol(processes=1, most_processes=1, seconds=0.05, warm_seconds=0.02)
    sides = Sides(
        job="rnn", over="n_rec", between=("numpy:hand", "torch:loop"), settings={"n_steps": 3}, protocol=quick
    )
    sides.check(5)
    found = sides.measure("numpy:hand", 5, 0)
    assert found.origin == "measured" and 0 < found.low_seconds <= found.seconds <= found.high_seconds
    with pytest.raises(Unavailable, match="only torch"):
        sides.forecast("numpy:hand", 5)


@pytest.mark.parametrize("device_name", ["cpu", "cuda"])
def test_the_fused_engine_is_forecast_by_what_its_unit_does_and_not_by_calls_it_never_makes(
    device_name: str,
) -> None:
    sides = Sides(
        job="rnn",
        over="n_steps",
        between=(f"fused:epoch@{device_name}", f"torch:loop@{device_name}"),
        settings={"n_rec": 50},
    )
    sides.check(100)
    short, fused, long = (sides.forecast(sides.between[0], n_steps) for n_steps in (10, 100, 1000))
    loop, called = (
        sides.forecast(sides.between[1], 100),
        dataclasses.replace(sides, settings={"n_rec": 50, "variant": "fused"}).forecast(device_name, 100),
    )
    assert (
        short.seconds < long.seconds
        and fused.seconds < loop.seconds / 5
        and fused.seconds < called.seconds / 2
    )
    assert all(
        0 < one.low_seconds <= one.seconds < one.high_seconds and one.origin == "forecast"
        for one in (short, fused, long)
    )


def test_the_fused_engine_is_forecast_on_the_one_core_it_runs_on() -> None:
    def seconds(threads: int | None) -> float:
        sides = Sides(
            job="rnn",
            over="n_rec",
            between=("fused:epoch", "cpu"),
            settings={"n_steps": 20},
            strategy=Strategy(threads=threads),
        )
        return sides.forecast("fused:epoch", 1000).seconds

    assert seconds(None) == seconds(1) == seconds(16)


def test_the_command_lays_two_frameworks_beside_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_task(task: Task, protocol: Protocol, *, number: int = 0) -> dict[str, Any]:
        seconds = cpu(task.settings["n_rec"]) if task.framework == "jax" else gpu(0)
        return {"samples": {"steady": {"seconds": [seconds * (1 + 0.001 * number)] * 9}}}

    monkeypatch.setattr(frameworks, "run_task", run_task)
    words = [
        "crossover",
        "rnn",
        "n_steps=20",
        "--over",
        "n_rec=10..5000",
        "--between",
        "jax:scan,numpy:hand",
        "--json",
        "--store",
        str(tmp_path / "s.sqlite"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["origins"] == {"jax:scan": "measured", "numpy:hand": "measured"} and data[
        "at"
    ] == pytest.approx(TRUTH, rel=0.1)
    assert (
        "numpy:hand overtakes at n_rec = " in data["sentence"]
        and "no forecast: jax cannot be forecast; only torch and fused can." in data["cautions"]
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--over", "n_rec", "--between", "cpu,h200"), "n_rec=10..5000"),
        (("--over", "n_rec=5..50", "--between", "cpu"), "two"),
        (("--over", "n_rec=5..50", "--between", "cpu,h201"), "h200"),
        (("--over", "n_rex=5..50", "--between", "cpu,h200"), "n_rec"),
        (("--over", "n_rec=5..50", "--between", "cpu,h200", "--plot", "x.gif"), "svg"),
    ],
)
def test_wrong_words_are_refused_with_the_right_ones(words: tuple[str, ...], told: str) -> None:
    done = windtunnel("crossover", "rnn", *words)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
