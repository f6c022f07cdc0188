"""Files of an earlier version had no checksum. They get one once, with a note; nothing goes back silently."""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run
from study_fakes import FakeEngine, FakeMachine, write_study

import windtunnel as wt
from windtunnel import records, sealed
from windtunnel.errors import BadInput, BadRecord, Note, StoreError
from windtunnel.learning import checkpoint
from windtunnel.machine import here, profiles
from windtunnel.measurement import repair
from windtunnel.measurement.store import Store
from windtunnel.study import study as studies
from windtunnel.study.run import runner


@pytest.fixture(autouse=True)
def notes() -> Iterator[list[str]]:
    """The notes that a test causes."""
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", Note)
        warnings.showwarning = lambda message, *rest, **more: told.append(str(message))  # type: ignore[misc,assignment]
        yield told


def unseal(path: Path, version: int | None) -> dict[str, Any]:
    """Write a file as the earlier version wrote it."""
    data = records.load(path)
    del data[records.SEAL]
    data = {**data, "format": version} if version else {k: v for k, v in data.items() if k != "format"}
    records.write_text(path, json.dumps(data))
    return data


def profile_file(folder: Path) -> Path:
    path = folder / "cpu.json.gz"
    profiles.save(path, profiles.load("ice-lake-2-cores"), {"model": "a CPU"})
    return path


def test_an_old_profile_gets_its_checksum_once_with_a_note(tmp_path: Path, notes: list[str]) -> None:
    path = profile_file(tmp_path)
    unseal(path, 4)
    before = path.read_bytes()
    first = profiles.load(str(path))
    assert len(notes) == 1 and str(path) in notes[0] and "had no checksum" in notes[0]
    assert records.SEAL in records.load(path) and records.load(path)["format"] == 5
    assert sealed.unsealed(path).read_bytes() == before, "the file as it was is kept"
    assert repr(profiles.load(str(path)).kinds) == repr(first.kinds) and len(notes) == 1


def test_a_profile_that_lost_its_checksum_again_is_refused(tmp_path: Path) -> None:
    path = profile_file(tmp_path)
    unseal(path, 4)
    profiles.load(str(path))
    unseal(path, 4)
    os.utime(path, ns=(1, 1))  # a profile is read again when its file changed
    with pytest.raises(BadRecord, match="it had one") as refused:
        profiles.load(str(path))
    assert "Probe again" in refused.value.hint


@pytest.mark.parametrize("version", [5, 6, 3, None])
def test_a_profile_without_checksum_of_another_format_is_refused(
    version: int | None, tmp_path: Path, notes: list[str]
) -> None:
    path = profile_file(tmp_path)
    unseal(path, version)
    with pytest.raises(BadRecord, match=r"damaged|format"):
        profiles.load(str(path))
    assert not notes and not sealed.unsealed(path).exists()


def test_a_profile_that_cannot_be_written_is_read_with_a_note(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = profile_file(tmp_path)
    unseal(path, 4)

    def refuse(*arguments: object) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(records, "save_sealed", refuse)
    assert profiles.load(str(path)).kinds
    assert "cannot be given one: The disk is full." in notes[0] and not sealed.unsealed(path).exists()


def test_an_old_host_probe_gets_its_checksum_once(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.named("emerald-rapids-2-cores")
    path = here.save_host_factor(machine, 1.25)
    unseal(path, None)
    assert here.last_host_factor(machine) is not None and len(notes) == 1
    assert here.last_host_factor(machine) is not None and len(notes) == 1
    unseal(path, None)
    with pytest.raises(BadRecord, match="it had one"):
        here.last_host_factor(machine)


# Checkpoints


def old_checkpoint(path: Path) -> None:
    import safetensors.torch

    header = {"format": 1, "trees": {"model": {"table": [["w", {"tensor": "m"}]]}}, "note": {"done": [0, 1]}}
    metadata = {"windtunnel": json.dumps(header)}
    path.write_bytes(safetensors.torch.save({"m": torch.ones(3)}, metadata=metadata))


def test_an_old_checkpoint_is_read_with_a_note(tmp_path: Path, notes: list[str]) -> None:
    old_checkpoint(tmp_path / checkpoint.NAME)
    found = checkpoint.load_last(tmp_path)
    assert found is not None and found[2] == {"done": [0, 1]}
    assert len(notes) == 1 and "has no checksum" in notes[0]


def test_a_checkpoint_without_checksum_after_one_with_is_damaged(tmp_path: Path) -> None:
    path, trees = tmp_path / checkpoint.NAME, {"model": {"w": torch.ones(3)}}
    for epoch in (1, 2):
        checkpoint.save(path, trees, {"done": [0, epoch]})
    old_checkpoint(path)
    found = checkpoint.load_last(tmp_path)
    assert found is not None and found[2] == {"done": [0, 1]}, "the one before is used"
    assert "the one before it has" in found[3] and (tmp_path / checkpoint.DAMAGED).exists()


def test_a_checkpoint_whose_format_and_checksum_contradict_each_other_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.NAME
    old_checkpoint(path)
    for wrong in (b'"format\\": 2', b'"format\\": 3', b'"format\\": 0'):
        path.write_bytes(path.read_bytes().replace(b'"format\\": 1', wrong))
        with pytest.raises(BadInput, match=r"contradict|its format is"):
            checkpoint.load(path)
        old_checkpoint(path)


def test_the_best_network_of_a_training_does_not_replace_its_last_but_one_checkpoint(tmp_path: Path) -> None:
    trees = {"model": {"w": torch.ones(3)}}
    for epoch in (1, 2):
        checkpoint.save(tmp_path / checkpoint.NAME, trees, {"done": [0, epoch]})
        checkpoint.save(tmp_path / "best.safetensors", trees, {"best": [epoch]})
    assert checkpoint.load(tmp_path / checkpoint.PREVIOUS)[1] == {"done": [0, 1]}


# Stores


def measured_store(folder: Path) -> tuple[Any, Path]:
    study = studies.load(write_study(folder / "mine", (10, 20)))
    store = Store(folder / "store.sqlite")
    runner.run(study, store, FakeEngine(), FakeMachine(), runner.Order(seed=1))
    store.close()
    return study, store.path


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_that_claims_a_version_without_checksums_is_damaged_and_can_be_repaired(
    version: int, tmp_path: Path, notes: list[str]
) -> None:
    _, path = measured_store(tmp_path)
    rows = repair.check(path).rows
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(StoreError, match="is damaged: it says that it is of version") as refused:
        Store(path)
    assert "store repair" in refused.value.hint and not notes
    assert not repair.check(path).is_whole
    done = repair.repair(path)
    assert done.kept == rows and done.aside == 0 and repair.check(path).is_whole


def test_a_store_of_version_2_is_converted_once_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    db = sqlite3.connect(path)
    db.executescript((Path(__file__).parent / "fixtures" / "store_v2.sql").read_text())
    db.close()
    write_study(tmp_path / "mine", (10, 20))
    first, second = (run("study", "status", str(tmp_path / "mine"), store=path) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr.startswith("Note: ") and "had no checksums" in first.stderr
    assert "Note" not in second.stderr and first.stdout == second.stdout
