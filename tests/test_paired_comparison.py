"""Two sides that step in turn: the stop rule by simulation, the turns, what sides may be, and the command."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from conftest import run
from typer.testing import CliRunner

import windtunnel as wt
from windtunnel.cli import app
from windtunnel.errors import (
    BadInput,
    BadJob,
    BadRecord,
    Interrupted,
    MeasurementFailed,
    Unavailable,
    UnknownName,
    WindtunnelError,
)
from windtunnel.measurement import compare as module
from windtunnel.measurement import looks, pairs, process, sampler
from windtunnel.measurement.equivalence import judge, parse_within
from windtunnel.measurement.pairs import PairReport, run_pair
from windtunnel.measurement.report import ProcessReport, Samples
from windtunnel.measurement.sides import ComparisonBase, Side
from windtunnel.measurement.store import Store

# The rule


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.30, "different"),
        (0.50, 0.99, "different"),
        (1.01, 1.05, "different"),  # small, and yet a difference
        (0.92, 1.09, "same"),
        (0.92, 1.11, "can't tell"),
        (0.90, 1.05, "can't tell"),  # 1 / 1.10 is 0.909
        (0.00, math.inf, "can't tell"),
    ],
)
def test_different_excludes_one_and_same_is_all_within_the_margin(
    low: float, high: float, verdict: str
) -> None:
    assert judge(low, high, 0.10) == verdict
    swapped = judge(1 / high, 1 / low if low else math.inf, 0.10)
    assert swapped == verdict, "swapping the sides changes no verdict"


@pytest.mark.parametrize(("text", "margin"), [("10%", 0.1), ("0.1", 0.1), (" 2.5 % ", 0.025), ("100%", 1.0)])
def test_a_margin_is_a_share_or_percent(text: str, margin: float) -> None:
    assert parse_within(text) == pytest.approx(margin)


@pytest.mark.parametrize("text", ["", "%", "ten", "0", "-5%", "nan", "inf", "1e9%", "10%%", "1,5"])
def test_a_margin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a margin") as caught:
        parse_within(text)
    assert "--within 10%" in caught.value.hint


# The stop rule


@pytest.mark.parametrize(
    ("freedom", "error", "t"),  # from printed tables of Student's t
    [(1, 0.05, 12.706), (2, 0.01, 9.925), (4, 0.05, 2.776), (7, 0.01, 3.499), (30, 0.05, 2.042)],
)
def test_students_t_is_that_of_the_tables(freedom: int, error: float, t: float) -> None:
    assert looks.student_t(freedom, error) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize("most", range(1, 60))
def test_all_looks_together_spend_five_percent(most: int) -> None:
    planned = [n for n in range(1, most) if looks.is_planned(n)]
    spent = sum(looks.error_at(n, is_last=False) for n in planned) + looks.error_at(most, is_last=True)
    assert spent == pytest.approx(0.05)


def simulate(rng: numpy.random.Generator, factor: float, most: int, tails: bool) -> looks.RatioAnswer:
    """A comparison as on a noisy machine: each process is up to some percent slower than the next, rounds
    differ by 10 % and one in ten is far off."""
    logs = list[float]()
    while True:
        effects = 0.015 * (rng.standard_t(3, 2) / 1.3 if tails else rng.standard_normal(2))
        rounds = 0.1 * rng.standard_normal(18) * numpy.where(rng.random(18) < 0.1, 5.0, 1.0)
        logs.append(math.log(factor) + effects[1] - effects[0] + float(numpy.median(rounds)))
        answer = looks.answer(logs, 0.10, is_last=len(logs) == most)
        if answer is not None:
            return answer


def share(factor: float, most: int, verdict: str, *, trials: int = 500, tails: bool = False) -> float:
    rng = numpy.random.default_rng(most)
    return statistics.fmean(simulate(rng, factor, most, tails).verdict == verdict for _ in range(trials))


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("most", [2, 4, 7, 20])
def test_equal_sides_are_called_different_in_at_most_five_percent(most: int, tails: bool) -> None:
    """At a rate of 5 %, more than 36 of 500 happen in 1 of 100 simulations; a single look has that rate."""
    assert share(1.0, most, "different", tails=tails) <= 36 / 500


def test_looking_after_every_pair_without_a_plan_would_be_wrong_more_often() -> None:
    """Were the simulation too tame to show a wrong rule, the test above would mean nothing."""
    rng, wrong = numpy.random.default_rng(1), 0
    for _ in range(300):
        logs = list(0.03 * rng.standard_normal(20))
        wrong += any(
            abs(statistics.fmean(logs[:n]))
            > looks.student_t(n - 1, 0.05) * statistics.stdev(logs[:n]) / math.sqrt(n)
            for n in range(3, 21)
        )
    assert wrong > 0.10 * 300


def test_a_slowdown_of_ten_and_of_twenty_percent_is_detected() -> None:
    assert share(1.10, 7, "different") >= 0.80
    assert share(1.20, 7, "different") >= 0.95
    assert share(1 / 1.20, 7, "different") >= 0.95


def test_equal_sides_are_called_the_same_and_unequal_ones_are_not() -> None:
    assert share(1.0, 7, "same") >= 0.85
    assert share(1.10, 7, "same") <= 0.05 and share(1.20, 4, "same") == 0.0


def test_the_interval_holds_the_truth_in_95_of_100() -> None:
    rng = numpy.random.default_rng(3)
    answers = [simulate(rng, 1.05, 7, tails=False) for _ in range(400)]
    assert sum(answer.low <= 1.05 <= answer.high for answer in answers) >= 0.95 * 400


def test_one_pair_tells_nothing_however_large_the_ratio() -> None:
    answer = looks.answer([math.log(3.0)], 0.10, is_last=True)
    assert answer is not None and answer.verdict == "can't tell" and answer.high == math.inf
    assert looks.answer([math.log(3.0)], 0.10, is_last=False) is None


# Turns


class FakeChild:
    """A child that notes its turns, and steps in so many seconds or fails."""

    def __init__(self, name: str, step: float, turns: list[str], fails_after: int | None = None) -> None:
        self.name, self.step, self.turns, self.fails_after = name, step, turns, fails_after
        self.counts, self.abandoned, self.interrupt_at = list[int](), False, -1
        self.lengths = list[float]()

    def listen(self, until: str) -> bool:
        if len(self.counts) == self.interrupt_at:
            raise KeyboardInterrupt
        return self.fails_after is None or len(self.counts) < self.fails_after

    def tell(self, word: str) -> None:
        self.lengths.append(float(word))
        self.turns.append(self.name)
        self.counts.append(2)

    def finish(self) -> Any:
        return self

    def abandon(self) -> None:
        self.abandoned = True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of fake children: two samples a turn."""

    def report_of(child: FakeChild) -> ProcessReport:
        if child.fails_after is not None:
            raise MeasurementFailed("no memory", state="out of memory", hint="smaller")
        return report([child.step] * sum(child.counts), child.counts)

    monkeypatch.setattr(pairs.children, "report_of", report_of)


def report(seconds: list[float], turns: list[int]) -> ProcessReport:
    samples = {"first": Samples(seconds=(1.0,)), "steady": Samples(seconds=tuple(seconds))}
    return ProcessReport(samples=samples, turns=tuple(turns))


def test_a_pairs_ratio_is_the_median_over_the_turns_of_the_same_round() -> None:
    """Turns of A: 1, 1 | 1, 4 | 1, 1 s; of B: 2, 2 | 2, 2 | 128, 2 s. The median sample of a turn counts."""
    a = report([1, 1, 1, 1, 9, 4, 3, 1, 1], [1, 1, 2, 3, 1, 1])
    b = report([2, 2, 2, 2, 128, 2], [1] * 6)
    pair = PairReport(a=a, b=b)
    assert pair.rounds == 3
    ratios = [2, 2, 2, 2, 2, 2, 0.5, 0.5, 128, 2, 128, 2]
    assert [math.exp(log) for log in pair.logs] == pytest.approx(ratios)
    assert math.exp(pair.log) == pytest.approx(2.0)


def test_a_pair_forgives_turns_that_another_program_met_on_one_side_alone() -> None:
    """Of A, one turn in four takes three times as long."""
    a, b = report([3.0, 1.0, 1.0, 1.0] * 4, [1] * 16), report([1.1] * 16, [1] * 16)
    assert math.exp(PairReport(a=a, b=b).log) == pytest.approx(1.1)


def turn_of(steps: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    """One turn of these steps: the seconds of each, and how often another program took the core meanwhile."""
    clock, taken, left, reported = [0.0], [0], list(steps), dict[str, Any]()

    def step() -> None:
        seconds, times = left.pop(0)
        clock[0] += seconds
        taken[0] += times

    monkeypatch.setattr(sampler.time, "perf_counter", lambda: clock[0])
    timed = sampler.Sampler(step, lambda: None, 0.0005, lambda m: reported.update({m["phase"]: m["seconds"]}))
    counted = timed.turn(sum(seconds for seconds, _ in steps) - steps[0][0] - 1e-9, lambda: taken[0])
    assert timed.seconds == reported["steady"]
    return counted, reported


def test_samples_during_which_another_program_took_the_core_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the system's count: a long sample without an interruption counts, a short one with one does not."""
    steps = [(0.5, 0), (0.25, 0), (4.0, 0), (8.0, 2), (0.125, 1), (0.5, 0)]  # the first fills the caches
    counted, reported = turn_of(steps, monkeypatch)
    assert counted == 3 and reported["steady"] == [0.25, 4.0, 0.5] and reported["disturbed"] == [8.0, 0.125]
    counted, reported = turn_of([(0.5, 0), (8.0, 1), (4.0, 1)], monkeypatch)
    assert counted == 2 and reported["steady"] == [8.0, 4.0] and "disturbed" not in reported


def test_threads_that_take_the_cores_from_one_another_are_no_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More threads than cores are slow by themselves: such samples must not be set apart."""
    resource = pytest.importorskip("resource", reason="the system counts no interruptions")
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(resource, "getrusage", lambda _: mock.Mock(ru_nivcsw=7))
    assert [process.interruptions_of(threads)() for threads in (1, 2, 3, None)] == [7, 7, 0, 0]


@pytest.mark.usefixtures("told")
def test_the_sides_step_in_turn_and_the_order_alternates() -> None:
    turns = list[str]()
    a, b = FakeChild("A", 1.0, turns), FakeChild("B", 1.25, turns)
    pair = run_pair([lambda n: a, lambda n: b], ["A", "B"], 0, 0.0)  # type: ignore[list-item, return-value]
    assert "".join(turns) == "ABBABAABABBA" and pair.rounds == 3 and not pair.interrupted
    assert math.exp(pair.log) == pytest.approx(1.25)
    lengths = [*a.lengths, *b.lengths]
    assert len(set(lengths)) == 12, (
        "a neighbour that comes by the clock must not meet the same turn each time"
    )
    assert all(0.5 <= length / pairs.TURN_SECONDS <= 1.5 for length in lengths)


@pytest.mark.usefixtures("told")
def test_the_side_that_starts_first_alternates_from_pair_to_pair() -> None:
    """The first one waits until the other is ready: that must not always be the same side."""
    begun = list[str]()

    def start(name: str) -> FakeChild:
        begun.append(name)
        return FakeChild(name, 1.0, [])

    starts = [lambda number: start("A"), lambda number: start("B")]
    for number in range(4):
        run_pair(starts, ["A", "B"], number, 0.0)  # type: ignore[arg-type]
    assert "".join(begun) == "ABBAABBA"


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("after", [0, 3])
def test_a_side_that_fails_is_named_and_the_other_is_ended(after: int) -> None:
    a, b = FakeChild("A", 1.0, []), FakeChild("B", 1.0, [], fails_after=after)
    with pytest.raises(MeasurementFailed, match="threads=2: no memory") as caught:
        run_pair([lambda n: a, lambda n: b], ["default", "threads=2"], 0, 0.0)  # type: ignore[list-item, return-value]
    assert caught.value.state == "out of memory" and caught.value.hint == "smaller" and a.abandoned


@pytest.mark.usefixtures("told")
def test_an_interrupt_keeps_the_rounds_that_both_sides_have() -> None:
    a, b = FakeChild("A", 1.0, []), FakeChild("B", 2.0, [])
    b.interrupt_at = 5  # in the third round
    pair = run_pair([lambda n: a, lambda n: b], ["A", "B"], 0, 60.0)  # type: ignore[list-item, return-value]
    assert pair.interrupted and pair.rounds == 2 and math.exp(pair.log) == pytest.approx(2.0)
    b = FakeChild("B", 2.0, [])
    b.interrupt_at = 1
    with pytest.raises(KeyboardInterrupt):
        run_pair([lambda n: a, lambda n: b], ["A", "B"], 0, 60.0)  # type: ignore[list-item, return-value]
    assert a.abandoned and b.abandoned, "nothing was measured"


# A whole comparison with given pairs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path / "store.sqlite")) as opened:
        yield opened


def given(
    monkeypatch: pytest.MonkeyPatch, ratio: Callable[[int], float], *, interrupt_at: int | None = None
) -> None:
    """Pairs with these ratios, each of which takes 7 s of a clock that only pairs move."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.environment, "busy_cores", lambda seconds: 0.0)

    def one(starts: object, names: object, number: int, seconds: float) -> PairReport:
        if number == interrupt_at:
            raise KeyboardInterrupt
        clock[0] += 7.0
        a, b = report([0.001] * 4, [1] * 4), report([0.001 * ratio(number)] * 4, [1] * 4)
        return PairReport(a=a, b=b)

    monkeypatch.setattr(module, "run_pair", one)


def noisy(factor: float) -> Callable[[int], float]:
    return lambda number: factor * math.exp(0.01 * math.sin(2.0 * number))


def test_a_comparison_stops_when_the_answer_is_clear(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    given(monkeypatch, noisy(2.0))
    answer = wt.compare(wt.Workload.named("ffn"), "threads=1", "default", here(), store=store)
    assert (answer.verdict, answer.stopped_by, len(answer.pairs)) == ("different", "a clear answer", 3)
    assert answer.ratio == pytest.approx(2.0, rel=0.02) and answer.level == pytest.approx(0.99)
    assert "different: a step takes 2.0" in str(answer) and answer.low is not None and answer.low > 1.5


def test_a_comparison_without_a_clear_answer_stops_in_time(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    given(monkeypatch, lambda number: (1.0, 1.6)[number % 2])
    answer = wt.compare(wt.Workload.named("ffn"), "default", "default", here(), store=store)
    assert (answer.verdict, answer.stopped_by, len(answer.pairs)) == ("can't tell", "time", 8)
    assert answer.seconds == 56.0 <= 60.0, "a ninth pair would have ended after 63 s"
    short = wt.CompareOptions(seconds=10.0)
    answer = wt.compare(wt.Workload.named("ffn"), "default", "default", here(), store=store, options=short)
    assert len(answer.pairs) == 1 and answer.low is None and answer.verdict == "can't tell"
    assert "one pair of processes" in answer.sentence() and "low" not in answer.plain()


def test_every_sample_is_stored_as_it_was_measured(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    given(monkeypatch, noisy(1.0))
    answer = wt.compare(wt.Workload.named("ffn"), "batch=32", "batch=64", here(), store=store)
    b, a = store.results()
    for cell, ratio in ((a, lambda n: 1.0), (b, noisy(1.0))):
        for number, stored in enumerate(store.reports(cell.id)):
            assert stored.steady == (0.001 * ratio(number),) * 4 and stored.turns == (1, 1, 1, 1)
        assert cell.state == "done" and cell.task["compared"] == ["batch=32", "batch=64"]
        assert cell.result == json.loads(json.dumps(answer.plain()))


def test_batches_that_differ_are_compared_by_the_example(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """Twice the batch in the same time: half the time for an example."""
    given(monkeypatch, noisy(1.0))
    answer = wt.compare(wt.Workload.named("ffn"), "batch=32", "batch=64", here(), store=store)
    assert answer.per == "example" and answer.ratio == pytest.approx(0.5, rel=0.02)
    assert "an example takes 0.5" in answer.sentence() and "batches differ" in answer.cautions[0]


@pytest.mark.parametrize(
    ("others", "words"),
    [(0.1, ""), (0.9, "their ratio hardly"), (1.6, "long ones more often"), (4.0, "4.0 of 2 cores")],
)
def test_other_processes_are_a_caution_and_more_so_where_they_leave_no_core(
    others: float, words: str, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """Each side uses one of two cores."""
    given(monkeypatch, noisy(1.0))
    monkeypatch.setattr(module.environment, "busy_cores", lambda seconds: others)
    monkeypatch.setattr(module.here, "available_cpus", lambda: [0, 1])
    one = wt.Strategy(threads=1)
    answer = wt.compare(wt.Workload.named("ffn"), "default", "default", here(), strategy=one, store=store)
    assert len(answer.cautions) == (1 if words else 0) and words in " ".join(answer.cautions)


def test_an_interrupt_keeps_the_pairs_that_are_done(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    given(monkeypatch, lambda number: (1.0, 1.6)[number % 2], interrupt_at=2)
    with pytest.raises(Interrupted, match="2 pairs of processes are stored") as caught:
        wt.compare(wt.Workload.named("ffn"), "default", "default", here(), store=store)
    assert "can't tell" in str(caught.value) and caught.value.exit_code == 130
    assert [len(store.reports(cell.id)) for cell in store.results()] == [2, 2]
    given(monkeypatch, noisy(1.0), interrupt_at=0)
    with pytest.raises(Interrupted, match="No pair"):
        wt.compare(wt.Workload.named("ffn"), "default", "default", here(), store=store)


def test_a_failed_side_settles_both_cells_by_name(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    def fail(*_: object) -> PairReport:
        raise MeasurementFailed("batch=64: no memory", state="out of memory")

    monkeypatch.setattr(module, "run_pair", fail)
    with pytest.raises(MeasurementFailed, match="batch=64"):
        wt.compare(wt.Workload.named("ffn"), "default", "batch=64", here(), store=store)
    assert [cell.state for cell in store.results()] == ["out of memory"] * 2


def test_the_result_prints_itself_in_narrow_lines_and_for_notebooks(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    given(monkeypatch, noisy(1.0))
    answer = wt.compare(wt.Workload.named("ffn"), "default", "default", here(), store=store)
    assert max(map(len, answer.lines(width=60))) <= 60
    assert answer.sentence().startswith("same within 10 %:")
    assert "<th" in answer._repr_html_() and "same within" in answer._repr_html_()


@pytest.mark.parametrize("name", ["within", "seconds", "timeout_seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_options_that_are_no_numbers_above_zero_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=name):
        wt.CompareOptions(**{name: value})


# Sides


@functools.cache
def here() -> wt.Machine:
    return wt.Machine.here().with_cpu_only()


def subject(job: str | None = "rnn", **settings: object) -> ComparisonBase:
    workload = wt.Workload.named(job, **settings) if job else None
    return ComparisonBase(
        workload=workload,
        strategy=wt.Strategy(batch=4, threads=1),
        machine=here(),
        protocol=wt.Protocol(),
    )


def task_of(side: Side) -> dict[str, Any]:
    return dict(side.plan.task)


def test_a_side_changes_the_strategy_or_a_setting_of_the_job() -> None:
    plain = task_of(subject(n_rec=20).side("default"))
    assert plain["batch"] == 4 and plain["threads"] == 1 and plain["job"]["settings"] == {"n_rec": 20}
    both = task_of(subject(n_rec=20).side("threads=2,precision=bf16"))
    assert both["threads"] == 2 and both["strategy"]["precision"] == "bf16" and both["batch"] == 4
    assert task_of(subject(n_rec=20).side("n_rec=30"))["job"]["settings"]["n_rec"] in (30, "30")
    assert task_of(subject().side("batch=32"))["batch"] == 32
    assert task_of(subject().side("compile=true"))["strategy"]["execution"] == "compiled"
    assert task_of(subject().side("compile=false"))["strategy"]["execution"] == "eager"


def test_a_side_may_be_a_framework_with_or_without_its_variant() -> None:
    for words, label in (
        ("numpy", ("numpy", "hand")),
        ("framework=numpy", ("numpy", "hand")),
        ("torch:module", ("torch", "module")),
        ("framework=torch:module,threads=2", ("torch", "module")),
        ("framework=torch,variant=loop", ("torch", "loop")),
    ):
        task = task_of(subject(n_rec=20).side(words))
        assert (task["framework"], task["variant"]) == label and task["settings"]["n_rec"] == 20
        assert task["batch"] == 4 and task["threads"] == (2 if "threads" in words else 1)


def test_a_side_may_be_a_strategy_or_a_job() -> None:
    side = subject().side(wt.Strategy(batch=4, threads=2))
    assert side.name == "threads=2" and task_of(side)["threads"] == 2
    assert subject().side(wt.Workload.named("ffn")).job == "ffn"
    assert subject(None).side("ffn").job == "ffn", "without a job where the side is one"


def test_two_versions_of_a_job_file_are_two_sides(tmp_path: Path) -> None:
    body = "import windtunnel as wt\ndef build(n=1):\n    return wt.Workload.named('ffn')\n"
    for name in ("old", "new"):
        (tmp_path / f"{name}.py").write_text(body + f"# {name}\n")
    old, new = (subject(None).side(f"{tmp_path}/{name}.py:build") for name in ("old", "new"))
    assert old.plan.key != new.plan.key and old.plan.task["job"] != new.plan.task["job"]
    changed = subject(f"{tmp_path}/old.py:build").side("n=3")
    assert task_of(changed)["job"]["settings"] == {"n": 3}, "as a number"


@pytest.mark.parametrize(
    ("job", "words", "error", "message"),
    [
        ("rnn", "thread=2", BadRecord, "Did you mean 'threads'"),
        ("rnn", "n_recc=5", BadRecord, "Did you mean 'n_rec'"),
        ("rnn", "threads=two", BadRecord, "whole number"),
        ("rnn", "precision=fp4", BadRecord, "fp4"),
        ("rnn", "compile=perhaps", BadRecord, "true or false"),
        ("rnn", "fast", UnknownName, "neither a change, a framework nor a job"),
        ("rnn", "", UnknownName, "neither a change"),
        ("rnn", "=", BadInput, "not a setting"),
        ("rnn", "framework=caffe9", UnknownName, "caffe9"),
        ("rnn", "numpy:magic", Unavailable, "no variant 'magic'"),
        ("resnet18", "framework=numpy", WindtunnelError, ""),
        ("rnn", "on=moon", UnknownName, "moon"),
        ("rnn", "on=h200", Unavailable, "not on h200"),
        ("rnn", "execution=graph", Unavailable, "needs a GPU"),
        ("rnn", "missing.py:build", BadJob, "There is no file missing.py"),
        (None, "threads=2", BadInput, "no job is given"),
        (None, "default", BadInput, "no job is given"),
    ],
)
def test_a_side_that_cannot_be_is_a_clear_error(
    job: str | None, words: str, error: type[WindtunnelError], message: str
) -> None:
    with pytest.raises(error) as caught:
        subject(job).side(words)
    assert message in str(caught.value)


def test_settings_of_a_job_made_in_python_cannot_be_changed() -> None:
    made = dataclasses.replace(wt.Workload.named("ffn"), origin=None)
    with pytest.raises(BadInput, match="made in Python"):
        dataclasses.replace(subject(), workload=made).side("hidden=5")


# With real processes


def products(count: int) -> wt.Workload:
    """A step of so many products of matrices."""
    matrix = torch.ones(100, 100)

    def step(model: torch.nn.Module, batch: object, optimizer: object) -> torch.Tensor:
        for _ in range(count):
            matrix @ matrix
        return torch.zeros(())

    return wt.Workload(
        name="products",
        model=lambda: torch.nn.Linear(2, 2),
        batch=lambda n: torch.zeros(n, 2),
        step=step,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )


def test_a_real_difference_of_jobs_made_in_python_is_measured(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(module, "_PAIR_SECONDS", 0.2)
    monkeypatch.setattr(module, "_WARM_SECONDS", 0.05)
    answer = wt.compare(
        None,
        products(10),
        products(200),
        here(),
        strategy=wt.Strategy(threads=1),
        store=store,
        options=wt.CompareOptions(seconds=5.0),
    )
    # Twenty times the work. No upper bound: on a busy machine one side may wait for a core.
    assert answer.verdict != "same" and answer.ratio > 2.0
    for cell in store.results():
        reports = store.reports(cell.id)
        assert len(reports) == len(answer.pairs) >= 1
        assert all(sum(each.turns) == len(each.steady) >= len(each.turns) >= 6 for each in reports)


def test_a_job_that_raises_is_a_named_error_of_its_side(store: Store) -> None:
    broken = dataclasses.replace(products(1), step=lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(MeasurementFailed, match=r"products: .*size"):
        wt.compare(None, products(1), broken, here(), store=store)


def test_the_command_compares_a_framework_with_itself_and_prints_json(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    words = ("compare", "rnn", "n_rec=5", "n_steps=5", "numpy:hand", "numpy:hand", "--threads", "1")
    done = run(*words, "--seconds", "4", "--within", "50%", "--json", store=path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] in ("same", "can't tell", "different") and answer["within"] == 0.5
    assert answer["rounds"] >= 3 * len(answer["pairs"])
    assert "pairs of processes" in done.stderr
    with contextlib.closing(Store(path)) as opened:
        b, a = (opened.reports(cell.id) for cell in opened.results())
    # No bounds on the ratio, which a busy machine may move: it is that of the samples, whatever they are.
    measured = [PairReport(a=one, b=other).log for one, other in zip(a, b, strict=True)]
    assert answer["pairs"] == pytest.approx([math.exp(log) for log in measured])
    assert min(answer["pairs"]) * 0.999 <= answer["ratio"] <= max(answer["pairs"]) * 1.001


def test_words_before_the_sides_change_both_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch, noisy(1.0))
    words = ["compare", "ffn", "hidden=50", "batch=64", "default", "precision=bf16"]
    done = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "store.sqlite"), "--json"])
    with contextlib.closing(Store(tmp_path / "store.sqlite")) as opened:
        b, a = (cell.task for cell in opened.results())
    assert json.loads(done.stdout)["verdict"] == "same" and a["batch"] == b["batch"] == 64
    assert a["job"] == b["job"] and a["job"]["settings"]["hidden"] in (50, "50")
    assert a["strategy"]["precision"] != b["strategy"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnn"], "compare needs two sides"),
        (["rnn", "threads=1", "threads=2", "--within", "wide"], "--within wide"),
        (["rnn", "threads=1", "threds=2"], "threds"),
        (["nowhere.py:build", "threads=1", "threads=2"], "There is no file nowhere.py"),
        (["nowhere.py:build", "ffn"], "There is no file nowhere.py"),
        (["rnn", "threads=2"], "no job is given"),
        (["rnn", "a", "threads=1", "threads=2"], "'a' is not a setting"),
        (["rnn", "default", "default", "--on", "h200"], "not on h200"),
    ],
)
def test_bad_words_of_the_command_are_clear_errors(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["compare", *words])
    assert isinstance(result.exception, WindtunnelError) and result.exception.exit_code == 2
    assert message in str(result.exception)


def test_the_help_says_what_a_side_is() -> None:
    text = CliRunner().invoke(app, ["compare", "--help"]).stdout
    assert all(word in text for word in ("threads=2", "jax:scan", "default", "--within", "--seconds"))
