"""Which factor matters most: physical questions first, then a tornado worked by hand, the contract of all
factors, and the size table over all networks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

import windtunnel as wt
from windtunnel import networks
from windtunnel.errors import BadInput, DoesNotFit, UnknownName
from windtunnel.influence import factors as registry
from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, VariedStep
from windtunnel.influence.effects import SAME_MACHINE_SPREAD, FactorInfluence, ranked
from windtunnel.influence.factors.device import best_of_generations
from windtunnel.influence.interactions import Interaction
from windtunnel.influence.order import order_of
from windtunnel.influence.result import Influence
from windtunnel.influence.setup import VariedForecasts, VariedSetup
from windtunnel.influence.sizes import ROLES, Size, networks_of_task, size_of, table
from windtunnel.influence.survey import FactorOptions
from windtunnel.influence.tornado import draw_bar

SMALL_RNN = {"n_rec": 20, "n_steps": 8}


def setup(job: str, machine: str, strategy: wt.Strategy | None = None, **settings: object) -> VariedSetup:
    return VariedSetup(
        job=wt.Workload.named(job, **settings),
        machine=wt.Machine.named(machine),
        strategy=strategy or wt.Strategy(),
    )


@functools.cache
def survey(job: str = "rnn", machine: str = "k80", only: str = "", batch: int | None = None) -> Influence:
    settings = SMALL_RNN if job == "rnn" else {}
    return wt.factors(
        wt.Workload.named(job, **settings),
        wt.Machine.named(machine),
        wt.Strategy(batch=batch),
        FactorOptions(only=tuple(only.split(",")) if only else ()),
    )


def factor_named(found: Influence, name: str) -> FactorInfluence:
    return next(factor for factor in found.factors if factor.name == name)


# Physics


@pytest.mark.parametrize("machine", ["k80", "i7-3820"])
def test_more_timesteps_are_never_faster(machine: str) -> None:
    steps = factor_named(survey("rnn", machine), "timesteps").steps
    in_order = sorted(steps, key=lambda step: int(step.label))
    times = [step.example_seconds for step in in_order]
    assert times == sorted(times) and len(times) == 3


@pytest.mark.parametrize("machine", ["k80", "i7-3820"])
def test_a_larger_batch_never_takes_less_time_for_the_step(machine: str) -> None:
    """Learned slowdowns of the smallest ops differ by up to 3 % from one batch to the next, either way."""
    steps = sorted(factor_named(survey("rnn", machine), "batch").steps, key=lambda step: int(step.label))
    times = [step.step_seconds or 0.0 for step in steps]
    assert len(times) >= 3 and all(two >= 0.97 * one > 0 for one, two in itertools.pairwise(times))


@pytest.mark.parametrize("name", ["ffn", "rnn", "lstm", "dcn", "vae"])
def test_doubling_the_width_never_reduces_memory(name: str) -> None:
    base = setup(name, "i7-3820")
    size = size_of(base.job, "width")
    assert isinstance(size, Size)
    forecaster = VariedForecasts()
    wide = base.with_settings(**size.scaled(2.0)[1])
    narrow, large = (forecaster.forecast(each).memory.peak_bytes for each in (base, wide))
    assert large >= narrow


@pytest.mark.parametrize("job", ["ffn", "rnn", "dcn", "resnet18"])
@pytest.mark.parametrize("machine", ["h200", "raspberry-pi-5", "jetson-nano"])
def test_inference_is_never_slower_than_training_of_the_same_batch(job: str, machine: str) -> None:
    forecaster, base = VariedForecasts(), setup(job, machine, wt.Strategy(batch=4))
    used = base.with_strategy(inference=True)
    assert forecaster.forecast(used).step_seconds <= forecaster.forecast(base).step_seconds


@pytest.mark.parametrize("board", ["raspberry-pi-4", "raspberry-pi-5"])
@pytest.mark.parametrize("job", ["ffn", "rnn", "lstm", "dcn", "resnet18"])
@pytest.mark.parametrize("batch", [1, 32])
def test_a_raspberry_pi_is_never_faster_than_the_desktop_of_the_guide(
    board: str, job: str, batch: int
) -> None:
    small, desktop = _cpu_forecasts(job, batch, (board, "i7-3820"))
    assert small >= desktop


@functools.cache
def _forecaster() -> VariedForecasts:
    return VariedForecasts()


def _cpu_forecasts(job: str, batch: int, machines: Sequence[str]) -> list[float]:
    strategy = wt.Strategy(batch=batch, inference=True)
    return [_forecaster().forecast(setup(job, name, strategy)).step_seconds for name in machines]


def test_a_board_never_computes_faster_than_its_roofline() -> None:
    for name in ("jetson-nano", "jetson-orin-nano", "jetson-orin", "raspberry-pi-4", "raspberry-pi-5"):
        base = setup("resnet18", name, wt.Strategy(batch=1, inference=True, precision="fp32"))
        forecast = _forecaster().forecast(base)
        assert forecast.flop / forecast.step_seconds <= base.machine.device.flop_rates["fp32"], name
        assert forecast.high_seconds / forecast.low_seconds > 1.4, name
        assert any("was not probed" in caution for caution in forecast.cautions), name


def test_boards_with_a_host_of_their_own_launch_more_slowly_than_the_reference_host() -> None:
    nano, h200 = wt.Machine.named("jetson-nano"), wt.Machine.named("h200")
    assert nano.launch_costs is not None and h200.launch_costs is not None
    assert nano.launch_costs.node_seconds > h200.launch_costs.node_seconds


def test_energy_and_price_are_proportional_to_the_time_of_one_device() -> None:
    found = wt.factors(
        wt.Workload.named("rnn", **SMALL_RNN),
        wt.Machine.named("k80"),
        options=FactorOptions(only=("timesteps",), prices={"": 2.0}),
    )
    factor = found.factors[0]
    ratios = [factor.effect(measure).ratio for measure in ("time", "energy", "price")]  # type: ignore[union-attr]
    assert ratios == pytest.approx([ratios[0]] * 3)


def test_two_devices_cost_twice_what_one_does_in_the_same_time() -> None:
    found = wt.factors(
        wt.Workload.named("ffn"),
        wt.Machine.named("h200"),
        wt.Strategy(batch=64),
        FactorOptions(only=("devices",), prices={"h200": 3.6}),
    )
    for step in found.factors[0].steps:
        count = int(step.label)
        assert step.price == pytest.approx(step.example_seconds * count * 3.6 / 3600)


# Worked by hand


def step(label: str, seconds: float, **fields: object) -> VariedStep:
    given: dict[str, object] = {"low_seconds": seconds / 1.2, "high_seconds": seconds * 1.2, "is_base": False}
    return VariedStep(label=label, example_seconds=seconds, **{**given, **fields})  # type: ignore[arg-type]


def influence_of(name: str, *steps: VariedStep, group: str = "network") -> FactorInfluence:
    return FactorInfluence(name=name, group=group, steps=steps)  # type: ignore[arg-type]


def test_the_ratio_of_a_factor_is_its_largest_over_its_smallest_value() -> None:
    """Values 2, 8 and 4: the ratio is 8 / 2 = 4, within 4 / 1.16 = 3.448 and 4 x 1.16 = 4.64."""
    effect = influence_of("width", step("1", 2.0), step("2", 8.0), step("3", 4.0)).effect()
    assert effect is not None
    assert (effect.ratio, effect.least.label, effect.most.label) == (4.0, "1", "2")
    assert effect.low == pytest.approx(4 / SAME_MACHINE_SPREAD)
    assert effect.high == pytest.approx(4 * SAME_MACHINE_SPREAD)
    assert effect.is_clear


def test_the_errors_of_two_machines_are_independent() -> None:
    """Each is within a factor of 1.2: the ratio within exp(sqrt(2) x ln 1.2) = 1.294."""
    effect = influence_of("device", step("a", 1.0, machine="a"), step("b", 3.0, machine="b")).effect()
    assert effect is not None
    assert effect.low == pytest.approx(3 / 1.2 ** math.sqrt(2))


def test_a_factor_with_one_value_has_influence_1() -> None:
    same = influence_of("batch", step("1", 2.0), step("2", 2.0)).effect()
    assert same is not None
    assert same.ratio == 1.0 and not same.is_clear
    assert influence_of("batch", step("1", 2.0)).effect() is None


def test_a_ratio_whose_interval_covers_1_is_no_clear_effect() -> None:
    effect = influence_of("prefetch", step("0", 1.10), step("2", 1.0)).effect()
    assert effect is not None and not effect.is_clear and effect.low == 1.0


def test_the_ranking_does_not_depend_on_the_order_of_the_factors() -> None:
    some = [
        influence_of("a", step("1", 1.0), step("2", 3.0)),
        influence_of("b", step("1", 1.0), step("2", 3.0)),
        influence_of("c", step("1", 1.0), step("2", 1.05)),
        influence_of("d", step("1", 1.0), step("2", 9.0)),
    ]
    names = {tuple(f.name for f in ranked(order)) for order in itertools.permutations(some)}
    assert names == {("d", "a", "b", "c")}


def test_clear_effects_come_before_larger_ones_that_may_be_none() -> None:
    wide = step("1", 1.0, machine="a", low_seconds=0.1, high_seconds=10.0)
    unclear = influence_of("device", wide, step("2", 5.0, machine="b"))
    clear = influence_of("width", step("1", 1.0), step("2", 1.5))
    assert [factor.name for factor in ranked([unclear, clear])] == ["width", "device"]


def test_a_bar_lies_on_a_logarithmic_scale_with_a_mark_at_the_base() -> None:
    """From 1 to 16 in nine columns each doubling is two columns: 1 is column 0, 2 column 2, 4 column 4."""
    assert draw_bar((1.0, 4.0), 2.0, (1.0, 16.0), width=9) == "██|██    "
    assert draw_bar((4.0, 16.0), 2.0, (1.0, 16.0), width=9) == "  | █████"
    assert draw_bar((1.0, 1.0), 1.0, (1.0, 1.0), width=3) == "|  "


def test_two_factors_that_multiply_do_not_interact() -> None:
    """2 x 2: 1, 2, 3 and both together 6 = 2 x 3."""
    times = {"base_seconds": 1.0, "first_seconds": 2.0, "second_seconds": 3.0}
    pair = Interaction(first="a", second="b", first_label="x", second_label="y", **times, both_seconds=6.0)
    assert pair.ratio == 1.0 and pair.reading().endswith("they do not interact")
    more = dataclasses.replace(pair, both_seconds=9.0)
    assert more.ratio == 1.5 and more.reading().endswith("together they cost more than the product")
    gain = dataclasses.replace(pair, first_seconds=0.5, second_seconds=0.5, both_seconds=0.5)
    assert gain.ratio == 2.0 and gain.reading().endswith("together they gain less than the product")


def test_the_guides_order_needs_intervals_that_do_not_overlap() -> None:
    network = influence_of("width", step("1", 1.0), step("2", 9.0))
    unit = influence_of("device", step("1", 1.0), step("2", 4.0), group="processing unit")
    flow = influence_of("prefetch", step("1", 1.0), step("2", 2.0), group="data flow")
    assert order_of([network, unit, flow]).ruling == "holds"
    assert order_of([flow, network, unit]) == order_of([network, unit, flow])
    near = influence_of("prefetch", step("1", 1.0), step("2", 3.8), group="data flow")
    assert order_of([network, unit, near]).ruling == "can't tell"
    far = influence_of("prefetch", step("1", 1.0), step("2", 30.0), group="data flow")
    assert order_of([network, unit, far]).ruling == "does not hold"
    assert order_of([network]).ruling == "not asked here"


# The contract of all factors

SETUPS = (
    setup("rnn", "k80", **SMALL_RNN),
    setup("ffn", "i7-3820", wt.Strategy(threads=2)),
    setup("dcn", "4xh100", wt.Strategy(batch=64)),
    setup("ffn", "h200", wt.Strategy(batch=64, data="storage", loaders=2)),
    setup("ffn", "h200", wt.Strategy(execution="graph")),
    setup("ffn", "h200", wt.Strategy(inference=True)),
)


@pytest.mark.parametrize("base", SETUPS, ids=lambda base: f"{base.job.name}-{base.machine.name}")
@pytest.mark.parametrize("factor", registry.every(), ids=lambda factor: factor.name)
def test_every_factor_keeps_its_contract(factor: InfluenceFactor, base: VariedSetup) -> None:
    assert factor.name and factor.what
    assert factor.group in ("network", "processing unit", "data flow", "execution")
    before = dataclasses.replace(base)
    for each in factor.vary(base):
        if isinstance(each, CannotVary):
            assert each.name == factor.name and len(each.reason) > 10 and not each.reason.endswith(".")
            continue
        labels = [variant.label for variant in each.variants]
        assert len(labels) == len(set(labels)) >= 2
        assert sum(variant.is_base for variant in each.variants) <= 1
        for variant in each.variants:
            changed = variant.change(base)
            if variant.is_base and variant.stated is None:
                assert changed.job.origin == base.job.origin and changed.machine.name == base.machine.name
                assert (changed.strategy.batch or base.batch) == base.batch
    assert base == before


def test_every_file_of_a_factor_is_registered() -> None:
    folder = Path(registry.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert len(files) == len(registry.every())


def test_a_machine_with_several_devices_has_an_exchange() -> None:
    found = survey("dcn", "4xh100", "exchange,devices", 64)
    assert {step.label for step in factor_named(found, "exchange").steps} >= {"buckets", "after"}
    counts = {int(step.label) for step in factor_named(found, "devices").steps}
    assert counts == {1, 2, 4, 8}


def test_there_is_one_gpu_for_each_generation_from_old_to_new() -> None:
    best = best_of_generations()
    capabilities = [machine.device.compute_capability or 0.0 for machine in best]
    assert capabilities == sorted(capabilities) and len(best) >= 6


# The table of sizes


@pytest.mark.parametrize("name", networks.names())
@pytest.mark.parametrize("role", ROLES)
def test_every_network_states_each_size_or_why_it_has_none(name: str, role: str) -> None:
    size = size_of(wt.Workload.named(name), role)  # type: ignore[arg-type]
    if isinstance(size, CannotVary):
        assert size.reason.startswith(f"{name}: ")
        return
    for factor in (0.5, 2.0):
        label, settings = size.scaled(factor)
        assert set(settings) <= {field.name for field in dataclasses.fields(networks.named(name).settings)}
        if label != size.label:
            wt.Workload.named(name, **settings)  # the network accepts it


def test_the_table_has_all_networks_and_no_others() -> None:
    assert set(table()) == set(networks.names())


@pytest.mark.parametrize("name", ["rnn", "lstm", "gpt2", "bert", "recursive"])
def test_networks_for_sequences_have_a_length_and_longer_examples_have_more_flop(name: str) -> None:
    small = {"size": "tiny"} if name in ("gpt2", "bert") else {}
    base = setup(name, "i7-3820", wt.Strategy(batch=2), **small)
    size = size_of(base.job, "length")
    assert isinstance(size, Size)
    short = base.with_settings(**size.scaled(0.5)[1])
    assert _forecaster().trace_of(short).flop < _forecaster().trace_of(base).flop


def test_networks_of_one_task_can_replace_each_other() -> None:
    assert set(networks_of_task("alexnet")) >= {
        "alexnet",
        "googlenet",
        "vgg16",
        "resnet18",
        "resnet50",
        "vit",
    }
    assert networks_of_task("rnn") == ("rnn",)
    for name in networks.names():
        assert name in networks_of_task(name)


USERS_JOB = """
import torch
import windtunnel as wt


def build(width: int = 16, layers: int = 2, heads: int = 4, name: str = "mine"):
    def model():
        return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

    return wt.Workload(
        name=name,
        model=model,
        batch=lambda n: (torch.randn(n, width),),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        default_batch=8,
    )
"""


def test_numbers_of_a_users_function_are_factors(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(USERS_JOB)
    found = wt.factors(
        wt.Workload.named(f"{path}:build"),
        wt.Machine.named("i7-3820"),
        options=FactorOptions(only=("depth", "width", "settings", "timesteps", "network")),
    )
    labels = {factor.name: {step.label for step in factor.steps} for factor in found.factors}
    assert labels["depth"] == {"1", "2", "4"} and labels["width"] == {"8", "16", "32"}
    assert "setting heads" in labels and "setting name" not in labels
    assert not factor_named(found, "setting heads").effect().is_clear  # type: ignore[union-attr]
    reasons = {each.name: each.reason for each in found.missing}
    assert "build() has no whole number parameter" in reasons["timesteps"] and "network" in reasons


def test_sizes_of_language_models_and_libraries_are_known() -> None:
    width = size_of(wt.Workload.named("llm:llama", inner=2048), "width")
    assert isinstance(width, Size)
    assert width.scaled(2.0)[1] == {"width": 1536, "inner": 4092}
    reason = size_of(wt.Workload.named("llm:gpt"), "image")
    assert isinstance(reason, CannotVary)


# What cannot be asked


def test_an_unknown_factor_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="'devise'"):
        registry.chosen(("devise",))


def test_nothing_to_vary_is_an_error_with_reasons() -> None:
    with pytest.raises(BadInput, match="No factor of rnn can be varied"):
        wt.factors(
            wt.Workload.named("rnn"), wt.Machine.named("i7-3820"), options=FactorOptions(only=("image-size",))
        )


def test_a_job_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(DoesNotFit, match="Largest batch that fits"):
        wt.factors(wt.Workload.named("ffn"), wt.Machine.named("gtx1080"), wt.Strategy(batch=100_000_000))


def test_a_value_that_does_not_fit_is_left_out_and_named() -> None:
    found = wt.factors(
        wt.Workload.named("resnet18"),
        wt.Machine.named("gtx1080"),
        wt.Strategy(batch=160),
        FactorOptions(only=("batch",)),
    )
    factor = factor_named(found, "batch")
    assert "1280: does not fit" in factor.left_out
    assert all(int(step.label) < 1280 for step in factor.steps)


def test_a_survey_changes_none_of_its_inputs() -> None:
    job, machine, strategy = wt.Workload.named("ffn"), wt.Machine.named("t4"), wt.Strategy(batch=8)
    before = (job.origin, dataclasses.replace(machine), dataclasses.replace(strategy))
    wt.factors(job, machine, strategy, FactorOptions(only=("batch", "data-place", "device")))
    assert (job.origin, machine, strategy) == before


def test_the_base_of_every_factor_is_the_same_forecast() -> None:
    found = survey("rnn", "k80")
    seconds = found.base.step_seconds / found.base.batch
    bases = [factor.base for factor in found.factors]
    assert all(base.example_seconds == pytest.approx(seconds) for base in bases if base is not None)
    assert sum(base is not None for base in bases) >= 5


def test_the_result_fits_80_columns_and_names_what_was_left_out() -> None:
    found = survey("rnn", "k80")
    lines = found.lines(80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "--learn" in text and "network: no other built-in network" in text and "|" in text


def test_ranges_of_one_factor_have_stated_times_or_forecasts_not_both() -> None:
    given = next(f for f in registry.every() if f.name == "framework").vary(setup("fcn5", "i7-3820"))[0]
    assert isinstance(given, FactorRange)
    assert {v.label for v in given.variants} == {"caffe", "tensorflow", "torch7"}
    times = {v.label: v.stated.example_seconds for v in given.variants if v.stated}
    assert times["torch7"] == pytest.approx(0.423 / 64)  # 4 threads, as the i7-3820 has cores
