"""The accuracy that README.md and docs/accuracy.md state is that of docs/accuracy.json, and that of the code.

`python benchmarks/accuracy.py` writes the JSON file with `windtunnel.validate`, in some minutes. Here its
sums are computed again from its rows, the texts are held to it, and a few of its rows are forecast again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from windtunnel.accuracy.truth import QUANTITIES, TruthRow, find_table, read_table
from windtunnel.accuracy.validation import find_machine, forecast_rows
from windtunnel.agreement import agree

ROOT = Path(__file__).resolve().parents[1]
DATA: dict[str, Any] = json.loads((ROOT / "docs/accuracy.json").read_text(encoding="utf-8"))
AGAIN = "docs/accuracy.json is old: python benchmarks/accuracy.py"
ROUNDED = 2e-7
# Quick rows of several kinds, precisions and bounds.
FORECAST_AGAIN = {"h200": ("resnet18", "rnn", "ffn", "lstm", "vae")}


COMPILED = "h200-compiled"  # eager and compiled rows of the same networks


def judgement(machine: str, name: str) -> dict[str, Any]:
    """The judgement over all eager rows; compiled rows have some of the same names."""
    judged = [each for each in DATA[machine]["judgements"] if each["section"] == "all"]
    (found,) = [each for each in judged if each["name"] == name]
    return found


def percent(value: float, digits: int = 1) -> str:
    text = f"{100 * value:.{digits}f}"
    return "0.0" if text == "-0.0" else text


def signed(value: float, digits: int = 1) -> str:
    text = f"{100 * value:+.{digits}f}"
    return "0.0" if text in ("-0.0", "+0.0") else text


def line(text: str, *words: str) -> str:
    """The only line of a table with these words."""
    found = [each for each in text.splitlines() if each.startswith("|") and all(w in each for w in words)]
    assert len(found) == 1, (words, found)
    return found[0]


def step_of(row: dict[str, Any], bound: str | None) -> float | None:
    return row.get("step") if row.get("bound") == bound and row["kind"] != "fused" else None


NAMES = {
    "device": lambda row: row.get("device") if row["kind"] != "fused" else None,
    "step, device-bound": lambda row: step_of(row, "device"),
    "step, host-bound": lambda row: step_of(row, "host"),
    "step": lambda row: step_of(row, None),
    "memory": lambda row: row.get("memory") if row["kind"] != "fused" else None,
    "fused engine: step": lambda row: row.get("step") if row["kind"] == "fused" else None,
}


@pytest.mark.parametrize("machine", sorted(DATA))
def test_the_sums_of_the_file_follow_from_its_rows(machine: str) -> None:
    eager = [row for row in DATA[machine]["rows"] if row["execution"] == "eager"]
    judged = [each for each in DATA[machine]["judgements"] if each["section"] == "all"]
    assert judged
    for each in judged:
        if "count" in each:
            known = [row["inside"] for row in eager if "inside" in row]
            assert (each["count"], each["rows"]) == (sum(known), len(known))
            continue
        errors = [error for row in eager if (error := NAMES[each["name"]](row)) is not None]
        expected = agree(errors)
        for name in ("rows", "median", "ninetieth", "worst", "bias"):
            assert each["errors"][name] == pytest.approx(getattr(expected, name), abs=ROUNDED), each["name"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("H200, torch", "device time"), "device"),
        (("step, device-bound", "| 53 |"), "step, device-bound"),
        (("step, host-bound", "| 38 |"), "step, host-bound"),
        (("step of the fused engine",), "fused engine: step"),
        (("peak memory (lowest",), "memory"),
    ],
)
def test_the_accuracy_page_states_the_errors_on_the_h200(words: tuple[str, ...], name: str) -> None:
    stated = line((ROOT / "docs/accuracy.md").read_text(encoding="utf-8"), *words)
    assert_states(stated, judgement("h200", name)["errors"])


CPUS = [
    ("Emerald Rapids Xeon", "emerald-rapids-2-cores"),
    ("EPYC Milan", "epyc-milan-2-cores"),
    ("EPYC Turin", "epyc-turin-2-cores"),
    ("Ice Lake Xeon", "ice-lake-2-cores"),
]


@pytest.mark.parametrize(("words", "machine"), CPUS)
def test_the_accuracy_page_states_the_errors_on_a_cpu(words: str, machine: str) -> None:
    stated = line((ROOT / "docs/accuracy.md").read_text(encoding="utf-8"), f"{words}, torch", "step")
    assert_states(stated, judgement(machine, "step")["errors"])


def assert_states(stated: str, errors: dict[str, float]) -> None:
    """Rows, median, 90th, worst and bias, as the page rounds them."""
    cells = [cell.strip() for cell in stated.strip("|").split("|")]
    expected = [
        str(int(errors["rows"])),
        f"{percent(errors['median'])} %",
        f"{percent(errors['ninetieth'])} %",
        f"{signed(errors['worst'], 0)} %",
        f"{signed(errors['bias'])} %",
    ]
    assert cells[-5:] == expected, AGAIN


def test_the_share_inside_the_interval_is_the_stated_one() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    for machine in sorted({*DATA} - {COMPILED}):
        inside = judgement(machine, "steps inside the interval")
        share = f"{percent(inside['count'] / inside['rows'], 0)} %"
        assert f"| | inside the 80 % interval | {inside['rows']} | {share} |" in page, AGAIN


def test_the_readme_states_the_same_errors() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    device, memory = judgement("h200", "device"), judgement("h200", "memory")
    bound = [judgement("h200", f"step, {kind}-bound")["errors"] for kind in ("device", "host")]
    first = line(readme, "H200, 28 networks")
    assert f"(roofline: {percent(device['roofline']['median'], 0)} %)" in first, AGAIN
    assert first.endswith(cells_of(device["errors"])), AGAIN
    assert line(readme, "device-bound / host-bound").endswith(
        f"| {' / '.join(str(int(each['rows'])) for each in bound)} "
        f"| {' / '.join(percent(each['median']) for each in bound)} % "
        f"| {' / '.join(percent(each['ninetieth']) for each in bound)} % "
        f"| {' / '.join(signed(each['bias']) for each in bound)} % |"
    ), AGAIN
    assert line(readme, "| peak memory |").endswith(cells_of(memory["errors"])), AGAIN
    for words, machine in CPUS:
        cpu, stated = judgement(machine, "step"), line(readme, words)
        assert f"(roofline: {percent(cpu['roofline']['median'], 0)} %)" in stated, AGAIN
        assert stated.endswith(cells_of(cpu["errors"])), AGAIN


def compiled(name: str) -> dict[str, Any]:
    """The judgement of compiled rows: device time of all, or step, gain and memory beside "no gain"."""
    section, full = ("execution", "compiled: device") if name == "device" else ("compiled", name)
    judged = DATA[COMPILED]["judgements"]
    (found,) = [each for each in judged if (each["section"], each["name"]) == (section, full)]
    return found


@pytest.mark.parametrize("name", ["step", "gain", "memory"])
def test_the_sums_of_compiled_rows_follow_from_its_rows(name: str) -> None:
    judged, gains = compiled(name), DATA[COMPILED]["gains"]
    for field, suffix in (("errors", ""), ("no_gain", " no_gain")):
        expected = agree([row[f"{name}{suffix}"] for row in gains])
        for part in ("rows", "median", "ninetieth", "worst", "bias"):
            assert judged[field][part] == pytest.approx(getattr(expected, part), abs=ROUNDED), (field, part)


@pytest.mark.parametrize(
    ("words", "name", "baseline"),
    [
        ("| device time | ", "device", "plain roofline"),
        ("| step | ", "step", '"no gain"'),
        ("| gain over eager |", "gain", '"no gain"'),
        ("| peak memory | ", "memory", '"no gain"'),
    ],
)
def test_the_accuracy_page_states_the_errors_of_compiled_steps(words: str, name: str, baseline: str) -> None:
    judged = compiled(name)
    errors, skipped = judged["errors"], judged["roofline" if name == "device" else "no_gain"]
    stated = line((ROOT / "docs/accuracy.md").read_text(encoding="utf-8"), words, baseline)
    cells = [cell.strip() for cell in stated.strip("|").split("|")]
    assert cells[1:] == [
        f"{percent(errors['median'])} %",
        f"{percent(errors['ninetieth'], 0)} %",
        f"{signed(errors['worst'], 0)} %",
        f"{signed(errors['bias'])} %",
        f"{baseline} {percent(skipped['median'], 0)} %",
    ], AGAIN


def test_the_share_of_compiled_steps_inside_the_interval_is_the_stated_one() -> None:
    (inside,) = [each for each in DATA[COMPILED]["judgements"] if each["name"] == "compiled: inside"]
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    share = percent(inside["count"] / inside["rows"], 0)
    assert f"{share} % of the {inside['rows']} compiled steps are inside" in page, AGAIN


def test_the_readme_states_the_errors_of_compiled_steps() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    errors = [compiled(name)["errors"] for name in ("step", "gain", "memory")]
    biases = [signed(each["bias"]) for each in errors]
    stated = line(readme, "H200, compiled")
    assert f'("no gain": {percent(compiled("step")["no_gain"]["median"], 0)} %)' in stated, AGAIN
    assert stated.endswith(
        f"| {int(errors[0]['rows'])} | {' / '.join(percent(each['median']) for each in errors)} % "
        f"| {' / '.join(percent(each['ninetieth'], 0) for each in errors)} % "
        f"| {' / '.join(biases)} % |"
    ), AGAIN


def cells_of(errors: dict[str, float]) -> str:
    return (
        f"| {int(errors['rows'])} | {percent(errors['median'])} % | {percent(errors['ninetieth'])} % "
        f"| {signed(errors['bias'])} % |"
    )


@pytest.mark.parametrize("machine", sorted(FORECAST_AGAIN))
def test_a_few_rows_are_still_forecast_as_the_file_says(machine: str) -> None:
    table = read_table(find_table(machine, "truth"))
    stored = {row["case"]: row for row in DATA[machine]["rows"]}
    chosen = dict[str, TruthRow]()
    for row in table.rows:
        if row.case.job in FORECAST_AGAIN[machine] and row.case.execution == "eager":
            chosen.setdefault(row.case.job, row)
    assert chosen
    some = dataclasses.replace(table, rows=tuple(chosen.values()))
    for pair in forecast_rows(some, find_machine(table)):
        for quantity in QUANTITIES:
            error = pair.error(quantity)
            if error is not None:
                assert error == pytest.approx(stored[str(pair.row.case)][quantity], abs=1e-3), AGAIN


def test_no_percentage_of_the_readme_stands_outside_the_lines_that_are_held() -> None:
    """New figures in the table need a line here; compiled steps and unprobed GPUs have their own files."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [each for each in readme.splitlines() if each.startswith("|") and re.search(r"\d %", each)]
    held = ("H200, 28 networks", "device-bound / host-bound", "peak memory", "2 cores")
    others = [each for each in lines if not any(words in each for words in held)]
    assert all("compiled" in each or "never probed" in each for each in others)
