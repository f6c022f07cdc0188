"""Plans: what must hold of any plan, cases worked by hand, bad input, and the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
from pathlib import Path

import pytest
from conftest import run

import windtunnel as wt
from windtunnel.errors import BadInput, BadQuantity, DoesNotFit, WindtunnelError
from windtunnel.forecast.links import Links
from windtunnel.forecast.workers import Workers
from windtunnel.planning.bounds import Exchanges, ExchangeSeconds, WorkerSeconds, bound_by_other, step_bound
from windtunnel.planning.candidates import Candidate, Space, counts_of, micro_batches
from windtunnel.planning.plan import _Planning, plan
from windtunnel.planning.run import RunTotals, length_of
from windtunnel.planning.search import TIME_TOLERANCE
from windtunnel.planning.table import PlanTable, ScalingPoint, bend_of
from windtunnel.prediction import predict, trace
from windtunnel.saved_plan import SavedPlan
from windtunnel.strategy import Strategy
from windtunnel.trace import Collective
from windtunnel.trace_cache import TraceCache, shared

SIZES = {"layers": "4", "width": "64", "heads": "4", "length": "32", "vocabulary": "1024"}
WORDS = ["llm:gpt", *(f"{key}={value}" for key, value in SIZES.items())]
BATCH = 8


@functools.cache
def job() -> wt.Workload:
    return wt.Workload.named("llm:gpt", **SIZES)


@functools.cache
def planning(on: str) -> _Planning:
    return _Planning(job(), wt.Machine.named(on), Strategy(batch=BATCH), wt.PlanChoices())


@functools.cache
def planned(on: str = "4xh100", **words: float | str) -> PlanTable:
    """As `plan`, with one search for all goals."""
    goal = wt.PlanGoal(**words)
    return planning(on).table(goal, length_of(goal, None, "sequence length 32", "llm:gpt"))


def small_memory(on: str, memory: float) -> wt.Machine:
    machine = wt.Machine.named(on)
    device = dataclasses.replace(machine.device, memory_bytes=memory)
    return dataclasses.replace(machine, device=device)


# Physics.


def test_more_devices_never_make_the_best_plan_slower() -> None:
    seconds = [planned(on).best.forecast.step_seconds for on in ("2xh100", "4xh100")]
    assert seconds == sorted(seconds, reverse=True)


def test_a_larger_budget_never_gives_a_slower_plan_and_a_longer_deadline_never_a_dearer_one() -> None:
    totals = [point.run for point in planned(examples=1e9, price=2.0, budget=1e9).curve]
    costs, times = sorted({run.cost for run in totals}), sorted({run.seconds for run in totals})
    runs = [planned(examples=1e9, price=2.0, budget=cost * 1.001).best.run for cost in costs]
    assert [run.seconds for run in runs] == sorted((run.seconds for run in runs), reverse=True)
    assert all(run.cost <= cost * 1.001 for run, cost in zip(runs, costs, strict=True))
    late = [planned(examples=1e9, deadline_seconds=seconds * 1.001).best.run for seconds in times]
    assert [run.device_hours for run in late] == sorted((run.device_hours for run in late), reverse=True)
    assert all(run.seconds <= time * 1.001 for run, time in zip(late, times, strict=True))


def test_every_plan_that_is_printed_fits_and_its_degrees_divide() -> None:
    for each in planned().plans:
        strategy = each.strategy
        assert each.forecast.memory.fits
        product = (strategy.data_parallel or 1) * strategy.tensor_parallel * strategy.pipeline_parallel
        assert product == each.devices <= 4
        assert each.micro_batch * strategy.accumulate * (strategy.data_parallel or 1) == BATCH
        assert 0 < each.mfu < 1


def test_plans_come_in_the_order_of_their_time_and_no_listed_way_is_much_faster() -> None:
    table = planned()
    seconds = [each.forecast.step_seconds for each in table.plans]
    assert seconds == sorted(seconds) and len({each.strategy for each in table.plans}) == len(seconds)
    machine = wt.Machine.named("4xh100")
    for form in ({}, {"shard": "optimizer"}, {"shard": "weights"}, {"tensor_parallel": 2}, {"accumulate": 2}):
        other = predict(job(), machine, Strategy(batch=BATCH, **form))
        assert seconds[0] * 0.98 <= other.step_seconds


def cheapest_by_trying_all(planning: _Planning, count: int) -> float:
    """Seconds of the fastest of all candidates that fit, each forecast as `predict` does, without any
    bound."""
    search = planning._search
    candidates = set(search.space.candidates(count))
    candidates |= {
        smaller for candidate in candidates for smaller in search.space.with_less_memory(candidate)
    }
    best = math.inf
    for candidate in candidates:
        with contextlib.suppress(WindtunnelError):  # the job does not allow it
            forecast = search.subject.forecast(candidate)
            best = min(best, forecast.step_seconds if forecast.memory.fits else math.inf)
    return best


@pytest.mark.parametrize(
    ("kind", "machine", "batch"),
    [
        ("gpt", wt.Machine.named("4xh100"), 4),
        ("gpt", small_memory("2xh100", 1.4e9), 2),  # candidates with less memory only
        ("gpt", wt.Machine.named("2xgtx1080"), 2),  # slow links
        ("rnn", wt.Machine.named("2xh100"), 2),
    ],
)
def test_bounds_never_remove_the_best_plan(kind: str, machine: wt.Machine, batch: int) -> None:
    roomy = (machine.device.memory_bytes or 0) > 2e9
    jobs = {"gpt": job() if roomy else wide_job(), "rnn": wt.Workload.named("rnn", n_rec="20", n_steps="5")}
    planning = _Planning(jobs[kind], machine, Strategy(batch=batch), wt.PlanChoices())
    found = next(planning._search.ranked(machine.devices))
    tried = planning._search.forecasts
    best = cheapest_by_trying_all(planning, machine.devices)
    assert best * (1 - 1e-9) <= found.step_seconds <= best / (1 - TIME_TOLERANCE)
    assert tried < planning._search.candidates


def test_more_workers_take_at_least_the_stated_share_of_what_two_take_to_exchange() -> None:
    # Behind a switch more workers are not faster; in a DGX-1 two devices have one of its six links.
    for name, least, most in (("8xh100", 1.0, 1.0), ("8xa100-80gb", 1.0, 1.0), ("dgx-1-v100", 0.1, 0.9)):
        machine = wt.Machine.named(name)
        kept = Exchanges(machine, {}).kept_of_two(8)
        assert least <= kept <= most, name
        for size in (3e4, 2e6, 5e8):
            two, eight = (
                Links(machine=machine, workers=Workers(tensor=n, devices_per_node=8))
                .carry(Collective("all_reduce", size, "tensor"))
                .seconds
                for n in (2, 8)
            )
            assert eight >= kept * two * 0.99, (name, size)


def test_whether_a_step_fits_is_what_its_memory_says() -> None:
    subject = planning("4xh100")._search.subject
    candidate = Candidate(BATCH, "pytorch", 4, 1, 1, 1)
    needed = subject.memory(candidate).total_bytes
    for share in (0.5, 0.9, 0.999, 1.001, 1.1, 3.0):
        device = dataclasses.replace(subject.machine.device, memory_bytes=needed * share)
        small = dataclasses.replace(
            subject, machine=dataclasses.replace(subject.machine, device=device), _last={}
        )
        assert small.fits(candidate) == bool(small.memory(candidate).fits), share


def test_predict_on_the_saved_plan_gives_the_same_step(tmp_path: Path) -> None:
    table = planned()
    table.saved(WORDS, "4xh100").save(tmp_path / "plan.toml")
    saved = SavedPlan.load(tmp_path / "plan.toml")
    again = predict(job(), wt.Machine.named("4xh100"), saved.strategy)
    assert again.step_seconds == table.best.forecast.step_seconds == saved.forecast["step_seconds"]
    assert again.memory == table.best.forecast.memory


def test_the_plan_of_one_device_equals_predict() -> None:
    table = planned(aim="smallest")
    assert table.best.devices == 1
    strategy = dataclasses.replace(table.best.strategy, data_parallel=None)
    alone = predict(job(), wt.Machine.named("h100"), strategy)
    assert table.best.forecast.step_seconds == alone.step_seconds
    assert table.curve[0].step_seconds == alone.step_seconds


@functools.cache
def wide_job() -> wt.Workload:
    """50 million parameters with 18 bytes each: 0.9 GB, beside about 0.6 GB that every device needs."""
    return wt.Workload.named("llm:gpt", **{**SIZES, "width": "1024"})


def test_scarce_memory_gives_leaner_plans_that_fit() -> None:
    tight = plan(wide_job(), small_memory("2xh100", 1.4e9), Strategy(batch=2)).best
    assert tight.forecast.memory.fits and tight.devices == 2
    roomy = plan(wide_job(), wt.Machine.named("2xh100"), Strategy(batch=2)).best
    assert tight.forecast.step_seconds >= roomy.forecast.step_seconds * 0.98


def test_a_job_that_fits_nowhere_says_the_fewest_devices() -> None:
    with pytest.raises(DoesNotFit, match="fits on 2xh100 with no plan") as caught:
        plan(wide_job(), small_memory("2xh100", 0.8e9), Strategy(batch=8))
    assert "Smallest number of devices that fits: " in caught.value.hint
    with pytest.raises(DoesNotFit) as caught:
        plan(job(), small_memory("2xh100", 0.53e9), Strategy(batch=1))
    assert "Not even 4096 devices" in caught.value.hint


def test_a_kept_trace_is_the_one_that_predict_records() -> None:
    strategy = Strategy(
        batch=64,
        data_parallel=4,
        accumulate=8,
        pipeline_parallel=2,
        tensor_parallel=2,
        sequence_parallel=True,
    )
    kept = TraceCache(job(), "gpu")
    assert kept.of(strategy) == trace(job(), strategy, "gpu")
    kept.of(dataclasses.replace(strategy, batch=32, data_parallel=2, shard="optimizer", pipeline_parallel=1))
    assert len(kept) == 1 and shared(strategy).data_parallel == 2


# Cases worked by hand.


def test_a_pipeline_waits_for_the_first_micro_batch() -> None:
    # 8 micro-batches of 1 s over 4 stages: 8 turns of 0.25 s, and 3 more until the first has passed.
    candidate = Candidate(8, "bf16", 1, 1, 4, 8)
    assert step_bound(candidate, WorkerSeconds(1.0, 0.4), ExchangeSeconds(0.0, 0.5)) == pytest.approx(
        2.75 + 0.5 + 0.1
    )
    # With 3 groups a stage waits for a third of that.
    interleaved = candidate._replace(groups=3)
    assert step_bound(interleaved, WorkerSeconds(1.0, 0.0), ExchangeSeconds(0.0, 0.0)) == pytest.approx(2.25)
    # Links that work longer than the devices decide.
    assert step_bound(candidate, WorkerSeconds(1.0, 0.0), ExchangeSeconds(9.0, 0.0)) == 9.0


def test_a_trace_bounds_those_of_more_divided_workers() -> None:
    known = Candidate(8, "bf16", 2, 1, 1, 1).kind  # micro-batch of 4
    half = Candidate(8, "bf16", 2, 2, 1, 2, sequence=True).kind  # micro-batch of 2, two workers
    assert bound_by_other(half, known, WorkerSeconds(8.0, 0.0)) == 8.0 / 4
    assert bound_by_other(known, half, WorkerSeconds(8.0, 0.0)) == 0.0
    # Of 8 s two workers exchange for 2 s: four of them compute in 6 / 2 and exchange as long.
    quarter = half._replace(tensor=4)
    assert bound_by_other(quarter, half, WorkerSeconds(8.0, 0.0, exchanging=2.0)) == 3.0 + 2.0
    # Where four have more links than two, and exchange in half of the time:
    assert bound_by_other(quarter, half, WorkerSeconds(8.0, 0.0, exchanging=2.0), 0.5) == 3.0 + 1.0


def test_micro_batches_and_numbers_of_devices() -> None:
    assert micro_batches(12) == [12, 6, 4, 3, 2, 1]
    assert micro_batches(1) == [1]
    assert counts_of(8) == [1, 2, 4, 8]
    assert counts_of(24) == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert counts_of(8, finely=True) == [1, 2, 3, 4, 6, 8]


def test_ways_divide_and_those_that_do_not_are_counted() -> None:
    space = Space(batches=(6,), precisions=("bf16",), blocks=4, experts=0, devices_per_node=8)
    candidates = list(space.candidates(4))
    assert {candidate.degrees for candidate in candidates} == {
        (1, 1, 4),
        (1, 2, 2),
        (1, 4, 1),
        (2, 1, 2),
        (2, 2, 1),
    }
    assert sum(space.refused.values()) == 1  # 6 examples for 4 workers
    assert all(
        candidate.batch == candidate.data * candidate.accumulate * candidate.micro_batch
        for candidate in candidates
    )


def point(devices: int, rate: float) -> ScalingPoint:
    run = RunTotals(steps=1, seconds=1.0, device_hours=1.0)
    return ScalingPoint(
        devices=devices,
        batch=8,
        degrees=(devices, 1, 1),
        step_seconds=8 / rate,
        examples_per_second=rate,
        efficiency=1.0,
        run=run,
    )


def test_the_curve_bends_where_doubling_gains_less_than_one_and_a_half() -> None:
    assert bend_of([point(1, 10), point(2, 18), point(4, 25)]) == 2
    assert bend_of([point(1, 10), point(2, 18), point(4, 28)]) is None
    # Four times the devices are two doublings: 2.4 = 1.55 x 1.55, 2.1 = 1.45 x 1.45
    assert bend_of([point(1, 10), point(4, 24)]) is None
    assert bend_of([point(1, 10), point(4, 21)]) == 1


def test_durations_are_read() -> None:
    assert wt.units.parse_duration("24h") == 86400 and wt.units.parse_duration("2 days") == 172800
    assert wt.units.parse_duration("90min") == 5400 and wt.units.parse_duration("30") == 30
    with pytest.raises(BadQuantity):
        wt.units.parse_duration("soon")


# Networks of other kinds.


def test_a_network_that_cannot_be_divided_by_feature_is_planned_by_case_and_says_why() -> None:
    table = plan(
        wt.Workload.named("rnn", n_rec="20", n_steps="5"), wt.Machine.named("2xh100"), Strategy(batch=4)
    )
    assert table.best.strategy.tensor_parallel == 1
    assert any("tensor_parallel 2" in text for text in table.refused)


def test_experts_are_divided_where_a_job_has_them() -> None:
    mixture = wt.Workload.named("llm:gpt", **SIZES, experts="4")
    space = Space(batches=(8,), precisions=("bf16",), blocks=8, experts=4, devices_per_node=8)
    assert {candidate.expert for candidate in space.candidates(4) if candidate.data == 4} == {1, 2, 4}
    assert plan(mixture, wt.Machine.named("2xh100"), Strategy(batch=4)).best.forecast.memory.fits


def test_several_batches_are_compared_for_each_example() -> None:
    table = plan(
        job(),
        wt.Machine.named("2xh100"),
        goal=wt.PlanGoal(tokens=32e6),
        choices=wt.PlanChoices(batches=(8, 32)),
    )
    assert table.best.forecast.batch == 32
    assert any("times the steps" in note for note in table.notes)
    assert table.best.run.steps == -(-1_000_000 // 32)


# Bad input.


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ({"budget": 5.0}, "needs a price"),
        ({"price": 0.0}, "price must be above 0"),
        ({"examples": -1.0}, "examples must be above 0"),
        ({"deadline_seconds": float("nan")}, "deadline must be above 0"),
        ({"examples": 1.0, "tokens": 1.0}, "given twice"),
        ({"aim": "best"}, "aim"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(goal: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wt.PlanGoal(**goal)


def test_limits_that_no_plan_keeps_say_the_best_that_can_be_had() -> None:
    with pytest.raises(BadInput, match=r"keeps the deadline of 1\.00 s: the fastest takes"):
        planned(examples=1e9, deadline_seconds=1.0)
    with pytest.raises(BadInput, match="the cheapest costs"):
        planned(examples=1e9, price=2.0, budget=0.01)
    with pytest.raises(BadInput, match="needs the length of the run"):
        planned(deadline_seconds=1.0)


def test_a_strategy_that_sets_what_is_searched_is_refused() -> None:
    with pytest.raises(BadInput, match="chooses shard itself"):
        plan(job(), wt.Machine.named("8xh100"), Strategy(shard="weights"))
    with pytest.raises(BadInput, match="execution=eager only"):
        plan(job(), wt.Machine.named("8xh100"), Strategy(execution="compiled"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "cpu"], "computes on its CPU"),
        (["--on", "h100"], "has one device"),
        (["--on", "8xh100", "--budget", "5"], "needs a price"),
        (["--on", "8xh100", "--batch", "0"], "batch must be a whole number"),
        (["--on", "8xh100", "--batches", "8..x"], "neither a list nor a range"),
        (["--on", "8xh100", "--batch", "8", "--batches", "8,16"], "given twice"),
        (["--on", "8xh100", "--deadline", "soon"], "soon"),
        (["--on", "8xh100", "--precision", "bf17"], "bf17"),
        (["--on", "8xh100", "--to", "/nowhere/plan.toml"], "cannot be written"),
        (["--on", "8xh100", "--for", "best"], "best"),
    ],
)
def test_bad_words_are_answered_with_what_to_do(words: list[str], said: str) -> None:
    done = run("plan", *WORDS, *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_tokens_of_a_job_without_sequences_are_refused() -> None:
    done = run("plan", "fcn5", "--on", "2xh100", "--batch", "64", "--tokens", "1e9")
    assert done.returncode == 2 and "--tokens counts tokens of sequences" in done.stderr


def test_the_command_prints_a_plan_in_eighty_columns_and_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    words = ["--on", "2xh100", "--batch", "8", "--tokens", "1e9", "--price", "2"]
    done = run("plan", *WORDS, *words, "--to", str(path), COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("best", "reason", "memory", "run", "cost", "scaling", "searched", "d x t x p", "MFU"):
        assert word in done.stdout
    assert SavedPlan.load(path).job == tuple(WORDS) and SavedPlan.load(path).on == "2xh100"
    told = json.loads(run("plan", *WORDS, *words, "--json").stdout)
    assert told["plans"][0]["strategy"] == SavedPlan.load(path).strategy.fields()
    assert [each["devices"] for each in told["curve"]] == [1, 2]


def test_the_example_of_the_documentation_is_what_the_command_prints() -> None:
    text = (Path(__file__).parent.parent / "docs" / "plan.md").read_text()
    words, example = re.findall(
        r"^`windtunnel (plan .*)`, in 80 columns:\n```\n(.*?)^```", text, re.M | re.S
    )[0]
    done = run(*words.split(), COLUMNS="80")
    printed = done.stdout.splitlines()
    assert [line for line in example.splitlines() if line not in printed] == []
