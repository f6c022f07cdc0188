"""Forecasts compared with tables of measured steps. Nothing here needs a library."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import pytest

import windtunnel as wt
from windtunnel.accuracy import truth, validation
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.accuracy.truth import Tolerances, TruthCase, TruthRow, TruthTable
from windtunnel.accuracy.validation import Pair, judge
from windtunnel.agreement import ShareRange, Tolerance, agree, error_of, exceeded, quantile
from windtunnel.errors import BadInput, BadRecord
from windtunnel.trace import Op

HEADER = {"date": "2026-01-02T03:04:05+00:00", "gpu": "a GPU", "torch": "2", "machine": "h200"}
SMALL = {"job": "ffn", "settings": {"inputs": 16}, "batch": 4, "kind": "dense"}
TIGHT = "[device]\nmedian = 0.02\nninetieth = 0.02\n[memory]\nmedian = 0.02\nlowest = -0.01\n"


def write_table(
    folder: Path, rows: list[dict[str, Any]], tolerances: str = "", header: dict[str, Any] | None = None
) -> Path:
    path = folder / "table.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header or HEADER, *rows)))
    if tolerances:
        path.with_suffix(".toml").write_text(tolerances)
    return path


def measured_as_forecast(factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A row as if measured: the current forecast times a factor."""
    case = TruthCase(**{**SMALL, **changes})
    forecast = wt.predict(case.workload(), wt.Machine.named("h200"), case.strategy())
    assert forecast.device_seconds is not None
    figures = {
        "step_seconds": forecast.step_seconds,
        "device_seconds": forecast.device_seconds,
        "peak_bytes": forecast.memory.peak_bytes,
    }
    return {**SMALL, **changes, **{name: value * factor for name, value in figures.items()}}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return conftest.run("validate", *words)


def test_the_summary_of_errors_is_as_worked_by_hand() -> None:
    assert error_of(11, 10) == pytest.approx(0.1) and error_of(9, 10) == pytest.approx(-0.1)
    errors = agree([0.10, -0.30, 0.05, 0.20, -0.15])
    # Sizes in order: 0.05 0.10 0.15 0.20 0.30. The 90th percentile lies 3.6 gaps along: 0.20 + 0.6 x 0.10.
    assert (errors.rows, errors.median, errors.ninetieth) == (5, pytest.approx(0.15), pytest.approx(0.26))
    assert (errors.worst, errors.bias, errors.lowest) == (-0.30, 0.05, -0.30)
    assert agree([0.5]).ninetieth == 0.5
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5


@pytest.mark.parametrize(
    ("tolerance", "over"),
    [
        (Tolerance(), ()),
        (Tolerance(median=0.16, ninetieth=0.27, bias=0.06, lowest=-0.31), ()),
        (Tolerance(median=0.14), ("median",)),
        (Tolerance(ninetieth=0.25), ("90th",)),
        (Tolerance(worst=0.29), ("worst",)),
        (Tolerance(bias=0.04), ("bias",)),
        (Tolerance(lowest=-0.2), ("lowest",)),
        (Tolerance(median=0.1, ninetieth=0.1, bias=0.01, lowest=-0.1), ("median", "90th", "bias", "lowest")),
    ],
)
def test_each_tolerance_can_be_exceeded_by_itself(tolerance: Tolerance, over: tuple[str, ...]) -> None:
    assert exceeded(agree([0.10, -0.30, 0.05, 0.20, -0.15]), tolerance) == over


def test_a_bias_and_a_worst_error_below_zero_exceed_their_tolerances_too() -> None:
    errors = [-0.10, -0.05, -0.20, -0.02, -0.30]
    assert exceeded(agree(errors), Tolerance(bias=0.09)) == ("bias",)
    assert exceeded(agree(errors), Tolerance(worst=0.29)) == ("worst",)


def test_a_range_of_shares_must_be_in_order() -> None:
    with pytest.raises(BadRecord, match="in this order"):
        ShareRange(least=0.9, most=0.7)


def test_lists_in_a_case_file_stand_for_every_combination(tmp_path: Path) -> None:
    path = tmp_path / "cases.toml"
    path.write_text(
        '[[case]]\njob = "ffn"\nbatch = [1, 2]\nprecision = ["fp32", "bf16"]\nsettings = { inputs = 3 }\n'
        '[[case]]\njob = "rbm"\nbatch = 4\n'
    )
    cases = truth.read_cases(path)
    assert [(c.job, c.batch, c.precision) for c in cases] == [
        ("ffn", 1, "fp32"),
        ("ffn", 1, "bf16"),
        ("ffn", 2, "fp32"),
        ("ffn", 2, "bf16"),
        ("rbm", 4, "fp32"),
    ]
    assert len({c.key for c in cases}) == 5 and cases[0].settings == {"inputs": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[case]]\njob = "ffn"\nbatch = 1\ncolour = "red"\n', "colour"),
        ('[[case]]\njob = "ffn"\nbatch = [1, 1]\n', "twice"),
        ('[[case]]\njob = "ffn"\n', "batch"),
        ("[other]\n", "nothing else"),
    ],
)
def test_a_wrong_case_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cases.toml"
    path.write_text(text)
    with pytest.raises(BadRecord, match=words):
        truth.read_cases(path)


def test_every_case_file_of_the_package_is_valid_and_no_network_is_in_both_tables() -> None:
    for machine in ("h200", "cpu"):
        judged, tuned = (
            truth.read_cases(truth.CATALOG / table / "cases" / f"{machine}.toml")
            for table in ("truth", "tuning")
        )
        assert not {c.job for c in judged} & {c.job for c in tuned}
        assert len({c.job for c in judged}) >= (24 if machine == "h200" else 12)
        for case in judged + tuned:
            case.strategy()


def test_the_lines_of_a_row_are_joined_and_a_later_success_replaces_a_failure(tmp_path: Path) -> None:
    lines = [
        {"key": "a", "pass": "time", **SMALL, "error": "OutOfMemoryError: full"},
        {"key": "b", "pass": "time", **SMALL, "batch": 8, "step_seconds": 2.0},
        {"key": "b", "pass": "profile", **SMALL, "batch": 8, "device_seconds": 1.0},
        {"key": "a", "pass": "time", **SMALL, "step_seconds": 1.3},
        {"key": "a", "pass": "profile", **SMALL, "device_seconds": 1.0},
    ]
    path = write_table(tmp_path, lines, header={**HEADER, "host_factor": 1.25})
    path.write_text(path.read_text() + '{"key": "half')
    table = truth.read_table(path)
    assert [(row.case.batch, row.step_seconds, row.device_seconds, row.error) for row in table.rows] == [
        (4, 1.3, 1.0, ""),
        (8, 2.0, 1.0, ""),
    ]
    assert [row.bound for row in table.rows] == ["device", "host"], (
        "a step above 1.4 times the device time waits for the host"
    )
    assert table.machine == "h200" and {row.host_factor for row in table.rows} == {1.25}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header"),
        (json.dumps(SMALL) + "\n", "header"),
        ("{}\nnonsense\n{}\n", "line 2"),
        ("{}\n[1]\n{}\n", "line 2"),
        ("{}\n" + json.dumps(SMALL) + "\n", "step_seconds"),
        ("{}\n" + json.dumps({**SMALL, "step_seconds": -1}) + "\n", "above 0"),
        ("{}\n" + json.dumps({**SMALL, "step_seconds": "soon"}) + "\n", "a number"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text(text)
    with pytest.raises(BadRecord, match=words):
        truth.read_table(path)


def test_the_host_factor_of_a_row_reaches_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Host:
        name, device = "scaled", wt.Machine.named("h200").device

        def with_host_factor(self, factor: float) -> Host:
            seen.append(factor)
            return self

    monkeypatch.setattr(validation.prediction, "trace", lambda *_: None)
    monkeypatch.setattr(validation.prediction, "forecast_trace", lambda *_: None)
    monkeypatch.setattr(validation, "roofline_seconds", lambda *_: None)
    rows = tuple(
        TruthRow(case=TruthCase(**SMALL), step_seconds=1.0, host_factor=factor) for factor in (1.5, None)
    )
    validation.forecast_rows(TruthTable(path=Path("t"), machine="h200", header={}, rows=rows), Host())  # type: ignore[arg-type]
    assert seen == [1.5]


def test_rows_with_another_execution_and_rows_without_a_forecast_are_counted_apart() -> None:
    forecast = wt.predict(
        TruthCase(**SMALL).workload(), wt.Machine.named("h200"), TruthCase(**SMALL).strategy()
    )

    def pair(execution: str = "eager", factor: float = 1.0, **how: Any) -> Pair:
        row = TruthRow(
            case=TruthCase(**SMALL, execution=execution),
            step_seconds=forecast.step_seconds * factor,
            device_seconds=forecast.device_seconds,
        )
        return Pair(row=row, **({"forecast": forecast} | how))

    excused = {"forecast": None, "reason": "timm is not installed.", "excused": True}
    pairs = [pair(), pair("graph", 50.0), pair(**excused), pair(forecast=None, reason="BadJob: cannot")]
    table = TruthTable(
        path=Path("t"),
        machine="h200",
        header={},
        rows=tuple(p.row for p in pairs),
        tolerances=Tolerances(device=Tolerance(median=0.01), refused=0),
    )
    result = judge(table, "h200", pairs)
    by_name = {(j.section, j.name): j for j in result.judgements}
    assert (
        by_name["all", "step, host-bound"].errors.rows == 1
        and by_name["all", "step, host-bound"].errors.worst == 0
    )  # type: ignore[union-attr]
    assert by_name["execution", "graph: step"].errors.worst == pytest.approx(-0.98)  # type: ignore[union-attr]
    assert (
        len(result.left_out) == 2
        and result.refused == 1
        and result.failures == ("1 rows have no forecast, 0 may",)
    )


def test_a_gain_is_judged_beside_no_gain_as_worked_by_hand() -> None:
    """Eager told 2 s, compiled told 1 s; measured 3 s and 2 s: the gain is told 2, is 1.5, and "no gain"
    says 1."""
    forecast = wt.predict(
        TruthCase(**SMALL).workload(), wt.Machine.named("h200"), TruthCase(**SMALL).strategy()
    )

    def pair(execution: str, told: float, measured: float) -> Pair:
        row = TruthRow(case=TruthCase(**SMALL, execution=execution), step_seconds=measured, peak_bytes=1e6)
        return Pair(row=row, forecast=dataclasses.replace(forecast, step_seconds=told))

    pairs = [pair("eager", 2.0, 3.0), pair("compiled", 1.0, 2.0)]
    table = TruthTable(
        path=Path("t"),
        machine="h200",
        header={},
        rows=tuple(p.row for p in pairs),
        tolerances=Tolerances(compiled_step=Tolerance(worst=0.4), gain=Tolerance(median=0.34)),
    )
    result = judge(table, "h200", pairs)
    judged = {j.name: j for j in result.judgements if j.section == "compiled"}
    told = {name: (judged[name].errors.worst, judged[name].baseline.worst) for name in ("step", "gain")}  # type: ignore[union-attr]
    assert told["step"] == (pytest.approx(-0.5), pytest.approx(0.0))
    assert told["gain"] == (pytest.approx(1 / 3), pytest.approx(-1 / 3))
    assert result.failures == ("compiled step: worst",)
    text = result.text(rows=True)
    assert "2.00x / 1.50x  +33%" in text and "no gain" in text and "NOT MET: worst 40%" in text
    assert result.plain(rows=True)["gains"][0]["gain"]["no_gain_error"] == pytest.approx(-1 / 3)  # type: ignore[index]


def test_a_tolerance_without_any_row_is_not_met() -> None:
    result = judge(
        TruthTable(
            path=Path("t"),
            machine="h200",
            header={},
            rows=(),
            tolerances=Tolerances(device=Tolerance(median=1.0), inside=ShareRange()),
        ),
        "h200",
        [],
    )
    assert result.failures == ("device: no rows", "steps inside the interval: share")


def test_forecasts_that_match_pass_and_those_that_do_not_fail(tmp_path: Path) -> None:
    good = write_table(tmp_path, [measured_as_forecast()], TIGHT)
    done = run("--on", str(good), "--rows")
    assert done.returncode == 0, done.stderr
    assert "Within all tolerances" in done.stdout and "ffn inputs=16 b4 fp32 eager" in done.stdout
    bad = write_table(
        tmp_path, [measured_as_forecast(2.0), {**SMALL, "batch": 9, "error": "OutOfMemoryError: full"}], TIGHT
    )
    done = run("--on", str(bad))
    assert done.returncode == 1
    assert (
        "NOT MET" in done.stdout
        and "memory: median, lowest" in done.stdout
        and "1 of 2 rows could not be judged" in done.stdout
    )
    data = run("--on", str(bad), "--rows", "--json")
    result = json.loads(data.stdout)
    assert (
        data.returncode == 1
        and result["failures"]
        and result["rows"][0]["device"]["error"] == pytest.approx(-0.5)
        and result["left_out"]
    )


def test_without_tolerances_every_forecast_passes(tmp_path: Path) -> None:
    done = run("--on", str(write_table(tmp_path, [measured_as_forecast(2.0)])))
    assert done.returncode == 0 and "There are no tolerances" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "abacus"), "no truth table"),
        (("--table", "lies"), "no table 'lies'"),
        (("--on", "none.jsonl"), "cannot be read"),
    ],
)
def test_unusable_input_exits_with_two(words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_table_of_another_cpu_is_refused_here(tmp_path: Path) -> None:
    path = write_table(tmp_path, [], header={"machine": "here", "cpu": "an abacus"})
    with pytest.raises(BadInput, match="an abacus"):
        validation.find_machine(truth.read_table(path))


def test_collecting_rows_continues_where_it_stopped(tmp_path: Path) -> None:
    cases, out, table = tmp_path / "cases.toml", tmp_path / "out.jsonl", tmp_path / "cpu.jsonl"
    cases.write_text(
        '[[case]]\njob = "ffn"\nbatch = [4, 8]\nthreads = 1\ndetail = true\n'
        '[[case]]\njob = "no such job"\nbatch = 1\n'
    )
    script = [sys.executable, str(Path(__file__).parent.parent / "benchmarks" / "truth.py")]
    how = ["--on", "cpu", "--seconds-per-row", "0.1"]
    for _ in range(2):
        done = subprocess.run(
            [*script, "collect", str(cases), str(out), *how], capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
    lines = truth.whole_lines(out)
    assert [line.get("pass") for line in lines] == [None, "time", "time", "time", "profile", "profile"], (
        "nothing is measured twice"
    )
    assert lines[0]["torch"] and "UnknownName" in lines[3]["error"] and lines[4]["shapes"]
    subprocess.run([*script, "table", str(out), str(table), "--host-factor", "1.5"], check=True, timeout=900)
    rows = truth.read_table(table).rows
    assert [bool(row.step_seconds) for row in rows] == [True, True, False] and rows[0].host_factor == 1.5
    assert "shapes" not in table.read_text()


def test_forecasts_of_some_truth_rows_are_accurate() -> None:
    """A few rows of the package's table, of networks that need no library: a regression shows at once."""
    table = truth.read_table(truth.find_table("h200", "truth"))
    wanted = (
        "resnet50 b64 tf32",
        "resnet50 b64 bf16",
        "vgg16 b64 tf32",
        "gpt2 length=512 b8 tf32",
        "bert length=128 b64 bf16",
        "alexnet b256 bf16",
    )
    rows = tuple(
        row for row in table.rows if row.case.execution == "eager" and str(row.case).startswith(wanted)
    )
    assert len(rows) == len(wanted)
    pairs = validation.forecast_rows(dataclasses.replace(table, rows=rows), validation.find_machine(table))
    errors = {
        quantity: [abs(pair.error(quantity) or 0.0) for pair in pairs] for quantity in ("device", "memory")
    }  # type: ignore[arg-type]
    assert 0 < sorted(errors["device"])[len(rows) // 2] < 0.08
    assert max(errors["memory"]) < 0.05


def test_a_device_that_was_busy_for_longer_than_its_step_is_not_judged() -> None:
    """The profiler then saw other work than the timed step; the step itself still counts."""
    case = TruthCase(job="fcn5", batch=64)
    row = TruthRow(case=case, step_seconds=0.060, device_seconds=0.096)
    assert row.contradicts and row.measured("device") is None and row.measured("step") == 0.060
    assert not TruthRow(
        case=case, step_seconds=0.060, device_seconds=0.062
    ).contradicts  # as much as clocks may differ


def test_validate_returns_a_result_that_prints_itself_with_the_roofline_beside_each_error(
    tmp_path: Path,
) -> None:
    path = write_table(tmp_path, [measured_as_forecast()], TIGHT)
    seen: list[tuple[int, int]] = []
    result = validation.validate(str(path), progress=lambda done, rows: seen.append((done, rows)))
    assert not result.failures and seen == [(0, 1), (1, 1)]
    device = next(each for each in result.judgements if each.name == "device")
    assert isinstance(device, validation.Judgement) and device.baseline is not None
    assert device.baseline.median > device.errors.median, "the roofline is the lower bound"  # type: ignore[union-attr]
    line = next(line for line in str(result).splitlines() if line.startswith("  device "))
    assert f"{device.baseline.median:.0%}" in line.split() and "met:" in line


def test_a_roofline_is_worked_by_hand() -> None:
    machine, strategy = wt.Machine.named("h200"), wt.Strategy(batch=1)
    rates, memory_rate = machine.device.flop_rates, machine.device.memory_rate
    common: dict[str, Any] = {"phase": "forward", "dtype": "fp32", "written_bytes": 0.0}
    ops = (
        Op(name="a", family="matmul", flop=3 * rates["fp32"], read_bytes=1.0, **common),
        Op(name="b", family="streaming", flop=0.0, read_bytes=2 * (memory_rate or 0.0), **common),
        Op(name="c", family="view", flop=0.0, read_bytes=1e15, **common),
    )
    # Three seconds of arithmetic, two of memory traffic, and a view, which moves nothing.
    trace = SimpleNamespace(ops=ops)
    assert roofline_seconds(trace, machine, strategy) == pytest.approx(5.0)  # type: ignore[arg-type]
