"""Forecasts of a step: first the physical laws that every forecast obeys, then cases worked by hand."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
from conftest import fly
from torch import nn

import windtunnel as wt
from windtunnel.errors import BadInput, DoesNotFit, RateMissing
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.memory import account
from windtunnel.forecast.price import Pricer
from windtunnel.machine.machine import Link
from windtunnel.machine.profiles import profile_for
from windtunnel.results import PARTS
from windtunnel.trace import Op, Trace

SMALL = {"layers": (2048, 1024, 512)}
CASES = [
    ("rnn", "h200", wt.Strategy(), {}),
    ("rnn", "h200", wt.Strategy(execution="graph"), {}),
    ("rnn", "k80", wt.Strategy(data="streamed"), {}),
    ("rnn", "i7-3820", wt.Strategy(threads=1), {}),
    ("rnn", "h200", wt.Strategy(), {"variant": "module"}),
    ("fcn5", "k80", wt.Strategy(), SMALL),
    ("fcn5", "h200", wt.Strategy(precision="bf16", batch=512), SMALL),
    ("fcn5", "a100-80gb", wt.Strategy(precision="tf32", data="streamed", prefetch=1), SMALL),
    ("fcn5", "i7-3820", wt.Strategy(threads=4), SMALL),
    ("fcn5", "i7-3820", wt.Strategy(threads=8), SMALL),
]
every_case = pytest.mark.parametrize(("job", "machine", "strategy", "settings"), CASES)


@every_case
def test_the_parts_sum_to_the_step(
    job: str, machine: str, strategy: wt.Strategy, settings: dict[str, object]
) -> None:
    result = fly(job, machine, strategy, **settings)
    assert sum(result.parts.values()) == pytest.approx(result.step_seconds, rel=1e-9)
    assert set(result.parts) <= set(PARTS)
    assert result.bound_by == max(result.parts, key=lambda part: result.parts[part])


@every_case
def test_the_memory_parts_sum_to_the_peak(
    job: str, machine: str, strategy: wt.Strategy, settings: dict[str, object]
) -> None:
    memory = fly(job, machine, strategy, **settings).memory
    assert sum(memory.parts.values()) == pytest.approx(memory.peak_bytes)
    assert memory.total_bytes >= memory.peak_bytes


@every_case
def test_the_step_lies_inside_its_interval_and_is_no_faster_than_its_lanes(
    job: str, machine: str, strategy: wt.Strategy, settings: dict[str, object]
) -> None:
    result = fly(job, machine, strategy, **settings)
    assert 0 < result.low_seconds < result.step_seconds < result.high_seconds
    assert result.device_seconds is not None and result.step_seconds >= result.device_seconds * (1 - 1e-9)


@every_case
def test_a_faster_device_memory_or_link_never_makes_a_step_slower(
    job: str, machine: str, strategy: wt.Strategy, settings: dict[str, object]
) -> None:
    slow = wt.Machine.named(machine)
    device = slow.device
    faster_device = dataclasses.replace(
        device,
        flop_rates={k: 2 * v for k, v in device.flop_rates.items()},
        memory_rate=2 * (device.memory_rate or 0),
    )
    quick = dataclasses.replace(
        slow, device=faster_device, link=slow.link and dataclasses.replace(slow.link, rate=2 * slow.link.rate)
    )
    assert fly(job, quick, strategy, **settings).step_seconds <= fly(
        job, slow, strategy, **settings
    ).step_seconds * (1 + 1e-9)


@every_case
def test_a_faster_host_never_makes_a_step_slower(
    job: str, machine: str, strategy: wt.Strategy, settings: dict[str, object]
) -> None:
    slow = wt.Machine.named(machine)
    assert slow.launch_costs is not None
    quick = dataclasses.replace(slow, launch_costs=slow.launch_costs.scaled(0.5))
    assert fly(job, quick, strategy, **settings).step_seconds <= fly(
        job, slow, strategy, **settings
    ).step_seconds * (1 + 1e-9)


@every_case
def test_the_same_question_gets_the_same_answer_and_changes_nothing(
    job: str, machine: str, strategy: wt.Strategy, settings: dict[str, object]
) -> None:
    where, workload = wt.Machine.named(machine), wt.Workload.named(job, **settings)
    before = copy.deepcopy((where, strategy))
    assert wt.predict(workload, where, strategy) == wt.predict(workload, where, strategy)
    assert (where, strategy) == before


def test_a_small_recurrent_network_is_launch_bound_on_every_gpu() -> None:
    for machine in ("h200", "k80", "m2090", "rtx4090", "a100-80gb"):
        assert fly("rnn", machine, n_steps=100).bound_by == "launch"


def test_on_a_gpu_the_time_of_a_recurrent_network_is_flat_in_width_and_linear_in_timesteps() -> None:
    narrow, wide = (fly("rnn", "k80", n_rec=n).step_seconds for n in (10, 200))
    assert wide == pytest.approx(narrow, rel=0.05)
    ten, hundred = (fly("rnn", "k80", n_steps=n).step_seconds for n in (10, 100))
    assert 8 < hundred / ten <= 10


def test_a_cpu_wins_on_narrow_recurrent_networks_and_a_gpu_on_wide_ones() -> None:
    cpu = {n: fly("rnn", "macbook-2016", n_rec=n).step_seconds for n in (50, 5000)}
    gpu = {n: fly("rnn", "k80", n_rec=n).step_seconds for n in (50, 5000)}
    assert cpu[50] < gpu[50], (
        "a laptop beats the K80 on small networks (Brandfonbrener 2017, Figures 3 and 10)"
    )
    assert cpu[5000] > 3 * gpu[5000], "the K80 is far ahead at 5,000 (Brandfonbrener 2017, Figure 5)"


def test_input_and_output_sizes_hardly_matter_on_a_gpu() -> None:
    small, large = (fly("rnn", "k80", n_rec=500, n_in=n, n_out=n).step_seconds for n in (2, 100))
    assert large == pytest.approx(small, rel=0.05), "Brandfonbrener 2017, section 4.1.4"


def test_a_captured_graph_is_faster_if_launches_limit_the_step() -> None:
    assert (
        fly("rnn", "h200", wt.Strategy(execution="graph")).step_seconds
        < 0.5 * fly("rnn", "h200").step_seconds
    )


def test_more_threads_are_faster_up_to_the_physical_cores_and_slower_beyond() -> None:
    times = {n: fly("fcn5", "i7-3820", wt.Strategy(threads=n), **SMALL).step_seconds for n in (1, 2, 4, 8)}
    assert times[1] > times[2] > times[4], "Wuensche 2018, Table I"
    assert times[8] > times[4], "Wuensche 2018, section III.F: not more threads than physical cores"


def test_streaming_is_never_faster_than_resident_data_and_prefetch_is_never_slower() -> None:
    strategies = {
        "resident": {},
        "streamed": {"data": "streamed"},
        "prefetched": {"data": "streamed", "prefetch": 1},
    }
    seconds = {
        name: fly("fcn5", "k80", wt.Strategy(batch=256, **options), **SMALL).step_seconds
        for name, options in strategies.items()
    }  # type: ignore[arg-type]
    rounded = 1 + 1e-9
    assert seconds["resident"] <= seconds["prefetched"] * rounded < seconds["streamed"]


def test_a_streamed_batch_is_a_copy_over_the_link() -> None:
    machine = wt.Machine.named("k80")
    slow = dataclasses.replace(machine, link=Link(name="thin", rate=1e6))
    result = fly("fcn5", slow, wt.Strategy(batch=256, data="streamed"), **SMALL)
    assert result.bound_by == "copy"
    assert result.parts["copy"] == pytest.approx((256 * 2048 * 4 + 256 * 8) / 1e6)


@pytest.mark.parametrize(("machine", "variant"), [("h200", "module"), ("ice-lake-2-cores", "fused")])
def test_beyond_the_longest_probed_sequence_time_grows_in_proportion(machine: str, variant: str) -> None:
    """By differences, which are free of what a call costs at any length."""
    short, middle, long = (
        fly("rnn", machine, variant=variant, n_rec=50, n_steps=n).device_seconds or 0.0
        for n in (250, 1000, 2000)
    )
    assert (long - middle) / (middle - short) == pytest.approx(1000 / 750, rel=0.2)


def test_low_precision_is_faster_on_tensor_cores() -> None:
    seconds = [
        fly("fcn5", "h200", wt.Strategy(batch=8192, precision=p), **SMALL).step_seconds
        for p in ("fp32", "tf32", "bf16")
    ]  # type: ignore[arg-type]
    assert seconds[0] > seconds[1] and seconds[0] > seconds[2]


def test_more_memory_never_makes_a_case_stop_fitting(recorded: Callable[..., Trace]) -> None:
    steps = recorded("fcn5", "gpu", batch=64, **SMALL)
    machine = wt.Machine.named("k80")
    fits = [
        account(
            steps,
            dataclasses.replace(
                machine, device=dataclasses.replace(machine.device, memory_bytes=float(size))
            ),
            wt.Strategy(),
        ).fits
        for size in (1e7, 1e8, 8e8, 9e8, 1e9, 1e10)
    ]
    assert fits == sorted(fits) and fits[0] is False and fits[-1] is True


def test_a_job_that_does_not_fit_is_refused_with_its_parts_and_the_largest_batch_that_fits() -> None:
    job = wt.Workload.named("fcn5", layers=(4096, 1024, 64))
    tiny = wt.Machine.named("k80")
    tiny = dataclasses.replace(tiny, device=dataclasses.replace(tiny.device, memory_bytes=4e9))
    with pytest.raises(DoesNotFit) as caught:
        wt.predict(job, tiny, wt.Strategy(batch=1_000_000))
    assert "data" in str(caught.value) and "k80" in str(caught.value)
    found = re.search(r"Largest batch that fits: (\d+)", str(caught.value))
    assert found is not None
    largest = int(found[1])
    assert wt.predict(job, tiny, wt.Strategy(batch=largest)).memory.fits
    with pytest.raises(DoesNotFit):
        wt.predict(job, tiny, wt.Strategy(batch=int(largest * 1.05)))


def test_a_huge_batch_does_not_fit_on_any_device() -> None:
    with pytest.raises(DoesNotFit):
        wt.predict(wt.Workload.named("rnn", n_steps=2), wt.Machine.named("h200"), wt.Strategy(batch=2**40))


def test_an_op_of_an_unknown_family_is_priced_and_named() -> None:
    job = wt.Workload(
        name="odd",
        model=lambda: nn.Linear(64, 64),
        batch=lambda n: torch.randn(n, 64, 64),
        loss=lambda m, b: torch.linalg.inv_ex(m(b) + 100 * torch.eye(64))[0].sum(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    result = wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=8))
    cautions = [caution for caution in result.cautions if "aten.linalg_inv_ex" in caution]
    assert cautions and "%" in cautions[0]


def test_every_op_costs_host_time_and_every_op_but_a_view_costs_device_time(
    recorded: Callable[..., Trace],
) -> None:
    for target, machine in (("gpu", "h200"), ("cpu", "i7-3820")):
        steps = recorded("rnn", target)
        where = wt.Machine.named(machine)
        for op, price in zip(
            steps.ops, Pricer(where, wt.Strategy(), steps, profile_for(where)).price(steps.ops), strict=True
        ):
            assert price.host_seconds > 0
            assert price.device_seconds == 0 if op.family in ("view", "host") else price.device_seconds >= 0
            assert target == "cpu" or op.family in ("view", "host") or price.device_seconds > 0


def test_a_missing_rate_is_named_when_it_is_needed(recorded: Callable[..., Trace]) -> None:
    machine = wt.Machine.named("k80")
    no_rate = dataclasses.replace(machine, device=dataclasses.replace(machine.device, memory_rate=None))
    with pytest.raises(RateMissing, match=r"device\.memory_rate of k80"):
        forecast_step(recorded("rnn", "gpu"), no_rate, wt.Strategy(), profile_for(no_rate))
    no_link = dataclasses.replace(machine, link=None)
    with pytest.raises(RateMissing, match=r"link\.rate"):
        forecast_step(recorded("rnn", "gpu"), no_link, wt.Strategy(data="streamed"), profile_for(no_link))


def test_a_precision_without_a_stated_rate_gets_a_caution() -> None:
    result = fly("fcn5", "k80", wt.Strategy(precision="bf16"), **SMALL)
    assert any("bf16" in caution for caution in result.cautions)


def test_a_graph_needs_a_gpu_with_resident_data_and_idle_devices_get_a_caution() -> None:
    with pytest.raises(BadInput, match="GPU"):
        fly("rnn", "i7-3820", wt.Strategy(execution="graph"))
    with pytest.raises(BadInput, match="streamed"):
        fly("rnn", "h200", wt.Strategy(execution="graph", data="streamed"))
    idle = fly("rnn", "8xh200", wt.Strategy(data_parallel=2))
    assert any("2 of the 8 devices" in caution for caution in idle.cautions)


def one_op(family: str, *, flop: float, read: float, written: float, shape: tuple[int, ...]) -> Trace:
    op = Op(
        name="aten.case",
        family=family,
        phase="forward",
        dtype="fp32",
        flop=flop,
        read_bytes=read,
        written_bytes=written,
        shape=shape,
    )
    return Trace(
        job="case",
        batch=1,
        target="gpu",
        precision="fp32",
        ops=(op,),
        allocations={},
        held=(),
        batch_bytes=0,
        parameters=0,
        module_calls=0,
        nodes=0,
        backward_calls=0,
        update_calls=0,
        torch="",
    )


def test_a_large_streaming_op_reaches_most_of_the_memory_rate() -> None:
    """An H200 adds two tensors of 1 GB: it moves 3 GB, which takes 625 us at 4.8 TB/s. A device-to-device
    copy reaches nine tenths of that rate."""
    steps = one_op("streaming", flop=2.5e8, read=2e9, written=1e9, shape=(250_000_000, 0, 2))
    machine = wt.Machine.named("h200")
    price = Pricer(machine, wt.Strategy(), steps, profile_for(machine)).price(steps.ops)[0]
    assert 625e-6 <= price.device_seconds < 625e-6 / 0.8


def test_a_large_matrix_product_reaches_most_of_the_arithmetic_rate() -> None:
    """Two 4096 x 4096 matrices on an H200 in fp32: 137.4 GFLOP take 2.05 ms at 66.9 TFLOP/s. Libraries reach
    about three quarters of that rate."""
    steps = one_op(
        "matmul",
        flop=2 * 4096**3,
        read=2 * 4 * 4096**2,
        written=4 * 4096**2,
        shape=(1, 4096, 4096, 4096, 0, 0),
    )
    machine = wt.Machine.named("h200")
    price = Pricer(machine, wt.Strategy(), steps, profile_for(machine)).price(steps.ops)[0]
    assert 2.05e-3 <= price.device_seconds < 2.05e-3 / 0.6


def test_on_a_cpu_the_work_of_modules_comes_on_top_of_an_op() -> None:
    """An op's own time holds its launch. The calls of modules, here 1 ms, are beside it."""
    steps = one_op("streaming", flop=1e6, read=8e6, written=4e6, shape=(1_000_000, 0, 2))
    machine = wt.Machine.named("ice-lake-2-cores")
    assert machine.launch_costs is not None
    calls = round(1e-3 / machine.launch_costs.module_seconds)

    def seconds(trace: Trace) -> float:
        price = Pricer(machine, wt.Strategy(), trace, profile_for(machine)).price(trace.ops)[0]
        return price.host_seconds + price.device_seconds

    within = dataclasses.replace(steps, module_calls=calls)
    assert seconds(steps) > 1e-4
    assert seconds(within) - seconds(steps) == pytest.approx(1e-3, rel=0.01)


def test_an_op_far_outside_the_probed_sizes_gets_a_caution() -> None:
    job = wt.Workload(
        name="huge",
        model=lambda: nn.Linear(60000, 60000, bias=False),
        batch=lambda n: torch.randn(n, 60000),
        loss=lambda m, b: m(b).sum(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    cautions = wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=4096)).cautions
    assert any(
        "larger or smaller than anything that was probed" in caution and "aten.mm" in caution
        for caution in cautions
    )


def test_the_memory_peak_by_hand() -> None:
    """A layer of 1000 x 1000 without bias, trained by SGD on 100 examples: weights 4 MB, gradients 4 MB,
    batch 0.4 MB."""
    job = wt.Workload(
        name="layer",
        model=lambda: nn.Linear(1000, 1000, bias=False),
        batch=lambda n: torch.randn(n, 1000),
        loss=lambda m, b: m(b).sum(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    memory = wt.predict(job, wt.Machine.named("macbook-2016"), wt.Strategy(batch=100)).memory
    assert memory.parts["weights"] == pytest.approx(4e6, rel=1e-3)
    assert memory.parts["data"] == pytest.approx(4e5, rel=1e-3)
    assert 8e6 <= memory.peak_bytes - memory.parts["fragmentation"] <= 9.3e6


@pytest.mark.parametrize(("job", "machine"), [("rnn", "h200"), ("rnn", "i7-3820")])
def test_a_printed_forecast_equals_its_golden_output(
    job: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    monkeypatch.setenv("COLUMNS", "110")
    path = Path(__file__).parent / "golden" / f"{job}-{machine}.txt"
    text = str(fly(job, machine, n_rec=50, n_steps=100)) + "\n"
    assert text == path.read_text()
