"""Advice: a contract asked of every rule, the arithmetic of gains, and the search."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
from pathlib import Path

import pytest

import windtunnel as wt
from windtunnel import prediction
from windtunnel.advice import engine
from windtunnel.advice.contract import AdviceRule, Proposal, Situation
from windtunnel.advice.gain import GainInterval, correlation, gain_of
from windtunnel.advice.machines import code_to
from windtunnel.advice.ratios import study_ratios
from windtunnel.advice.result import Advice
from windtunnel.advice.rules import RULES, optimizer
from windtunnel.advice.setups import Setup, StepChange
from windtunnel.advice.sizes import batch_that_fits
from windtunnel.advice.trials import Forecaster, LaneTime, TriedSetup
from windtunnel.calibration.case_sampler import all_weights
from windtunnel.errors import BadInput, UnknownName, WindtunnelError
from windtunnel.families import registry
from windtunnel.families.base import PlainOp
from windtunnel.feed.remedies import compare_remedies
from windtunnel.forecast.workers import spread_over
from windtunnel.isolation.jobs import Containment

SMALL = {"n_rec": 20, "n_steps": 5}
IMAGES = {"size": 64, "classes": 10}
STORED = wt.StoredData(example_bytes=110e3, decode_seconds=5e-3, examples=50_000)
# Kinds of situations: on a CPU, on a GPU, fed from storage, short of memory, several devices, inference.
SITUATIONS = {
    "small on a CPU": ("rnn", SMALL, "ice-lake-2-cores", {}),
    "small on a GPU": ("rnn", SMALL, "h200", {}),
    "images on a GPU": ("resnet18", IMAGES, "h200", {"batch": 64}),
    "fed from storage": ("resnet18", IMAGES, "h200", {"batch": 64, "data": "storage", "loaders": 1}),
    "streamed": ("resnet18", IMAGES, "gtx1080", {"batch": 64, "data": "streamed"}),
    "too large": ("resnet18", IMAGES, "gtx1080", {"batch": 8192}),
    "four devices": ("resnet18", IMAGES, "4xh200", {"batch": 256}),
    "inference": ("resnet18", IMAGES, "h200", {"batch": 8, "inference": True}),
}
PATIENT = 3600.0  # a busy machine must leave no proposal untried


def setup_of(name: str) -> Setup:
    job, settings, on, strategy = SITUATIONS[name]
    workload = wt.Workload.named(job, **settings)
    workload = dataclasses.replace(workload, data=STORED) if job != "rnn" else workload
    machine = wt.Machine.named(on)
    if strategy.get("data") == "storage":
        from windtunnel.cli.words import with_storage

        machine = with_storage(machine, "samsung-960-pro")
    return Setup(
        workload=workload,
        machine=machine,
        strategy=spread_over(wt.Strategy.read(strategy), machine),
        on=on,
    )


@functools.cache
def situation_of(name: str) -> Situation:
    base = Forecaster().forecast(setup_of(name))
    return Situation(setup=base.setup, forecast=base.forecast, trace=base.trace)


@functools.cache
def advice_for(name: str) -> Advice:
    setup = setup_of(name)
    options = wt.AdviceOptions(seconds=PATIENT, on=setup.on)
    return wt.advise(setup.workload, setup.machine, setup.strategy, options=options)


# The contract of all rules


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_proposes_whole_proposals_or_says_in_one_line_why_not(rule: AdviceRule, name: str) -> None:
    situation = situation_of(name)
    before = dataclasses.replace(situation.strategy)
    answer = rule.propose(situation)
    assert situation.strategy == before
    if isinstance(answer, str):
        assert answer and "\n" not in answer and not answer.endswith(".")
        return
    assert answer, "a rule without proposals says why"
    for proposal in answer:
        for field in ("name", "flag", "code", "reason", "costs", "source"):
            text = getattr(proposal, field)
            assert text and "\n" not in text, field
        assert len(proposal.name) <= 27, "a line of the table has 80 columns"
        assert any(letter.isdigit() for letter in proposal.reason), proposal.reason
        assert proposal.change.changed_names or proposal.quoted is not None
        assert set(proposal.change.strategy) <= {f.name for f in dataclasses.fields(wt.Strategy)}
        try:
            changed = proposal.change.applied_to(situation.setup)
        except WindtunnelError:
            continue
        same_machine = changed.machine == situation.machine
        assert same_machine or proposal.scope == "machine", "only other machines may change the machine"
        if proposal.scope == "step":
            assert changed.batch == situation.setup.batch


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_two_proposals_have_one_name(name: str) -> None:
    answers = [rule.propose(situation_of(name)) for rule in RULES]
    names = [proposal.name for answer in answers if isinstance(answer, tuple) for proposal in answer]
    assert len(names) == len(set(names))


def test_rules_have_names_of_their_own_and_say_what_they_are_about() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.about and "\n" not in rule.about for rule in RULES)


def test_a_thing_that_is_done_already_is_not_proposed_again() -> None:
    for name in ("images on a GPU", "fed from storage"):
        for suggestion in advice_for(name).suggestions:
            if suggestion.setup is None or suggestion.proposal.scope != "step":
                continue
            setup = suggestion.setup
            base = Forecaster().forecast(setup)
            again = Situation(setup=setup, forecast=base.forecast, trace=base.trace)
            rule = next(rule for rule in RULES if rule.name == suggestion.rule)
            answer = rule.propose(again)
            assert isinstance(answer, str) or suggestion.name not in [each.name for each in answer]


OPTIMIZER_JOB = """
import torch
import windtunnel as wt

def build():
    return wt.Workload(
        name="own",
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda n: torch.randn(n, 8),
        {rest}
    )
"""
OPTIMIZERS = {
    "torch.optim.Adam(params)": "fused-adam",
    "torch.optim.AdamW(params)": "fused-adamw",
    "torch.optim.Adam(params, fused=True)": "the optimizer is fused already",
    "torch.optim.NAdam(params)": "this job uses nadam",
    "": "this job uses several optimizers",
}


@pytest.mark.parametrize(("own", "expected"), OPTIMIZERS.items())
@pytest.mark.parametrize("isolated", [False, True])
def test_the_fused_form_is_that_of_the_own_optimizer_wherever_the_job_is(
    tmp_path: Path, own: str, expected: str, isolated: bool
) -> None:
    path = tmp_path / "own.py"
    loss = "loss=lambda model, x: model(x).square().mean()"
    several = "step=lambda model, x, all: None, optimizers=lambda model: {}"
    path.write_text(OPTIMIZER_JOB.format(rest=f"{loss}, optimizer=lambda params: {own}" if own else several))
    setup = dataclasses.replace(setup_of("small on a CPU"), workload=wt.Workload.named(f"{path}:build"))
    containment = Containment()
    if isolated:
        setup = dataclasses.replace(setup, workload=containment.take(setup.workload))
    try:
        answer = optimizer.RULE.propose(dataclasses.replace(situation_of("small on a CPU"), setup=setup))
    finally:
        containment.end()
    if isinstance(answer, str):
        assert expected in answer
    else:
        assert [dict(proposal.change.strategy) for proposal in answer] == [{"optimizer": expected}]
        assert f"torch.optim.{own.split('(')[0].split('.')[-1]}(" in answer[0].code


# Gains


def tried_with(lanes: dict[str, tuple[float, float]], setup: Setup | None = None) -> TriedSetup:
    """A step of stated lanes: seconds and spread of each."""
    setup = setup or setup_of("small on a GPU")
    situation = situation_of("small on a GPU")
    seconds = sum(each for each, _ in lanes.values())
    return TriedSetup(
        setup=setup,
        forecast=dataclasses.replace(situation.forecast, step_seconds=seconds, batch=1),
        lanes={name: LaneTime(seconds=s, spread=w) for name, (s, w) in lanes.items()},
        trace=situation.trace,
    )


def test_no_change_gains_nothing_and_is_sure() -> None:
    base = tried_with({"host": (2.0, 1.6), "device": (1.0, 1.2)})
    found = gain_of(base, base)
    assert (found.gain, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))


def test_the_gain_back_is_one_over_the_gain() -> None:
    a, b = tried_with({"host": (2.0, 1.6), "device": (1.0, 1.2)}), tried_with({"device": (1.5, 1.2)})
    there, back = gain_of(a, b), gain_of(b, a)
    assert there.gain * back.gain == pytest.approx(1.0)
    assert there.low * back.high == pytest.approx(1.0)


def test_errors_of_a_lane_that_both_have_cancel_and_those_of_one_side_do_not() -> None:
    # Both wait for the device alone: its error is in both. Then one of them waits for the link as well.
    device = tried_with({"device": (1.0, 1.3)})
    slower = tried_with({"device": (2.0, 1.3)})
    linked = tried_with({"device": (1.0, 1.3), "peer": (1.0, 1.3)})
    # Of the slower step's 2 s the other has 1: only the error of the further second is left.
    assert gain_of(device, slower).low == pytest.approx(0.5 / math.sqrt(1.3))
    found = gain_of(device, linked)
    # By hand: shares of the device 1 and 1/2, of the link 0 and 1/2. With s = ln 1.3 / 1.2816 the variance is
    # s^2 (1 + 1/4 - 2 x 1/2) + s^2 / 4 = s^2 / 2, so the reach is exp(ln 1.3 / sqrt 2).
    assert found.high / found.gain == pytest.approx(math.exp(math.log(1.3) / math.sqrt(2)))


def test_a_gain_by_fewer_calls_has_an_interval_though_calls_bound_both_steps() -> None:
    fewer, more = tried_with({"host": (1.0, 1.3)}), tried_with({"host": (1.1, 1.3)})
    found = gain_of(more, fewer)
    # By hand: 0.1 of 1.1 seconds are in one step only, with the error of a call.
    assert found.high / found.gain == pytest.approx(1.3 ** (0.1 / 1.1))


def test_a_host_that_hides_behind_the_device_counts_where_the_device_gets_faster() -> None:
    host = LaneTime(seconds=0.9, spread=1.5)
    slow, fast = tried_with({"device": (4.0, 1.1)}), tried_with({"device": (1.0, 1.1)})
    alone = gain_of(slow, fast)
    found = gain_of(dataclasses.replace(slow, host=host), dataclasses.replace(fast, host=host))
    # By hand: on a host half as slow again the fast step waits 1.35 s for launches, the slow one for nothing.
    assert alone.low > found.low == pytest.approx(4.0 / 1.35)
    assert (found.gain, found.high) == (alone.gain, alone.high)


def test_errors_of_other_number_formats_hardly_cancel_and_those_of_another_device_not_at_all() -> None:
    base = setup_of("small on a GPU")
    a = tried_with({"device": (1.0, 1.3)}, base)
    short = dataclasses.replace(base, strategy=dataclasses.replace(base.strategy, precision="tf32"))
    b = tried_with({"device": (1.0, 1.3)}, short)
    c = tried_with({"device": (1.0, 1.3)}, dataclasses.replace(base, machine=wt.Machine.named("t4")))
    captured = dataclasses.replace(base, strategy=dataclasses.replace(base.strategy, execution="graph"))
    d = tried_with({"device": (1.0, 1.3)}, captured)
    assert 1 == correlation(a, a) > correlation(a, d) > correlation(a, b) > correlation(a, c) == 0
    assert gain_of(a, d).high < gain_of(a, b).high < gain_of(a, c).high
    # Independent errors of two equal spreads: sqrt 2 times one of them.
    assert gain_of(a, c).high == pytest.approx(math.exp(math.sqrt(2) * math.log(1.3)))


def test_gains_compare_the_time_of_an_example() -> None:
    one = tried_with({"device": (1.0, 1.2)})
    many = dataclasses.replace(
        one, forecast=dataclasses.replace(one.forecast, step_seconds=2.0, batch=8), lanes=one.lanes
    )
    assert gain_of(one, many).gain == pytest.approx(4.0)


def test_a_gain_is_sure_if_its_interval_excludes_1() -> None:
    assert GainInterval(gain=1.5, low=1.1, high=2.0).is_sure
    assert not GainInterval(gain=1.5, low=0.9, high=2.0).is_sure


# The search


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_advised_helps_and_the_parts_together_help_at_least_as_much(name: str) -> None:
    advice = advice_for(name)
    for each in advice.suggestions:
        assert each.tried is None or each.tried.fits
        if advice.base.fits and each.proposal.goal == "faster":
            assert each.gain.gain >= (engine.LEAST_SURE_GAIN if each.gain.is_sure else engine.LEAST_GAIN)
    whole = advice.together
    if whole is None:
        return
    assert whole.tried.fits
    alone = [
        s for s in advice.suggestions if s.name in whole.names and s.tried and s.proposal.scope == "step"
    ]
    assert all(
        whole.tried.example_seconds <= each.tried.example_seconds * 1.001 for each in alone if each.tried
    )
    assert whole.gain.gain == pytest.approx(advice.base.example_seconds / whole.tried.example_seconds)


def test_a_combination_is_forecast_as_a_whole() -> None:
    whole = advice_for("images on a GPU").together
    assert whole is not None and len(whole.names) >= 2
    setup = whole.tried.setup
    again = wt.predict(setup.workload, setup.machine, setup.strategy)
    assert again.step_seconds == pytest.approx(whole.tried.forecast.step_seconds)
    assert again.memory.total_bytes == pytest.approx(whole.tried.forecast.memory.total_bytes)


@pytest.mark.parametrize("name", ["fed from storage", "four devices"])
def test_every_gain_is_that_of_predict(name: str) -> None:
    """Kept traces change no forecast."""
    advice = advice_for(name)
    for each in [*advice.suggestions, *advice.others]:
        if each.tried is not None and each.tried.fits:
            setup = each.tried.setup
            alone = wt.predict(setup.workload, setup.machine, setup.strategy)
            assert alone.step_seconds == pytest.approx(each.tried.forecast.step_seconds, rel=1e-9), each.name


def test_a_job_that_does_not_fit_gets_advice_that_makes_it_fit() -> None:
    advice = advice_for("too large")
    assert not advice.base.fits and advice.suggestions
    assert advice.together is not None and advice.together.tried.fits
    assert advice.together.tried.setup.batch == advice.base.setup.batch
    assert "does not fit" in str(advice)


def test_a_combination_that_still_does_not_fit_is_no_plan() -> None:
    job = wt.Workload.named("fcn5", layers="40000,40000,40000")
    advice = wt.advise(job, wt.Machine.named("gtx1080"), wt.Strategy(batch=8))
    assert not advice.base.fits and advice.plan() is None
    assert all(each.tried is None or each.tried.fits for each in advice.suggestions)
    assert advice.together is None or "nearest" in str(advice)


def test_a_straight_line_tells_about_how_large_a_batch_fits() -> None:
    situation = situation_of("too large")
    fits = wt.largest_batch(situation.workload, situation.machine, situation.strategy)
    assert 0.8 * fits <= batch_that_fits(situation) <= 1.05 * fits


def test_small_networks_that_wait_for_launches_get_what_removes_launches() -> None:
    advice = advice_for("small on a GPU")
    names = [each.name for each in advice.suggestions]
    assert {"graph", "recurrent", "batch"} <= {each.rule for each in advice.suggestions}
    assert advice.together is not None and advice.together.gain.gain > max(
        each.gain.gain for each in advice.suggestions if each.proposal.scope == "step"
    )
    assert any(name.startswith("smaller ") for name in names), "any GPU waits for its host"


def test_loader_advice_is_that_of_feed() -> None:
    advice, setup = advice_for("fed from storage"), setup_of("fed from storage")
    table = {
        step.name: step for step in compare_remedies(setup.workload, setup.machine, setup.strategy).steps
    }
    most = max(
        (e for e in (*advice.suggestions, *advice.others) if e.rule == "loaders"),
        key=lambda each: int(each.name.split()[0]),
    )
    assert most.tried is not None
    assert most.tried.forecast.step_seconds == pytest.approx(table["more loaders"].step_seconds)


def test_steps_that_do_the_same_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    record = prediction.trace

    def count(*arguments: object) -> object:
        traced.append(arguments)
        return record(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(prediction, "trace", count)
    setup, forecaster = setup_of("fed from storage"), Forecaster()
    for changes in (
        {},
        {"loaders": 4},
        {"prefetch": 2},
        {"precision": "tf32"},
        {"precision": "fp32"},
        {"expandable_segments": True},
    ):
        forecaster.forecast(StepChange(strategy=changes).applied_to(setup))
    assert len(traced) == 1
    forecaster.forecast(StepChange(strategy={"precision": "bf16"}).applied_to(setup))
    assert len(traced) == 2


def test_where_nothing_helps_advice_says_so_with_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RULES", tuple(rule for rule in RULES if rule.name == "layout"))
    setup = setup_of("small on a CPU")
    advice = wt.advise(setup.workload, setup.machine)
    assert advice.suggestions == () and advice.together is None and advice.plan() is None
    text = str(advice)
    assert "no change that was tried" in text and f"bound by {advice.base.forecast.bound_by}" in text
    assert [each.reason for each in advice.not_applied] == ["the network has no convolutions"]


def test_when_the_time_is_up_the_rest_is_named_as_untried() -> None:
    setup = setup_of("small on a CPU")
    advice = wt.advise(setup.workload, setup.machine, options=wt.AdviceOptions(seconds=1e-9))
    assert advice.untried and not any(each.tried for each in advice.suggestions)
    assert "untried" in str(advice)


def test_a_proposal_that_cannot_be_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Proposal(
        name="impossible",
        change=StepChange(strategy={"execution": "graph"}),
        flag="-",
        code="-",
        reason="-",
        costs="-",
        source="-",
    )
    rule = AdviceRule(name="wrong", about="-", propose=lambda situation: (wrong,))
    monkeypatch.setattr(engine, "RULES", (rule,))
    setup = setup_of("small on a CPU")
    advice = wt.advise(setup.workload, setup.machine)
    assert advice.suggestions == () and "needs a GPU" in advice.not_applied[0].reason


def test_advice_can_be_found_by_its_name_or_its_rule() -> None:
    advice = advice_for("images on a GPU")
    assert advice.find("precision").rule == advice.find("precision bf16").rule == "precision"
    with pytest.raises(UnknownName, match="'precison'"):
        advice.find("precison")


def test_a_search_needs_time() -> None:
    with pytest.raises(BadInput, match="seconds"):
        wt.AdviceOptions(seconds=0)


def test_quoted_ratios_are_ordered_and_say_how_many_cells_they_are_of() -> None:
    ratios = study_ratios()
    for ratio in (*ratios.compile, *ratios.framework):
        assert 0 < ratio.low <= ratio.gain <= ratio.high and ratio.cells > 10


def test_advice_as_plain_data_says_the_same_as_the_text() -> None:
    advice = advice_for("images on a GPU")
    data = advice.plain()
    assert [each["name"] for each in data["suggestions"]] == [each.name for each in advice.suggestions]
    text = "\n".join(advice.lines(80))
    assert max(map(len, text.splitlines())) <= 80
    for each in data["suggestions"][:3]:
        assert each["name"] in text and each["flag"].split()[0] in text


# Figures that the catalogue quotes


def _study_seconds(machine: str) -> list[dict[str, float]]:
    """Seconds of each cell of the recurrent study with batch 1 and resident data, by variant."""
    path = Path(__file__).parent.parent / "docs" / "results" / f"brandfonbrener-2017-{machine}.json"
    data = json.loads(path.read_text())
    cells: dict[object, dict[str, float]] = {}
    for row in data if isinstance(data, list) else data["rows"]:
        is_asked = row["job"] == "rnn" and row["batch"] == 1 and row["data"] == "resident"
        if is_asked and row.get("step_seconds") and row["settings"].get("n_rec", 50) <= 200:
            key = (row["threads"], row["optimizer"], json.dumps(row["settings"], sort_keys=True))
            cells.setdefault(key, {})[row["label"]] = row["step_seconds"]
    return list(cells.values())


def test_quoted_ratios_are_those_of_the_measured_rows() -> None:
    seconds = {"cpu": _study_seconds("xeon"), "gpu": _study_seconds("h200")}
    for ratio in study_ratios().framework:
        now = f"torch:{ratio.variant}"
        cells = seconds[ratio.device]
        gains = [cell[now] / cell[ratio.framework] for cell in cells if {now, ratio.framework} <= set(cell)]
        assert len(gains) == ratio.cells
        assert statistics.median(gains) == pytest.approx(ratio.gain, rel=0.01)
    on_cpu = next(ratio for ratio in study_ratios().compile if ratio.device == "cpu")
    pairs = [cell for cell in seconds["cpu"] if {"torch:loop", "torch:compiled"} <= set(cell)]
    gains = [cell["torch:loop"] / cell["torch:compiled"] for cell in pairs]
    assert len(gains) == on_cpu.cells and statistics.median(gains) == pytest.approx(on_cpu.gain, rel=0.01)


def test_a_gpu_of_apple_gets_the_line_that_moves_a_network_to_it() -> None:
    assert '"mps"' in code_to(wt.Machine.named("apple-m2-max"))
    assert all('"cuda"' in code_to(wt.Machine.named(name)) for name in ("h200", "mi300x"))


def test_channels_last_pooling_without_a_probe_of_it_moves_its_bytes() -> None:
    """By the profile of a CPU that was probed in one layout: not as contiguous pooling."""
    sizes = (64, 32, 32, 16, 16, 2, 2, 1)
    op = PlainOp("aten.max_pool2d_with_indices", "pooling", "fp32", sizes, 65536.0, 262144.0, 196608.0)
    family = registry.get("pooling")
    assert family is not None
    (piece,) = family.pieces(op, "fp32", 2)
    (stream,) = family.substitutes(op, piece)
    assert stream.kind == "streaming" and stream.bytes == op.read_bytes + op.written_bytes
    plain = op._replace(shape=(*sizes[:-1], 0))
    (contiguous,) = family.pieces(plain, "fp32", 2)
    assert contiguous.kind == "pooling max forward"


def test_a_cpu_is_probed_in_both_layouts() -> None:
    assert {"layout", "batch_norm_layout", "pooling_layout"} <= set(all_weights("cpu"))
