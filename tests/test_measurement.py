from __future__ import annotations

import dataclasses
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import windtunnel as wt
from windtunnel import ownership, prediction
from windtunnel.cli import app
from windtunnel.errors import MeasurementFailed, StoreError, Unavailable
from windtunnel.forecast import forecast
from windtunnel.measurement import children, summary
from windtunnel.measurement import measure as module
from windtunnel.measurement.children import OnMessage
from windtunnel.measurement.order import ChildOrder
from windtunnel.measurement.processes import (
    MeasurementPlan,
    MeasurementStage,
    MeasureOptions,
    Processes,
)
from windtunnel.measurement.report import ProcessReport, ReferenceLoop, Samples
from windtunnel.measurement.steady import LEVELS, interval, is_precise
from windtunnel.measurement.store import Settled, Store

QUICK = wt.Protocol(processes=1, most_processes=1, seconds=0.1, warm_seconds=0.05, timeout_seconds=900)
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.sqlite")


@pytest.fixture(scope="module")
def here() -> wt.Machine:
    return wt.Machine.here().with_cpu_only()


def job_file(tmp_path: Path, body: str) -> wt.Workload:
    path = tmp_path / "job.py"
    path.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, time
            import torch, windtunnel as wt
            def build():
                return wt.Workload(name="case", model=lambda: torch.nn.Linear(4, 4),
                                   batch=lambda n: torch.randn(n, 4), loss=loss,
                                   optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
            def loss(model, batch):
            """
        )
        + textwrap.indent(textwrap.dedent(body), "    ")
    )
    return wt.Workload.named(f"{path}:build")


def test_a_measurement_has_the_shape_of_a_forecast(here: wt.Machine, store: Store) -> None:
    job, strategy = wt.Workload.named("rnn", n_rec=10, n_steps=5), wt.Strategy(threads=1)
    measured, forecast = (
        wt.measure(job, here, strategy, protocol=QUICK, store=store),
        wt.predict(job, here, strategy),
    )
    only_forecast = {"flop", "parameters", "host", "feed", "utilisation", "busy", "workers"}
    assert set(forecast.plain()) - only_forecast <= set(measured.plain()) | {"host_seconds"}
    assert measured.low_seconds <= measured.step_seconds <= measured.high_seconds
    assert sum(measured.parts.values()) == pytest.approx(measured.step_seconds)
    assert measured.environment["threads"] == 1 and len(measured.environment["cpus"]) == 1
    stored = store.results()[0]
    assert stored.state == "done" and stored.result and stored.result["step_seconds"] == measured.step_seconds
    assert len(store.reports(stored.id)[0].steady) == measured.samples


def test_threads_are_read_back_as_set(here: wt.Machine, store: Store) -> None:
    measured = wt.measure(
        wt.Workload.named("rnn", n_steps=2), here, wt.Strategy(threads=2), protocol=QUICK, store=store
    )
    assert measured.environment["threads"] == 2
    assert not any("threads were set" in caution for caution in measured.cautions)


def test_a_job_made_in_python_is_measured_too_even_after_threads_were_used(
    here: wt.Machine, store: Store
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.randn(500, 500) @ torch.randn(
        500, 500
    )  # leaves a pool of threads behind, which a forked child must not use
    torch.set_num_threads(before)
    width = 300
    job = wt.Workload(
        name="mine",
        model=lambda: nn.Linear(width, width),
        batch=lambda n: torch.randn(n, width),
        loss=lambda m, b: m(b).square().mean(),
        optimizer=lambda params: torch.optim.Adam(params),
    )
    measured = wt.measure(job, here, wt.Strategy(batch=256, threads=2), protocol=QUICK, store=store)
    assert measured.step_seconds > 0 and any("forked" in caution for caution in measured.cautions)


@pytest.mark.parametrize(
    ("body", "state", "word"),
    [
        ("raise ValueError('nothing to learn')", "raised", "nothing to learn"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "signal 11 (SIGSEGV)"),
        ("os.kill(os.getpid(), 40)", "crashed", "signal 40"),  # a realtime signal, which has no name
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "SIGKILL"),
        ("print('garbage'); os._exit(0)", "no result", "code 0"),
        ("torch.empty(10**15)", "out of memory", "smaller batch"),
        ("time.sleep(1000)", "timeout", "3 s"),
    ],
)
def test_a_child_that_fails_is_a_named_result(
    here: wt.Machine, store: Store, tmp_path: Path, body: str, state: str, word: str
) -> None:
    protocol = wt.Protocol(
        processes=1, most_processes=1, seconds=0.1, timeout_seconds=3.0 if state == "timeout" else 900.0
    )
    with pytest.raises(MeasurementFailed) as caught:
        wt.measure(job_file(tmp_path, body), here, protocol=protocol, store=store)
    assert caught.value.state == state and word in str(caught.value)
    assert store.results()[0].state == state


def test_what_a_job_prints_is_not_taken_for_a_report(here: wt.Machine, store: Store, tmp_path: Path) -> None:
    job = job_file(tmp_path, 'print(\'{"kind": "done"}\'); return model(batch).mean()')
    assert wt.measure(job, here, protocol=QUICK, store=store).samples > 0


@pytest.mark.parametrize("junk", [b"[" * 100_000 + b"\n", b"x" * 100_000 + b"\n", b"9" * 5000 + b"\n\xff\n"])
def test_what_a_job_writes_between_the_messages_is_dropped(
    junk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_MOST_LINE", 50_000)

    def run(pipe: int) -> None:
        for piece in (b'{"kind": "memory"}\n', junk, b'{"kind": "end"}\n'):
            while piece:
                piece = piece[os.write(pipe, piece) :]

    ending = children.start_fork(run, None, 300.0).finish()
    assert [message["kind"] for message in ending.messages] == ["memory", "end"] and ending.code == 0


def test_only_this_machine_can_be_measured(store: Store) -> None:
    with pytest.raises(Unavailable, match="h200"):
        wt.measure(wt.Workload.named("rnn"), wt.Machine.named("h200"), store=store)
    with pytest.raises(Unavailable, match="graph"):
        wt.measure(
            wt.Workload.named("rnn"),
            wt.Machine.here().with_cpu_only(),
            wt.Strategy(execution="graph"),
            store=store,
        )


def test_an_interrupted_measurement_goes_on_where_it_stopped(
    here: wt.Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, protocol = (
        wt.Workload.named("rnn", n_steps=2),
        wt.Protocol(processes=3, most_processes=3, seconds=0.1, warm_seconds=0.05),
    )
    real, calls = module.spawn, []

    def stop_at_third(*args: Any) -> ProcessReport:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(module, "spawn", stop_at_third)
    with pytest.raises(wt.Interrupted, match="2 of 3 processes") as caught:
        wt.measure(job, here, protocol=protocol, store=store)
    assert "same command" in str(caught.value)
    measured = wt.measure(job, here, protocol=protocol, store=store)
    assert measured.processes == 3 and len(calls) == 4
    assert any("before an interruption" in caution for caution in measured.cautions)


def report(seconds: float = 0.5, count: int = 200, number: int = 0) -> ProcessReport:
    return ProcessReport(number=number, samples={"steady": Samples(seconds=(seconds,) * count)})


def test_a_measurement_of_a_living_process_is_left_to_it(store: Store) -> None:
    cell = store.begin("key", {}, {})
    store.add(cell, report())
    host, parent = platform.node(), ownership.name_of(os.getppid())
    for owner, taken in (
        (parent, None),
        (parent.replace(ownership._boot(), "another-boot"), cell),
        (f"{host}|{os.getppid()}|{ownership._start_by_clock(os.getppid())}", None),
        ("another-host|7|1.00", None),
        (f"{host}|{os.getppid()}|1.00", cell),
        (f"{host}|999999999|1.00", cell),
    ):
        store._db.execute("UPDATE lock SET owner = ?", (owner,))
        assert store.take_over("key") == taken
    assert store.take_over("another key") is None


def test_a_full_disk_is_reported_and_loses_nothing(store: Store) -> None:
    first = store.begin("key", {"job": "x"}, {})
    store.add(first, report(0.1, 10))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full") as caught:
        store.add(first, report(0.1, 100_000, number=1))
    assert str(store.path) in str(caught.value)
    again = Store(store.path)
    assert len(again.reports(first)) == 1
    assert again._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_full_disk_still_shows_what_was_measured(
    here: wt.Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise StoreError("The store cannot be written: database or disk is full.")

    monkeypatch.setattr(store, "add", refuse)
    with pytest.raises(StoreError, match=r"measured .* s a step"):
        wt.measure(wt.Workload.named("rnn", n_steps=2), here, protocol=QUICK, store=store)


def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer") as caught:
        Store(path)
    assert "--store" in str(caught.value) and path.read_bytes() == before


@pytest.mark.parametrize("version", [0, 1])
def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(path)
    assert path.read_bytes() == before


def test_the_memory_of_a_tiny_job_is_not_the_frameworks(here: wt.Machine, store: Store) -> None:
    measured = wt.measure(
        wt.Workload.named("rnn", n_steps=2), here, wt.Strategy(threads=1), protocol=QUICK, store=store
    )
    assert measured.memory.peak_bytes < 30 * 2**20


@pytest.mark.parametrize(
    "content", [b"this is not a database, but it is long enough to be taken for one" * 20, b""]
)
def test_a_file_that_is_no_store_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be opened" if content else "is empty: it has 0 bytes"):
        Store(path)
    assert path.read_bytes() == content


def test_a_store_where_nothing_can_be_written_is_refused() -> None:
    with pytest.raises(StoreError, match="/dev/null"):
        Store(Path("/dev/null/store.sqlite"))


def test_kills_at_any_moment_leave_whole_processes_only(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from windtunnel.measurement.store import Store
        from windtunnel.measurement.report import ProcessReport, Samples
        store = Store(Path(sys.argv[1]))
        cell = store.begin("key", {}, {})
        print("ready", flush=True)
        for number in range(100_000):
            samples = {"steady": Samples(seconds=(0.5,) * 200)}
            store.add(cell, ProcessReport(number=number, samples=samples))
        """
    )
    for kill in range(5):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(0.05 + 0.03 * kill)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = Store(path)
        latest = store.results()[0].id
        assert all(len(report.steady) == 200 for report in store.reports(latest))
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        store.close()


def test_the_interval_is_as_wide_as_processes_differ_however_well_each_is_known() -> None:
    """Of two processes, one in four draws has the first alone, and one in four the second alone."""
    over = interval([[1.0] * 50, [2.0] * 50])
    assert (over.low, over.median, over.high) == (1.0, 1.5, 2.0)


def test_the_interval_holds_the_median_and_narrows_with_agreement() -> None:
    apart = interval([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [1.5, 1.6, 1.4]])
    alike = interval([[1.0, 1.01, 0.99]] * 3)
    assert apart.low <= apart.median <= apart.high
    assert alike.spread < 0.02 < apart.spread
    assert interval([[1.0, 2.0]], seed=3) == interval([[1.0, 2.0]], seed=3)


def test_a_process_knows_when_its_median_is_precise() -> None:
    assert is_precise([1.0, 1.001] * 50, 0.01)
    assert not is_precise([1.0, 2.0] * 50, 0.01)
    assert not is_precise([1.0, 1.0], 0.01)


def test_the_store_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.measurement.store import default_path

    monkeypatch.setenv("WINDTUNNEL_STORE", str(tmp_path / "mine.sqlite"))
    assert default_path() == tmp_path / "mine.sqlite"
    monkeypatch.delenv("WINDTUNNEL_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert default_path() == tmp_path / "windtunnel" / "store.sqlite"


def loop(seconds: float, count: int) -> ReferenceLoop:
    """The reference loop at one speed before and after so many samples."""
    return ReferenceLoop(readings=((0, seconds), (count, seconds)))


def measure_with(
    reports: list[ProcessReport], monkeypatch: pytest.MonkeyPatch, store: Store, protocol: wt.Protocol
) -> wt.Measurement:
    """A measurement whose children give these reports: one real child's with other samples and loops."""
    job, here = wt.Workload.named("rnn", n_steps=2), wt.Machine.here().with_cpu_only()
    coming = iter(reports)

    def child(order: ChildOrder, pinned: int | None, on_message: OnMessage) -> ProcessReport:
        wanted = next(coming)
        return dataclasses.replace(
            REAL.get("report") or REAL.setdefault("report", real(order, pinned, on_message)),
            samples={**wanted.samples, "first": Samples(seconds=(1.0,))},
            reference_loop=wanted.reference_loop,
        )

    real = REAL.setdefault("spawn", module.spawn)
    monkeypatch.setattr(module, "spawn", child)
    options = MeasureOptions(fresh=True)
    return wt.measure(job, here, wt.Strategy(threads=1), protocol=protocol, store=store, options=options)


REAL: dict[str, Any] = {}
TWO = wt.Protocol(processes=2, most_processes=2, seconds=0.1, warm_seconds=0.05, precision=0.05)


def test_samples_of_disturbed_windows_are_left_out_and_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = (1.5,) * 4 + (1.0,) * 6
    readings = ((0, 2e-4), (4, 1e-4), (10, 1e-4))
    disturbed = ProcessReport(
        samples={"steady": Samples(seconds=seconds)}, reference_loop=ReferenceLoop(readings=readings)
    )
    measured = measure_with([disturbed] * 2, monkeypatch, store, TWO)
    assert measured.step_seconds == 1.0 and measured.samples == 12 and not measured.disturbed
    assert any("8 of 20 samples are left out" in caution for caution in measured.cautions)
    assert all(len(each.samples["disturbed"].seconds) == 4 for each in store.reports(1)), "none is lost"


def test_a_measurement_without_a_quiet_moment_is_marked_and_not_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = dataclasses.replace(report(1.0, 10), reference_loop=loop(1e-4, 10))
    slow = dataclasses.replace(report(1.5, 10), reference_loop=loop(2e-4, 10))
    assert not measure_with([quiet] * 2, monkeypatch, store, TWO).disturbed
    measured = measure_with([slow] * 2, monkeypatch, store, TWO)
    assert measured.disturbed and measured.step_seconds == 1.5, "no time is corrected"
    assert measured.low_seconds == measured.high_seconds == 1.5, "nor its interval"
    assert any("no process met a quiet moment" in caution for caution in measured.cautions)
    assert measure_with([quiet] * 2, monkeypatch, store, TWO).step_seconds == 1.0


def test_a_measurement_with_too_few_quiet_processes_gets_further_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = dataclasses.replace(report(1.0, 10), reference_loop=loop(1e-4, 10))
    slow = dataclasses.replace(report(1.5, 10), reference_loop=loop(2e-4, 10))
    measure_with([quiet] * 2, monkeypatch, store, TWO)
    more = dataclasses.replace(TWO, most_processes=3, precision=0.9)
    measured = measure_with([slow, slow, quiet, quiet, slow], monkeypatch, store, more)
    assert measured.processes == 4 and measured.step_seconds == 1.0 and not measured.disturbed
    assert any("2 of 4 processes are left out" in caution for caution in measured.cautions)
    endless = measure_with([slow] * 9, monkeypatch, store, more)
    assert endless.processes == 3 + summary.MOST_FURTHER and endless.disturbed


def test_the_levels_want_more_processes_and_time_one_after_another() -> None:
    quick, usual, rigorous = LEVELS["quick"], LEVELS["default"], LEVELS["rigorous"]
    assert quick.seconds < usual.seconds < rigorous.seconds
    assert quick.processes <= usual.processes < rigorous.processes
    assert quick.precision > usual.precision > rigorous.precision
    assert wt.Protocol() == usual


def test_progress_shows_every_process_its_samples_and_its_interval(here: wt.Machine, store: Store) -> None:
    stages: list[MeasurementStage] = []
    measured = wt.measure(
        wt.Workload.named("rnn", n_steps=2),
        here,
        protocol=dataclasses.replace(QUICK, processes=2, most_processes=2),
        store=store,
        options=MeasureOptions(progress=stages.append),
    )
    assert [stage.number for stage in stages] == sorted(stage.number for stage in stages)
    assert {stage.phase for stage in stages} == {"starting", "warming up", "timing", "profiling", "done"}
    done = [stage for stage in stages if stage.spread is not None]
    assert [stage.number for stage in done] == [1, 2] and done[-1].samples == measured.samples


def test_a_failed_measurement_frees_its_lock(store: Store) -> None:
    cell = store.begin("key", {}, {})
    store.finish(Settled(cell=cell, state="crashed", error="it fell over"))
    assert not store._db.execute("SELECT * FROM lock").fetchall()
    assert [stored.state for stored in store.results()] == ["crashed"]


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["measure", "rnn", "n_steps=2", *words])


SHORT = ("--processes", "1", "--seconds", "0.05", "--json")


def test_the_command_traces_and_prices_a_step_once_even_with_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    trace, price = prediction.trace, forecast.Pricer.price

    def counted_trace(*args: Any) -> Any:
        calls["trace"] += 1
        return trace(*args)

    def counted_price(*args: Any) -> Any:
        calls["price"] += 1
        return price(*args)

    monkeypatch.setattr(prediction, "trace", counted_trace)
    monkeypatch.setattr(forecast.Pricer, "price", counted_price)
    path = tmp_path / "timeline.json"
    done = command(*SHORT, "--timeline", str(path))
    assert done.exit_code == 0, done.output
    assert calls == {"trace": 1, "price": 1}
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if "name" in event["args"]}
    assert {"forecast", "measured"} <= names


def test_the_command_prints_data_on_standard_output_and_progress_on_standard_error() -> None:
    done = command("--quick", *SHORT)
    data = json.loads(done.stdout)
    assert 1 <= data["processes"] <= 4 and data["disturbed"] in (True, False)
    assert "measuring rnn: process 1 of 1 done" in done.stderr and "interval ±" in done.stderr


def test_the_command_knows_one_level_at_a_time() -> None:
    done = command("--quick", "--rigorous")
    assert done.exit_code != 0 and "cannot go together" in str(done.exception)


def together(store: Store, child: Any) -> Processes:
    protocol = wt.Protocol(processes=3, most_processes=3, seconds=0.1)
    plan = MeasurementPlan(
        task={"threads": 1}, facts={"cpu": "a CPU"}, protocol=protocol, child=child, starts_together=True
    )
    return Processes(plan, store, MeasureOptions())


def test_processes_that_start_together_are_stored_in_order(store: Store) -> None:
    barrier = threading.Barrier(3)

    def child(number: int, timeline: bool, on_message: OnMessage) -> ProcessReport:
        barrier.wait(300)  # none goes on before all have started
        return report(seconds=1.0 + number)

    together(store, child).run()
    assert [(report.number, report.steady[0]) for report in store.reports(1)] == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
    ]


def test_a_process_that_fails_ends_those_that_started_with_it(store: Store) -> None:
    ended = threading.Event()

    def child(number: int, timeline: bool, on_message: OnMessage) -> ProcessReport:
        if number == 0:
            raise MeasurementFailed("no memory", state="out of memory")
        ended.wait(300)
        return report(seconds=1.0)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MeasurementFailed, match="no memory"):
        patch.setattr(children, "end_all", ended.set)
        together(store, child).run()
    assert ended.is_set() and store.results()[0].state == "out of memory"


def test_children_that_start_together_are_timed_one_at_a_time(
    here: wt.Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_spare_cores", lambda device: True)
    protocol = dataclasses.replace(QUICK, processes=2, most_processes=2)
    measured = wt.measure(
        wt.Workload.named("ffn"), here, wt.Strategy(threads=1), protocol=protocol, store=store
    )
    assert measured.processes == 2 and measured.samples > 0
    assert [report.number for report in store.reports(1)] == [0, 1]


def test_only_gpu_jobs_on_hosts_with_spare_cores_start_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.here, "available_cpus", lambda: list(range(16)))
    assert module.has_spare_cores("gpu") and not module.has_spare_cores("cpu")
    monkeypatch.setattr(module.here, "available_cpus", lambda: [0, 1])
    assert not module.has_spare_cores("gpu")
