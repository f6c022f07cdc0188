"""docs/guide says what the kept numbers say, its commands can be typed, its links lead somewhere."""

from __future__ import annotations

import copy
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import run

import windtunnel as wt
from windtunnel.cli import app

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from guidebook import charts, numbers, pages, pictures, values  # noqa: E402
from guidebook.cases import cases  # noqa: E402
from guidebook.ladder import LadderFigures  # noqa: E402

AGAIN = "Write it again: python benchmarks/guide.py"
FOLDER, PICTURES = ROOT / "docs/guide", ROOT / "docs/pictures"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
COMMANDS = sorted({command for text in TEXTS.values() for command in pages.commands(text)})
# Each takes a few seconds at most; the others train, measure or search.
FAST = (
    "windtunnel network list",
    "windtunnel machine list",
    "windtunnel feed guide",
    "windtunnel network show vae",
    "windtunnel frameworks list",
    "windtunnel study show wuensche-2018",
    "windtunnel predict ffn --on ryzen-9-5950x",
    "windtunnel predict ffn --on gtx1080",
    "windtunnel predict ffn --on rtx4090 --data streamed",
    "windtunnel predict rnn --on k80 --data streamed",
    "windtunnel predict rnn n_rec=10 n_steps=20 --on macbook-2016",
    "windtunnel predict lstm --on gtx1080 --data streamed",
)
# Sections that list words, steps, chapters or commands.
WITHOUT_FIGURE = {"Ten words", "In one minute", "Chapters", "Rules", "Try it"}
# Forecast again from traces of small networks, and of one large one.
SAMPLE = (
    *("net.ffn.cpu", "net.ffn.gpu", "gpu.ffn.streamed", "threads.ffn.16", "nodes.gpu.256", "layers.cpu.4"),
    *("net.autoencoder.gpu", "net.rbm.cpu", "rnn.k80.50", "rnn.macbook-2016.50", "rnn.rtx4090.50"),
    *("steps.k80.10", "net.resnet50.gpu", "gpu.resnet50.streamed", "old.resnet50.resident"),
)


def test_every_page_is_that_of_the_kept_numbers() -> None:
    rendered = pages.render()
    assert set(rendered) == set(TEXTS), AGAIN
    for name, text in rendered.items():
        different = [
            f"page: {old}\n  data: {new}"
            for old, new in zip(TEXTS[name].splitlines(), text.splitlines(), strict=False)
            if old != new
        ]
        assert TEXTS[name] == text, f"{name}: {AGAIN}\n  " + "\n  ".join(different[:3])


def test_every_picture_shows_the_kept_numbers() -> None:
    specs = pictures.all_specs()
    drawn = {path.stem.removeprefix("guide-") for path in PICTURES.glob("guide-*.svg")}
    assert set(specs) == drawn, AGAIN
    for name, spec in specs.items():
        drawing = (PICTURES / f"guide-{name}.svg").read_text(encoding="utf-8")
        assert pictures.mark(spec) in drawing, f"guide-{name}.svg shows other numbers. {AGAIN}"


def test_kept_numbers_are_those_that_are_forecast_now() -> None:
    kept, tracer, known = numbers.read()["forecasts"], numbers.Tracer(), cases()
    assert set(kept) == set(known), "Compute them again: python benchmarks/guide.py --numbers forecasts"
    for name in SAMPLE:
        found = numbers.forecast_of(known[name], tracer)
        assert found["step_seconds"] == pytest.approx(kept[name]["step_seconds"], rel=1e-5), name
        assert found["memory_bytes"] == pytest.approx(kept[name]["memory_bytes"], rel=1e-5), name
        assert found["bound_by"] == kept[name]["bound_by"], name


def test_a_changed_number_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    data = copy.deepcopy(numbers.read())
    data["forecasts"]["net.vae.cpu"]["step_seconds"] *= 1.1
    monkeypatch.setattr(numbers, "read", lambda: data)
    assert pages.render()["01-network"] != TEXTS["01-network"]


def test_a_sentence_that_is_no_longer_true_stops_the_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a GPU were faster for the smallest network, chapter 1 could not say that it is slower."""
    data = copy.deepcopy(numbers.read())
    data["forecasts"]["net.ffn.gpu"]["step_seconds"] = 1e-5
    monkeypatch.setattr(numbers, "read", lambda: data)
    with pytest.raises(AssertionError, match="no longer true"):
        pages.render()


def test_templates_hold_no_verdict_of_their_own() -> None:
    for path in pages.TEMPLATES.glob("*.md"):
        if path.stem != "statements":
            text = re.sub(r"\{\{.+?\}\}", "", path.read_text(encoding="utf-8"), flags=re.S)
            assert not re.findall(r"\bholds (?:everywhere|in most|in few|nowhere)\b", text), path.name


def test_every_statement_has_a_known_verdict_a_finding_and_a_command() -> None:
    rows = [row for section in pages._known() for row in section["statement"]]
    assert len(rows) > 50
    for row in rows:
        assert row["verdict"] in pages.VERDICTS and row["command"].startswith("windtunnel "), row
        assert "|" not in row["says"] and row["found"], row


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_pictures_of_a_page_exist(name: str) -> None:
    text = TEXTS[name]
    assert "{{" not in text and "\n\n\n" not in text
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (FOLDER / target).exists(), f"{name}: {target}"
    assert name == "statements" or "## Try it" in text


def test_every_section_that_explains_has_a_figure_and_every_figure_is_shown_once() -> None:
    shown = list[str]()
    for name in pages.NAMES[:-1]:
        for section in TEXTS[name].split("\n## "):
            title, _, body = section.partition("\n")
            figures = re.findall(r"^!\[([^\]]+)\]\(\.\./pictures/guide-([\w-]+)\.svg\)$", body, flags=re.M)
            shown += [figure for words, figure in figures if len(words) > 15]
            is_opening = title.startswith(("#", "<!--"))
            assert len(figures) <= 1, f"{name}, {title}: more than one figure"
            assert is_opening or title in WITHOUT_FIGURE or figures, f"{name}, {title}: no figure"
    assert sorted(shown) == sorted(pictures.ALL)


def test_a_figure_is_as_wide_as_a_phone_and_its_words_are_inside() -> None:
    for path in PICTURES.glob("guide-*.svg"):
        width = float(re.search(r'width="([\d.]+)"', path.read_text(encoding="utf-8"))[1])  # type: ignore[index]
        assert width <= charts.WIDTH + 1, f"{path.name}: {width} pixels wide"


def test_the_guide_is_read_in_an_hour() -> None:
    """At 200 words a minute; tables of numbers and commands are looked at, not read."""
    assert len(pages.NAMES) == len(TEXTS)
    words = 0
    for name in pages.NAMES[:-1]:
        prose = re.sub(r"```.*?```", "", TEXTS[name], flags=re.S)
        words += len(re.findall(r"[A-Za-z][\w'-]*", prose))
    assert words < 10_000


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_can_be_typed(command: str) -> None:
    """The command line accepts its words, and the job and the machine that it names exist."""
    words = shlex.split(command)[1:]
    found: Any = typer.main.get_command(app)
    context = found.make_context("windtunnel", list(words), resilient_parsing=False)
    while hasattr(found, "resolve_command"):
        _, found, words = found.resolve_command(context, words)
        context = found.make_context(found.name, list(words), parent=context)
    given = context.params
    assert given, command
    if given.get("on") not in (None, "here"):
        wt.Machine.find(str(given["on"]))
    job = given.get("job")
    if job and found.name in ("predict", "feed", "exchange", "measure", "plan", "factors", "advise"):
        name, *settings = job
        if name != "guide":
            wt.Workload.named(name, **dict(each.split("=", 1) for each in settings))
    for option in ("with_files", "with_", "rows"):
        for path in given.get(option) or ():
            assert (ROOT / path).exists(), command


@pytest.mark.parametrize("command", FAST)
def test_a_fast_command_of_the_guide_runs(command: str) -> None:
    assert command in COMMANDS, "the guide no longer has it"
    done = run(*shlex.split(command)[1:], folder=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_numbers_are_written_as_a_reader_expects() -> None:
    assert [values.plain(x) for x in (0.391, 1.456, 7.24, 32.4, 201227.0)] == [
        *("0.39", "1.46", "7.2", "32", "201,000"),
    ]
    assert [values.duration(x) for x in (38.3e6, 86000, 390, 45)] == ["443 days", "24 h", "6.5 min", "45 s"]
    assert values.count(117_997_696) == "118 million" and values.count(9610) == "9,610"
    assert values.percent(0.656) == "66 %"


def test_columns_of_numbers_are_aligned_at_the_right() -> None:
    rows = (
        "| a | b | c | d |",
        "|---|---|---|---|",
        "| x | 1.2 ms | 14 of 19 | yes |",
        "| y | under 1 % |  | 3 |",
    )
    page = "\n".join((*rows, "", "text"))
    assert values.aligned(page).splitlines()[1] == "|---|---:|---:|---|"
    assert values.aligned(page).endswith("\n\ntext")


def test_what_depth_adds_is_the_best_deeper_network_less_the_shallow_one() -> None:
    """Two seeds: 0.8 to 0.9 and 0.7 to 0.7 are +0.1 and 0.0, so +0.05; the second seed climbed less far."""
    kept = {"iris.0": {"scores": [0.8, 0.85, 0.9]}, "iris.1": {"scores": [0.7, 0.7]}}
    figures = LadderFigures(kept)
    assert figures.gain("iris") == pytest.approx(0.05)
    assert figures.scores("iris") == pytest.approx([0.75, 0.775])


def test_axes_have_few_and_exact_numbers() -> None:
    assert charts._ticks(2.0, 40.0, True)["values"] == [2, 5, 10, 20]
    assert charts._ticks(0.01, 2e5, True)["values"] == [0.01, 1, 100, 10_000]
    assert charts._legend(["weights", "gradients", "optimizer", "activations", "other"])["columns"] == 3
