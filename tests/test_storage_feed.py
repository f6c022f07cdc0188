"""Utilisation of storage-fed accelerators against published results, on rows made up here."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import run

from windtunnel.accuracy.storage_feed import FILE, WORKLOADS, FedRow, utilisation, validate
from windtunnel.errors import BadRecord
from windtunnel.units import MIB

HEAD = (
    "# made up\nsubmitter,system,workload,num_accelerators,num_hosts,au_pct,samples_s,io_MBps,num_files_train"
)


def row_of(workload: str, accelerators: int, share: float, hosts: int = 1, off: float = 0.0) -> str:
    """A result whose rate is just what so many accelerators take at this share of their computing speed."""
    work = WORKLOADS[workload]
    samples = accelerators * share * work.batch / work.seconds
    rate = samples * work.example_bytes / MIB
    return f"us,ours,{workload}-a100,{accelerators},{hosts},{100 * (share + off)},{samples},{rate},1"


def write(folder: Path, *rows: str) -> Path:
    (folder / FILE).write_text("\n".join([HEAD, *rows]) + "\n")
    return folder


@pytest.mark.parametrize("workload", WORKLOADS)
def test_half_of_the_rate_that_is_needed_gives_half_of_the_utilisation(workload: str) -> None:
    work = WORKLOADS[workload]
    row = FedRow("ours", workload, 8, 2, 1.0, 0.0)
    needed = 8 * work.batch * work.example_bytes / work.seconds
    assert utilisation(row, needed / 2) == pytest.approx(0.5)
    assert utilisation(row, needed * 2) == pytest.approx(1.0), "at most all the time"
    assert utilisation(row, needed * 0.9) > utilisation(row, needed * 0.8)


def test_rows_are_judged_in_points_beside_a_constant(tmp_path: Path) -> None:
    rows = [row_of("unet3d", 10, 0.9), row_of("cosmoflow", 10, 0.7), row_of("resnet", 10, 0.8, off=0.05)]
    found = validate(write(tmp_path, *rows))
    assert [round(row.error, 3) for row in found.rows] == [0.0, 0.0, -0.05]
    assert not found.failures and "met" in found.text(rows=True)
    mean = (0.9 + 0.7 + 0.85) / 3
    assert found.rows[0].constant_error == pytest.approx(mean - 0.9)


def test_an_error_above_ten_points_fails(tmp_path: Path) -> None:
    folder = write(tmp_path, row_of("unet3d", 10, 0.6, off=0.2))
    assert "20.0 points" in validate(folder).failures[0]
    done = run("validate", "--on", "storage-feed", "--published", str(folder))
    assert done.returncode == 1 and "NOT MET" in done.stdout


def test_another_size_of_the_same_system_is_shown_and_not_limited(tmp_path: Path) -> None:
    rows = [row_of("unet3d", 10, 0.9, hosts=1), row_of("unet3d", 40, 0.9, hosts=2)]
    found = validate(write(tmp_path, *rows))
    # Twice the hosts deliver twice the rate to four times the accelerators: half of 0.9.
    assert found.rows[-1].predicted == pytest.approx(0.45) and not found.failures


def test_an_unknown_workload_and_a_missing_folder_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="bert"):
        validate(write(tmp_path, row_of("unet3d", 1, 1.0).replace("unet3d", "bert")))
    done = run("validate", "--on", "storage-feed", "--published", str(tmp_path / "none"))
    assert done.returncode == 2 and "does not exist" in done.stderr
