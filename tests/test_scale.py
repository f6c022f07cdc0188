"""Small or large scale by the guide's definition, latency over batches, and real runs of learning."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest

import windtunnel as wt
from windtunnel.errors import BadInput, DoesNotFit
from windtunnel.influence.batches import parse_batches, predict_batches
from windtunnel.influence.learned import LearnedFactor, LearnedRun, LearnOptions, learn_factors
from windtunnel.influence.scale import Scale, ScaleOptions, scale_of
from windtunnel.influence.setup import VariedForecasts, VariedSetup
from windtunnel.job.stored import StoredData

FORECASTER = VariedForecasts()
PATIENT = ScaleOptions(reasonable_seconds=1e12, epochs=1)


def scale(
    job: wt.Workload, machine: str, options: ScaleOptions = PATIENT, strategy: wt.Strategy | None = None
) -> Scale:
    base = VariedSetup(job=job, machine=wt.Machine.named(machine), strategy=strategy or wt.Strategy())
    return scale_of(base, FORECASTER.forecast(base), options, FORECASTER)


def is_large(found: Scale, criterion: str) -> bool | None:
    return next(c.is_large for c in found.criteria if c.name == criterion)


# Physics


def test_a_longer_patience_never_makes_a_job_large() -> None:
    job, sizes = wt.Workload.named("ffn"), []
    for seconds in (1e-6, 1e-2, 1e2, 1e9):
        found = scale(job, "i7-3820", ScaleOptions(reasonable_seconds=seconds, epochs=3))
        sizes.append(found.size)
    assert sizes == sorted(sizes) == ["large", "large", "small", "small"]


def test_twice_the_epochs_take_twice_the_time() -> None:
    job = wt.Workload.named("ffn")
    one, two = (scale(job, "i7-3820", ScaleOptions(epochs=epochs)) for epochs in (5, 10))
    assert one.training_seconds is not None and two.training_seconds is not None
    assert two.training_seconds == pytest.approx(2 * one.training_seconds)


def test_the_devices_that_a_job_needs_end_in_a_reasonable_time() -> None:
    found = scale(wt.Workload.named("ffn"), "i7-3820", ScaleOptions(reasonable_seconds=0.1, epochs=100))
    assert found.training_seconds is not None and found.devices_needed is not None
    assert found.training_seconds / found.devices_needed <= 0.1
    assert found.training_seconds / (found.devices_needed - 1) > 0.1


def test_a_training_on_a_slower_machine_is_never_of_smaller_scale() -> None:
    job, options = wt.Workload.named("dcn"), ScaleOptions(reasonable_seconds=3.0, epochs=20)
    slow, fast = (scale(job, name, options) for name in ("raspberry-pi-4", "emerald-rapids-2-cores"))
    assert (slow.training_seconds or 0) > (fast.training_seconds or 0)
    assert (slow.size, fast.size) != ("small", "large")


# By hand


def test_the_time_of_a_training_is_steps_times_epochs() -> None:
    """1,442 examples at batch 32 are 45.06 steps an epoch."""
    job = wt.Workload.named("ffn")
    found = scale(job, "i7-3820", ScaleOptions(epochs=2))
    base = VariedSetup(job=job, machine=wt.Machine.named("i7-3820"), strategy=wt.Strategy())
    step = FORECASTER.forecast(base).step_seconds
    assert found.training_seconds == pytest.approx(2 * 1442 / 32 * step)


def test_a_data_set_that_exceeds_the_hosts_memory_is_large_scale() -> None:
    machine = wt.Machine.named("jetson-nano")
    assert machine.host.memory_bytes is not None
    for share, expected in ((0.5, "small"), (2.0, "large")):
        data = StoredData(example_bytes=machine.host.memory_bytes / 1000 * share, examples=1000)
        job = dataclasses.replace(wt.Workload.named("ffn"), data=data, examples=1000)
        found = scale(job, "jetson-nano")
        assert found.size == expected and is_large(found, "data") is (expected == "large")


def test_parameters_and_examples_are_signs_and_decide_nothing() -> None:
    found = scale(wt.Workload.named("fcn5"), "h200")
    assert is_large(found, "parameters") is True and found.size == "small"
    assert "the step fits one device" in found.sentence()


def test_each_scale_has_the_challenges_of_its_own_section() -> None:
    small = scale(wt.Workload.named("ffn"), "h200")
    large = scale(wt.Workload.named("ffn"), "h200", ScaleOptions(reasonable_seconds=1e-9, epochs=1))
    assert {c.section for c in small.challenges} == {"IV.A"}
    assert {c.section for c in large.challenges} == {"IV.B"} and len(large.challenges) == 4
    assert any("37.5 KiB of gradients" in c.numbers for c in large.challenges)  # 9,610 parameters x 4 bytes


def test_a_step_that_exceeds_one_device_is_large_scale_and_says_how_many_it_needs() -> None:
    job = wt.Workload.named("llm:gpt", layers=16, width=4096, heads=32, length=512)
    found = scale(job, "t4", PATIENT, wt.Strategy(batch=8))
    assert is_large(found, "memory") is True and found.size == "large"
    assert found.devices_needed is None or found.devices_needed > 1


def test_what_is_not_known_is_said() -> None:
    job = dataclasses.replace(wt.Workload.named("ffn"), examples=None)
    found = scale(job, "raspberry-pi-5", ScaleOptions())
    assert is_large(found, "time") is None and is_large(found, "data") is None
    assert found.sentence().startswith("small scale as far as is known: ")
    assert "states no examples" in found.sentence()


@pytest.mark.parametrize("options", [{"reasonable_seconds": 0.0}, {"epochs": 0}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        ScaleOptions(**options)  # type: ignore[arg-type]


# Latency over batches


@pytest.mark.parametrize("machine", ["h200", "raspberry-pi-5", "jetson-nano"])
def test_throughput_and_latency_over_batches_are_those_of_single_forecasts(machine: str) -> None:
    job, on = wt.Workload.named("dcn"), wt.Machine.named(machine)
    strategy = wt.Strategy(inference=True)
    table = predict_batches(job, on, strategy, (1, 8, 64))
    assert [forecast.batch for forecast in table.forecasts] == [1, 8, 64]
    alone = wt.predict(job, on, dataclasses.replace(strategy, batch=8))
    assert table.forecasts[1].step_seconds == alone.step_seconds
    rates = [forecast.examples_per_second for forecast in table.forecasts]
    assert rates == sorted(rates)


def test_a_batch_that_does_not_fit_is_named_with_the_largest_that_does() -> None:
    job, machine = wt.Workload.named("ffn"), wt.Machine.named("jetson-nano")
    table = predict_batches(job, machine, wt.Strategy(inference=True), (1, 50_000_000))
    assert table.too_large == (50_000_000,) and table.largest is not None
    assert 1 < table.largest < 50_000_000 and f"{table.largest:,}" in str(table)
    with pytest.raises(DoesNotFit, match="fits jetson-nano at none of the batches"):
        predict_batches(job, machine, wt.Strategy(inference=True), (50_000_000,))


def test_batches_are_read_in_rising_order() -> None:
    assert parse_batches("64, 1,8,8") == (1, 8, 64)
    for text in ("", "0", "1,x", "-3", "1.5"):
        with pytest.raises(BadInput, match="must be whole numbers"):
            parse_batches(text)


# Learning


def run(label: str, seconds: float | None) -> LearnedRun:
    return LearnedRun(
        label=label, is_base=False, epochs=3, seconds=9.0, best=0.9, loss=0.1, target_seconds=seconds
    )


def test_a_factor_of_learning_is_clear_only_beyond_the_difference_of_two_seeds() -> None:
    runs = (run("a", 2.0), run("b", 3.0))
    assert LearnedFactor(name="nodes", runs=runs, noise=1.4).is_clear
    assert not LearnedFactor(name="nodes", runs=runs, noise=1.6).is_clear
    assert LearnedFactor(name="nodes", runs=runs, noise=1.6).ratio == 1.5
    missed = LearnedFactor(name="nodes", runs=(*runs, run("c", None)), noise=1.6)
    assert missed.is_clear and missed.ratio == 1.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at it is a millisecond later: a busy machine ends as many epochs as a quiet one."""
    looks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: 0.001 * next(looks))


def test_small_runs_are_really_trained_within_the_time(clock: None) -> None:
    found = learn_factors(wt.Workload.named("ffn"), LearnOptions(seconds=2.0), lambda text: None)
    by_name = {factor.name: factor for factor in found}
    assert set(by_name) == {"initial weights", "nodes", "layers"}
    weights = by_name["initial weights"]
    assert {run.label for run in weights.runs} == {"base", "0.001", "guide", "1"}
    assert weights.metric == "accuracy" and any(run.epochs > 0 for run in weights.runs)
    assert "one hidden layer" in by_name["layers"].reason


def test_a_target_that_no_run_reaches_is_no_error(clock: None) -> None:
    options = LearnOptions(seconds=0.7, until="accuracy=1.01")
    found = learn_factors(wt.Workload.named("ffn"), options, lambda text: None)
    weights = next(factor for factor in found if factor.name == "initial weights")
    assert weights.ratio is None and all(run.target_seconds is None for run in weights.runs)


def test_learning_needs_time_and_a_lesson() -> None:
    with pytest.raises(BadInput, match="more than 0 seconds"):
        LearnOptions(seconds=-1.0)
    with pytest.raises(BadInput, match="No epoch of gan ended"):
        learn_factors(wt.Workload.named("gan"), LearnOptions(seconds=1e-6), lambda text: None)
    with pytest.raises(BadInput, match="no data set to learn from"):
        learn_factors(wt.Workload.named("llm:gpt"), LearnOptions(), lambda text: None)
