"""Published tables: reading, splitting, judging, and the command. The real files are asked where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.accuracy import allreduce, published
from windtunnel.accuracy.published import PublishedRow, PublishedValidation, validate_published
from windtunnel.agreement import Tolerance
from windtunnel.errors import BadInput, BadRecord, Unavailable
from windtunnel.forecast.collectives import Group

FILES = {
    "allreduce_a100_v100_2_to_8.csv": """# source: made up
gpu,gpus,bytes,time_ns,busbw_GBps
a100,8,1073741824,8193000,229.35
a100,8,536870912,4191500,224.15
v100,2,1073741824,47610000,22.55
""",
    "allreduce_curves_a100_h200_b200.csv": """# source: made up
path,system,nodes,payload,busbw,algbw_or_note
x,8x H200 node 8GiB payload GPUs=4 algo=Ring,1,8GiB,363.3GBps,
x,"8x H200 node, NVLink 4 (NVLS/SHARP)",,1GiB,463.58GBps,264.90GBps
x,"P6-B200 nodes (8x B200)",4,8GiB,380.39GBps,
x,not stated,,1GiB,94GBps,48GBps
""",
    "deepbench_allreduce.csv": """# source: made up
device,n_floats,n_chips,n_nodes_or_blank,mean_time_ms,aggregate_GBps_as_in_file,algorithm,std_ms
NV_TitanX,64500000,8,,72.38962,28.5,NCCL 2.0 MPI,0.1
NV_M40,64500000,16,2,119.6215,34.5,NCCL 2.0 MPI,0.35
NV_M40,16777216,16,2,50.3,21.3,Baidu RingAllReduce,0.2
IA_KNL7250,100000,2,,0.09,8.8,Intel MLSL,0
""",
}
REAL = os.environ.get(published.VARIABLE, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def row(predicted: float, is_judged: bool = True, series: str = "a") -> PublishedRow:
    return PublishedRow(
        series=series,
        case="1 MiB",
        measured_seconds=1.0,
        predicted_seconds=predicted,
        baseline_seconds=2.0,
        is_judged=is_judged,
    )


def validation(*rows: PublishedRow) -> PublishedValidation:
    return PublishedValidation(title="t", split="s", baseline="b", rows=rows, tolerance=Tolerance(median=0.1))


def test_only_judged_rows_count() -> None:
    good = validation(row(1.05), row(9.0, is_judged=False))
    assert good.failures == () and "met: median 10%" in good.text()
    bad = validation(row(1.2), row(1.0, is_judged=False))
    assert bad.failures and "NOT MET" in bad.text()
    assert validation(row(1.0, is_judged=False)).failures == ("no rows",)


def test_the_baseline_stands_beside_the_error() -> None:
    plain = validation(row(1.05), row(0.95, series="b")).plain(rows=True)
    assert plain["judged"]["baseline"]["median"] == pytest.approx(1.0)  # type: ignore[index]
    assert list(plain["series"]) == ["a", "b"]  # type: ignore[call-overload]
    assert len(plain["rows"]) == 2  # type: ignore[arg-type]


def test_rows_of_each_file_are_read(folder: Path) -> None:
    measured, left_out = allreduce.read(folder)
    assert len(measured) == 3 + 3 + 2
    assert left_out[0].startswith("1 rows") and left_out[1].startswith("2 rows")
    few = next(each for each in measured if each.group == Group(4, 1))
    # Bus bandwidth is 2(n - 1)/n x bytes / time.
    assert few.seconds == pytest.approx(1.5 * 8 * 2**30 / 363.3e9)
    m40 = next(each for each in measured if "M40" in each.series)
    assert (m40.group, m40.size_bytes, m40.curve) == (Group(8, 2), 4 * 64500000, None)


def test_every_second_size_of_a_curve_is_judged_and_whole_systems_are(folder: Path) -> None:
    measured, _ = allreduce.read(folder)
    judged = {(each.series, each.size_bytes): is_judged for each, is_judged in allreduce.split(measured)}
    a100 = "A100, one node, 2 to 8 GPUs (vTrain)"
    assert not judged[a100, 536870912.0] and judged[a100, 1073741824.0]
    assert judged["M40, PCIe (DeepBench)", 4 * 64500000.0]
    assert not judged["TitanX, PCIe (DeepBench)", 4 * 64500000.0]


def test_large_published_all_reduces_are_forecast_within_ten_percent(folder: Path) -> None:
    for each in validate_published("all-reduce", folder).rows:
        assert abs(each.error) < 0.10, each
        assert abs(each.baseline_error) > abs(each.error)


def test_the_folder_comes_from_the_option_or_the_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(published.VARIABLE, raising=False)
    with pytest.raises(Unavailable, match="no folder"):
        published.find_folder()
    monkeypatch.setenv(published.VARIABLE, str(folder))
    assert published.find_folder() == folder
    with pytest.raises(BadInput, match="does not exist"):
        published.find_folder(folder / "nowhere")


def test_a_missing_or_empty_file_is_named(folder: Path) -> None:
    (folder / "deepbench_allreduce.csv").unlink()
    with pytest.raises(BadInput, match="deepbench_allreduce"):
        validate_published("all-reduce", folder)
    (folder / "deepbench_allreduce.csv").write_text("# nothing\n")
    with pytest.raises(BadRecord, match="no rows"):
        validate_published("all-reduce", folder)
    with pytest.raises(BadInput, match="all-to-all"):
        validate_published("all-to-all", folder)


def test_the_command_prints_the_table_and_fails_beyond_the_tolerance(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "windtunnel",
        "validate",
        "--on",
        "all-reduce",
        "--published",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "baseline" in done.stdout and "M40" in done.stdout
    worse = FILES["deepbench_allreduce.csv"].replace("119.6215", "1.0")
    (folder / "deepbench_allreduce.csv").write_text(worse)
    (folder / "allreduce_a100_v100_2_to_8.csv").write_text(
        FILES["allreduce_a100_v100_2_to_8.csv"].replace("8193000", "8193")
    )
    assert subprocess.run(command, capture_output=True).returncode == 1
    nowhere = [*command[:-1], str(folder / "nowhere")]
    assert subprocess.run(nowhere, capture_output=True).returncode == 2


@pytest.mark.skipif(not REAL, reason=f"{published.VARIABLE} names no folder of published measurements")
def test_forecasts_of_published_all_reduces_are_within_their_tolerance() -> None:
    result = validate_published("all-reduce", Path(REAL))
    assert result.failures == ()
    assert len(result.judged) > 250
