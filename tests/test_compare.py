"""Two runs of a study compared, and rows in files for other tools."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from windtunnel import records
from windtunnel.errors import BadInput, StoreError, Unavailable
from windtunnel.study import export
from windtunnel.study.rows import StudyRow
from windtunnel.study.statistics.compare import compare


def run(
    seed: int, cells: int = 100, factor: float = 1.0, between: float = 0.03, processes: int = 3, **more: Any
) -> list[StudyRow]:
    """A synthetic run: processes differ by `between`, samples within one by 5 %."""
    rng = numpy.random.default_rng(seed)
    rows = []
    for n in range(cells):
        seconds = 1e-3 * (1 + n) * factor
        groups = tuple(
            tuple(
                float(s)
                for s in seconds
                * math.exp(between * rng.standard_normal())
                * numpy.exp(0.05 * rng.standard_normal(30))
            )
            for _ in range(processes)
        )
        middle = float(numpy.median([numpy.median(group) for group in groups]))
        rows.append(
            StudyRow(
                study="s",
                figure="f",
                case="c",
                label="torch:loop",
                job="rnn",
                settings={"n_rec": n},
                step_seconds=middle,
                groups=groups,
                **more,
            )
        )
    return rows


@pytest.mark.parametrize("processes", [2, 3, 5, 10])
@pytest.mark.parametrize("between", [0.005, 0.03, 0.08])
def test_two_runs_of_the_same_study_are_the_same_in_95_of_100_cells(processes: int, between: float) -> None:
    compared = compare(
        run(1, 400, between=between, processes=processes), run(2, 400, between=between, processes=processes)
    )
    # With few processes of a noisy cell "can't tell" is a right answer.
    few = processes == 2 or (processes == 3 and between > 0.05)
    undecided = compared.counts["can't tell"] if few else 0
    assert compared.counts["same"] + undecided >= 0.95 * 400
    assert compared.counts["faster"] + compared.counts["slower"] <= 0.03 * 400


@pytest.mark.parametrize(("factor", "verdict"), [(1.5, "slower"), (1 / 1.5, "faster")])
def test_a_run_that_is_half_as_slow_again_is_reported_with_its_ratio(factor: float, verdict: str) -> None:
    compared = compare(run(1, between=0.01, processes=5), run(2, factor=factor, between=0.01, processes=5))
    assert compared.counts[verdict] >= 95
    ratios = [cell.ratio for cell in compared.cells if cell.ratio]
    assert numpy.median(ratios) == pytest.approx(factor, rel=0.01)


def test_swapping_the_runs_swaps_the_verdicts() -> None:
    a, b = run(1, between=0.01, processes=5), run(2, factor=1.3, between=0.01, processes=5)
    there, back = compare(a, b).counts, compare(b, a).counts
    assert abs(there["slower"] - back["faster"]) <= 3 and there["faster"] == back["slower"] == 0


def test_a_wide_interval_decides_nothing_and_one_process_on_each_side_never_says_faster() -> None:
    assert compare(run(1, between=0.8), run(2, between=0.8)).counts["can't tell"] > 60
    alone = compare(run(1, processes=1), run(2, factor=2.0, processes=1))
    assert alone.counts["can't tell"] == 100 and "one process" in alone.cells[0].reason


def test_failures_are_compared_by_name_and_cells_of_only_one_run_are_counted() -> None:
    def failed(state: str) -> StudyRow:
        return StudyRow(study="s", figure="f", case="c", label="torch:loop", job="rnn", state=state)

    assert compare([failed("timeout")], [failed("timeout")]).cells[0].verdict == "same"
    differ = compare([failed("timeout")], [failed("out of memory")]).cells[0]
    assert (
        differ.verdict == "can't tell"
        and differ.reason == "timeout in the first, out of memory in the second"
    )
    compared = compare(run(1, 5), run(2, 3))
    assert (
        len(compared.cells) == 3
        and compared.alone == (2, 0)
        and "2 cells are only in the first" in str(compared)
    )


def test_two_machines_are_compared_cell_by_cell_and_different_processors_give_a_caution() -> None:
    compared = compare(
        run(1, 5, device_name="A", environment={"cpu": "A"}),
        run(2, 5, device_name="B", environment={"cpu": "B"}),
    )
    assert len(compared.cells) == 5 and compared.cautions == ("cpu was A in the first and B in the second",)
    assert json.loads(json.dumps(compared.plain()))["counts"]["same"] + compared.counts["can't tell"] == 5


ROWS = [
    *run(1, 3, environment={"cpu": "x, y"}),
    StudyRow(
        study="s",
        figure="f",
        case='a "b", c',
        label="jax:scan",
        job="fcn5",
        settings={"layers": [1, 2], "batch": 3},
        state="timeout",
        error="two\nlines",
    ),
]


def test_csv_has_a_line_for_every_row_and_no_zero_for_a_failure(tmp_path: Path) -> None:
    read = list(csv.DictReader(export.write(ROWS, tmp_path / "rows.csv").open(newline="")))
    assert len(read) == 4 and float(read[0]["step_seconds"]) == ROWS[0].step_seconds
    assert (
        read[3]["step_seconds"] == "" and read[3]["state"] == "timeout" and read[3]["error"] == "two\nlines"
    )
    assert read[3]["layers"] == "[1, 2]" and read[3]["setting_batch"] == "3" and read[0]["samples"] == "90"


def test_rows_written_as_json_read_back_equal(tmp_path: Path) -> None:
    data = json.loads(export.write(ROWS, tmp_path / "rows.json").read_text())
    assert [records.read(StudyRow, each, "row") for each in data][:3] == ROWS[:3]


def test_parquet_and_a_dataframe_have_the_same_numbers(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = parquet.read_table(export.write(ROWS, tmp_path / "rows.parquet"))
    assert table.column("step_seconds").to_pylist() == [row.step_seconds for row in ROWS]
    assert [tuple(map(tuple, groups)) for groups in table.column("groups").to_pylist()] == [
        row.groups for row in ROWS
    ]
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = export.frame(ROWS)
    assert list(frame["label"]) == [row.label for row in ROWS] and frame["n_rec"].tolist()[:3] == [0, 1, 2]


def test_no_rows_are_written_as_an_empty_table(tmp_path: Path) -> None:
    assert export.write([], tmp_path / "none.csv").read_text().startswith("study,")
    assert json.loads(export.write([], tmp_path / "none.json").read_text()) == []


def test_a_failed_write_leaves_the_old_file_and_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = export.write(ROWS, tmp_path / "rows.csv")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        export.write(ROWS[:1], path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_an_unknown_suffix_and_a_missing_package_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="xlsx"):
        export.write(ROWS, tmp_path / "rows.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unavailable, match="pyarrow"):
        export.write(ROWS, tmp_path / "rows.parquet")
    with pytest.raises(Unavailable, match="pandas"):
        export.frame(ROWS)
