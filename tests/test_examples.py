"""The examples print what is stored beside them, and the notebook shows what is stored in it."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import windtunnel as wt

ROOT = Path(__file__).parent.parent
AGAIN = "the output changed: python benchmarks/captured.py"


def _captured() -> Any:
    spec = importlib.util.spec_from_file_location("captured", ROOT / "benchmarks/captured.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CAPTURED = _captured()


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", CAPTURED.WIDTH)


@pytest.mark.parametrize("name", CAPTURED.EXAMPLES)
def test_an_example_prints_its_stored_output(name: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    stored = (ROOT / "examples" / f"{name}.txt").read_text(encoding="utf-8")
    assert CAPTURED.masked(said.getvalue()) == stored, AGAIN


def test_every_example_has_stored_output_or_says_that_it_measures() -> None:
    measuring = {"first_flight", "hundred_networks"}
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {*CAPTURED.EXAMPLES, *measuring, "study_notebook"}
    assert len(CAPTURED.EXAMPLES) == 8


def test_measured_figures_are_masked_and_others_are_not() -> None:
    text = "step 20 ms\n steps  measured here\n    10        1.5 ms\n\n3.5 ms measured here: it grows\n"
    masked = CAPTURED.masked(text)
    assert masked.splitlines() == [
        "step 20 ms",
        " steps  measured here",
        "    10   #",
        "",
        "# measured here: it grows",
    ]


def cells() -> list[dict[str, Any]]:
    notebook = json.loads((ROOT / "examples/forecasts.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of its last line."""
    tree, said = ast.parse(source), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return said.getvalue(), value


def test_the_notebook_shows_its_stored_output() -> None:
    names: dict[str, Any] = {}
    for cell in cells():
        printed, value = run_cell("".join(cell["source"]), names)
        outputs = cell["outputs"]
        stored = "".join("".join(each["text"]) for each in outputs if each["output_type"] == "stream")
        assert printed == stored, AGAIN
        shown = ["".join(each["data"]["text/html"]) for each in outputs if "data" in each]
        assert ([value._repr_html_()] if hasattr(value, "_repr_html_") else []) == shown, AGAIN


def test_the_demo_says_where_a_forecast_missed_and_by_how_much() -> None:
    demo = runpy.run_path(str(ROOT / "examples/first_flight.py"))
    from test_displays import forecast, measurement

    told = demo["judge"]("rnn, threads 1", forecast(), measurement())
    assert told[0].startswith("Missed: rnn, threads 1: forecast / measured = ")
    inside = wt.predict(wt.Workload.named("rnn", n_rec=20, n_steps=5), wt.Machine.named("h200"))
    assert demo["judge"]("rnn", inside, inside) == []


def test_the_demo_writes_a_report_of_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_displays import forecast, measurement

    demo = runpy.run_path(str(ROOT / "examples/first_flight.py"))
    write = demo["write_report"]
    small = [("rnn", {"n_rec": 5, "n_steps": 2}, 1)]
    monkeypatch.setattr(wt, "write_report", functools.partial(wt.write_report, brief=True), raising=False)
    write.__globals__.update(REPORT=tmp_path / "new" / "first-flight.html", FLIGHTS=small)
    write((("rnn, threads 1", forecast(), measurement()),))
    text = (tmp_path / "new" / "first-flight.html").read_text()
    assert "Measured here" in text and "rnn, threads 1" in text and "h200" in text
    assert "build/" in (ROOT / ".gitignore").read_text(encoding="utf-8")
