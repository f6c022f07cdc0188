"""Data that changed is noticed, a full disk loses nothing, and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run as windtunnel
from study_fakes import FakeEngine, FakeMachine, report_of, write_study

import windtunnel as wt
from windtunnel import folders, ownership, perfetto, records
from windtunnel.calibration import rows as probe_rows
from windtunnel.cli import machine as cli_machine
from windtunnel.errors import BadInput, BadRecord, StoreError
from windtunnel.learning import checkpoint
from windtunnel.machine import here, profiles
from windtunnel.measurement import checksums, repair
from windtunnel.measurement.report import Losses
from windtunnel.measurement.store import Store, now
from windtunnel.reports import charts
from windtunnel.saved_plan import SavedPlan
from windtunnel.strategy import Strategy
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.results import results
from windtunnel.study.rows import StudyRow
from windtunnel.study.run.engine import Outcome, Work
from windtunnel.study.run.runner import Order, run
from windtunnel.study.samples import raw_processes

ORDER = Order(seed=1)


def measured(folder: Path, cells: int = 6) -> tuple[Any, Path]:
    """A study and a store with all its cells."""
    study = studies.load(write_study(folder / "mine", range(10, 10 + cells)))
    store = Store(folder / "store.sqlite")
    run(study, store, FakeEngine(), FakeMachine(), ORDER)
    store.add_forecasts("1", {("task", "h200"): {"step_seconds": 1.0}})
    store.close()
    return study, store.path


def raw(path: Path) -> sqlite3.Connection:
    """The file as another program sees it, without windtunnel's triggers."""
    db = sqlite3.connect(path, isolation_level=None)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    return db


def read_all(study: Any, path: Path) -> str:
    store = Store(path)
    try:
        rows = results(study, store, samples=None)
        others = store.counts(study.name), store.forecasts("1"), store.seed(study.name, 9)
        return repr((rows, list(raw_processes(study, store)), others))
    finally:
        store.close()


# The store


CHANGES = {
    "cell": "UPDATE cell SET summary = replace(summary, '1', '2') WHERE id = 2",
    "state": "UPDATE cell SET state = 'crashed' WHERE id = 2",
    "task": "UPDATE cell SET task = replace(task, '11', '21') WHERE id = 2",
    "place": "UPDATE place SET study = 'other' WHERE cell = 3",
    "process": "UPDATE process SET report = replace(report, '1000.0', '2000.0') WHERE id = 1",
    "other process": "UPDATE process SET cell = 1, number = 9 WHERE id = 6",
    "sample": "UPDATE sample SET seconds = zeroblob(40) WHERE process = 1 AND phase = 'steady'",
    "lost sample": "DELETE FROM sample WHERE process = 4",
    "lost place": "DELETE FROM place WHERE cell = 3",
    "environment": "UPDATE environment SET facts = '{}'",
    "forecast": "UPDATE forecast SET data = '{\"step_seconds\": 2.0}'",
    "seed": "UPDATE meta SET value = '2' WHERE name LIKE 'seed%'",
    "text": "UPDATE cell SET task = CAST(X'FF00' AS TEXT) WHERE id = 1",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_row_that_changed_is_noticed_by_commands_and_found_by_store_check(
    change: str, tmp_path: Path
) -> None:
    study, path = measured(tmp_path)
    db = raw(path)
    db.execute(change)
    db.close()
    with pytest.raises(StoreError, match=r"is damaged|cannot be read") as noticed:
        read_all(study, path)
    assert str(path) in noticed.value.message and "store repair" in noticed.value.hint
    assert not repair.check(path).is_whole


def test_rows_that_took_each_others_place_are_noticed(tmp_path: Path) -> None:
    study, path = measured(tmp_path)
    db = raw(path)
    seals = [db.execute("SELECT summary, checksum FROM cell WHERE id = ?", (n,)).fetchone() for n in (1, 2)]
    for number, seal in zip((2, 1), seals, strict=True):
        db.execute("UPDATE cell SET summary = ?, checksum = ? WHERE id = ?", (*seal, number))
    db.close()
    with pytest.raises(StoreError, match="cell 1"):
        read_all(study, path)


def test_a_repair_keeps_what_is_whole_and_the_next_run_measures_only_the_rest(tmp_path: Path) -> None:
    study, path = measured(tmp_path)
    before = read_all(study, path)
    db = raw(path)
    (lost,) = db.execute("SELECT id FROM process WHERE cell = 2 AND number = 0").fetchone()
    db.execute("UPDATE process SET report = '{}' WHERE id = ?", (lost,))
    db.execute("UPDATE cell SET error = 'x' WHERE id = 5")
    db.close()
    damaged = path.read_bytes()
    found = repair.check(path)
    assert {str(row) for row in found.damaged} == {f"process {lost}", "cell 5"}
    done = repair.repair(path)
    assert done.copy is not None and done.copy.read_bytes() == damaged, "the store as it was is kept"
    assert done.aside_file is not None
    aside = [json.loads(line) for line in done.aside_file.read_text().splitlines()]
    # One process with its samples; cell 5 with its place, its processes and their samples.
    assert {("process", lost), ("cell", 5)} <= {(row["table"], row.get("id")) for row in aside}
    assert repair.check(path).is_whole and done.waiting == 1
    engine = FakeEngine()
    run(study, Store(path), engine, FakeMachine(), ORDER)
    assert len(engine.seen) == 3, "one lost process, and two of the lost cell"
    assert {row.step_seconds for row in results(study, path)} == {
        row.step_seconds for row in results(study, measured(tmp_path / "again")[1])
    }
    assert before


def test_a_repair_reads_around_a_page_that_sqlite_cannot(tmp_path: Path) -> None:
    study, path = measured(tmp_path, cells=120)
    size = path.stat().st_size
    data = bytearray(path.read_bytes())
    place = size // 2 // 4096 * 4096
    data[place : place + 4096] = random.Random(1).randbytes(4096)
    path.write_bytes(data)
    assert not repair.check(path).is_whole
    done = repair.repair(path)
    assert done.kept > 200 and repair.check(path).is_whole
    assert run(study, Store(path), FakeEngine(), FakeMachine(), ORDER).states == {"done": 120}


SHAPES = {
    "no key": "CREATE TABLE o AS SELECT * FROM meta; DROP TABLE meta; ALTER TABLE o RENAME TO meta",
    "a view": "ALTER TABLE meta RENAME TO o; CREATE VIEW meta AS SELECT * FROM o",
    "no trigger": "DROP TRIGGER meta_added",
    "a column less": "ALTER TABLE cell DROP COLUMN error",
}


@pytest.mark.parametrize("change", SHAPES.values(), ids=SHAPES)
def test_a_table_that_is_not_as_it_was_made_is_found_and_built_again(change: str, tmp_path: Path) -> None:
    study, path = measured(tmp_path)
    whole = read_all(study, path)
    only_trigger = "TRIGGER" in change
    db = sqlite3.connect(path, isolation_level=None) if only_trigger else raw(path)
    for statement in change.split("; "):
        db.execute(statement)
    db.close()
    found = (
        "the trigger meta_added" if only_trigger else f"the table {'cell' if 'cell' in change else 'meta'}"
    )
    assert f"{found} is not as windtunnel makes it" in repair.check(path).problems
    repair.repair(path)
    assert repair.check(path).is_whole
    assert read_all(study, path) == whole or "COLUMN" in change


def test_a_repair_of_a_whole_store_changes_nothing(tmp_path: Path) -> None:
    _, path = measured(tmp_path)
    before = path.read_bytes()
    assert repair.repair(path).copy is None and path.read_bytes() == before
    assert "nothing was changed" in str(repair.repair(path))


def test_store_check_and_repair_at_the_command_line(tmp_path: Path) -> None:
    _, path = measured(tmp_path)
    whole = windtunnel("store", "check", store=path)
    assert whole.returncode == 0 and "rows are undamaged" in whole.stdout
    db = raw(path)
    db.execute(CHANGES["cell"])
    db.close()
    status = windtunnel("study", "status", str(tmp_path / "mine"), store=path)
    assert status.returncode == 2 and "is damaged" in status.stderr and "Traceback" not in status.stderr
    check = windtunnel("store", "check", "--json", store=path)
    facts = json.loads(check.stdout)
    assert check.returncode == 2 and facts["damaged"] == [{"table": "cell", "key": "2"}]
    mended = windtunnel("store", "repair", store=path)
    assert mended.returncode == 0 and "set aside" in mended.stdout
    again = windtunnel("study", "status", str(tmp_path / "mine"), store=path)
    assert again.returncode == 0
    missing = windtunnel("store", "check", "--store", str(tmp_path / "none.sqlite"))
    assert missing.returncode == 2 and "There is no store" in missing.stderr


def test_a_store_cut_to_nothing_is_an_error_and_not_a_new_store(tmp_path: Path) -> None:
    _, path = measured(tmp_path)
    path.write_bytes(b"")
    said = windtunnel("study", "status", str(tmp_path / "mine"), store=path)
    assert said.returncode == 2 and "is empty: it has 0 bytes" in said.stderr


def test_random_damage_to_a_store_is_never_read_as_other_data(tmp_path: Path) -> None:
    study, path = measured(tmp_path)
    good, expected, rng = path.read_bytes(), read_all(study, path), random.Random(3)
    for _ in range(60):
        place, size = rng.randrange(len(good)), rng.choice((1, 8, 100, 4096))
        junk = rng.choice((bytes(size), rng.randbytes(size)))
        path.write_bytes((good[:place] + junk + good[place + size :])[: len(good)])
        with contextlib.suppress(StoreError):
            assert read_all(study, path) == expected
        for left in tmp_path.glob("*-journal"):
            left.unlink()


def test_every_statement_keeps_checksums_and_counts(tmp_path: Path) -> None:
    _, path = measured(tmp_path)
    store = Store(path)
    failing = FakeEngine(lambda work: Outcome(work=work, state="crashed", error="e"))
    more = studies.load(write_study(tmp_path / "more", (50, 51)))
    run(more, store, failing, FakeMachine(), ORDER)
    store.forget_failures([cell.id for _, _, cell in store.cells("more")])
    store.add_forecasts("1", {("task", "h200"): {"step_seconds": 3.0}})
    store.close()
    assert repair.check(path).is_whole
    db = sqlite3.connect(path)
    checksums.install(db)
    assert checksums.count(db, "place of mine") == 6 and checksums.count(db, "forecast") == 1


def test_times_are_in_utc_and_the_latest_row_is_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert now().endswith("+0000") and abs(time.time() - _seconds(now())) < 300
    finally:
        monkeypatch.undo()
        time.tzset()


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()


# Two studies that share a cell


def test_two_studies_that_share_cells_in_one_store_both_end(tmp_path: Path) -> None:
    one = studies.load(write_study(tmp_path / "one", range(10, 14)))
    two = studies.load(write_study(tmp_path / "two", range(10, 16)))
    path = tmp_path / "store.sqlite"
    begun: list[str] = []

    def answer(work: Work) -> None:
        """In the midst of the first cell of study one, study two measures all cells."""
        if not begun:
            begun.append(work.key)
            assert run(two, Store(path), FakeEngine(), FakeMachine(), ORDER).states == {"done": 6}

    engine = FakeEngine(answer)
    assert run(one, Store(path), engine, FakeMachine(), ORDER).states == {"done": 4}
    assert len(engine.seen) == 1, "what the other has measured is not measured again"
    assert repair.check(path).is_whole
    assert len([row for row in results(one, path) if row.step_seconds]) == 4


def test_a_process_that_another_study_stored_first_is_accepted(tmp_path: Path) -> None:
    one = studies.load(write_study(tmp_path / "one", (10,)))
    two = studies.load(write_study(tmp_path / "two", (10,)))
    path = tmp_path / "store.sqlite"

    def answer(work: Work) -> Outcome | None:
        if work.number == 0:  # while this piece is being measured, the other study measures process 0 too
            other = FakeEngine(lambda piece: Outcome(work=piece, state="crashed") if piece.number else None)
            run(two, Store(path), other, FakeMachine(), ORDER)
        return None

    tally = run(one, Store(path), FakeEngine(answer), FakeMachine(), ORDER)
    assert tally.states == {"crashed": 1}, "the cell stands as the other left it"
    assert repair.check(path).is_whole


# Checkpoints


def trees(value: float) -> dict[str, Any]:
    return {"model": {"weight": torch.full((30,), value)}, "optimizers": [], "random": {}}


def test_a_changed_byte_of_a_checkpoint_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.NAME
    checkpoint.save(path, trees(0.5), {"done": [0, 1]})
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(BadInput, match=r"damaged"):
            checkpoint.load(path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    options = {"--epochs": "2", "--folder": str(tmp_path / "run"), "--threads": "1"}
    words = [word for pair in options.items() for word in pair]
    assert windtunnel("network", "train", "ffn", *words).returncode == 0
    path = tmp_path / "run" / checkpoint.NAME
    assert path.with_name(checkpoint.PREVIOUS).exists(), "two are kept"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    again = windtunnel("network", "train", "ffn", *words)
    assert again.returncode == 0 and "continued after epoch 1" in again.stdout
    assert "was damaged" in again.stderr and checkpoint.PREVIOUS in again.stderr
    assert path.with_name(checkpoint.DAMAGED).exists()
    path.write_bytes(b"junk")
    path.with_name(checkpoint.PREVIOUS).write_bytes(b"junk")
    refused = windtunnel("network", "train", "ffn", *words)
    assert refused.returncode == 2 and "damaged" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.filterwarnings("ignore::windtunnel.errors.Note")
def test_a_checkpoint_of_the_version_before_is_read(tmp_path: Path) -> None:
    import safetensors.torch

    header = {"format": 1, "trees": {"model": {"table": [["w", {"tensor": "m"}]]}}, "note": {"done": [0, 1]}}
    metadata = {"windtunnel": json.dumps(header)}
    path = tmp_path / "old.safetensors"
    path.write_bytes(safetensors.torch.save({"m": torch.ones(3)}, metadata=metadata))
    states, note = checkpoint.load(path)
    assert note == {"done": [0, 1]} and states["model"]["w"].tolist() == [1.0, 1.0, 1.0]


# Profiles and other files with checksums


def test_a_changed_digit_of_a_profile_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profiles.save(path, profiles.load("ice-lake-2-cores"), {"model": "m"})
    text = path.read_text()
    assert repr(profiles.load(str(path)).kinds) == repr(profiles.load("ice-lake-2-cores").kinds)
    for place in [place for place, letter in enumerate(text) if letter.isdigit()][::9973]:
        other = str((int(text[place]) + 1) % 10)
        path.write_text(text[:place] + other + text[place + 1 :])
        with pytest.raises(BadRecord, match=r"damaged|format"):
            profiles.load(str(path))


@pytest.mark.parametrize("name", ["h200", *profiles.probed_cpus()])
def test_every_profile_of_the_catalogue_has_a_checksum(name: str) -> None:
    assert records.SEAL in records.load(profiles.catalog_path(name))


@pytest.mark.parametrize(
    "body",
    [
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"checksum": "0", "a": 1}',
        '{"checksum": 7}',
    ],
)
def test_hostile_json_is_a_clear_error(body: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(body)
    with pytest.raises(BadRecord):
        records.load(path)


@pytest.mark.parametrize("value", ["1e-308", 1e-308, 1e300, "1e-300 B/s"])
def test_rates_beyond_any_machine_are_refused(value: object, tmp_path: Path) -> None:
    data = records.plain(wt.Machine.named("i7-3820"))
    data["device"]["memory_rate"] = data["host"]["memory_rate"] = value
    records.save(tmp_path / "m.json", data)
    with pytest.raises(BadInput):
        wt.Machine.load(tmp_path / "m.json")


def test_a_host_probe_is_kept_checked_and_replaced_if_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.named("emerald-rapids-2-cores")
    days = {time.strftime("%Y-%m-%d", time.gmtime())}
    path = here.save_host_factor(machine, 1.25)
    days.add(time.strftime("%Y-%m-%d", time.gmtime()))  # it may be midnight
    factor, day = here.last_host_factor(machine)
    assert factor == 1.25 and day in days
    here.save_host_factor(machine, 1.5)
    assert json.loads(path.with_suffix(".previous.json").read_text())["host_factor"] == 1.25
    path.write_text(path.read_text().replace("1.5", "1.6"))
    with pytest.raises(BadRecord, match="checksum"):
        here.last_host_factor(machine)
    assert cli_machine._last_host_factor(machine) is None, "a new probe replaces it"
    path.write_text("{}")
    with pytest.raises(BadRecord, match="missing"):
        here.last_host_factor(machine)


# Full disk


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "profile": ("p.json.gz", lambda path: profiles.save(path, profiles.load("ice-lake-2-cores"), {})),
    "profile, kept": (
        "p.json",
        lambda path: profiles.save_and_keep(path, profiles.load("ice-lake-2-cores"), {}),
    ),
    "rows of a probe": ("r.csv.gz", lambda path: probe_rows.save(path, [], path.with_name("last"))),
    "checkpoint": (checkpoint.NAME, lambda path: checkpoint.save(path, trees(1.0), {})),
    "weights": ("w.safetensors", lambda path: checkpoint.save_weights(path, torch.nn.Linear(2, 2))),
    "export": ("e.csv", lambda path: export.write([], path)),
    "export, JSON": ("e.json", lambda path: export.write([], path)),
    "timeline": ("t.json", lambda path: perfetto.write(path, {"traceEvents": []})),
    "plot": ("c.svg", lambda path: charts.save(charts.Chart(spec=_POINT), path)),
    "plan": ("plan.toml", lambda path: SavedPlan(strategy=Strategy()).save(path)),
    "machine": ("m.toml", lambda path: wt.Machine.named("h200").save(path)),
}
_POINT = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"x": 1}]},
    "mark": "point",
    "encoding": {"x": {"field": "x", "type": "quantitative"}},
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_a_clear_error_and_leaves_the_old_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = WRITERS[name]
    path = tmp_path / file
    path.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match=r"cannot be written: No space left on device") as error:
        write(path)
    assert error.value.exit_code == 2 and error.value.hint
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == [file]


def test_a_probe_on_a_full_disk_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadInput, match="The probe did not start") as error:
        cli_machine._profile_path(wt.Machine.named("i7-3820"), None)
    assert "8.00 MiB" in error.value.hint and "WINDTUNNEL_HOME" in error.value.hint
    assert os.listdir(tmp_path) == []


def test_a_link_in_the_way_of_a_temporary_file_is_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    for name in (f".x.json.{os.getpid()}", f".x.json.part-{ownership.own_mark()}-00000000"):
        (folder / name).symlink_to(victim)
    records.save(folder / "x.json", {"a": 1})
    assert victim.read_text() == "mine" and json.loads((folder / "x.json").read_text()) == {"a": 1}


def test_a_device_or_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    records.try_writing(pipe)
    records.write_whole(pipe, "text")
    assert pipe.is_fifo() and os.read(reader, 100) == b"text"
    os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    records.try_writing(link)
    records.write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_written_files_have_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = records.write_whole(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


# A probe


def test_a_new_profile_keeps_the_last_and_shows_what_changed(tmp_path: Path) -> None:
    import dataclasses

    path, old = tmp_path / "cpu.json.gz", profiles.load("ice-lake-2-cores")
    new = dataclasses.replace(old, date="2027-01-01", fixed_seconds=2 * old.fixed_seconds + 1e-6)
    assert profiles.save_and_keep(path, old, {}) is None
    kept = profiles.save_and_keep(path, new, {})
    assert kept == tmp_path / "cpu.previous.json.gz" and profiles.load(str(kept)).date == old.date
    lines = profiles.differences(old, new)
    assert any(line.startswith("date ") and line.endswith("2027-01-01") for line in lines)
    assert any(line.startswith("fixed_seconds") for line in lines)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_probe_sees_only_the_processors_of_its_process() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert here.available_cpus() == [min(before)] and here.available_cores() == 1
        told = cli_machine._affinity()
        assert (os.cpu_count() or 1) == 1 or told[0].startswith(f"probed on 1 of {os.cpu_count()}")
    finally:
        os.sched_setaffinity(0, before)


def test_one_variable_moves_all_files_and_others_move_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (folders.STORE_VARIABLE, folders.PROFILES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(folders.HOME_VARIABLE, "/somewhere")
    assert folders.store_file() == Path("/somewhere/store.sqlite")
    assert folders.profiles() == Path("/somewhere/profiles")
    monkeypatch.setenv(folders.STORE_VARIABLE, "/else/where.sqlite")
    assert folders.store_file() == Path("/else/where.sqlite")
    assert folders.profiles() == Path("/somewhere/profiles")


# Leftovers


COMMANDS = (
    ("measure", "rnn", "n_rec=5", "n_steps=2", "--quick", "--seconds", "0.05", "--json"),
    ("store", "check"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_leaves_nothing_in_the_temporary_folder(words: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    Store(tmp_path / "s.sqlite").close()
    own = {"TMPDIR": str(place), "WINDTUNNEL_STORE": str(tmp_path / "s.sqlite")}
    environment = {**os.environ, **own, "WINDTUNNEL_HOME": str(tmp_path / "home")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    command = [sys.executable, "-m", "windtunnel", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.listdir(place) == []


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal; from pathlib import Path; from windtunnel import ownership\n"
        "with ownership.temporary_folder(Path(sys.argv[1])) as folder:\n"
        "    print(folder, flush=True); sys.stdin.read()"
    )

    def start() -> tuple[subprocess.Popen[str], Path]:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        return child, Path(child.stdout.readline().strip())

    (killed, left), (living, held) = start(), start()
    other = tmp_path / "windtunnel-run-made-by-someone"
    other.mkdir()
    killed.kill()
    killed.wait()
    assert left.is_dir() and held.is_dir()
    with ownership.temporary_folder(tmp_path) as own:
        assert not left.exists() and held.is_dir() and own.stat().st_mode & 0o777 == 0o700
    living.communicate("")
    assert sorted(tmp_path.iterdir()) == [other], "what is not ours stays"


def test_a_process_of_another_boot_or_start_is_gone() -> None:
    host, boot, pid, start = ownership.name_of(os.getppid()).split("|")
    assert ownership.is_alive("|".join((host, boot, pid, start)))
    assert not ownership.is_alive("|".join((host, boot, pid, "1")))
    assert not ownership.is_alive("|".join((host, "another-boot", pid, start))) or boot == "another-boot"
    assert ownership.is_alive("|".join(("elsewhere", boot, pid, start))), "it cannot be seen from here"
    assert not ownership.is_alive(ownership.own_name()) and not ownership.is_alive("junk")


# Rows of other machines, and losses


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"devices": -1}, "devices must be at least 1"),
        ({"step_seconds": float("nan")}, "step_seconds must be above 0 and finite"),
        ({"step_seconds": -1.0}, "step_seconds must be above 0"),
        ({"low_seconds": 3.0, "high_seconds": 2.0}, "is above high_seconds"),
        ({"groups": [[1.0, float("inf")]]}, "a sample is not a valid time"),
        ({"step_seconds": None}, "has no step_seconds"),
    ],
)
def test_rows_that_nobody_measured_are_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    good = StudyRow(study="s", figure="f", case="c", label="l", job="rnn", step_seconds=1.0)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([records.plain(good), {**records.plain(good), **change}]))
    with pytest.raises(BadRecord, match=rf"row 2 .*{reason}"):
        export.read(path)
    export.write([good], path)
    assert export.read(path) == [good]


@pytest.mark.parametrize("environment", [1.5, "x", [1]])
def test_rows_of_another_shape_are_refused(environment: object, tmp_path: Path) -> None:
    good = StudyRow(study="s", figure="f", case="c", label="l", job="rnn", step_seconds=1.0)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{**records.plain(good), "environment": environment}]))
    with pytest.raises(BadRecord, match="environment must be a table"):
        export.read(path)


def test_rows_with_odd_settings_are_compared_and_no_parquet_is_a_clear_error(tmp_path: Path) -> None:
    from windtunnel.study.statistics.compare import compare

    odd = StudyRow(
        study="s",
        figure="f",
        case="c",
        label="l",
        job="rnn",
        settings={"a": {"b": [1, {}]}, "n": 10**30},
        step_seconds=1.0,
        groups=((1.0, 1.01), (1.0,)),
    )
    assert len(compare([odd], [odd]).cells) == 1
    pytest.importorskip("pyarrow")
    with pytest.raises(BadInput, match="cannot be written as Parquet"):
        export.write([odd], tmp_path / "rows.parquet")


def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    import dataclasses

    from windtunnel.reports import text

    study = studies.load(write_study(tmp_path / "mine", (10,)))

    def answer(work: Work) -> Outcome:
        losses = Losses(first=1.0, last=float("nan"))
        return Outcome(work=work, report=dataclasses.replace(report_of(work), losses=losses))

    path = tmp_path / "store.sqlite"
    run(study, Store(path), FakeEngine(answer), FakeMachine(), ORDER)
    rows = results(study, path)
    assert rows[0].diverged and "no finite number" in text.counted(rows)


# Long runs


@pytest.mark.parametrize("cells", [300, 3000])
def test_reading_a_study_takes_the_same_number_of_statements_however_many_cells(
    cells: int, tmp_path: Path
) -> None:
    study = studies.load(write_study(tmp_path / "mine", range(10, 10 + cells)))
    store = Store(tmp_path / "store.sqlite")
    for setting in ("journal_mode = MEMORY", "synchronous = OFF"):
        store._db.execute(f"PRAGMA {setting}")
    statements: list[str] = []
    from windtunnel.study.run.cells import cells_of
    from windtunnel.study.run.runner import RunCallbacks, _Run

    assert len(cells_of(study, 4)) == cells
    _Run(study, store, FakeMachine(), ORDER, RunCallbacks())
    store._db.set_trace_callback(statements.append)
    store.counts("mine")
    store.failures("mine", ("done", "waiting"))
    results(study, store)
    assert len([text for text in statements if not text.startswith("--")]) <= 12


def test_a_long_body_is_written_in_pieces(tmp_path: Path) -> None:
    path = records.write_whole(tmp_path / "long", (f"{number}\n" for number in range(1000)))
    assert path.read_text().splitlines() == [str(number) for number in range(1000)]
    shutil.rmtree(tmp_path)
