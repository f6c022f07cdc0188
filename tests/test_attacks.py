"""What an attack on the product found: damaged stores, and what a command says about them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conftest import run
from test_intact import measured

from windtunnel.errors import StoreError
from windtunnel.measurement import repair
from windtunnel.measurement.store import Store


def test_of_a_store_that_lost_its_end_what_is_whole_is_kept(tmp_path: Path) -> None:
    _, path = measured(tmp_path, cells=120)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10])
    with pytest.raises(StoreError, match="malformed"):
        Store(path)
    assert not repair.check(path).is_whole
    assert repair.repair(path).kept > 100
    assert repair.check(path).is_whole


def test_a_store_of_which_nothing_can_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    _, path = measured(tmp_path)
    data = path.read_bytes()[:100] + random.Random(1).randbytes(40_000)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"no row can be read|cannot be read") as caught:
        repair.repair(path)
    assert "Restore a copy" in caught.value.hint
    assert path.read_bytes() == data
    assert [each.name for each in tmp_path.glob(f"{path.name}*")] == [path.name]


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_check_and_a_repair_of_an_empty_store_say_that_it_is_empty(command: str, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"")
    done = run("store", command, "--store", str(path))
    assert done.returncode == 2 and "is empty: it has 0 bytes" in done.stderr


def test_what_to_do_about_a_damaged_store_names_that_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = measured(tmp_path / "a folder")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert f"store check --store '{path}'" in caught.value.hint
    assert f"store repair --store '{path}'" in caught.value.hint
    monkeypatch.setenv("WINDTUNNEL_STORE", str(path))
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert "--store" not in caught.value.hint, "a command takes this store by itself"
