"""The machine's pulse: what a neighbour does to a process and to plain work beside it alike is taken out again."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_fakes import FakeEngine, FakeMachine, report_of, write_study

from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.sampler import Sampler
from windtunnel.measurement.steady import Protocol
from windtunnel.study import study as studies
from windtunnel.study.compare import compare
from windtunnel.study.engine import Outcome, Work
from windtunnel.study.results import _eased, by_interval, results
from windtunnel.study.rows import Row
from windtunnel.study.runner import Order, run
from windtunnel.study.store import Kept, StudyStore

CALM = 2e-4


def slowed_report(work: Work, factor: float, *, felt: bool = True) -> dict[str, Any]:
    report = report_of(work)
    steady = report["samples"]["steady"]
    steady["seconds"] = [second * factor for second in steady["seconds"]]
    return {**report, "pulse": {"kind": "pulse", "seconds": CALM * factor}} if felt else report


def rows_of(folder: Path, slow: Callable[[Work], float], *, felt: bool = True, count: int = 60, step: float = 1.0) -> list[Row]:
    """A quick run in which processes and their pulses are slowed, and the steps of all of them are `step` times as long."""
    study = studies.load(write_study(folder / "study", range(1, count + 1)))

    def answer(work: Work) -> Outcome:
        report = slowed_report(work, slow(work), felt=felt)
        report["samples"]["steady"]["seconds"] = [second * step for second in report["samples"]["steady"]["seconds"]]
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
        assert one.step_seconds == pytest.approx(other.step_seconds)
        assert one.groups == tuple(pytest.approx(group) for group in other.groups)
        assert one.low_seconds is not None and one.step_seconds is not None and one.high_seconds is not None
        assert one.low_seconds <= one.step_seconds <= one.high_seconds < 1.1 * one.low_seconds
    assert {row.environment["slowed"] for row in calm} == {1.0}
    assert {1.0, 1.6} <= {row.environment["slowed"] for row in disturbed}


def test_without_a_pulse_times_stay_as_they_were_measured(tmp_path: Path) -> None:
    row = rows_of(tmp_path, lambda work: 1.6, felt=False, count=1)[0]
    assert row.step_seconds == pytest.approx(0.0016, rel=0.02) and "slowed" not in row.environment


def test_a_run_compared_with_itself_on_a_disturbed_machine_says_same(tmp_path: Path) -> None:
    pair = [by_interval(rows_of(tmp_path / name, by_chance(seed))) for name, seed in (("a", 1), ("b", 2))]
    raw = [by_interval(rows_of(tmp_path / name, by_chance(seed), felt=False)) for name, seed in (("c", 1), ("d", 2))]
    assert compare(*pair).counts["same"] == 60
    assert compare(*raw).counts["same"] < 30, "what is taken out is what hid it"


def test_a_step_that_itself_grew_slower_is_still_seen(tmp_path: Path) -> None:
    before, after = rows_of(tmp_path / "a", by_chance(1)), rows_of(tmp_path / "b", by_chance(2), step=1.4)
    assert compare(by_interval(before), by_interval(after)).counts["slower"] == 60


def test_a_run_that_had_no_calm_moment_is_told_of(tmp_path: Path) -> None:
    calm, hasty = (by_interval(rows_of(tmp_path / name, by_chance(seed))) for name, seed in (("a", 1), ("b", 2)))
    slow = by_interval(rows_of(tmp_path / "c", lambda work: 1.6))
    assert not compare(calm, hasty).cautions
    (caution,) = compare(calm, slow).cautions
    assert "1.60 times as slow in the second" in caution


def test_pulses_among_many_threads_are_not_held_against_those_of_one(tmp_path: Path) -> None:
    """Threads that wait for work may keep a core busy, and the pulse beside them slow: that is no neighbour's doing."""
    found = []
    for threads in (1, 8):
        kept = Kept(
            id=threads,
            key="",
            text="",
            task={"threads": threads},
            level="quick",
            state="done",
            summary={"pulses": [CALM * threads], "medians": [1.0], "median": 1.0, "low": 0.9, "high": 1.1, "first": 4.0},
        )
        found.append(("figure", "case", kept))
    assert [kept.summary["median"] for _, _, kept in _eased(found) if kept.summary] == [1.0, 1.0]
    beside = ("figure", "case", dataclasses.replace(found[0][2], summary={**(found[0][2].summary or {}), "pulses": [2 * CALM]}))
    slowed = [kept.summary for _, _, kept in _eased([found[0]] * 9 + [beside]) if kept.summary][-1]
    assert slowed["median"] == pytest.approx(0.5) and slowed["first"] == pytest.approx(2.0), "a first step is slowed too"


def test_a_child_for_a_cpu_tells_its_pulse() -> None:
    task = Task(framework="numpy", way="hand", job="rnn", settings={"n_rec": 5, "n_steps": 3})
    protocol = Protocol(processes=1, most_processes=1, seconds=0.3, warm_seconds=0.02, precision=1e-9)
    assert 1e-6 < frameworks.run_task(task, protocol)["pulse"]["seconds"] < 0.1


def sampler_of(step_seconds: float, *, feels: bool = True) -> Sampler:
    return Sampler(lambda: time.sleep(step_seconds), lambda: None, 0.0005, lambda message: None, feels=feels)


def test_the_pulse_is_felt_as_often_as_time_goes_by_and_told_only_where_it_was_felt_enough() -> None:
    often, seldom, never = sampler_of(0.002), sampler_of(0.001), sampler_of(0.002, feels=False)
    often.steady(Protocol(seconds=0.3, precision=1e-9))
    seldom.steady(Protocol(seconds=0.02, precision=1e-9))
    never.steady(Protocol(seconds=0.3, precision=1e-9))
    assert 10 <= len(often.beats) <= 61 and often.pulse() is not None
    assert 1 <= len(seldom.beats) < 10 and seldom.pulse() is None
    assert not never.beats and never.pulse() is None


def test_after_a_long_step_the_pulse_is_felt_several_times() -> None:
    long = sampler_of(0.15)
    long.steady(Protocol(seconds=0.3, precision=1e-9))
    assert len(long.seconds) == 3 and len(long.beats) == 30
