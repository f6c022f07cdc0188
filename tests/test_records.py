from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel as wt
from windtunnel import records
from windtunnel.errors import BadRecord, UnknownName


def test_an_unknown_key_is_an_error_that_names_the_nearest_right_one() -> None:
    with pytest.raises(BadRecord) as caught:
        records.read(wt.Strategy, {"precison": "bf16"}, "strategy")
    assert "'precison'" in str(caught.value) and "'precision'" in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text('name = "x"\n')
    with pytest.raises(BadRecord, match="title"):
        wt.Machine.load(path)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": -3}, "batch"),
        ({"batch": 2**50}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"batch": "many"}, "batch"),
        ({"precision": "fp12"}, "fp12"),
        ({"threads": 0}, "threads"),
        ({"execution": "lazy"}, "lazy"),
        ({"data": "cloud"}, "cloud"),
        ({"prefetch": -1}, "prefetch"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_by_name(data: dict[str, Any], word: str) -> None:
    with pytest.raises(BadRecord, match=word):
        wt.Strategy.read(data)


def test_python_users_meet_the_same_refusals_as_files() -> None:
    with pytest.raises(BadRecord, match="precision"):
        wt.Strategy(precision="fp12")  # type: ignore[arg-type]
    with pytest.raises(BadRecord, match="batch"):
        wt.Strategy(batch=0)


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_saving_and_loading_this_machine_gives_an_equal_record(tmp_path: Path, suffix: str) -> None:
    here = wt.Machine.here()
    here.save(tmp_path / f"here{suffix}")
    assert wt.Machine.load(tmp_path / f"here{suffix}") == here


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_strategies_and_jobs_survive_a_file(tmp_path: Path, suffix: str) -> None:
    strategy = wt.Strategy(batch=64, precision="bf16", threads=2, data="streamed", prefetch=1)
    strategy.save(tmp_path / f"strategy{suffix}")
    assert wt.Strategy.load(tmp_path / f"strategy{suffix}") == strategy
    path = tmp_path / f"job{suffix}"
    wt.Workload.named("rnn", n_rec=7).save(path)
    assert wt.Workload.named(str(path)).origin == wt.Workload.named("rnn", n_rec=7).origin
    path.write_text(path.read_text().replace("settings", "setings"))
    with pytest.raises(BadRecord, match="'settings'"):
        wt.Workload.named(str(path))


def test_a_protocol_that_would_measure_nothing_is_refused() -> None:
    with pytest.raises(BadRecord, match="processes"):
        wt.Protocol(processes=0)


@pytest.mark.parametrize("text", ["name = ", "[1, 2", "", '"just text"'])
def test_a_file_that_is_not_a_record_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    for suffix in (".toml", ".json"):
        path = tmp_path / f"broken{suffix}"
        path.write_text(text)
        with pytest.raises(BadRecord, match=r"broken"):
            wt.Machine.load(path)


def test_toml_that_is_written_is_read_back_by_the_standard_library(tmp_path: Path) -> None:
    data = {
        "a": 1,
        "b": 0.25,
        "c": 'it\'s "so"',
        "d": [1, 2],
        "e": {"x y": True, "f": {"g": 3.0}},
        "big": 3.5e20,
        "small": 1e-7,
    }
    path = tmp_path / "x.toml"
    records.save(path, data)
    assert records.load(path) == data


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    records.save(path, {"kept": 1})

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        records.save(path, {"lost": 2})
    assert json.loads(path.read_text()) == {"kept": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_counts_make_nodes_and_units() -> None:
    assert (wt.Machine.named("8xh200").nodes, wt.Machine.named("8xh200").devices) == (1, 8)
    assert (wt.Machine.named("4x8xh200").nodes, wt.Machine.named("4x8xh200").devices) == (4, 8)
    with pytest.raises(UnknownName, match="h200"):
        wt.Machine.named("h2000")
    with pytest.raises(BadRecord, match="above 0"):
        wt.Machine.named("0xh200")
    with pytest.raises(UnknownName, match="2x3x4xh200"):
        wt.Machine.named("2x3x4xh200")
    with pytest.raises(BadRecord, match="CPU machine"):
        wt.Machine.named("2xi7-3820")


def test_rates_below_zero_are_refused() -> None:
    device = wt.Machine.named("h200").device
    with pytest.raises(BadRecord, match="memory_rate"):
        dataclasses.replace(device, memory_rate=-1.0)
    with pytest.raises(BadRecord, match="bf17"):
        dataclasses.replace(device, flop_rates={"bf17": 1e12})


def test_a_host_keeps_its_pace_when_its_gpu_is_left_out() -> None:
    h200 = wt.Machine.named("h200")
    assert h200.launch_costs is not None
    here = dataclasses.replace(h200, name="here")
    slow = dataclasses.replace(here, launch_costs=h200.launch_costs.scaled(3.0))
    quick_issue, slow_issue = here.with_cpu_only().launch_costs, slow.with_cpu_only().launch_costs
    assert quick_issue is not None and slow_issue is not None
    assert slow_issue.node_seconds == pytest.approx(3 * quick_issue.node_seconds)
    cpu = wt.Machine.named("i7-3820")
    assert cpu.with_cpu_only() is cpu


def test_here_describes_this_machine() -> None:
    here = wt.Machine.here()
    assert here.host.kind == "cpu"
    assert here.host.cores and here.host.threads and here.host.threads >= here.host.cores
    assert here.host.memory_bytes and here.host.memory_bytes > 2**28
    assert here.host.memory_rate and here.host.memory_rate > 1e8
    assert here.source_of("host.memory_rate").startswith("measured")
