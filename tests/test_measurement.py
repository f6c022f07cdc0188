from __future__ import annotations

import os
import platform
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel.errors import MeasurementFailed, StoreError, Unavailable
from windtunnel.measurement import measure as module
from windtunnel.measurement import steady
from windtunnel.measurement.store import Store

QUICK = wt.Protocol(processes=1, most_processes=1, seconds=0.1, warm_seconds=0.05, timeout_seconds=120)
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
                return wt.Workload(name="case", model=lambda: torch.nn.Linear(4, 4), batch=lambda n: torch.randn(n, 4), loss=loss,
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
    assert set(forecast.plain()) - {"flop", "parameters"} <= set(measured.plain()) | {"host_seconds"}
    assert measured.low_seconds <= measured.step_seconds <= measured.high_seconds
    assert sum(measured.parts.values()) == pytest.approx(measured.step_seconds)
    assert measured.environment["threads"] == 1 and len(measured.environment["cpus"]) == 1
    kept = store.results()[0]
    assert kept["state"] == "complete" and kept["result"]["step_seconds"] == measured.step_seconds
    assert len(store.reports(kept["id"])[0]["samples"]["steady"]["seconds"]) == measured.samples


def test_threads_are_read_back_as_asked(here: wt.Machine, store: Store) -> None:
    measured = wt.measure(
        wt.Workload.named("rnn", n_steps=2), here, wt.Strategy(threads=2), protocol=QUICK, store=store
    )
    assert measured.environment["threads"] == 2
    assert not any("threads were asked" in caution for caution in measured.cautions)


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
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "SIGKILL"),
        ("print('garbage'); os._exit(0)", "no result", "code 0"),
        ("torch.empty(10**15)", "out of memory", "smaller batch"),
        ("time.sleep(60)", "timeout", "3 s"),
    ],
)
def test_a_child_that_fails_is_a_named_result(
    here: wt.Machine, store: Store, tmp_path: Path, body: str, state: str, word: str
) -> None:
    protocol = wt.Protocol(
        processes=1, most_processes=1, seconds=0.1, timeout_seconds=3.0 if state == "timeout" else 120.0
    )
    with pytest.raises(MeasurementFailed) as caught:
        wt.measure(job_file(tmp_path, body), here, protocol=protocol, store=store)
    assert caught.value.state == state and word in str(caught.value)
    assert store.results()[0]["state"] == state


def test_what_a_job_prints_disturbs_nothing(here: wt.Machine, store: Store, tmp_path: Path) -> None:
    job = job_file(tmp_path, 'print(\'{"kind": "done"}\'); return model(batch).mean()')
    assert wt.measure(job, here, protocol=QUICK, store=store).samples > 0


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
    real, calls = module._spawn, []

    def stop_at_third(*args: Any) -> dict[str, Any]:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(module, "_spawn", stop_at_third)
    with pytest.raises(wt.Interrupted, match="2 of 3 processes") as caught:
        wt.measure(job, here, protocol=protocol, store=store)
    assert "same command" in str(caught.value)
    measured = wt.measure(job, here, protocol=protocol, store=store)
    assert measured.processes == 3 and len(calls) == 4
    assert any("before an interruption" in caution for caution in measured.cautions)


def test_a_measurement_that_another_process_is_at_is_left_to_it(store: Store) -> None:
    row = store.begin("key", {})
    store.add_process(row, 0, "done", {"samples": {}})
    for owner, taken in (
        (f"{platform.node()}:1", None),
        ("another-host:7", None),
        (f"{platform.node()}:999999999", row),
    ):
        store._db.execute("UPDATE measurement SET owner = ?", (owner,))
        assert store.take_over("key") == taken
    assert store.take_over("another key") is None


def test_a_full_disk_is_said_and_loses_nothing(store: Store) -> None:
    first = store.begin("key", {"job": "x"})
    store.add_process(first, 0, "done", {"samples": {"steady": {"steps": 1, "seconds": [0.1] * 10}}})
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full") as caught:
        store.add_process(first, 1, "done", {"samples": {"steady": {"steps": 1, "seconds": [0.1] * 100_000}}})
    assert str(store.path) in str(caught.value)
    again = Store(store.path)
    assert (
        len(again.reports(first)) == 1 and again._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    )


def test_a_full_disk_still_tells_what_was_measured(
    here: wt.Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise StoreError("The store cannot be written: database or disk is full.")

    monkeypatch.setattr(store, "add_process", refuse)
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


def test_a_store_of_version_one_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript((FIXTURES / "store_v1.sql").read_text())
    db.close()
    old = Store(path)
    assert old.results()[0]["result"]["step_seconds"] == 0.002
    assert old.reports(1)[0]["samples"]["steady"]["seconds"] == [0.0021, 0.002, 0.0019]


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
def test_a_file_that_is_no_store_is_refused_or_begun(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    if content:
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(path)
        assert path.read_bytes() == content
    else:
        assert Store(path).results() == []


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
        store = Store(Path(sys.argv[1]))
        row = store.begin("key", {})
        print("ready", flush=True)
        for number in range(100_000):
            store.add_process(row, number, "done", {"samples": {"steady": {"steps": 1, "seconds": [0.5] * 200}}})
        """
    )
    for turn in range(5):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(0.05 + 0.03 * turn)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = Store(path)
        latest = store.results()[0]["id"]
        assert all(len(report["samples"]["steady"]["seconds"]) == 200 for report in store.reports(latest))
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        store.close()


def test_the_interval_holds_the_median_and_narrows_with_agreement() -> None:
    apart = steady.interval([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [1.5, 1.6, 1.4]])
    alike = steady.interval([[1.0, 1.01, 0.99]] * 3)
    assert apart.low <= apart.median <= apart.high
    assert alike.spread < 0.02 < apart.spread
    assert steady.interval([[1.0, 2.0]], seed=3) == steady.interval([[1.0, 2.0]], seed=3)


def test_a_process_knows_when_its_median_is_precise() -> None:
    assert steady.is_precise([1.0, 1.001] * 50, 0.01)
    assert not steady.is_precise([1.0, 2.0] * 50, 0.01)
    assert not steady.is_precise([1.0, 1.0], 0.01)


def test_the_store_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.measurement.store import default_path

    monkeypatch.setenv("WINDTUNNEL_STORE", str(tmp_path / "mine.sqlite"))
    assert default_path() == tmp_path / "mine.sqlite"
    monkeypatch.delenv("WINDTUNNEL_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert default_path() == tmp_path / "windtunnel" / "store.sqlite"
