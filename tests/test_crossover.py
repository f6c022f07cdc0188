"""Where one side overtakes the other: first on curves whose crossing is known, then on this machine."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from conftest import run
from typer.testing import CliRunner

import windtunnel as wt
from windtunnel.cli import app
from windtunnel.errors import BadInput, DoesNotFit, MeasurementFailed, Unavailable
from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport, Samples
from windtunnel.measurement.steady import Protocol
from windtunnel.strategy import Strategy
from windtunnel.study.crossover.crossing import Crossover, StepTiming
from windtunnel.study.crossover.crossover import find
from windtunnel.study.crossover.sides import Sides

Curve = Callable[[int], float]
RANGE = ("n_rec", 10, 5000)


def cpu(value: int) -> float:
    """1 ms and work that grows with the square: it crosses 5 ms at n_rec = 632."""
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
    """Two curves as forecasts and, with noise, as measurements; `calls` has every measurement."""

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
        self.rng, self.calls = numpy.random.default_rng(3), list[tuple[str, int]]()

    def forecast(self, side: str, value: int) -> StepTiming:
        return timing(self.curves[side](value) * (self.bias if side == "cpu" else 1.0), 0.2, "forecast")

    def measure(self, side: str, value: int, again: int) -> StepTiming:
        if side == self.absent:
            raise Unavailable("There is no GPU here.")
        self.calls.append((side, value))
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
    answer = Stand(cpu, gpu).find(measured=False)
    assert answer.at == pytest.approx(TRUTH, rel=0.03) and answer.crossings[0].faster == "cuda"
    assert answer.crossings[0].low <= TRUTH <= answer.crossings[0].high
    assert {point.origin for point in answer.points} == {"forecast"} and answer.origins == {
        "cpu": "forecast",
        "cuda": "forecast",
    }


@pytest.mark.parametrize("bias", [0.3, 1.0, 3.0])
def test_measurements_find_it_even_where_the_forecast_is_three_times_off(bias: float) -> None:
    stand = Stand(cpu, gpu, bias=bias)
    answer = stand.find()
    assert answer.at == pytest.approx(TRUTH, rel=0.1)
    assert (
        answer.crossings[0].low <= TRUTH <= answer.crossings[0].high
        and answer.crossings[0].high / answer.crossings[0].low < 1.6
    )
    assert len({value for _, value in stand.calls}) <= 10, "few measurements"
    assert answer.forecast_at is not None and (
        bias == 1.0 or answer.forecast_at != pytest.approx(TRUTH, rel=0.2)
    )


def test_the_other_order_finds_the_same_crossing_and_the_other_side() -> None:
    stand = Stand(gpu, cpu)
    answer = stand.find()
    assert answer.at == pytest.approx(TRUTH, rel=0.1) and answer.crossings[0].faster == "cpu"


@pytest.mark.parametrize("seed", range(5))
def test_noise_widens_the_interval_and_it_still_holds_the_truth(seed: int) -> None:
    stand = Stand(cpu, gpu, noise=0.05, spread=0.1)
    stand.rng = numpy.random.default_rng(seed)
    answer = stand.find()
    assert (
        len(answer.crossings) == 1
        and 0.97 * answer.crossings[0].low <= TRUTH <= 1.03 * answer.crossings[0].high
    )


def test_a_value_without_a_clear_winner_is_measured_three_times_at_most() -> None:
    stand = Stand(gpu, lambda n: 5.05e-3, spread=0.1)
    answer = stand.find()
    counts = [stand.calls.count(call) for call in set(stand.calls)]
    assert max(counts) == 3 and not answer.crossings and "no clear difference" in answer.sentence()


def test_without_a_crossing_the_answer_says_which_side_wins_and_by_how_much() -> None:
    answer = Stand(lambda n: 1e-3, gpu).find()
    assert answer.at is None and not answer.crossings
    assert (
        "cpu is faster from n_rec = 10 to 5,000: 5.00 times at" in answer.sentence()
        and "do not cross" in answer.sentence()
    )
    measured = [point.value for point in answer.points if point.origin == "measured"]
    assert {10, 5000} <= set(measured) and len(measured) >= 4


def test_two_crossings_are_both_found() -> None:
    def bump(value: int) -> float:
        return 8e-3 if 60 < value < 900 else 2e-3

    answer = Stand(bump, gpu).find()
    assert [crossing.faster for crossing in answer.crossings] == ["cuda", "cpu"] and answer.at is None
    assert (
        answer.crossings[0].low <= 60 <= answer.crossings[0].high
        and answer.crossings[1].low <= 900 <= answer.crossings[1].high
    )
    assert "2 crossings" in answer.sentence()


def test_one_wrong_measurement_is_repeated_and_makes_no_crossing() -> None:
    stand = Stand(lambda n: 1e-3, gpu)
    plain, wrong = stand.measure, list[int]()

    def once_wrong(side: str, value: int, again: int) -> StepTiming:
        if side == "cpu" and value not in (10, 5000) and not wrong:
            wrong.append(value)
            return timing(20e-3, 0.01, "measured")
        return plain(side, value, again)

    stand.measure = once_wrong  # type: ignore[method-assign]
    answer = stand.find()
    assert wrong and not answer.crossings


def test_a_value_that_fails_is_named_and_the_search_goes_on_beside_it() -> None:
    usual = [point.value for point in Stand(cpu, gpu, bias=2.0).find().points if point.origin == "measured"]
    broken = min(usual, key=lambda value: abs(value - TRUTH))  # else the search would not come there
    stand = Stand(cpu, gpu, bias=2.0)
    plain = stand.measure

    def fails(side: str, value: int, again: int) -> StepTiming:
        if side == "cuda" and abs(value / broken - 1) < 0.02:
            raise MeasurementFailed("A process was ended by SIGSEGV.", state="crashed")
        return plain(side, value, again)

    stand.measure = fails  # type: ignore[method-assign]
    answer = stand.find()
    assert answer.at == pytest.approx(TRUTH, rel=0.15)
    failed = [point for point in answer.points if point.errors]
    assert failed and all("cuda" not in point.timings for point in failed)
    assert any("SIGSEGV" in caution for caution in answer.cautions)
    assert "failed" in str(answer)


def test_a_value_that_does_not_fit_in_memory_by_forecast_is_left_out() -> None:
    stand = Stand(cpu, gpu)
    plain = stand.forecast

    def too_large(side: str, value: int) -> StepTiming:
        if side == "cuda" and value > 2000:
            raise DoesNotFit("needs 90 GiB")
        return plain(side, value)

    stand.forecast = too_large  # type: ignore[method-assign]
    answer = stand.find(measured=False)
    assert answer.at == pytest.approx(TRUTH, rel=0.03)
    assert any("needs 90 GiB" in error for point in answer.points for error in point.errors.values())


def test_without_a_gpu_its_side_is_forecast_and_marked_so() -> None:
    answer = Stand(cpu, gpu, absent="cuda").find()
    assert answer.origins["cpu"] == "measured" and answer.origins["cuda"].startswith(
        "forecast, not measured: There is no GPU here."
    )
    origins = {
        side: {p.timings[side].origin for p in answer.points if p.origin == "measured"}
        for side in ("cpu", "cuda")
    }
    assert origins == {"cpu": {"measured"}, "cuda": {"forecast"}}
    assert answer.crossings[0].low <= TRUTH <= answer.crossings[0].high


def test_a_side_that_is_never_clearly_faster_still_crosses_where_the_numbers_do() -> None:
    """The CPU is never clearly ahead of a forecast with a wide interval: the crossing is as uncertain."""
    answer = Stand(lambda n: 4.5e-3 + 1e-8 * n**2, gpu, absent="cuda").find()
    assert (
        answer.crossings[0].low == 10
        and answer.crossings[0].high > math.sqrt(0.5e-3 / 1e-8)
        and answer.crossings[0].faster == "cuda"
    )


def test_with_time_for_two_equal_values_the_answer_is_the_forecast_and_says_so() -> None:
    expected, stand = Stand(cpu, gpu), Stand(lambda n: 1e-3, gpu)
    stand.forecast = expected.forecast  # type: ignore[method-assign]
    answer = stand.find(is_time_up=lambda: True)
    assert {value for _, value in stand.calls} == {10, 632}
    assert answer.at == answer.forecast_at and any("by forecast" in caution for caution in answer.cautions)


def test_two_values_that_differ_are_enough_for_a_wide_interval() -> None:
    answer = Stand(cpu, gpu, bias=0.3).find(is_time_up=lambda: True)
    assert answer.crossings[0].low == 10 and answer.crossings[0].high == pytest.approx(1252, abs=20)


def test_without_any_forecast_measurements_alone_find_the_crossing() -> None:
    stand = Stand(cpu, gpu)

    def none(side: str, value: int) -> StepTiming:
        raise Unavailable("jax cannot be forecast.")

    stand.forecast = none  # type: ignore[method-assign]
    answer = stand.find()
    assert answer.at == pytest.approx(TRUTH, rel=0.1) and answer.forecast_at is None
    assert any("jax cannot be forecast" in caution for caution in answer.cautions)


def test_when_time_is_up_the_answer_so_far_has_a_caution() -> None:
    stand = Stand(cpu, gpu, bias=3.0)
    answer = stand.find(is_time_up=lambda: len(stand.calls) >= 4)
    assert len(stand.calls) <= 4 and any("time limit" in caution for caution in answer.cautions)


@pytest.mark.parametrize("over", [("n_rec", 10, 10), ("n_rec", 0, 5), ("n_rec", 9, 3)])
def test_an_empty_range_is_refused(over: tuple[str, int, int]) -> None:
    with pytest.raises(BadInput):
        Stand(cpu, gpu).find(over)


def test_a_side_cannot_overtake_itself() -> None:
    with pytest.raises(BadInput, match="itself"):
        find("rnn", RANGE, ("cpu", "cpu"), forecast=Stand(cpu, gpu).forecast)


def test_small_ranges_of_whole_numbers_are_searched_to_the_end() -> None:
    answer = Stand(lambda n: 1e-3 * n, lambda n: 3.5e-3).find(("n", 1, 8))
    assert answer.crossings[0].low == 3 and answer.crossings[0].high == 4


def test_the_command_finds_a_crossing_of_two_catalogue_machines_and_draws_it(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert is not installed (extra plots)")
    picture = tmp_path / "crossing.svg"
    done = run(
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
    answer = sides.measure("numpy:hand", 5, 0)
    assert answer.origin == "measured" and 0 < answer.low_seconds <= answer.seconds <= answer.high_seconds
    with pytest.raises(Unavailable, match="only torch"):
        sides.forecast("numpy:hand", 5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_forecast_of_the_fused_engine_has_no_launches_from_the_host(
    device: str,
) -> None:
    sides = Sides(
        job="rnn",
        over="n_steps",
        between=(f"fused:epoch@{device}", f"torch:loop@{device}"),
        settings={"n_rec": 50},
    )
    sides.check(100)
    short, fused, long = (sides.forecast(sides.between[0], n_steps) for n_steps in (10, 100, 1000))
    loop, called = (
        sides.forecast(sides.between[1], 100),
        dataclasses.replace(sides, settings={"n_rec": 50, "variant": "fused"}).forecast(device, 100),
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


def test_a_framework_runs_the_jobs_own_batch_as_a_machine_does() -> None:
    sides = Sides(job="ffn", over="hidden", between=("cpu", "torch:module"))
    assert sides._task("torch:module", 16).batch == sides._workload(16).default_batch == 32


def test_the_command_compares_two_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_task(task: Task, protocol: Protocol, *, number: int = 0) -> ProcessReport:
        seconds = cpu(task.settings["n_rec"]) if task.framework == "jax" else gpu(0)
        return ProcessReport(samples={"steady": Samples(seconds=(seconds * (1 + 0.001 * number),) * 9)})

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
    ("options", "hint"),
    [
        (("--over", "n_rec", "--between", "cpu,h200"), "n_rec=10..5000"),
        (("--over", "n_rec=5..50", "--between", "cpu"), "two"),
        (("--over", "n_rec=5..50", "--between", "cpu,h201"), "h200"),
        (("--over", "n_rex=5..50", "--between", "cpu,h200"), "n_rec"),
        (("--over", "n_rec=5..50", "--between", "cpu,h200", "--plot", "x.gif"), "svg"),
    ],
)
def test_wrong_options_are_refused_with_the_right_ones(options: tuple[str, ...], hint: str) -> None:
    done = run("crossover", "rnn", *options)
    assert done.returncode == 2 and hint in done.stderr and "Traceback" not in done.stderr


def test_the_public_function_finds_a_crossover_by_forecast_alone() -> None:
    answer = wt.crossover("rnn", "n_rec=10..2000", "macbook-2016,h200", budget_seconds=0, n_steps=20)
    assert answer.between == ("macbook-2016", "h200") and len(answer.crossings) == 1
    assert 10 < answer.crossings[0].at < 2000


@pytest.mark.parametrize("over", ["n_rec", "n_rec=10", "=1..2", "n_rec=1.5..3", "n_rec=..10"])
def test_a_range_that_is_none_is_refused(over: str) -> None:
    with pytest.raises(BadInput, match="range"):
        wt.crossover("rnn", over, "macbook-2016,h200", budget_seconds=0)
