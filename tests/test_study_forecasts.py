"""Cells of a study with several devices: forecast, marked as such everywhere, and solved for their causes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windtunnel import records
from windtunnel.cli import app
from windtunnel.errors import BadRecord
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.prediction import predict
from windtunnel.reports import sections, text
from windtunnel.strategy import Strategy
from windtunnel.study import study as studies
from windtunnel.study.claims import Claim, judge
from windtunnel.study.forecast_cases import Explanation, ForecastCase, MachineChanges, machine_of
from windtunnel.study.rows import BY_FORECAST, StudyRow
from windtunnel.study.run.forecast_cells import ForecastCells, forecasts_of, solve
from windtunnel.study.study import Figure, Study

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import findings_text  # noqa: E402

GUIDE = "wuensche-2018"
WIDE = {"layers": [512, 4096, 4096, 512]}  # bound by the device, not by launching


def figure(*cases: ForecastCase, devices: tuple[int, ...] = (1, 2), **more: object) -> Figure:
    given = {"job": "fcn5", "batch": 2048, "settings": WIDE, "grid": {"devices": devices}, **more}
    return Figure(name="several", title="Several", source="made up", forecasts=cases, **given)  # type: ignore[arg-type]


def study(*figures: Figure) -> Study:
    return Study(name="own", title="Own", authors="A", year=2020, source="made up", figures=figures)


def rows_of(*cases: ForecastCase, **more: object) -> dict[tuple[str, int], StudyRow]:
    rows = ForecastCells().rows(study(figure(*cases, **more)))  # type: ignore[arg-type]
    return {(row.case, row.devices): row for row in rows}


PLAIN = ForecastCase(name="plain", machine="p2.8xlarge")


# Physics


def test_a_cell_is_what_predict_says_of_the_same_machine_and_strategy() -> None:
    (_, one), (_, two) = sorted(rows_of(PLAIN).items())
    workload, machine = Workload.named("fcn5", **WIDE), Machine.named("p2.8xlarge")
    for row in (one, two):
        strategy = Strategy(batch=2048, precision="fp32", data_parallel=row.devices)
        assert row.step_seconds == pytest.approx(predict(workload, machine, strategy).step_seconds)
        assert row.low_seconds < row.step_seconds < row.high_seconds  # type: ignore[operator]


def test_a_faster_link_is_never_slower_and_does_not_matter_to_one_device() -> None:
    slow = dataclasses.replace(PLAIN, name="slow", changes=MachineChanges(link_factor=0.01))
    rows = rows_of(PLAIN, slow)
    assert rows["slow", 2].step_seconds > 2 * rows["plain", 2].step_seconds  # type: ignore[operator]
    assert rows["slow", 1].step_seconds == rows["plain", 1].step_seconds


def test_weak_scaling_multiplies_the_batch_and_strong_scaling_divides_it() -> None:
    weak = dataclasses.replace(PLAIN, name="weak", scaling="weak")
    rows = rows_of(PLAIN, weak)
    assert (rows["plain", 2].batch, rows["weak", 2].batch) == (2048, 4096)


def test_more_devices_than_a_node_has_are_several_nodes() -> None:
    case = ForecastCase(name="clusters", machine="guide-figure-6")
    machines = [machine_of(case, devices) for devices in (4, 8, 64)]
    assert [(m.devices, m.nodes) for m in machines] == [(4, 1), (4, 2), (4, 16)]


def test_the_guides_worked_example_comes_out_to_its_digits() -> None:
    data_flow = studies.find(GUIDE).figure("data-flow")
    rows = {(row.case, row.devices): row for row in ForecastCells().rows(study(data_flow))}
    ahead = {n: rows["copied ahead", n].step_seconds for n in (1, 3, 4)}
    assert ahead == pytest.approx({1: 0.5, 3: 0.761905, 4: 1.015873}, abs=1e-6)
    assert rows["copied ahead", 3].environment["utilisation"] == pytest.approx(0.65625)
    assert rows["copied ahead, transfer unit", 3].step_seconds == pytest.approx(0.5)
    # Figures that are stated leave nothing uncertain.
    assert rows["copied ahead", 3].low_seconds is None


def test_a_step_that_does_not_fit_is_a_row_without_a_time_that_says_why() -> None:
    huge = dataclasses.replace(PLAIN, name="huge", settings={"layers": [60000, 60000, 60000]})
    row = rows_of(huge, devices=(1,))["huge", 1]
    assert row.step_seconds is None and row.state == "not available" and "does not fit" in row.error


# Solving


@pytest.mark.parametrize(
    ("curve", "wanted", "expected"),
    [
        (lambda x: x / (1 + x), 0.75, 3.0),
        (lambda x: 1 / (1 + x), 0.2, 4.0),
        (lambda x: 0.5 + 0.4 * min(1.0, x / 100), 0.7, 50.0),
        (lambda x: 0.9, 0.5, None),
    ],
)
def test_solving_finds_the_factor_or_says_that_there_is_none(
    curve: Callable[[float], float], wanted: float, expected: float | None
) -> None:
    found = solve(curve, wanted)
    assert found == (expected and pytest.approx(expected, rel=0.02))


def test_each_factor_alone_gives_the_stated_efficiency_when_it_is_forecast() -> None:
    stated = Explanation(name="stated", case="plain", saved=0.10)
    cells, whole = ForecastCells(), study(figure(PLAIN, explanations=(stated,)))
    (gain,) = cells.explanations(whole)
    assert gain.efficiency == pytest.approx(0.5556, abs=1e-4)
    assert gain.not_overlapped <= gain.overlapped
    after, overlapped, host = gain.factors
    assert after.factor and overlapped.factor and host.factor
    assert overlapped.factor < after.factor < 1 < host.factor
    case = dataclasses.replace(
        PLAIN, strategy={"exchange": "after"}, changes=MachineChanges(link_factor=after.factor)
    )
    rows = rows_of(case)
    saved = 1 - rows["plain", 2].step_seconds / rows["plain", 1].step_seconds  # type: ignore[operator]
    assert saved == pytest.approx(stated.saved, abs=0.01)


# A forecast never looks like a measurement

DOUBLING = {
    "name": "doubling",
    "text": "Twice the devices save time.",
    "source": "made up",
    "kind": "doubling",
    "counted": "share saved",
    "over": "devices",
    "least": 0.2,
}


def cell(seconds: float, devices: int, **more: object) -> StudyRow:
    given = {"study": "own", "figure": "several", "case": "plain", "label": "torch:ddp", **more}
    return StudyRow(job="fcn5", **given, step_seconds=seconds, devices=devices)  # type: ignore[arg-type]


FORECAST = [cell(1.0, 1, origin="forecast"), cell(0.6, 2, origin="forecast")]


def test_a_claim_judged_by_forecast_is_marked_in_text_page_and_plain_data() -> None:
    (verdict,) = judge([Claim(**DOUBLING, by="forecast")], FORECAST)  # type: ignore[arg-type]
    assert verdict.ruling == "holds everywhere" and verdict.basis == "forecast"
    assert records.plain(verdict)["basis"] == "forecast"
    assert all(part.basis == "forecast" for part in verdict.parts)
    assert f"holds everywhere {BY_FORECAST}" in " ".join(" ".join(text.claim_lines([verdict])).split())
    assert f"holds everywhere {BY_FORECAST}" in str(sections.claims([verdict]))


def test_forecasts_judge_no_claim_that_does_not_ask_for_it() -> None:
    (verdict,) = judge([Claim(**DOUBLING)], FORECAST)  # type: ignore[arg-type]
    assert verdict.ruling == "can't tell" and verdict.basis == "measured" and not verdict.parts


def test_measured_rows_take_the_place_of_forecasts() -> None:
    rows = [*FORECAST, cell(1.0, 1), cell(0.95, 2)]
    (verdict,) = judge([Claim(**DOUBLING, by="forecast")], rows)  # type: ignore[arg-type]
    assert verdict.ruling == "holds nowhere" and verdict.basis == "measured"
    assert verdict.marked_ruling == verdict.ruling


def test_errors_of_kernels_cancel_between_rows_of_one_device_and_those_of_a_link_do_not() -> None:
    def row(devices: int, seconds: float, path: dict[str, float]) -> StudyRow:
        environment = {"path": path, "spread": dict.fromkeys(path, 1.22)}
        return cell(seconds, devices, origin="forecast", environment=environment)

    claim = Claim(**DOUBLING, by="forecast")  # type: ignore[arg-type]
    (same,) = judge([claim], [row(1, 1.0, {"device": 1.0}), row(2, 0.5, {"device": 0.5})])
    assert same.low == pytest.approx(0.5) and same.high == pytest.approx(0.5)
    linked = [row(1, 1.0, {"device": 1.0}), row(2, 0.7, {"device": 0.5, "peer link": 0.2})]
    (other,) = judge([claim], linked)
    assert other.low < 0.28 < 0.32 < other.high  # type: ignore[operator]


def test_all_claims_of_the_guide_about_several_devices_are_judged_by_forecast_or_say_why_not() -> None:
    figures = {f.name for f in studies.find(GUIDE).figures if f.forecasts}
    for claim in studies.find(GUIDE).claims:
        chosen = claim.select.get("figure")
        if set([chosen] if isinstance(chosen, str) else chosen or ()) & figures:  # type: ignore[call-overload]
            assert claim.by == "forecast" or claim.not_asked, claim.name


def test_the_command_prints_and_stores_the_claims_with_their_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = findings_text.forecasts(GUIDE)
    monkeypatch.setattr("windtunnel.study.run.forecast_cells.forecasts_of", lambda *_: committed)
    store = str(tmp_path / "store.sqlite")
    asked = CliRunner().invoke(app, ["study", "claims", GUIDE, "--store", store, "--json"])
    assert asked.exit_code == 0, asked.output
    verdicts = {each["claim"]: each for each in json.loads(asked.output)["verdicts"]}
    assert verdicts["two clusters gain much"]["basis"] == "forecast"
    assert verdicts["one thread is the slowest"]["basis"] == "measured"
    shown = CliRunner().invoke(app, ["study", "claims", GUIDE, "--store", store])
    assert shown.output.count(BY_FORECAST) == sum(v["basis"] == "forecast" for v in verdicts.values())


# The committed forecasts


def test_the_committed_forecasts_are_those_of_this_version() -> None:
    """The cells that are forecast in a moment."""
    chosen = ("data-flow", "multi-gpu")
    guide = studies.find(GUIDE)
    few = dataclasses.replace(guide, figures=tuple(f for f in guide.figures if f.name in chosen))
    committed = {
        (r.figure, r.case, r.devices, r.strategy["exchange"]): r.step_seconds
        for r in findings_text.forecasts(GUIDE).rows
    }
    for row in ForecastCells().rows(few):
        key = (row.figure, row.case, row.devices, row.strategy["exchange"])
        assert row.step_seconds == pytest.approx(committed[key], rel=1e-6), (
            f"{key}: write them again: python benchmarks/findings_text.py --forecasts"
        )


def test_forecasts_are_kept_until_the_study_changes(tmp_path: Path) -> None:
    from windtunnel.measurement.store import Store

    store, whole = Store(tmp_path / "store.sqlite"), study(figure(PLAIN))
    first = forecasts_of(whole, store)
    kept = store.forecasts(__import__("windtunnel").__version__)
    assert len(kept) == 1 and forecasts_of(whole, store) == first
    other = study(figure(dataclasses.replace(PLAIN, machine="4xgtx1080")))
    assert forecasts_of(other, store) != first
    store.close()


# Bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: figure(PLAIN, devices=(0,)), "above 0"),
        (lambda: figure(PLAIN, grid={"n_rec": (1,)}), "no axis"),
        (lambda: figure(PLAIN, job=""), "no job"),
        (lambda: ForecastCase(name="x", machine="h100", strategy={"exchange": "never"}), "exchange"),
        (lambda: ForecastCase(name="x", machine="h100", strategy={"batch": 3}), "does not belong"),
        (lambda: MachineChanges(link_factor=0.0), "above 0"),
        (lambda: Explanation(name="x", case="plain", saved=0.5), "between 0 and 0.5"),
        (lambda: figure(PLAIN, explanations=(Explanation(name="x", case="y", saved=0.1),)), "no forecast"),
        (lambda: machine_of(ForecastCase(name="x", machine="nothing"), 2), "nothing"),
    ],
)
def test_wrong_cases_are_refused_with_a_clear_message(make: Callable[[], object], words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        make()
