from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel as wt
from windtunnel import records
from windtunnel.errors import BadInput, BadRecord, StoreError, Unavailable, UnknownName
from windtunnel.machine.machine import device_kind, torch_device


def test_the_error_for_an_unknown_key_names_the_most_similar_one() -> None:
    with pytest.raises(BadRecord) as caught:
        records.read(wt.Strategy, {"precison": "bf16"}, "strategy")
    assert "'precison'" in str(caught.value) and "'precision'" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"), [("unit", "device"), ("units", "devices"), ("issue", "launch_costs")]
)
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_machine_file_with_an_old_key_names_the_new_one(
    tmp_path: Path, old: str, new: str, suffix: str
) -> None:
    data = records.plain(wt.Machine.named("h200"))
    data[old] = data.pop(new)
    records.save(tmp_path / f"old{suffix}", data)
    with pytest.raises(BadRecord, match=f"unknown key '{old}'") as caught:
        wt.Machine.find(str(tmp_path / f"old{suffix}"))
    assert caught.value.hint == f"{old!r} is now called {new!r}."


def test_an_old_setting_of_a_job_names_the_new_one() -> None:
    with pytest.raises(BadRecord, match="'way' is now called 'variant'"):
        wt.Workload.named("rnn", way="module")


def test_an_old_key_that_never_belonged_to_a_record_gets_the_usual_hint() -> None:
    with pytest.raises(BadRecord) as caught:
        wt.Strategy.read({"way": "module"})
    assert "now called" not in str(caught.value)


def test_settings_are_split_at_the_first_equals_sign() -> None:
    assert records.parse_settings(["n_rec=50", "goal=loss=1", "empty="]) == {
        "n_rec": "50",
        "goal": "loss=1",
        "empty": "",
    }
    for wrong in ("n_rec", "=50"):
        with pytest.raises(BadInput, match="is not a setting"):
            records.parse_settings([wrong])


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
def test_an_impossible_strategy_is_refused_by_name(data: dict[str, Any], word: str) -> None:
    with pytest.raises(BadRecord, match=word):
        wt.Strategy.read(data)


def test_a_strategy_made_in_python_is_checked_like_a_file() -> None:
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
def test_strategies_and_jobs_are_saved_and_loaded(tmp_path: Path, suffix: str) -> None:
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
def test_the_error_for_a_broken_file_names_the_file(tmp_path: Path, text: str) -> None:
    for suffix in (".toml", ".json"):
        path = tmp_path / f"broken{suffix}"
        path.write_text(text)
        with pytest.raises(BadRecord, match=r"broken"):
            wt.Machine.load(path)


def test_the_standard_library_reads_the_toml_that_is_written(tmp_path: Path) -> None:
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


def test_a_failed_write_leaves_the_old_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    records.save(path, {"old": 1})

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="disk full"):
        records.save(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_counts_in_a_name_give_nodes_and_devices() -> None:
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


def test_a_host_is_as_slow_without_its_gpu_as_with_it() -> None:
    h200 = wt.Machine.named("h200")
    assert h200.launch_costs is not None
    here = dataclasses.replace(h200, name="here")
    slow = dataclasses.replace(here, launch_costs=h200.launch_costs.scaled(3.0))
    costs, slow_costs = here.with_cpu_only().launch_costs, slow.with_cpu_only().launch_costs
    assert costs is not None and slow_costs is not None
    assert slow_costs.node_seconds == pytest.approx(3 * costs.node_seconds)
    cpu = wt.Machine.named("i7-3820")
    assert cpu.with_cpu_only() is cpu


@pytest.fixture
def gpu_here(monkeypatch: pytest.MonkeyPatch) -> wt.Machine:
    machine = dataclasses.replace(wt.Machine.named("h200"), name="here")
    monkeypatch.setattr("windtunnel.machine.here.describe", lambda: machine)
    return machine


def test_a_machine_is_found_on_a_machine_with_a_gpu(gpu_here: wt.Machine) -> None:
    for name in ("here", "cuda", "gpu"):
        assert wt.Machine.find(name) == gpu_here
    assert wt.Machine.find("cpu") == gpu_here.with_cpu_only()


def test_a_machine_is_found_on_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = dataclasses.replace(wt.Machine.named("i7-3820"), name="here")
    monkeypatch.setattr("windtunnel.machine.here.describe", lambda: cpu)
    for name in ("here", "cpu"):
        assert wt.Machine.find(name) == cpu
    for name in ("cuda", "gpu"):
        with pytest.raises(Unavailable, match="no CUDA GPU on this machine") as caught:
            wt.Machine.find(name)
        assert "--on cpu" in caught.value.hint and caught.value.exit_code == 2


def test_a_machine_is_found_by_name_with_counts_or_in_a_file(tmp_path: Path) -> None:
    assert wt.Machine.find("8xh100") == wt.Machine.named("8xh100")
    with pytest.raises(UnknownName, match="'h200'"):
        wt.Machine.find("h2000")
    for suffix in (".toml", ".json"):
        path = tmp_path / f"mine{suffix}"
        wt.Machine.named("k80").save(path)
        assert wt.Machine.find(str(path)) == wt.Machine.named("k80")
    with pytest.raises(BadRecord, match="nowhere"):
        wt.Machine.find(str(tmp_path / "nowhere.toml"))


def test_a_gpu_is_called_cuda_for_pytorch_only() -> None:
    assert [torch_device(kind) for kind in ("cpu", "gpu", "cuda")] == ["cpu", "cuda", "cuda"]
    assert [device_kind(name) for name in ("cpu", "gpu", "cuda")] == ["cpu", "gpu", "gpu"]
    with pytest.raises(BadInput, match="'tpu' is not a kind of device"):
        torch_device("tpu")


def test_a_file_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MOST_BYTES", 10_000)
    endless, bomb = tmp_path / "zero.toml", tmp_path / "bomb.json.gz"
    endless.symlink_to("/dev/zero")
    bomb.write_bytes(gzip.compress(bytes(10_000_000)))
    for path in (endless, bomb):
        with pytest.raises(BadRecord, match="more than 10,000 bytes"):
            records.load(path)


def test_here_describes_this_machine() -> None:
    here = wt.Machine.here()
    assert here.host.kind == "cpu"
    assert here.host.cores and here.host.threads and here.host.threads >= here.host.cores
    assert here.host.memory_bytes and here.host.memory_bytes > 2**28
    assert here.host.memory_rate and here.host.memory_rate > 1e8
    assert here.source_of("host.memory_rate").startswith("measured")
