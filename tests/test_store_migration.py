"""Stores of earlier versions open in this version and keep their data; every old version has a fixture."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from study_fakes import write_study

from windtunnel.errors import StoreError
from windtunnel.measurement import migration, repair
from windtunnel.measurement.report import CompiledStep, Losses, PeakMemory
from windtunnel.measurement.store import Store
from windtunnel.measurement.tables import VERSION
from windtunnel.study import study as studies
from windtunnel.study.results import results

pytestmark = pytest.mark.filterwarnings("ignore::windtunnel.errors.Note")
FIXTURES = Path(__file__).parent / "fixtures"


def old_store(path: Path, fixture: str) -> Path:
    """A file as an earlier version wrote it."""
    db = sqlite3.connect(path)
    db.executescript((FIXTURES / fixture).read_text())
    db.close()
    return path


def tables(path: Path) -> set[str]:
    db = sqlite3.connect(path)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    return names


@pytest.mark.parametrize("fixture", ["store_v1.sql", "store_v1_gpu.sql", "study_v1.sql", "store_v2.sql"])
def test_every_old_store_becomes_one_of_today_and_opens_again(tmp_path: Path, fixture: str) -> None:
    path = old_store(tmp_path / "old.sqlite", fixture)
    Store(path).close()
    Store(tmp_path / "new.sqlite").close()
    assert tables(path) == tables(tmp_path / "new.sqlite")
    store = Store(path)
    assert store._db.execute("PRAGMA user_version").fetchone()[0] == VERSION
    assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert not store._db.execute("PRAGMA foreign_key_check").fetchall()
    store.close()
    assert repair.check(path).is_whole, "every row has its checksum"


def test_a_store_of_version_2_keeps_everything_with_times_in_utc(tmp_path: Path) -> None:
    study = studies.load(write_study(tmp_path / "mine", (10, 20)))
    store = Store(old_store(tmp_path / "old.sqlite", "store_v2.sql"))
    rows = [row for row in results(study, store) if row.origin == "measured"]
    assert [row.settings["n_rec"] for row in rows] == [10, 20] and all(len(row.groups) == 2 for row in rows)
    assert all(row.measured_at.endswith("+0000") for row in rows)
    (single,) = store.results()
    assert single.result == {"job": "rnn", "step_seconds": 0.002} and store.seed("mine", 9) == 1
    assert store.forecasts("0.1") == {("task", "h200"): {"step_seconds": 1.0}}


def test_old_measurements_keep_results_reports_and_samples(tmp_path: Path) -> None:
    store = Store(old_store(tmp_path / "old.sqlite", "store_v1.sql"))
    (cell,) = store.results()
    assert cell.state == "done" and cell.result == {"job": "rnn", "step_seconds": 0.002}
    (report,) = store.reports(cell.id)
    assert report.steady == (0.0021, 0.002, 0.0019) and report.first_seconds == 0.01
    assert report.ready.threads == 1 and report.linear == 2.0 and report.stopped == "time"
    store.close()
    assert repair.check(store.path).is_whole, "converted tables are those of a new store"


def test_old_measurements_speak_the_words_of_today(tmp_path: Path) -> None:
    store = Store(old_store(tmp_path / "old.sqlite", "store_v1_gpu.sql"))
    failed, interrupted, done = store.results()
    assert (failed.state, interrupted.state, done.state) == ("timeout", "waiting", "done")
    assert failed.error == "It took too long." and done.environment["cpu"] == "a CPU"
    assert done.task["device"] == "gpu" and done.task["device_name"] == "NVIDIA H200"
    assert done.task["job"]["settings"]["variant"] == "module"
    (report,) = store.reports(done.id)
    assert report.profiled is not None and report.profiled.kernels == 7.0 and report.others == 0.5
    assert report.compiled == CompiledStep(graphs=1, breaks=2)
    assert report.memory == PeakMemory(peak_bytes=5.0, reserved_bytes=8.0)
    assert report.samples["steady"].steps == 4 and report.ready.facts["cuda"] == "12.8"


def test_an_old_measurement_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    store = Store(old_store(tmp_path / "old.sqlite", "store_v1_gpu.sql"))
    assert store.take_over("another key") == 6 and len(store.reports(6)) == 1
    assert store.take_over("a key") is None, "it is done"


def check_studies(store: Store) -> None:
    """What the fixture of studies holds."""
    cells = {cell.key: cell for _, _, cell in store.cells("mine")}
    done, gpu = cells["key of a cell"], cells["key of a GPU cell"]
    assert {key: cell.state for key, cell in cells.items()} == {
        "key of a cell": "done",
        "key of a GPU cell": "done",
        "key of a failed cell": "crashed",
        "key of a waiting cell": "waiting",
    }
    assert done.task["variant"] == "loop" and gpu.task["device"] == "gpu" and gpu.task["variant"] == "module"
    assert done.summary is not None and gpu.summary is not None
    assert done.summary.loop_seconds == (0.0001, 0.0002) and done.summary.peak_bytes == 1000.0
    assert done.summary.first_seconds == 0.01 and gpu.summary.ready.device_name == "NVIDIA H200"
    first, second = store.reports(done.id)
    assert first.reference_loop is not None and first.reference_loop.readings == ((0, 0.0001), (3, 0.0001))
    assert first.losses == Losses(first=1.0, last=0.5) and second.compile_seconds == 4.0
    assert second.loop_seconds == 0.0002 and second.node == "a-node"
    assert second.samples["disturbed"].seconds == (0.005, 0.005) and second.steady == (0.003,) * 3
    assert store.seed("mine", 99) == 7 and "a-host" not in store.owner("another study")
    ((task, machine), forecast) = next(iter(store.forecasts("0.1").items()))
    assert '"device": "gpu"' in task and machine == "h200" and forecast["device_name"] == "H200"


def test_an_old_store_of_studies_keeps_everything_in_the_words_of_today(tmp_path: Path) -> None:
    check_studies(Store(old_store(tmp_path / "old.sqlite", "study_v1.sql")))


def test_the_rows_of_an_old_study_are_read_as_before(tmp_path: Path) -> None:
    study = studies.load(write_study(tmp_path / "mine", (10, 20, 30)))
    store = Store(old_store(tmp_path / "old.sqlite", "study_v1.sql"))
    rows = {(row.device, row.settings["n_rec"]): row for row in results(study, store)}
    quiet = rows["cpu", 10]
    assert quiet.step_seconds == 0.002 and quiet.groups == ((0.002, 0.0021, 0.0019),), "the quiet process"
    assert quiet.label == "torch:loop" and rows["cpu", 20].state == "crashed"
    assert rows["gpu", 10].step_seconds == 0.001 and rows["gpu", 10].device_name == "NVIDIA H200"


def test_the_default_store_takes_over_the_former_store_of_studies_once_and_leaves_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_STORE", str(tmp_path / "store.sqlite"))
    old_store(tmp_path / "store.sqlite", "store_v1.sql")
    former = old_store(tmp_path / migration.FORMER_NAME, "study_v1.sql")
    before = former.read_bytes()
    for _ in range(2):
        store = Store()
        check_studies(store)
        assert len(store.results()) == 1, "measurements stay"
        assert store._db.execute("SELECT count(*) FROM process").fetchone()[0] == 5, "taken over once"
        assert not store._db.execute("PRAGMA foreign_key_check").fetchall()
        store.close()
    assert former.read_bytes() == before


def test_a_former_file_that_is_no_store_of_studies_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_STORE", str(tmp_path / "store.sqlite"))
    former = tmp_path / migration.FORMER_NAME
    for content in (b"", b"this is no database, but it is long enough to be taken for one" * 20):
        former.write_bytes(content)
        Store().close()
        assert former.read_bytes() == content


def test_a_named_store_takes_nothing_over(tmp_path: Path) -> None:
    old_store(tmp_path / migration.FORMER_NAME, "study_v1.sql")
    store = Store(tmp_path / "mine.sqlite")
    assert not store.cells("mine") and Store(tmp_path / migration.FORMER_NAME).cells("mine")


def test_a_migration_that_fails_leaves_the_old_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_store(tmp_path / "old.sqlite", "study_v1.sql")
    before = list(sqlite3.connect(path).iterdump())

    def fail(text: str | None) -> str | None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(migration, "_summary", fail)
        with pytest.raises(StoreError, match="full"):
            Store(path)
    assert list(sqlite3.connect(path).iterdump()) == before
    check_studies(Store(path))
