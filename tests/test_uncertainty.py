"""How far a forecast may be off: what must hold of any interval, then cases worked by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from conftest import fly

import windtunnel as wt
from windtunnel.accuracy.runs import added_by_workers
from windtunnel.families import Piece
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.links import PEER
from windtunnel.forecast.price import PricedPiece, Timed
from windtunnel.forecast.schedule import DEVICE, HOST, LaneTask, StepBuilder
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.forecast.uncertainty import Spreads, device_spread, interval_of, spreads_of
from windtunnel.machine.machine import names
from windtunnel.machine.profiles import profile_for

H200 = wt.Machine.named("h200")
GPUS = [name for name in names() if wt.Machine.named(name).device.kind == "gpu"]
UNPROBED = [name for name in GPUS if name not in ("h200", "h100", "h100-pcie")]
PLAIN = wt.Strategy(batch=64, precision="fp32")


def piece(number: int = 0, spread: float = 1.2, **known: float) -> PricedPiece:
    """A piece of one second; `number` tells different pieces apart."""
    work = Piece("streaming", (float(number),), 1.0, 1.0, "fp32")
    return PricedPiece(work, Timed(1.0, **known), spread)


def timeline_of(*tasks: LaneTask) -> Timeline:
    """Tasks that wait for each other in turn."""
    step = StepBuilder()
    for number, task in enumerate(tasks):
        step.add(task, after=(number - 1,) if number else ())
    return steady_timeline(step.build())


def test_more_different_pieces_never_widen_the_spread_of_the_same_time() -> None:
    spreads = [device_spread([(piece(n), 1) for n in range(count)], 1.1) for count in (1, 2, 4, 16, 256)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] > 1.1, "what all kernels share does not even out"


def test_the_same_piece_many_times_has_one_error() -> None:
    once, often = (device_spread([(piece(), count)], 1.1) for count in (1, 100))
    apart = device_spread([(piece(), 1), (piece(), 1)], 1.1)
    assert once == pytest.approx(often) == pytest.approx(apart)


def test_work_whose_limit_carries_over_badly_widens_the_spread() -> None:
    spreads = [device_spread([(piece(weak_share=share), 1)], 1.1) for share in (0.0, 0.3, 1.0)]
    assert spreads[0] < spreads[1] < spreads[2]


def test_products_seen_in_long_runs_narrow_the_spread() -> None:
    known, not_known = (piece(number=1, is_sustained=is_sustained) for is_sustained in (True, False))
    assert device_spread([(piece(), 1), (known, 1)], 1.1) < device_spread([(piece(), 1), (not_known, 1)], 1.1)


def test_a_step_without_work_on_the_device_has_the_common_spread() -> None:
    assert device_spread([], 1.1) == 1.1


@pytest.mark.parametrize("name", UNPROBED)
def test_a_gpu_that_was_not_probed_is_never_known_better_than_the_probed_one(name: str, recorded) -> None:
    """Of a step without products whose rate was seen in long runs."""
    trace, machine = recorded("resnet18", "gpu", batch=64), wt.Machine.named(name)
    own, probed = (
        forecast_step(trace, each, PLAIN, profile_for(each)).timeline.spreads["device"]
        for each in (machine, H200)
    )
    assert own > probed > 1


@pytest.mark.parametrize(("name", "unprobed"), [("h200", 1.34), ("rtx3090", 1.6), ("a100-80gb", 1.6)])
def test_a_host_bound_step_has_the_spread_of_the_host(name: str, unprobed: float) -> None:
    """Launch costs are those of a host of an H200: 1.2 of a probe and 1.26 from day to day, in squares."""
    forecast = fly("rnn", wt.Machine.named(name))
    assert forecast.high_seconds / forecast.step_seconds == pytest.approx(unprobed, rel=0.02)
    probed = fly("rnn", wt.Machine.named(name).with_host_factor(1.0))
    assert probed.step_seconds == forecast.step_seconds
    assert probed.high_seconds / probed.step_seconds == pytest.approx(1.2, rel=0.02)


def test_a_host_factor_that_is_known_better_narrows_a_host_bound_step() -> None:
    known = fly("rnn", H200.with_host_factor(1.0, spread=1.05))
    assert known.high_seconds / known.step_seconds == pytest.approx(1.05, rel=0.02)
    assert H200.with_host_factor(1.0, spread=1.05).with_host_factor(2.0).host_spread is None


@pytest.mark.parametrize("form", [{}, {"accumulate": 8}, {"accumulate": 8, "pipeline_parallel": 2}])
def test_folded_micro_batches_keep_the_lanes_that_they_are_made_of(form: dict[str, int]) -> None:
    """Tiny layers: the host is the limit, whether its launches are folded or not."""
    job = wt.Workload.named("llm:gpt", layers="4", width="64", heads="4", length="32", vocabulary="256")
    forecast = wt.predict(job, wt.Machine.named("2xa100-80gb"), wt.Strategy(batch=16, **form))
    assert forecast.parts["launch"] > 0.5 * forecast.step_seconds
    assert 1.4 < forecast.high_seconds / forecast.step_seconds < 1.601


def test_two_causes_by_hand() -> None:
    """Half of the time each, 1.2 and 1.3 wide, in common 1.1: the root of the sum of squares."""
    work = [(piece(0, spread=1.2), 1), (piece(1, spread=1.3), 1)]
    square = math.log(1.1) ** 2 + (0.5 * math.log(1.2)) ** 2 + (0.5 * math.log(1.3)) ** 2
    assert math.log(device_spread(work, 1.1)) == pytest.approx(math.sqrt(square))


def test_a_device_and_a_link_by_hand() -> None:
    """3 s on a device, 10 % either way, then 4 s on a link, 12 %: their shifts add."""
    folded = LaneTask(DEVICE, 4.0, "communication", limited_by=PEER)
    timeline = timeline_of(LaneTask(DEVICE, 3.0, "compute"), folded)
    low, high = interval_of(timeline, H200, Spreads(host=1.2, device=1.1, copy=1.1))
    assert (low, high) == pytest.approx((3 / 1.1 + 4 / 1.12, 3 * 1.1 + 4 * 1.12))


def test_a_host_and_a_device_that_take_turns_by_hand() -> None:
    """2 s of launching, 20 % either way, and 3 s of kernels, 10 %: their shifts add."""
    timeline = timeline_of(LaneTask(HOST, 2.0, "launch"), LaneTask(DEVICE, 3.0, "compute"))
    path = timeline.critical_path()
    spreads = Spreads(host=1.2, device=1.1, copy=1.1)
    expected = sum(seconds * spreads.of(lane) for (_, lane), seconds in path.items())
    assert interval_of(timeline, H200, spreads)[1] == pytest.approx(expected)


def test_folded_work_counts_for_the_lane_that_limits_it() -> None:
    tasks = (LaneTask(DEVICE, 1.0, "launch", limited_by="host"), LaneTask(DEVICE, 3.0, "compute"))
    assert timeline_of(*tasks).critical_path() == {("launch", "host"): 1.0, ("compute", "device"): 3.0}


def test_where_the_work_is_not_known_a_gpu_that_was_not_probed_is_wider() -> None:
    spreads = [spreads_of(wt.Machine.named(name), profile_for(H200)).device for name in ("h200", "rtx3090")]
    assert 1 < spreads[0] < spreads[1] < 1.3


def test_which_kernel_runs_does_not_matter_where_one_slow_unit_decides() -> None:
    """The errors of kinds of work count nothing then; what all kernels share stays."""
    fp64, fp32 = piece(is_one_unit=True), piece()
    assert device_spread([(fp64, 1)], 1.1) == pytest.approx(1.1)
    assert device_spread([(fp64, 1)], 1.1) < device_spread([(fp32, 1)], 1.1)


def test_a_probed_cpu_is_known_better_for_many_different_ops_than_for_one(recorded) -> None:
    """Launches have the spread of the host, ops that of their kinds, and both are one processor's time."""
    machine = wt.Machine.named("epyc-turin-2-cores")
    profile = profile_for(machine)
    step = forecast_step(recorded("resnet18", "cpu", batch=4), machine, wt.Strategy(batch=4), profile)
    spreads, forecast = step.timeline.spreads, step.forecast
    assert profile.device_spread < spreads["device"] < spreads["host"]
    assert forecast.step_seconds * spreads["device"] < forecast.high_seconds
    assert forecast.high_seconds < forecast.step_seconds * spreads["host"]


def test_what_workers_add_to_a_known_step_by_hand() -> None:
    """They add 4 s of the network and hide 2 s of the device. Slow: the network takes 4 x 2 = 8 s, and a
    device that is faster by 1.25 hides 2 / 1.25 = 1.6 s. Fast: 2 s, and a slower device hides 2.5 s."""

    def step(seconds: float, path: dict[tuple[str, str], float]) -> SimpleNamespace:
        timeline = SimpleNamespace(critical_path=lambda: path, spreads={"device": 1.25, "network": 2.0})
        return SimpleNamespace(forecast=SimpleNamespace(step_seconds=seconds), timeline=timeline)

    one = step(10.0, {("compute", "device"): 10.0})
    many = step(12.0, {("compute", "device"): 8.0, ("communication", "network"): 4.0})
    added = added_by_workers(one, many)
    assert added == pytest.approx((2.0, 2.0 - 2.5, 8.0 - 1.6))
