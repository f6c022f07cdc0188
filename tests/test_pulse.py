"""The machine's pulse: what a neighbour does to a process and to plain work beside it alike is taken out again."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_fakes import FakeEngine, FakeMachine, report_of, write_study

from windtunnel.measurement import frameworks, sampler
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.sampler import Sampler
from windtunnel.measurement.steady import Protocol
from windtunnel.study import study as studies
from windtunnel.study.results import _eased, by_interval, results
from windtunnel.study.rows import Row
from windtunnel.study.run.engine import Outcome, Work
from windtunnel.study.run.runner import Order, run
from windtunnel.study.run.store import Kept, StudyStore
from windtunnel.study.statistics import summary
from windtunnel.study.statistics import windows as stretches
from windtunnel.study.statistics.compare import compare

CALM = 2e-4


def slowed_report(work: Work, factor: float, *, felt: bool = True) -> dict[str, Any]:
    """A step as much slower as the factor says, beside plain work that is slowed more."""
    report = report_of(work)
    steady = report["samples"]["steady"]
    steady["seconds"] = [second * factor for second in steady["seconds"]]
    return (
        {**report, "pulse": {"kind": "pulse", "seconds": CALM * factor ** (1 / summary.SHARE)}}
        if felt
        else report
    )


def rows_of(
    folder: Path, slow: Callable[[Work], float], *, felt: bool = True, count: int = 60, step: float = 1.0
) -> list[Row]:
    """A quick run in which processes and their pulses are slowed, and the steps of all of them are `step` times as long."""
    study = studies.load(write_study(folder / "study", range(1, count + 1)))

    def answer(work: Work) -> Outcome:
        report = slowed_report(work, slow(work), felt=felt)
        report["samples"]["steady"]["seconds"] = [
            second * step for second in report["samples"]["steady"]["seconds"]
        ]
        return Outcome(work=work, report=report)

    with contextlib.closing(StudyStore(folder / "store.sqlite")) as store:
        run(study, store, FakeEngine(answer), FakeMachine(), Order(level="quick", whole=True))
        return sorted(results(study, store), key=lambda row: row.settings["n_rec"])


def by_chance(seed: int) -> Callable[[Work], float]:
    """As on a machine whose neighbour comes and goes."""
    return lambda work: random.Random(f"{seed} {work.key} {work.number}").choice((1.0, 1.0, 1.6))


def test_what_slows_a_process_and_plain_work_alike_leaves_its_time_as_it_was(tmp_path: Path) -> None:
    disturbed, calm = rows_of(tmp_path / "a", by_chance(1)), rows_of(tmp_path / "b", lambda work: 1.0)
    for one, other in zip(disturbed, calm, strict=True):
        assert one.step_seconds == pytest.approx(other.step_seconds, rel=0.02)
        assert all(
            second == pytest.approx(one.step_seconds, rel=0.1) for group in one.groups for second in group
        )
        assert one.low_seconds is not None and one.step_seconds is not None and one.high_seconds is not None
        assert (
            one.low_seconds
            <= one.step_seconds
            <= one.high_seconds
            < (1.3 if one.environment["slowed"] == 1.0 else 2.4) * one.low_seconds
        )
    assert {row.environment["slowed"] for row in calm} == {1.0}
    assert sum(row.environment["slowed"] == 1.6 for row in disturbed) < 10, (
        "a third was disturbed; hardly one of them three times"
    )


def test_without_a_pulse_times_stay_as_they_were_measured(tmp_path: Path) -> None:
    row = rows_of(tmp_path, lambda work: 1.6, felt=False, count=1)[0]
    assert row.step_seconds == pytest.approx(0.0016, rel=0.02) and "slowed" not in row.environment


def test_a_run_compared_with_itself_on_a_disturbed_machine_says_same(tmp_path: Path) -> None:
    pair = [by_interval(rows_of(tmp_path / name, by_chance(seed))) for name, seed in (("a", 1), ("b", 2))]
    raw = [
        by_interval(rows_of(tmp_path / name, by_chance(seed), felt=False))
        for name, seed in (("c", 1), ("d", 2))
    ]
    assert compare(*pair).counts["same"] >= 57
    assert compare(*raw).counts["same"] < 30, "what is taken out is what hid it"


def test_a_step_that_itself_grew_slower_is_still_seen(tmp_path: Path) -> None:
    before, after = rows_of(tmp_path / "a", by_chance(1)), rows_of(tmp_path / "b", by_chance(2), step=1.4)
    seen = compare(by_interval(before), by_interval(after))
    doubted = {cell.words for cell in seen.cells if cell.verdict != "slower"}
    disturbed = sum(row.environment["slowed"] > 1 for row in (*before, *after))
    assert len(doubted) <= disturbed < 10 and not seen.counts["faster"], (
        "only of what was never calm it cannot be told"
    )


def test_a_run_that_had_no_calm_moment_is_told_of(tmp_path: Path) -> None:
    calm, hasty = (
        by_interval(rows_of(tmp_path / name, by_chance(seed))) for name, seed in (("a", 1), ("b", 2))
    )
    slow = by_interval(rows_of(tmp_path / "c", lambda work: 1.6))
    assert not compare(calm, hasty).cautions
    (caution,) = compare(calm, slow).cautions
    assert "1.96 times as slow in the second" in caution, "plain work is slowed more than a step"


def test_pulses_among_many_threads_are_not_held_against_those_of_one(tmp_path: Path) -> None:
    """Threads that wait for work may keep a core busy, and the pulse beside them slow: that is no neighbour's doing."""
    found = []
    for threads in (1, 8):
        kept = Kept(
            id=threads,
            key="",
            text="",
            task={"threads": threads, "framework": "numpy"},
            level="quick",
            state="done",
            summary={
                "felt": [CALM * threads],
                "medians": [1.0],
                "median": 1.0,
                "low": 0.9,
                "high": 1.1,
                "first": 4.0,
                "firsts": [4.0],
            },
        )
        found.append(("figure", "case", kept))
    assert [kept.summary["median"] for _, _, kept in _eased(found) if kept.summary] == [1.0, 1.0]
    beside = (
        "figure",
        "case",
        dataclasses.replace(found[0][2], summary={**(found[0][2].summary or {}), "felt": [2 * CALM]}),
    )
    nine = [("figure", "case", dataclasses.replace(found[0][2], id=10 + place)) for place in range(9)]
    slowed = [kept.summary for _, _, kept in _eased([*nine, beside]) if kept.summary][-1]
    ease = 0.5**summary.SHARE
    assert slowed["median"] == pytest.approx(ease) and slowed["first"] == pytest.approx(4 * ease), (
        "a first step is slowed too"
    )
    assert (
        slowed["disturbed"]
        and slowed["low"] < 0.8 * slowed["median"]
        and slowed["high"] > 1.2 * slowed["median"]
    )


def test_a_cell_that_met_a_slow_machine_is_measured_again_at_most_twice(tmp_path: Path) -> None:
    """Every fifth is disturbed once and every seventh always; the others are calm. A calm process counts and a disturbed one does not."""
    ran = defaultdict[int, list[int]](list)

    def slow(work: Work) -> float:
        size = work.task.settings["n_rec"]
        ran[size].append(work.number)
        return 1.9 if size % 7 == 0 or (size % 5 == 0 and work.number == 0) else 1.0

    rows = {row.settings["n_rec"]: row for row in rows_of(tmp_path, slow)}
    for size, numbers in ran.items():
        assert numbers == list(range(4 if size % 7 == 0 else 3 if size % 5 == 0 else 2)), (
            "two calm ones, two further ones at most"
        )
        calm = sum(not (size % 7 == 0 or (size % 5 == 0 and number == 0)) for number in numbers)
        assert len(rows[size].groups) == (calm or len(numbers))
        assert rows[size].environment["slowed"] == pytest.approx(1.9 if size % 7 == 0 else 1.0)
    doubted = rows[7]
    assert (
        doubted.step_seconds and doubted.high_seconds and doubted.high_seconds > 1.3 * doubted.step_seconds
    ), "how much met the step is not known"
    assert [size for size, row in rows.items() if row.environment.get("disturbed")] == list(range(7, 61, 7))
    again = defaultdict[int, list[int]](list)
    rows_of(tmp_path, lambda work: again[work.task.settings["n_rec"]].append(work.number) or 1.0)
    assert not again, "the same command has nothing left to do"


@pytest.mark.parametrize("level", ["default", "rigorous"])
def test_a_cell_that_needs_fewer_processes_than_it_may_have_is_still_given_two_further_at_most(
    tmp_path: Path, level: Any
) -> None:
    study = studies.load(write_study(tmp_path / "study", range(1, 21)))
    answer = lambda work: Outcome(
        work=work, report=slowed_report(work, 2.0 if work.task.settings["n_rec"] == 3 else 1.0)
    )
    with contextlib.closing(StudyStore(tmp_path / "store.sqlite")) as store:
        runs = [FakeEngine(answer), FakeEngine(answer)]
        for engine in runs:
            run(study, store, engine, FakeMachine(), Order(level=level))
    counts = [Counter(work.task.settings["n_rec"] for work in engine.seen) for engine in runs]
    assert counts[0][3] == counts[0][2] + 2 and not counts[1]


def test_a_further_process_that_fails_leaves_the_cell_as_it_was(tmp_path: Path) -> None:
    study = studies.load(write_study(tmp_path / "study", range(1, 21)))

    def answer(work: Work) -> Outcome:
        if work.number > 1:
            return Outcome(work=work, state="crashed", error="it fell over")
        return Outcome(
            work=work, report=slowed_report(work, 2.0 if work.task.settings["n_rec"] == 3 else 1.0)
        )

    with contextlib.closing(StudyStore(tmp_path / "store.sqlite")) as store:
        engine = FakeEngine(answer)
        tally = run(study, store, engine, FakeMachine(), Order(level="quick", whole=True))
        assert tally.states == {"done": 20} and not tally.failures
        assert any(number > 1 for number in (work.number for work in engine.seen)), (
            "the disturbed one was tried again"
        )
        again = FakeEngine(answer)
        run(study, store, again, FakeMachine(), Order(level="quick", whole=True))
        assert not again.seen, "what failed twice is not tried for ever"
        assert all(
            row.state == "done" and row.step_seconds
            for row in results(study, store)
            if row.origin == "measured"
        )


def test_a_child_for_a_cpu_tells_its_pulse_before_and_after_all_its_samples() -> None:
    task = Task(framework="numpy", variant="hand", job="rnn", settings={"n_rec": 5, "n_steps": 3})
    protocol = Protocol(processes=1, most_processes=1, seconds=0.3, warm_seconds=0.02, precision=1e-9)
    report = frameworks.run_task(task, protocol)
    felt = report["pulse"]["felt"]
    assert (
        felt[0][0] == 0
        and felt[-1][0] == len(report["samples"]["steady"]["seconds"])
        and all(1e-6 < beat < 0.1 for _, beat in felt)
    )
    assert 1e-6 < stretches.part(report)["pulse"]["seconds"] < 0.1


def sampler_of(step_seconds: float, *, feels: bool = True) -> Sampler:
    return Sampler(lambda: time.sleep(step_seconds), lambda: None, 0.0005, lambda message: None, feels=feels)


def test_the_pulse_is_felt_as_time_goes_by() -> None:
    often, slow, never = sampler_of(0.002), sampler_of(0.06), sampler_of(0.002, feels=False)
    for one in (often, slow, never):
        one.steady(Protocol(seconds=0.3, precision=1e-9))
    assert 5 <= len(often.pulse) <= 14 and [after for after, _ in often.pulse] == sorted(
        after for after, _ in often.pulse
    )
    assert [after for after, _ in slow.pulse][: len(slow.seconds)] == list(range(len(slow.seconds))), (
        "between any two samples"
    )
    assert not never.pulse


def test_samples_that_agree_at_once_are_still_watched_for_as_long_as_a_neighbour_stays() -> None:
    one = sampler_of(0.002)
    begin = time.perf_counter()
    assert (
        one.steady(Protocol(seconds=0.8, precision=0.9)) == "precision" and time.perf_counter() - begin >= 0.3
    )


def test_plain_work_comes_before_a_beat_so_that_what_a_step_did_to_its_core_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, told = [0.0], list[float]()

    def beat() -> float:
        clock[0] += 1e-4
        told.append(clock[0])
        return 2e-4 if clock[0] < 1e-3 else 1e-4  # a core that vector code left slow for a millisecond

    monkeypatch.setattr(sampler, "beat", beat)
    monkeypatch.setattr(sampler.time, "perf_counter", lambda: clock[0])
    one = sampler_of(0.002)
    one._feel()
    assert one.pulse == [(0, 1e-4)] and told[-4] > 1e-3


def told(seconds: list[float], felt: list[Any]) -> dict[str, Any]:
    return {"samples": {"steady": {"steps": 2, "seconds": seconds}}, "pulse": {"felt": felt}}


def test_a_neighbour_who_stays_for_most_of_a_process_leaves_its_time_as_it_was() -> None:
    """Half as slow again for seven of ten samples, and the machine's pulse with it."""
    seconds = [1.5] * 4 + [1.0, 1.01, 0.99] + [1.5] * 3
    report = stretches.part(told(seconds, [(0, 2e-4), (4, 1e-4), (7, 1e-4), (8, 2e-4), (10, 2e-4)]))
    assert summary.steady(report) == [1.0, 1.01, 0.99] and summary.pulse_of(report) == 1e-4
    assert report["samples"]["disturbed"]["seconds"] == [1.5] * 7, "no sample is lost"


def test_samples_count_by_the_pulse_and_never_by_their_own_time() -> None:
    calm = told([1.0, 9.0, 1.0, 1.0], [(0, 1e-4), (2, 1.05e-4), (4, 1e-4)])
    assert summary.steady(stretches.part(calm)) == [1.0, 9.0, 1.0, 1.0]
    assert "disturbed" not in stretches.part(calm)["samples"]


def test_one_calm_sample_is_not_enough_to_go_by() -> None:
    report = stretches.part(
        told([1.0, 1.2, 1.4, 2.0, 2.0], [(0, 1e-4), (1, 1e-4), (2, 1.2e-4), (3, 1.4e-4), (5, 2e-4)])
    )
    assert summary.steady(report) == [1.0, 1.2, 1.4] and summary.pulse_of(report) == pytest.approx(1.2e-4)


def test_a_run_counts_the_calm_part_of_every_process_and_keeps_the_rest(tmp_path: Path) -> None:
    study = studies.load(write_study(tmp_path / "study", (10,)))
    seconds = [0.015] * 4 + [0.010] * 3
    report = {
        **told(seconds, [(0, 2e-4), (4, 1e-4), (7, 1e-4)]),
        "memory": {"peak_bytes": 1.0},
        "ready": {"threads": 1},
    }
    with contextlib.closing(StudyStore(tmp_path / "store.sqlite")) as store:
        run(
            study,
            store,
            FakeEngine(lambda work: Outcome(work=work, report=report)),
            FakeMachine(),
            Order(level="quick"),
        )
        (row,) = (row for row in results(study, store) if row.origin == "measured")
        (cell,) = (kept.id for _, _, kept in store.cells(study.name))
        assert [len(each["samples"]["disturbed"]["seconds"]) for each in store.reports(cell)] == [4, 4]
    assert row.step_seconds == 0.010 and row.groups == ((0.010,) * 3,) * 2


@pytest.mark.parametrize(
    "felt",
    [
        None,
        "slow",
        [],
        [(0, 1e-4)],
        [(0, 1e-4), (1, 1e-4)],
        [(0, 1e-4), (2, 0.0)],
        [(0, 1e-4), (2, float("nan"))],
        [(0, 1e-4), (3, 1e-4), (2, 1e-4)],
        [[0], [2]],
        [(0, "a"), (2, "b")],
    ],
)
def test_a_pulse_that_cannot_be_is_no_pulse(felt: Any) -> None:
    report = stretches.part(told([1.0, 2.0], felt))
    assert summary.steady(report) == [1.0, 2.0] and summary.pulse_of(report) is None
