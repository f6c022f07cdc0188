"""Two runs of a study compared, and rows in files for other tools."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from study_fakes import FakeEngine, FakeMachine, report_of, samples_of, write_study
from typer.testing import CliRunner

from windtunnel import records
from windtunnel.cli import app
from windtunnel.errors import BadInput, StoreError, Unavailable
from windtunnel.measurement.steady import LEVELS, Protocol
from windtunnel.measurement.store import Store
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.rows import StudyRow
from windtunnel.study.run.engine import Outcome, Work
from windtunnel.study.run.runner import Order
from windtunnel.study.run.runner import run as study_run
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
def test_two_runs_of_the_same_study_are_rarely_called_different(processes: int, between: float) -> None:
    """Intervals hold in 99 of 100 cells; of 400, more than 12 outside would be a wrong interval."""
    counts = compare(
        run(1, 400, between=between, processes=processes), run(2, 400, between=between, processes=processes)
    ).counts
    assert counts["faster"] + counts["slower"] <= 12


@pytest.mark.parametrize(
    ("processes", "between", "least"), [(3, 0.005, 380), (5, 0.01, 380), (10, 0.03, 360)]
)
def test_two_runs_of_the_same_study_are_the_same_where_processes_are_enough(
    processes: int, between: float, least: int
) -> None:
    """The interval reaches t(2 n - 2) * 1.2 * between * sqrt(2 / n): 2.7, 3.1 and 4.6 % in the three cases,
    to which comes 2 % for the samples: below the margin of 10 %."""
    a, b = (run(seed, 400, between=between, processes=processes) for seed in (1, 2))
    assert compare(a, b).counts["same"] >= least


@pytest.mark.parametrize("processes", [2, 3, 5, 10])
@pytest.mark.parametrize("between", [0.005, 0.03, 0.08])
@pytest.mark.parametrize("factor", [1.1, 1.2, 1 / 1.2])
def test_a_real_difference_is_not_called_the_same(processes: int, between: float, factor: float) -> None:
    """No difference seen is not the same: a wide interval decides nothing."""
    a, b = (run(n, 400, f, between, processes) for n, f in ((1, 1.0), (2, factor)))
    assert compare(a, b).counts["same"] <= (12 if factor == 1.1 else 0)


def test_ten_processes_show_a_slowdown_of_ten_percent() -> None:
    counts = compare(run(1, 400, processes=10), run(2, 400, factor=1.1, processes=10)).counts
    assert counts["slower"] >= 380 and counts["faster"] == 0


def test_a_smaller_margin_makes_same_harder_and_different_no_easier() -> None:
    a, b = run(1, between=0.03, processes=10), run(2, between=0.03, processes=10)
    wide, narrow = compare(a, b, within=0.10).counts, compare(a, b, within=0.02).counts
    assert narrow["same"] < 10 < 90 <= wide["same"]
    assert narrow["slower"] == wide["slower"] and narrow["faster"] == wide["faster"]


@pytest.mark.parametrize(("factor", "verdict"), [(1.5, "slower"), (1 / 1.5, "faster")])
def test_a_run_that_is_half_as_slow_again_is_reported_with_its_ratio(factor: float, verdict: str) -> None:
    compared = compare(run(1, between=0.01, processes=5), run(2, factor=factor, between=0.01, processes=5))
    assert compared.counts[verdict] >= 95
    ratios = [cell.ratio for cell in compared.cells if cell.ratio]
    assert numpy.median(ratios) == pytest.approx(factor, rel=0.01)


def test_swapping_the_runs_swaps_the_verdicts() -> None:
    a, b = run(1, between=0.01, processes=5), run(2, factor=1.3, between=0.01, processes=5)
    there, back = compare(a, b).counts, compare(b, a).counts
    assert there["slower"] >= 95 and abs(there["slower"] - back["faster"]) <= 3
    assert there["faster"] == back["slower"] == 0


def test_a_wide_interval_decides_nothing() -> None:
    assert compare(run(1, between=0.8), run(2, between=0.8)).counts["can't tell"] > 90


def spread(rows: list[StudyRow], reach: float, **facts: object) -> list[StudyRow]:
    """The rows as a study gives them, with an interval that holds how far processes of all cells differ."""
    return [
        dataclasses.replace(
            row,
            low_seconds=(row.step_seconds or 0.0) / (1 + reach),
            high_seconds=(row.step_seconds or 0.0) * (1 + reach),
            environment={**row.environment, **facts},
        )
        for row in rows
    ]


def test_one_process_on_each_side_tells_nothing_whatever_its_interval() -> None:
    for reach in (0.0, 0.001):
        a, b = (spread(run(n, factor=f, processes=1), reach) for n, f in ((1, 1.0), (2, 2.0)))
        alone = compare(a, b)
        assert alone.counts["can't tell"] == 100 and "one process" in alone.cells[0].reason
    one, many = run(1, processes=1), run(2, factor=2.0, processes=5)
    assert compare(one, many).counts["can't tell"] == 100, "nothing shows how far its processes differ"
    assert compare(spread(one, 0.05), spread(many, 0.05)).counts["slower"] == 100


def test_rows_without_samples_tell_nothing() -> None:
    rows = [dataclasses.replace(row, groups=()) for row in spread(run(1), 0.01)]
    compared = compare(rows, rows)
    assert compared.counts["can't tell"] == 100 and "not known" in compared.cells[0].reason


def test_cells_that_shared_processes_count_by_their_own_processes() -> None:
    """Two processes ran all cells, the first run's 20 % faster. All cells agree on that, and so would an
    interval learned from them; two processes a side show nothing of the kind."""
    first, second = run(1, between=0.2, processes=2), run(2, between=0.2, processes=2)
    assert compare(spread(first, 0.01), spread(second, 0.01)).counts["can't tell"] < 30
    shared = compare(spread(first, 0.01, processes="shared"), spread(second, 0.01, processes="shared"))
    assert shared.counts["can't tell"] >= 95
    assert any("200 rows come from processes that several cells shared" in c for c in shared.cautions)


def test_the_command_says_that_one_process_tells_nothing(tmp_path: Path) -> None:
    """The whole way: two stores, whose cells have one process or three, and whose second run is twice as
    slow."""
    study = write_study(tmp_path / "study", range(1, 25))
    words = ["study", "compare", str(study)]
    for processes in (1, 3):
        for name, factor in (("a", 1.0), ("b", 2.0)):
            store_run(study, tmp_path / f"{name}{processes}.sqlite", processes, factor)
    one, three = (
        CliRunner().invoke(app, [*words, *(str(tmp_path / f"{n}{p}.sqlite") for n in "ab"), "--json"])
        for p in (1, 3)
    )
    assert json.loads(one.stdout)["counts"] == {"same": 0, "faster": 0, "slower": 0, "can't tell": 24}
    assert json.loads(three.stdout)["counts"]["slower"] == 24
    wrong = CliRunner().invoke(
        app, [*words, str(tmp_path / "a1.sqlite"), str(tmp_path / "b1.sqlite"), "--within", "x"]
    )
    assert isinstance(wrong.exception, BadInput) and "--within x" in str(wrong.exception)


def store_run(folder: Path, path: Path, processes: int, factor: float) -> None:
    """A run of a study with so many processes a cell."""

    def answer(work: Work) -> Outcome:
        return Outcome(work=work, report=report_of(work, [second * factor for second in samples_of(work)]))

    protocol = Protocol(processes=processes, most_processes=processes, precision=1e-9)
    with contextlib.closing(Store(path)) as store, pytest.MonkeyPatch.context() as patch:
        patch.setitem(LEVELS, "quick", protocol)
        study_run(
            studies.load(folder), store, FakeEngine(answer), FakeMachine(), Order(level="quick", whole=True)
        )


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
    counts = json.loads(json.dumps(compared.plain()))["counts"]
    assert sum(counts.values()) == 5 and not counts["faster"] and not counts["slower"]


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
