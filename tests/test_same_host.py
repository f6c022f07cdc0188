"""GPUs are compared on one host: two forecasts differ by their devices alone, unless a host is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from conftest import run

import windtunnel as wt
from windtunnel.errors import BadInput
from windtunnel.machine.machine import names
from windtunnel.prediction import forecast_trace, trace

# A board is its own host; all other GPUs are cards.
BOARDS = {"jetson-nano", "jetson-orin-nano"}
GPUS = [name for name in names() if wt.Machine.named(name).device.kind == "gpu" and name not in BOARDS]
STRATEGY = wt.Strategy(batch=1)
JOB = wt.Workload.named("gpt2", size="tiny", length=16)


def test_all_gpus_of_the_catalogue_have_the_launch_costs_of_one_host() -> None:
    reference = wt.Machine.named("h200")
    for name in GPUS:
        machine = wt.Machine.named(name)
        assert machine.launch_costs == reference.launch_costs, name
        assert machine.assumed_host == reference.assumed_host and "reference host" in machine.assumed_host


def test_equal_hosts_spend_equal_time_and_results_name_them() -> None:
    recorded = trace(JOB, STRATEGY, "gpu")
    results = [
        forecast_trace(recorded, JOB, wt.Machine.named(name), STRATEGY)
        for name in ("h200", "a100-80gb", "t4")
    ]
    assert len({result.host_seconds for result in results}) == 1
    for result in results:
        assert result.host == "Intel Xeon, 2.1 GHz: the reference host" and result.host in str(result)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("precision", ["pytorch", "tf32", "bf16"])
def test_an_a100_never_beats_an_h200_on_gpt2(batch: int, precision: str) -> None:
    """The H200 has more memory, a higher memory rate and higher rates in every format."""
    job = wt.Workload.named("gpt2", size="tiny", length=64)
    strategy = wt.Strategy(batch=batch, precision=precision)  # type: ignore[arg-type]
    recorded = trace(job, strategy, "gpu")
    a100, h200 = (
        forecast_trace(recorded, job, wt.Machine.named(name), strategy) for name in ("a100-80gb", "h200")
    )
    assert a100.step_seconds >= h200.step_seconds


def test_another_host_is_asked_for_by_name() -> None:
    epyc, machine = wt.Machine.named("epyc-7763"), wt.Machine.named("h200")
    other = machine.with_host(epyc)
    assert other.host == epyc.host and other.device == machine.device
    assert other.launch_costs is not None and machine.launch_costs is not None
    # The reference host has 2.1 GHz, the EPYC 2.45 GHz: 6/7 of the costs.
    assert other.launch_costs.node_seconds == pytest.approx(machine.launch_costs.node_seconds * 2.1 / 2.45)
    result = wt.predict(JOB, other, STRATEGY)
    assert "EPYC 7763" in result.host and (result.host_seconds or 0) < (
        wt.predict(JOB, machine, STRATEGY).host_seconds or 0
    )
    with pytest.raises(BadInput, match="its own CPU"):
        wt.Machine.named("i7-3820").with_host(epyc)


def test_a_cpu_machine_has_its_own_host_and_names_no_other() -> None:
    slow, fast = wt.Machine.named("e5-2660-v2"), wt.Machine.named("i7-3820")
    assert slow.launch_costs != fast.launch_costs
    assert wt.predict(JOB, fast, STRATEGY).host == ""
    assert wt.Machine.named("k80").with_cpu_only().assumed_host == ""


def test_a_machine_file_keeps_its_own_launch_costs_and_host(tmp_path: Path) -> None:
    own = dataclasses.replace(
        wt.Machine.named("t4").with_host_factor(3.0), name="mine", assumed_host="", profile=""
    )
    path = tmp_path / "mine.toml"
    own.save(path)
    loaded = wt.Machine.find(str(path))
    assert loaded.launch_costs == own.launch_costs
    result = wt.predict(JOB, loaded, STRATEGY)
    assert result.host == f"{own.host.model}; measured host factor 3.00"


def test_the_command_line_takes_a_host() -> None:
    done = run("predict", "ffn", "--on", "h200", "--host", "epyc-7763")
    assert done.returncode == 0 and "EPYC 7763" in done.stdout, done.stderr
    done = run("predict", "ffn", "--on", "h200", "--host", "abacus")
    assert done.returncode == 2 and "abacus" in done.stderr
