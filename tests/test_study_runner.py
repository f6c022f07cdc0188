"""Running a study: every cell once, interleaved, stored as it comes; failures are results; resuming, levels,
thousands of cells."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from study_fakes import FakeEngine, FakeMachine, report_of, samples_of, write_study
from typer.testing import CliRunner

import windtunnel
from windtunnel import ownership
from windtunnel.cli import app
from windtunnel.errors import BadRecord, Interrupted, StoreError
from windtunnel.measurement import summary
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport, Samples
from windtunnel.measurement.steady import LEVELS, Interval, interval
from windtunnel.measurement.store import Store, dump
from windtunnel.measurement.summary import Summary
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.results import results
from windtunnel.study.run import runner
from windtunnel.study.run.cells import Choice
from windtunnel.study.run.engine import Outcome, Work
from windtunnel.study.run.forecasts import ABSENT_GPU
from windtunnel.study.run.progress import RunProgress
from windtunnel.study.run.runner import Order, RunCallbacks, run
from windtunnel.study.study import Study

QUICK = Order(level="quick", seed=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "study.sqlite")


def a_study(tmp_path: Path, *labels: str, sizes: int = 10, more: str = "") -> Study:
    return studies.find(
        str(write_study(tmp_path / "mine", range(10, 10 + sizes), labels or ("torch:loop",), more))
    )


def fail(work: Work, state: str = "crashed") -> Outcome:
    return Outcome(work=work, state=state, error="A process was ended by SIGSEGV.")


def test_every_cell_is_measured_by_as_many_processes_as_its_level_asks(tmp_path: Path, store: Store) -> None:
    engine = FakeEngine()
    cell_counts = run(a_study(tmp_path), store, engine, FakeMachine(), Order(seed=1))
    assert cell_counts.states == {"done": 10} and not cell_counts.failed
    assert sorted({w.number for w in engine.seen}) == [0, 1] and len(engine.seen) == 20


def test_process_zero_of_all_cells_comes_before_process_one_of_any_in_a_shuffled_order(
    tmp_path: Path, store: Store
) -> None:
    engine = FakeEngine()
    run(a_study(tmp_path), store, engine, FakeMachine(), Order(seed=1))
    assert [w.number for w in engine.seen] == [0] * 10 + [1] * 10
    first, second = ([w.task.settings["n_rec"] for w in engine.seen[i : i + 10]] for i in (0, 10))
    assert sorted(first) == sorted(second) and first != second and first != sorted(first)


def test_the_order_is_the_same_from_a_stored_seed(tmp_path: Path) -> None:
    orders = []
    for name in ("a", "b"):
        other, engine = Store(tmp_path / f"{name}.sqlite"), FakeEngine()
        run(a_study(tmp_path), other, engine, FakeMachine(), Order(seed=7))
        assert other.seed("mine", 99) == 7
        orders.append([w.task.settings["n_rec"] for w in engine.seen])
    assert orders[0] == orders[1]


def test_the_same_command_resumes_and_measures_nothing_twice(tmp_path: Path, store: Store) -> None:
    study = a_study(tmp_path)

    class Stops(FakeEngine):
        def measure(self, work):  # type: ignore[no-untyped-def]
            for i, outcome in enumerate(super().measure(work)):
                if i == 4:
                    raise KeyboardInterrupt
                yield outcome

    with pytest.raises(Interrupted, match="0 of 10 cells are done and stored"):
        run(study, store, Stops(), FakeMachine(), Order(seed=1))
    engine = FakeEngine()
    assert run(study, store, engine, FakeMachine(), Order(seed=1)).states == {"done": 10}
    assert len(engine.seen) == 20 - 4
    again = FakeEngine()
    run(study, store, again, FakeMachine(), Order(seed=1))
    assert not again.seen


def test_a_cell_whose_processes_disagree_gets_more_of_them_up_to_the_cap(
    tmp_path: Path, store: Store
) -> None:
    def unsteady(work: Work) -> Outcome:
        return Outcome(work=work, report=report_of(work, [0.001 * (1 + work.number)] * 5))

    engine = FakeEngine(unsteady)
    run(a_study(tmp_path, sizes=2), store, engine, FakeMachine(), Order(seed=1))
    assert [w.number for w in engine.seen] == [0, 0, 1, 1, 2, 2]
    rows = [row for row in results(studies.find(str(tmp_path / "mine")), store) if row.origin == "measured"]
    assert all(row.environment["stopped_by"] == "the cap on processes" for row in rows)


def test_a_failure_is_a_row_with_a_name_and_no_seconds_and_the_rest_is_unharmed(
    tmp_path: Path, store: Store
) -> None:
    study = a_study(tmp_path)
    heard: list[tuple[Outcome | None, RunProgress]] = []
    engine = FakeEngine(lambda work: fail(work) if work.task.settings["n_rec"] == 13 else None)
    cell_counts = run(
        study,
        store,
        engine,
        FakeMachine(),
        Order(seed=1),
        RunCallbacks(watch=lambda outcome, standing: heard.append((outcome, standing))),
    )
    assert (
        cell_counts.states == {"done": 9, "crashed": 1}
        and cell_counts.failed == 1
        and cell_counts.failures[0][1] == "crashed"
    )
    rows = {row.settings["n_rec"]: row for row in results(study, store)}
    assert rows[13].state == "crashed" and rows[13].step_seconds is None and "SIGSEGV" in rows[13].error
    assert rows[12].state == "done" and rows[12].step_seconds == pytest.approx(0.012, rel=0.02)
    assert sum(w.task.settings["n_rec"] == 13 for w in engine.seen) == 1, (
        "a cell that failed is not measured again by itself"
    )
    when = next(
        i for i, (outcome, _) in enumerate(heard) if outcome is not None and outcome.state == "crashed"
    )
    assert heard[when][1].failed == 1, "it is reported when it happens"


def test_rerun_failed_measures_just_those(tmp_path: Path, store: Store) -> None:
    study = a_study(tmp_path)
    run(
        study,
        store,
        FakeEngine(lambda work: fail(work) if work.task.settings["n_rec"] in (11, 13) else None),
        FakeMachine(),
        Order(seed=1),
    )
    engine = FakeEngine()
    cell_counts = run(study, store, engine, FakeMachine(), Order(seed=1, rerun=True))
    assert cell_counts.states == {"done": 10} and {w.task.settings["n_rec"] for w in engine.seen} == {11, 13}


def test_what_is_not_installed_and_what_needs_a_gpu_is_counted_apart_and_fails_nothing(
    tmp_path: Path, store: Store
) -> None:
    study = a_study(
        tmp_path,
        "torch:loop",
        "jax:scan",
        sizes=3,
        more='[[case]]\nname = "gpu"\nlabels = ["torch:loop"]\ndevice = "gpu"\n',
    )
    engine = FakeEngine()
    cell_counts = run(study, store, engine, FakeMachine(missing="jax"), QUICK)
    assert cell_counts.states == {"done": 2, "not installed": 2, "no gpu here": 2} and not cell_counts.failed
    assert {w.task.label for w in engine.seen} == {"torch:loop"} and {w.task.device for w in engine.seen} == {
        "cpu"
    }
    assert run(study, store, FakeEngine(), FakeMachine(), QUICK).states == {"done": 4, "no gpu here": 2}, (
        "installed since"
    )


def test_a_new_version_of_a_framework_is_another_measurement_and_the_latest_is_shown(
    tmp_path: Path, store: Store
) -> None:
    study = a_study(tmp_path, sizes=2)
    run(study, store, FakeEngine(), FakeMachine(version="1"), QUICK)
    engine = FakeEngine()
    run(study, store, engine, FakeMachine(version="2"), QUICK)
    assert engine.seen
    rows = [row for row in results(study, store) if row.origin == "measured"]
    assert len(rows) == 2 and {row.environment["versions"]["torch"] for row in rows} == {"2"}


def test_two_figures_with_the_same_task_share_one_measurement(tmp_path: Path, store: Store) -> None:
    folder = write_study(tmp_path / "mine", (10, 20))
    (folder / "figure-2.toml").write_text((folder / "figure-1.toml").read_text())
    engine = FakeEngine()
    run(studies.find(str(folder)), store, engine, FakeMachine(), Order(seed=1))
    assert len(engine.seen) == 4
    assert {row.figure for row in results(studies.find(str(folder)), store)} == {"figure-1", "figure-2"}


def test_a_more_rigorous_level_stands_in_the_results(tmp_path: Path, store: Store) -> None:
    study = a_study(tmp_path, sizes=2)
    run(study, store, FakeEngine(), FakeMachine(), Order(level="rigorous", seed=1))
    run(study, store, FakeEngine(), FakeMachine(), QUICK)
    assert {row.environment["level"] for row in results(study, store)} == {"rigorous"}
    assert {row.environment["level"] for row in results(study, store, level="quick")} == {"quick"}
    assert all(len(row.groups) >= 5 for row in results(study, store))


def test_a_report_without_steady_samples_is_no_result(tmp_path: Path, store: Store) -> None:
    bad = iter(
        [
            None,
            ProcessReport(),
            ProcessReport(samples={"steady": Samples()}),
            ProcessReport(samples={"first": Samples(seconds=(1.0,))}),
        ]
    )
    cell_counts = run(
        a_study(tmp_path, sizes=4),
        store,
        FakeEngine(lambda work: Outcome(work=work, report=next(bad))),
        FakeMachine(),
        Order(seed=1),
    )
    assert cell_counts.states == {"no result": 4}


def test_an_engine_that_breaks_over_a_piece_has_it_named_and_goes_on_with_the_others(
    tmp_path: Path, store: Store
) -> None:
    def breaks(work: Work) -> None:
        if work.task.settings["n_rec"] == 13:
            raise TypeError("unreadable")

    cell_counts = run(a_study(tmp_path), store, FakeEngine(breaks), FakeMachine(), Order(seed=1))
    assert (
        cell_counts.states == {"done": 9, "fault": 1}
        and "TypeError: unreadable" in cell_counts.failures[0][2]
    )


def test_an_engine_that_brings_the_same_piece_twice_is_taken_once(tmp_path: Path, store: Store) -> None:
    class Stutters(FakeEngine):
        def measure(self, work):  # type: ignore[no-untyped-def]
            for outcome in super().measure(work):
                yield outcome
                yield outcome

    study = a_study(tmp_path, sizes=3)
    run(study, store, Stutters(), FakeMachine(), Order(seed=1))
    assert all(len(row.groups) == 2 for row in results(study, store))


def test_every_raw_sample_is_kept_and_read_back_equal(tmp_path: Path, store: Store) -> None:
    study, engine = a_study(tmp_path, sizes=3), FakeEngine()
    run(study, store, engine, FakeMachine(), Order(seed=1))
    rows = {row.settings["n_rec"]: row for row in results(study, store, samples=None)}
    for work in engine.seen:
        assert rows[work.task.settings["n_rec"]].groups[work.number] == tuple(samples_of(work))


def test_a_study_of_longer_timing_times_longer_and_does_not_stop_for_precision(
    tmp_path: Path, store: Store
) -> None:
    folder = write_study(tmp_path / "mine", (10,))
    figure = folder / "figure-1.toml"
    figure.write_text("longer = 10.0\n" + figure.read_text())
    engine = FakeEngine()
    run(studies.find(str(folder)), store, engine, FakeMachine(), QUICK)
    assert engine.seen[0].protocol.seconds == pytest.approx(3.0) and engine.seen[0].protocol.precision < 1e-6


def test_time_left_falls_to_nothing_and_counts_what_is_left(tmp_path: Path, store: Store) -> None:
    seen: list[RunProgress] = []
    run(
        a_study(tmp_path),
        store,
        FakeEngine(),
        FakeMachine(),
        Order(seed=1),
        RunCallbacks(watch=lambda outcome, standing: seen.append(standing)),
    )
    assert seen[0].done == 0 and seen[0].wanted == 20 and seen[0].left_seconds > 0
    assert seen[-1].done == seen[-1].wanted == 20 and seen[-1].left_seconds == pytest.approx(0, abs=1e-6)


def test_long_steps_take_longer_in_the_forecast(tmp_path: Path, store: Store) -> None:
    study, first = a_study(tmp_path), []
    for steps in (0.001, 10.0):
        other = Store(tmp_path / f"{steps}.sqlite")
        run(
            study,
            other,
            FakeEngine(),
            FakeMachine(),
            QUICK,
            RunCallbacks(
                step_seconds=lambda task, s=steps: s,
                watch=lambda o, s: first.append(s) if o is None else None,
            ),
        )
    assert first[1].left_seconds > 5 * first[0].left_seconds


def draw_slowly(groups: list[list[float]]) -> Interval:
    """The same bootstrap by drawing every sample."""
    rng = numpy.random.default_rng(0)
    drawn = []
    for _ in range(500):
        chosen = rng.integers(0, len(groups), len(groups))
        drawn.append(numpy.median([numpy.median(rng.choice(groups[c], len(groups[c]))) for c in chosen]))
    low, high = numpy.quantile(drawn, [0.025, 0.975])
    return Interval(median=statistics.median(map(statistics.median, groups)), low=low, high=high)


def test_drawing_ranks_gives_the_interval_of_drawing_samples() -> None:
    rng = random.Random(3)
    groups = [[rng.lognormvariate(0, 0.1) * scale for _ in range(201)] for scale in (1.0, 1.05, 1.1)]
    fast, slow = interval(groups), draw_slowly(groups)
    assert fast.median == slow.median
    assert fast.low == pytest.approx(slow.low, rel=0.01) and fast.high == pytest.approx(slow.high, rel=0.01)


def test_an_interval_of_few_processes_is_no_narrower_than_processes_differ() -> None:
    """Processes that differ by a normal 5 %: one of them alone must be within its interval in about 95 of 100
    cells."""
    rng = random.Random(5)
    spread = summary.spread_between([[math.exp(rng.gauss(0, 0.05)) for _ in range(2)] for _ in range(400)])
    assert spread == pytest.approx(1.96 * 0.05, rel=0.15)
    inside = 0
    for _ in range(400):
        median = math.exp(rng.gauss(0, 0.05))
        low, high = summary.widen(Summary(medians=(median,), median=median, low=median, high=median), spread)
        inside += low <= 1.0 <= high
    assert inside / 400 >= 0.9


def test_a_quick_run_gives_every_cell_two_processes_all_the_first_before_any_second(
    tmp_path: Path, store: Store
) -> None:
    folder = write_study(tmp_path / "mine", (10, 20), [f"torch{i}:loop" for i in range(50)])
    engine = FakeEngine()
    run(studies.find(str(folder)), store, engine, FakeMachine(), QUICK)
    assert [work.number for work in engine.seen] == [0] * 100 + [1] * 100


def test_a_quick_run_of_the_whole_grid_is_as_short_as_a_quick_one(tmp_path: Path, store: Store) -> None:
    study, corners, whole = a_study(tmp_path), FakeEngine(), FakeEngine()
    run(study, Store(tmp_path / "corners.sqlite"), corners, FakeMachine(), QUICK)
    run(study, store, whole, FakeMachine(), dataclasses.replace(QUICK, whole=True))
    assert {w.task.settings["n_rec"] for w in corners.seen} == {10, 19} and {
        w.task.settings["n_rec"] for w in whole.seen
    } == set(range(10, 20))
    assert {w.protocol for w in whole.seen} == {LEVELS["quick"]}
    assert {row.environment["level"] for row in results(study, store)} == {"quick"}


class WithGpu(FakeMachine):
    """Another machine, which has a GPU."""

    has_gpu = True

    def obstacle(self, task: Task) -> tuple[str, str] | None:
        return None


def on_gpu(work: Work) -> Outcome:
    report = report_of(work)
    ready = dataclasses.replace(report.ready, device_name="a GPU elsewhere")
    return Outcome(work=work, report=dataclasses.replace(report, ready=ready))


def measured_there(tmp_path: Path, study: Study, *frameworks: str) -> tuple[Path, Path]:
    """The store of another machine that measured some of it, and what is exported from there."""
    path, out = tmp_path / "there.sqlite", tmp_path / "there.json"
    run(
        study,
        Store(path),
        FakeEngine(on_gpu),
        WithGpu(),
        dataclasses.replace(QUICK, choice=Choice(frameworks=frameworks)),
    )
    mine = str(tmp_path / "mine")
    output = ask("export", mine, "--out", str(out), "--most-samples", "3", "--store", str(path))
    assert f"{len(export.read(out))} rows written" in output
    return path, out


def ask(*words: str) -> str:
    done = CliRunner().invoke(app, ["study", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


ON_GPU = '[[case]]\nname = "gpu"\nlabels = ["torch:loop", "torch:graph"]\ndevice = "gpu"\n'
PRINTED = """[[published]]
case = "K80"
label = "theano:scan"
device_name = "k80"
rows = { n_rec = [10, 11] }
table = [[0.5], ["na"]]
"""


def test_exported_rows_are_read_back_the_same(tmp_path: Path) -> None:
    study = a_study(tmp_path, sizes=3, more=ON_GPU + PRINTED)
    path, out = measured_there(tmp_path, study)
    other = Store(path)
    assert export.read(out) == results(study, other, samples=3) != results(study, other, samples=2)
    rows = export.read(out)
    assert {row.origin for row in rows} == {"measured", "published"} and any(
        row.step_seconds is None for row in rows
    )
    assert all(len(group) == 3 for row in rows if row.origin == "measured" for group in row.groups) and any(
        row.groups for row in rows
    )


@pytest.mark.parametrize(
    "text",
    ["", "no rows at all", '{"rows": []}', "[1, 2]", "[[]]", '[{"study": "mine"}]', '[{"colour": "red"}]'],
)
def test_a_file_that_holds_no_rows_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(BadRecord, match=r"rows\.json"):
        export.read(tmp_path / "rows.json")


def test_rows_of_another_machine_join_a_report_and_take_the_place_of_forecasts(
    tmp_path: Path, store: Store
) -> None:
    study = a_study(tmp_path, sizes=2, more=ON_GPU)
    run(study, store, FakeEngine(), FakeMachine(), QUICK)
    absent = [cell.task for cell in runner.choose(study, QUICK, FakeMachine()) if cell.task.device != "cpu"]
    forecast = {
        "step_seconds": 0.5,
        "low_seconds": 0.4,
        "high_seconds": 0.6,
        "peak_bytes": 1.0,
        "device_name": "H200",
    }
    store.add_forecasts(windtunnel.__version__, {(dump(task), ABSENT_GPU): forecast for task in absent})
    _, out = measured_there(tmp_path, study, "torch:loop")

    def lines(*words: str) -> set[tuple[str, str]]:
        """Name and origin of each of today's lines in the page."""
        page = tmp_path / "report.html"
        ask("report", str(tmp_path / "mine"), "--store", str(store.path), "--out", str(page), *words)
        return set(
            re.findall(r'<tr><th scope="row">([^<]+)</th><td>(measured|forecast)</td>', page.read_text())
        )

    alone, both = lines(), lines("--with", str(out))
    assert {name for name, origin in alone if origin == "forecast"} == {
        "torch:loop, H200",
        "torch:graph, H200",
    }
    assert {name for name, origin in both if origin == "forecast"} == {"torch:graph, H200"}, (
        "that machine has not measured it"
    )
    assert not any("GPU" in name for name, origin in alone if origin == "measured")
    assert any(name.startswith("torch:loop, GPU") for name, origin in both if origin == "measured")
    others = [dataclasses.replace(row, study="another") for row in export.read(out)]
    assert lines("--with", str(export.write(others, tmp_path / "others.json"))) == alone, (
        "rows of another study are not this one's"
    )


def test_ten_thousand_cells_stay_responsive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume, status and rows of 10,000 cells take seconds: measured against what this machine takes to parse
    as many lines of JSON."""
    study = studies.find(
        str(write_study(tmp_path / "mine", range(10, 1010), [f"torch:variant{i}" for i in range(10)]))
    )
    store = Store(tmp_path / "study.sqlite")
    store._db.executescript(
        "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY"
    )  # the disk is not tested here
    monkeypatch.setitem(
        LEVELS, "default", dataclasses.replace(LEVELS["default"], processes=1, most_processes=1)
    )
    with monkeypatch.context() as patched:  # nor how long it takes to fill it
        patched.setattr(
            runner,
            "interval",
            lambda groups: Interval(median=groups[0][0], low=groups[0][0], high=groups[0][0]),
        )
        run(study, store, FakeEngine(), FakeMachine(), Order(seed=1))
    line = json.dumps(report_of(Work(key="a", number=0, task=FIRST, protocol=LEVELS["quick"])).plain())

    def seconds(act: Callable[[], object]) -> float:
        start = time.process_time()  # of this process alone, so that a busy machine does not count
        act()
        return time.process_time() - start

    took = {}
    for name, act in {
        "resume": lambda: run(study, store, FakeEngine(), FakeMachine(), Order(seed=1)),
        "status": lambda: (store.counts("mine"), store.owner("mine"), store.cells("mine")),
        "rows": lambda: results(study, store),
    }.items():
        ratios = took[name] = list[float]()
        # What is slow is slow every time; a neighbour on the same core spoils one time or another.
        while not ratios or (min(ratios) >= 15 and len(ratios) < 5):
            ratios.append(seconds(act) / seconds(lambda: [json.loads(line) for _ in range(100_000)]))
    assert len(results(study, store)) == 10_000
    assert all(min(ratios) < 15 for ratios in took.values()), took


FIRST = runner.cells_of(studies.find("brandfonbrener-2017"), 1)[0].task


def test_a_second_coordinator_is_refused_and_told_who_runs_it(tmp_path: Path, store: Store) -> None:
    study = a_study(tmp_path, sizes=2)
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        alive = ownership.name_of(other.pid)
        store._db.execute("INSERT INTO lock VALUES ('mine', ?, 'today')", (alive,))
        with pytest.raises(StoreError, match=f"being run by process {other.pid}"):
            run(study, store, FakeEngine(), FakeMachine(), QUICK)
        assert store.owner("mine").startswith(f"process {other.pid}")
    finally:
        other.kill()
        other.wait()
    assert run(study, store, FakeEngine(), FakeMachine(), QUICK).states == {"done": 2}, (
        "a lock whose owner is gone is taken over"
    )


def test_a_lock_of_a_process_that_only_has_the_same_number_is_stale(tmp_path: Path, store: Store) -> None:
    host = platform.node()
    store._db.execute("INSERT INTO lock VALUES ('mine', ?, 'today')", (f"{host}|{os.getppid()}|1.00",))
    assert run(a_study(tmp_path, sizes=2), store, FakeEngine(), FakeMachine(), QUICK).states == {"done": 2}


def test_a_lock_of_another_host_holds_until_it_is_taken_over(tmp_path: Path, store: Store) -> None:
    study = a_study(tmp_path, sizes=2)
    store._db.execute("INSERT INTO lock VALUES ('mine', 'elsewhere|1|1.00', 'today')")
    with pytest.raises(StoreError, match="elsewhere"):
        run(study, store, FakeEngine(), FakeMachine(), QUICK)
    assert run(
        study, store, FakeEngine(), FakeMachine(), dataclasses.replace(QUICK, take_over=True)
    ).states == {"done": 2}


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database at all, but long enough to look like one" * 20)
    with pytest.raises(StoreError, match=r"text\.sqlite"):
        Store(tmp_path / "text.sqlite")


def test_a_median_in_the_results_is_the_samples_median(tmp_path: Path, store: Store) -> None:
    study, engine = a_study(tmp_path, sizes=1), FakeEngine()
    run(study, store, engine, FakeMachine(), Order(seed=1))
    row = next(row for row in results(study, store) if row.origin == "measured")
    assert row.step_seconds == pytest.approx(
        statistics.median(statistics.median(samples_of(w)) for w in engine.seen)
    )
    assert (
        row.low_seconds is not None
        and row.high_seconds is not None
        and row.low_seconds <= row.step_seconds <= row.high_seconds
    )
    assert row.first_seconds == 1.0 and row.peak_bytes == 1000.0 and row.device_name == "fake"
