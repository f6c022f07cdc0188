"""docs/findings.md says what the committed rows say: figures, tables and verdicts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from windtunnel.cli.study import _joined, _verdicts
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


@pytest.mark.parametrize("name", ["brandfonbrener-2017", "wuensche-2018"])
def test_study_report_prints_the_verdicts_of_the_page(name: str, page: str) -> None:
    """By the command's own path from files to verdicts."""
    study = studies.find(name)
    files = sorted((ROOT / "docs/results").glob(f"{name}-*.json"))
    verdicts = _verdicts(study, _joined(study, published(study), files), with_forecasts=False)
    assert len(verdicts) == len(study.claims)
    for verdict in verdicts:
        assert f"| {verdict.claim} | {verdict.ruling} |" in page, f"{verdict.claim}: {AGAIN}"


def test_the_template_has_no_verdict_and_no_tally_of_its_own() -> None:
    text = re.sub(r"\{\{.+?\}\}", "", findings_text.TEMPLATE.read_text(encoding="utf-8"), flags=re.S)
    assert not re.findall(r"\b(?:holds?) (?:everywhere|in most|in few|nowhere)\b", text)
    assert not re.findall(r"\d+ claims", text)


def test_no_committed_time_is_scaled() -> None:
    """A file of scaled times is refused when it is read."""
    for name in ("brandfonbrener-2017", "wuensche-2018"):
        assert findings_text.measured(name)
