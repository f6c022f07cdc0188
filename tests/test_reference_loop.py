"""The reference loop: what slows it slows a step too, so it shows which samples and processes count."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study_fakes import FakeEngine, FakeMachine, report_of, samples_of, write_study
from typer.testing import CliRunner

from windtunnel.cli import app
from windtunnel.errors import BadInput, BadRecord
from windtunnel.measurement import frameworks, sampler
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport, Ready, ReferenceLoop, Samples
from windtunnel.measurement.sampler import Sampler
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.store import Store, StoredCell
from windtunnel.measurement.summary import Summary
from windtunnel.measurement.windows import keep_quiet
from windtunnel.study import export, samples
from windtunnel.study import study as studies
from windtunnel.study.results import _quiet, results
from windtunnel.study.rows import StudyRow
from windtunnel.study.run.engine import Outcome, Work
from windtunnel.study.run.runner import Order, run
from windtunnel.study.statistics.compare import compare

QUIET = 2e-4
LOOP_POWER = 1.4  # the loop is slowed by this power of a step's slowdown


def slowed_report(work: Work, factor: float, *, watched: bool = True, step: float = 1.0) -> ProcessReport:
    """A step as much slower as the factor says, beside a reference loop that is slowed more."""
    report = report_of(work, [second * factor * step for second in samples_of(work)])
    if not watched:
        return report
    loop = QUIET * factor**LOOP_POWER
    readings = ((0, loop), (len(report.steady), loop))
    return dataclasses.replace(report, reference_loop=ReferenceLoop(readings=readings))


def rows_of(
    folder: Path, slow: Callable[[Work], float], *, watched: bool = True, count: int = 60, step: float = 1.0
) -> list[StudyRow]:
    """A quick run whose processes and loops are slowed, and whose steps are `step` times as long."""
    study = studies.load(write_study(folder / "study", range(1, count + 1)))

    def answer(work: Work) -> Outcome:
        return Outcome(work=work, report=slowed_report(work, slow(work), watched=watched, step=step))

    with contextlib.closing(Store(folder / "store.sqlite")) as store:
        run(study, store, FakeEngine(answer), FakeMachine(), Order(level="quick", whole=True))
        return sorted(results(study, store), key=lambda row: row.settings["n_rec"])


def by_chance(seed: int) -> Callable[[Work], float]:
    """As on a machine on which another program comes and goes."""
    return lambda work: random.Random(f"{seed} {work.key} {work.number}").choice((1.0, 1.0, 1.6))


def quiet_rows(folder: Path, slow: Callable[[Work], float], step: float = 1.0) -> list[StudyRow]:
    return [row for row in rows_of(folder, slow, step=step) if not row.disturbed]


def test_a_cell_with_a_quiet_process_has_the_time_of_the_quiet_machine(tmp_path: Path) -> None:
    noisy, quiet = rows_of(tmp_path / "a", by_chance(1)), rows_of(tmp_path / "b", lambda work: 1.0)
    assert sum(row.disturbed for row in noisy) < 10, "a third was disturbed, hardly one of them every time"
    for one, other in zip(noisy, quiet, strict=True):
        assert one.step_seconds and one.low_seconds and one.high_seconds and other.step_seconds
        assert one.low_seconds <= one.step_seconds <= one.high_seconds
        if not one.disturbed:
            assert one.step_seconds == pytest.approx(other.step_seconds, rel=0.02)
            assert all(s == pytest.approx(one.step_seconds, rel=0.1) for group in one.groups for s in group)


def test_a_row_holds_what_the_clock_said_and_nothing_else(tmp_path: Path) -> None:
    """Whatever the loop shows, samples and times are those that the processes reported, digit by digit."""
    reported = defaultdict[int, dict[int, tuple[float, tuple[float, ...]]]](dict)

    def slow(work: Work) -> float:
        size = work.task.settings["n_rec"]
        factor = 1.3 if size % 7 == 0 else by_chance(1)(work)
        seconds = tuple(second * factor for second in samples_of(work))
        reported[size][work.number] = (factor, seconds)
        return factor

    rows = rows_of(tmp_path, slow)
    assert {row.settings["n_rec"] for row in rows if row.disturbed} >= set(range(7, 61, 7))
    for row in rows:
        processes = reported[row.settings["n_rec"]].values()
        quietest = min(factor for factor, _ in processes)
        counted = tuple(seconds for factor, seconds in processes if factor == quietest)
        assert row.groups == counted
        medians = [statistics.median(group) for group in counted]
        assert row.step_seconds == statistics.median(medians)
        assert row.low_seconds and row.high_seconds
        reach = row.high_seconds / row.step_seconds
        assert row.step_seconds / row.low_seconds == pytest.approx(reach, rel=0.02), "no end is moved alone"


def test_every_sample_of_every_process_can_be_exported_as_the_clock_gave_it(tmp_path: Path) -> None:
    """Also the processes and windows that do not count."""
    study = studies.load(write_study(tmp_path / "study", range(1, 21)))
    windows = watched([0.9] * 4 + [0.5] * 3, [(0, 2 * QUIET), (4, QUIET), (7, QUIET)])
    slow = watched([0.7] * 5, [(0, 2 * QUIET), (5, 2 * QUIET)])

    def answer(work: Work) -> Outcome:
        return Outcome(work=work, report=slow if work.number == 0 else windows)

    path, out = tmp_path / "store.sqlite", tmp_path / "samples.csv"
    with contextlib.closing(Store(path)) as store:
        run(study, store, FakeEngine(answer), FakeMachine(), Order(level="quick", whole=True))
        processes = list(samples.raw_processes(study, store))
    lines = list(csv.DictReader(io.StringIO(samples.write(processes, out).read_text())))
    seen = Counter((line["phase"], line["counted"], float(line["seconds"])) for line in lines)
    assert seen == {
        ("steady", "False", 0.7): 5 * 20,
        ("disturbed", "True", 0.9): 4 * 40,
        ("steady", "True", 0.5): 3 * 40,
    }
    done = CliRunner().invoke(
        app,
        f"study export {tmp_path}/study --samples --store {path} --out {tmp_path}/samples.jsonl".split(),
    )
    assert "380 samples of 60 processes" in done.output, done.output
    first = json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[0])
    assert first["samples"]["steady"]["seconds"] == [0.7] * 5 and first["counted"] is False
    with pytest.raises(BadInput, match=r"csv or \.jsonl"):
        samples.write(processes, tmp_path / "samples.json")


def test_a_file_with_scaled_times_is_refused(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, lambda work: 1.0, count=1)
    scaled = dataclasses.replace(row, environment={**row.environment, "slowed": 1.05})
    with pytest.raises(BadRecord, match=r"1 times that windtunnel 0\.1 scaled"):
        export.read(export.write([scaled], tmp_path / "old.json"))


def test_without_a_reference_loop_times_stay_as_measured(tmp_path: Path) -> None:
    row = rows_of(tmp_path, lambda work: 1.6, watched=False, count=1)[0]
    assert row.step_seconds == pytest.approx(0.0016, rel=0.02)
    assert "reference_loop_seconds" not in row.environment


def test_a_run_compared_with_itself_on_a_noisy_machine_says_same(tmp_path: Path) -> None:
    pair = [quiet_rows(tmp_path / name, by_chance(seed)) for name, seed in (("a", 1), ("b", 2))]
    raw = [rows_of(tmp_path / name, by_chance(seed), watched=False) for name, seed in (("c", 1), ("d", 2))]
    assert compare(*pair).counts["same"] >= 45 and not compare(*pair).counts["faster"]
    assert compare(*raw).counts["same"] < 40, "what is left out is what hid it"


def test_a_step_that_itself_grew_slower_is_still_seen(tmp_path: Path) -> None:
    before = quiet_rows(tmp_path / "a", by_chance(1))
    seen = compare(before, quiet_rows(tmp_path / "b", by_chance(2), step=1.4))
    assert len(seen.cells) > 50 and seen.counts["slower"] == len(seen.cells)


def test_a_run_without_a_quiet_moment_is_named(tmp_path: Path) -> None:
    quiet, other = (quiet_rows(tmp_path / name, by_chance(seed)) for name, seed in (("a", 1), ("b", 2)))
    slow = rows_of(tmp_path / "c", lambda work: 1.6)
    assert not compare(quiet, other).cautions
    (caution,) = compare(quiet, slow).cautions
    assert "1.93 times" in caution, "the loop is slowed more than a step: 1.6 to the power of 1.4"


def stored(number: int, framework: str, loop: float, python: str = "3.11") -> tuple[str, str, StoredCell]:
    """A cell of one process, in figure and case."""
    ready = Ready(versions={"python": python})
    whole = Summary(
        medians=(1.0,), median=1.0, low=0.9, high=1.1, loop_seconds=(loop,), firsts=(4.0,), ready=ready
    )
    task = {"threads": 1, "framework": framework}
    cell = StoredCell(id=number, key="", text="", task=task, level="quick", state="done", summary=whole)
    return "figure", "case", cell


def test_what_is_quiet_is_the_machines_and_not_a_frameworks_own() -> None:
    """A framework that other programs slowed throughout is not quiet; another Python is another loop."""
    numpy = [stored(place, "numpy", QUIET) for place in range(9)]
    slow = [stored(10 + place, "jax", 2 * QUIET) for place in range(3)]
    other = [stored(20 + place, "mxnet", 2 * QUIET, python="3.9") for place in range(3)]
    wholes = [cell.summary for _, _, cell in _quiet([*numpy, *slow, *other]) if cell.summary]
    assert [whole.disturbed for whole in wholes] == [False] * 9 + [True] * 3 + [False] * 3
    for whole in wholes[9:12]:
        assert whole.slowdown == pytest.approx(2.0)
        assert (whole.low, whole.median, whole.high) == (0.9, 1.0, 1.1), "it is marked, not changed"


def test_a_cell_that_met_a_slow_machine_is_measured_again_at_most_twice(tmp_path: Path) -> None:
    """Every fifth is disturbed once and every seventh always. A quiet process counts, a disturbed one does
    not."""
    ran = defaultdict[int, list[int]](list)

    def slow(work: Work) -> float:
        size = work.task.settings["n_rec"]
        ran[size].append(work.number)
        return 1.9 if size % 7 == 0 or (size % 5 == 0 and work.number == 0) else 1.0

    rows = {row.settings["n_rec"]: row for row in rows_of(tmp_path, slow)}
    for size, numbers in ran.items():
        wanted = 4 if size % 7 == 0 else 3 if size % 5 == 0 else 2
        assert numbers == list(range(wanted)), "two quiet ones, two further ones at most"
        quiet = sum(not (size % 7 == 0 or (size % 5 == 0 and number == 0)) for number in numbers)
        assert len(rows[size].groups) == (quiet or len(numbers))
    assert [size for size, row in rows.items() if row.disturbed] == list(range(7, 61, 7))
    again = defaultdict[int, list[int]](list)
    rows_of(tmp_path, lambda work: again[work.task.settings["n_rec"]].append(work.number) or 1.0)
    assert not again, "the same command has nothing left to do"


@pytest.mark.parametrize("level", ["default", "rigorous"])
def test_a_cell_that_needs_fewer_processes_than_it_may_have_still_gets_two_further_at_most(
    tmp_path: Path, level: Any
) -> None:
    study = studies.load(write_study(tmp_path / "study", range(1, 21)))
    answer = lambda work: Outcome(
        work=work, report=slowed_report(work, 2.0 if work.task.settings["n_rec"] == 3 else 1.0)
    )
    with contextlib.closing(Store(tmp_path / "store.sqlite")) as store:
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

    with contextlib.closing(Store(tmp_path / "store.sqlite")) as store:
        engine = FakeEngine(answer)
        tally = run(study, store, engine, FakeMachine(), Order(level="quick", whole=True))
        assert tally.states == {"done": 20} and not tally.failures
        assert any(work.number > 1 for work in engine.seen), "the disturbed one was measured again"
        again = FakeEngine(answer)
        run(study, store, again, FakeMachine(), Order(level="quick", whole=True))
        assert not again.seen, "what failed twice is not repeated for ever"
        measured = [row for row in results(study, store) if row.origin == "measured"]
        assert all(row.state == "done" and row.step_seconds for row in measured)


def test_a_child_for_a_cpu_reads_the_loop_before_and_after_all_its_samples() -> None:
    task = Task(framework="numpy", variant="hand", job="rnn", settings={"n_rec": 5, "n_steps": 3})
    protocol = Protocol(processes=1, most_processes=1, seconds=0.3, warm_seconds=0.02, precision=1e-9)
    report = frameworks.run_task(task, protocol)
    assert report.reference_loop is not None
    readings = report.reference_loop.readings
    assert readings[0][0] == 0 and readings[-1][0] == len(report.steady) and len(readings) >= 2
    quiet = keep_quiet(report)
    fastest, slowest = (choose(seconds for _, seconds in readings) for choose in (min, max))
    assert quiet.loop_seconds is not None and fastest <= quiet.loop_seconds <= slowest
    assert set(quiet.steady) <= set(report.steady)


class Clock:
    """A clock that only steps and loops move, so that no busy machine slows a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(sampler, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(sampler, "reference_loop", lambda: self.move(1e-4))

    def move(self, seconds: float) -> float:
        self.now += seconds
        return seconds

    def sampler_of(self, step_seconds: float, *, watches: bool = True) -> Sampler:
        step = lambda: self.move(step_seconds)
        return Sampler(step, lambda: None, 0.0005, lambda message: None, watches=watches)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_loop_is_read_between_windows_of_samples(clock: Clock) -> None:
    often, slow = clock.sampler_of(0.002), clock.sampler_of(0.06)
    never = clock.sampler_of(0.002, watches=False)
    for one in (often, slow, never):
        one.steady(Protocol(seconds=0.3, precision=1e-9))
    counts = [after for after, _ in often.readings]
    assert counts == sorted(counts) and 2 < len(counts) < len(often.seconds)
    between = [after for after, _ in slow.readings][: len(slow.seconds)]
    assert between == list(range(len(slow.seconds))), "between any two long samples"
    assert not never.readings


def test_samples_that_agree_at_once_are_still_watched_for_longer_than_a_short_disturbance(
    clock: Clock,
) -> None:
    one = clock.sampler_of(0.002)
    assert one.steady(Protocol(seconds=0.8, precision=0.9)) == "precision"
    assert sampler._LEAST_SECONDS <= clock.now < 0.8


def test_a_reading_waits_until_the_core_has_recovered_from_the_step(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = list[float]()

    def loop() -> float:
        clock.move(1e-4)
        ends.append(clock.now)
        return 2e-4 if clock.now < 1e-3 else 1e-4  # a core that vector code left slow for a millisecond

    monkeypatch.setattr(sampler, "reference_loop", loop)
    one = clock.sampler_of(0.002)
    one._read_loop()
    assert one.readings == [(0, 1e-4)] and ends[-4] > 1e-3


def watched(seconds: list[float], readings: list[tuple[int, float]]) -> ProcessReport:
    return ProcessReport(
        samples={"steady": Samples(steps=2, seconds=tuple(seconds))},
        reference_loop=ReferenceLoop(readings=tuple(readings)),
    )


def test_a_program_that_runs_for_most_of_a_process_leaves_its_time_as_it_was() -> None:
    """Half as slow again for seven of ten samples, and the reference loop with it."""
    seconds = [1.5] * 4 + [1.0, 1.01, 0.99] + [1.5] * 3
    report = keep_quiet(watched(seconds, [(0, 2e-4), (4, 1e-4), (7, 1e-4), (8, 2e-4), (10, 2e-4)]))
    assert report.steady == (1.0, 1.01, 0.99) and report.loop_seconds == 1e-4
    assert report.samples["disturbed"].seconds == (1.5,) * 7, "no sample is lost"


def test_samples_count_by_the_loop_and_never_by_their_own_time() -> None:
    report = keep_quiet(watched([1.0, 9.0, 1.0, 1.0], [(0, 1e-4), (2, 1.05e-4), (4, 1e-4)]))
    assert report.steady == (1.0, 9.0, 1.0, 1.0) and "disturbed" not in report.samples


def test_one_quiet_sample_is_not_enough() -> None:
    readings = [(0, 1e-4), (1, 1e-4), (2, 1.2e-4), (3, 1.4e-4), (5, 2e-4)]
    report = keep_quiet(watched([1.0, 1.2, 1.4, 2.0, 2.0], readings))
    assert report.steady == (1.0, 1.2, 1.4) and report.loop_seconds == pytest.approx(1.2e-4)


def test_a_run_counts_the_quiet_part_of_every_process_and_stores_the_rest(tmp_path: Path) -> None:
    study = studies.load(write_study(tmp_path / "study", (10,)))
    report = watched([0.015] * 4 + [0.010] * 3, [(0, 2e-4), (4, 1e-4), (7, 1e-4)])
    engine = FakeEngine(lambda work: Outcome(work=work, report=report))
    with contextlib.closing(Store(tmp_path / "store.sqlite")) as store:
        run(study, store, engine, FakeMachine(), Order(level="quick"))
        (row,) = (row for row in results(study, store) if row.origin == "measured")
        (number,) = (cell.id for _, _, cell in store.cells(study.name))
        assert [len(each.samples["disturbed"].seconds) for each in store.reports(number)] == [4, 4]
    assert row.step_seconds == 0.010 and row.groups == ((0.010,) * 3,) * 2


@pytest.mark.parametrize(
    "readings",
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
def test_impossible_readings_are_ignored(readings: Any) -> None:
    data = {"samples": {"steady": {"steps": 1, "seconds": [1.0, 2.0]}}}
    report = keep_quiet(ProcessReport.read({**data, "reference_loop": {"readings": readings}}))
    assert report.steady == (1.0, 2.0) and report.loop_seconds is None


def test_a_summary_is_read_from_the_store_the_same() -> None:
    ready = Ready(threads=2, cpus=(0, 1), device_name="a GPU", facts={"cuda": "12"})
    whole = Summary(
        medians=(1.0, 2.0),
        median=1.5,
        low=1.0,
        high=2.0,
        loop_seconds=(1e-4, 2e-4),
        firsts=(None, 3.0),
        ready=ready,
    )
    assert Summary.read(json.loads(json.dumps(whole.plain()))) == whole


def test_a_report_arrives_from_another_machine_the_same() -> None:
    report = dataclasses.replace(
        keep_quiet(watched([1.0, 2.0, 3.0], [(0, 1e-4), (3, 1e-4)])),
        ready=Ready(threads=2, cpus=(0, 1), versions={"python": "3.11"}, facts={"cuda": "12"}),
        node="elsewhere",
        linear=2.0,
    )
    assert ProcessReport.read(report.plain()) == report
