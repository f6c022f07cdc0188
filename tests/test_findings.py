"""docs/findings.md says what the committed rows say: figures, tables and verdicts."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from windtunnel.cli.study import _joined, _verdicts
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.results import published

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import findings_text  # noqa: E402

AGAIN = "Write it again: python benchmarks/findings_text.py"


@pytest.fixture(scope="module")
def page() -> str:
    return findings_text.PAGE.read_text(encoding="utf-8")


def test_every_figure_of_the_page_is_that_of_the_committed_rows(page: str) -> None:
    rendered = findings_text.render()
    different = [
        f"page: {old}\n  data: {new}"
        for old, new in zip(page.splitlines(), rendered.splitlines(), strict=False)
        if old != new
    ]
    assert page == rendered, f"{AGAIN}\n  " + "\n  ".join(different[:5])


@pytest.mark.parametrize("name", ["brandfonbrener-2017", "wuensche-2018", "choice-2026", "exchange-2026"])
def test_study_report_prints_the_verdicts_of_the_page(name: str, page: str) -> None:
    """By the command's own path from files to verdicts."""
    study = studies.find(name)
    files = sorted((ROOT / "docs/results").glob(f"{name}-*.json"))
    rows = [*published(study), *findings_text.forecasts(name).rows]
    verdicts = _verdicts(study, _joined(study, rows, files), with_forecasts=False)
    assert len(verdicts) == len(study.claims)
    for verdict in verdicts:
        assert f"| {verdict.claim} | {verdict.marked_ruling} |" in page, f"{verdict.claim}: {AGAIN}"


def test_the_template_has_no_verdict_and_no_tally_of_its_own() -> None:
    text = re.sub(r"\{\{.+?\}\}", "", findings_text.TEMPLATE.read_text(encoding="utf-8"), flags=re.S)
    assert not re.findall(r"\b(?:holds?) (?:everywhere|in most|in few|nowhere)\b", text)
    assert not re.findall(r"\d+ claims", text)


def test_no_committed_time_is_scaled() -> None:
    """A file of scaled times is refused when it is read."""
    for name in ("brandfonbrener-2017", "wuensche-2018", "choice-2026"):
        assert findings_text.measured(name)


def test_cells_that_met_no_quiet_moment_are_in_no_ratio_of_the_page() -> None:
    """Made up by hand: b takes half of a; where one side was disturbed, a ninth."""
    rows = [row for row in findings_text.measured(findings_text.RNN) if row.device == "gpu"]
    kept = next(row for row in rows if row.step_seconds and not row.disturbed)
    other = dataclasses.replace(kept, settings={**kept.settings, "n_rec": 12345})
    disturbed = dataclasses.replace(other, environment={**other.environment, "disturbed": True})
    figures = object.__new__(findings_text.Figures)
    sides = [(kept, "a", 2.0), (kept, "b", 1.0), (disturbed, "a", 9.0), (other, "b", 1.0)]
    made = [dataclasses.replace(row, label=label, step_seconds=s) for row, label, s in sides]
    figures.rows = {findings_text.RNN: made}
    assert figures.ratios("a", "b", "gpu") == [2.0]


def test_the_changelog_has_the_speedup_of_the_fused_kernel_that_the_rows_show() -> None:
    rows = findings_text.fused_names()["g"]
    text = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert f"{rows.speedups()} times the best other variant at n_rec 10 to 100 on an H200" in text


@pytest.fixture
def with_epyc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The committed rows, and made-up ones of one more machine, whose cells have two processes."""
    for path in (ROOT / "docs/results").glob("*.json"):
        if not path.name.startswith("wuensche-2018-epyc"):
            (tmp_path / path.name).symlink_to(path)
    environment = {"cpu": "AMD EPYC", "cores": 2, "cpus": 2}
    rows = [
        dataclasses.replace(
            row,
            device_name="AMD EPYC",
            environment={**row.environment, **environment},
            measured_at="2026-12-01T00:00:00+0000",
            step_seconds=2.0 / row.threads if row.threads in (1, 2) else 1.5,
            groups=((1.0, 1.1), (1.0, 1.1)),
        )
        for row in export.read(ROOT / "docs/results/wuensche-2018-xeon.json")
    ]
    export.write(rows, tmp_path / "wuensche-2018-epyc.json")
    monkeypatch.setattr(findings_text, "RESULTS", tmp_path)
    return tmp_path


def section(begin: str, end: str) -> str:
    text = findings_text.TEMPLATE.read_text(encoding="utf-8")
    return text[text.index(begin) : text.index(end)]


def test_rows_of_table_1_from_one_more_machine_are_shown_when_they_are_there(with_epyc: Path) -> None:
    figures = findings_text.Figures(findings_text.GUIDE)
    text = findings_text.filled(section("## Threads", "## Several GPUs"), figures)
    words = " ".join(text.split())
    assert "| **EPYC, 2 cores** |" in text and "| 2.00 | 1.00 | 1.50 | 1.50 |" in text
    assert "on the Xeon's two cores, on the EPYC's two cores and on the 16 cores" in words
    assert "15 of 72 on the Xeon, 72 of 72 on the EPYC, 6 of 12 on the host of the H200" in words
    assert "on the Xeon and 2.0x on the EPYC" in words and "2026-12-01" in figures.days()
    assert "JAX takes 1.50x as long on the EPYC" in words  # the newest rows


def test_rows_of_table_1_may_be_those_of_the_other_machine_alone(with_epyc: Path) -> None:
    (with_epyc / "wuensche-2018-xeon.json").unlink()
    figures = findings_text.Figures(findings_text.GUIDE)
    text = findings_text.filled(section("## Threads", "## Several GPUs"), figures)
    assert "Xeon" not in text and "The median gain from one to two threads is 2.0x." in " ".join(text.split())


def test_rows_of_trained_networks_are_shown_with_their_seeds_and_means(tmp_path: Path) -> None:
    """Made up by hand: skills of 0.5 and 0.7 have the mean 0.60; a missed target shows its budget."""
    rows = [row for row in findings_text.measured("choice-2026") if row.figure == "depth"]
    first = next(row for row in rows if row.training)
    assert first.training is not None
    training = dataclasses.replace(
        first.training,
        baseline=0.0,
        better="higher",
        scores=(0.5, 0.7),
        seeds=(0, 1),
        target_steps=(-1, -1),
        budget_steps=123,
        diverged=(True, False),
        quiet=(True, False),
    )
    row = dataclasses.replace(first, training=training)
    figures = findings_text.ChoiceFigures([row], [])
    value = row.settings["depth"]
    assert figures.skill("depth", row.case, value) == "0.60"
    assert figures.steps("depth", row.case, value) == "over 123"
    assert (figures.trainings(), figures.quiet(), figures.diverged()) == ("2", "1 of 2", 1)
    assert f"| {row.case} | 0.60 |" in figures.table("depth")


def test_the_rows_of_trained_networks_are_small_and_have_at_least_three_seeds() -> None:
    (path,) = (ROOT / "docs/results").glob("choice-2026-*.json")
    assert path.stat().st_size < 300 * 1024
    for row in export.read(path):
        assert row.training is not None and len(row.training.seeds) >= 3, (row.figure, row.case, row.settings)
