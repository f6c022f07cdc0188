"""How results are shown: at the width of the terminal, with sizes of inputs, and as HTML."""

from __future__ import annotations

import html.parser
import json
from typing import Any

import pytest
import torch

import windtunnel as wt
from windtunnel.job.trainer import describe_inputs
from windtunnel.results import Memory, Result


def result(**changes: Any) -> Result:
    facts: dict[str, Any] = {
        "job": "case",
        "machine": "h200",
        "strategy": {"precision": "pytorch", "execution": "eager", "data": "resident"},
        "batch": 8,
        "step_seconds": 0.01,
        "low_seconds": 0.008,
        "high_seconds": 0.012,
        "parts": {"compute": 0.006, "launch": 0.004},
        "memory": Memory(peak_bytes=2e9, parts={"weights": 1e9, "activations": 1e9}, capacity_bytes=1e10),
        "bound_by": "compute",
        "inputs": "image 224 x 224",
        "cautions": ("host speed is a guess: probe it with windtunnel machine probe --host",),
    }
    return Result(**{**facts, **changes})


@pytest.mark.parametrize("columns", [40, 60, 80, 110])
def test_text_is_never_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = str(result()).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert "image 224 x 224" in words and "probe it with windtunnel machine probe --host" in words


def test_very_narrow_and_very_wide_terminals_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in ((10, 40), (500, 110)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, str(result(cautions=("word " * 60,))).splitlines())) <= width


class Checker(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_holds_every_row_and_no_markup_of_the_user() -> None:
    nasty = "<script>alert('x')</script> & <b>"
    checker = Checker()
    checker.feed(result(job=nasty, cautions=(nasty,))._repr_html_())
    assert set(checker.tags) == {"div", "strong", "table", "tr", "th", "td"}
    assert checker.text.count(nasty) == 2
    for word in ("step", "bound by", "parts", "memory", "caution", "image 224 x 224"):
        assert word in checker.text
    assert "\0" not in checker.text


def test_a_forecast_shows_itself_in_a_notebook_and_its_json_has_the_inputs_and_the_host() -> None:
    forecast = wt.predict(wt.Workload.named("gpt2", size="tiny", length=16), wt.Machine.named("t4"))
    assert "sequence length 16" in forecast._repr_html_() and "reference host" in forecast._repr_html_()
    data = json.loads(json.dumps(forecast.plain()))
    assert data["inputs"] == "sequence length 16" and data["host"] == forecast.host


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (lambda: (torch.zeros(4, 3, 224, 192), torch.zeros(4)), "image 224 x 192"),
        (lambda: torch.zeros(4, 1, 8, 16, 16), "volume 8 x 16 x 16"),
        (lambda: {"input_ids": torch.zeros(4, 128, dtype=torch.long)}, "sequence length 128"),
        (lambda: (torch.zeros(100, 4, 2), torch.zeros(100, 4, 2)), "sequence length 100"),
        (lambda: torch.zeros(4, 50, 80), "sequence length 50"),
        (lambda: (torch.zeros(4, 26752), torch.zeros(4, dtype=torch.long)), ""),
        (list, ""),
    ],
)
def test_inputs_are_described_by_their_shapes(batch: Any, words: str) -> None:
    assert describe_inputs(batch(), 4) == words


def test_the_caution_about_the_larger_part_of_the_step_comes_first() -> None:
    small = wt.predict(wt.Workload.named("rnn"), wt.Machine.named("a100-80gb"))
    large = wt.predict(wt.Workload.named("fcn5"), wt.Machine.named("a100-80gb"), wt.Strategy(batch=4096))
    assert small.cautions[0] == "host speed is a guess: probe it with windtunnel machine probe --host"
    assert large.cautions[0].startswith("a100-80gb was not probed")
    assert max(map(len, (*small.cautions, *large.cautions))) <= 110
