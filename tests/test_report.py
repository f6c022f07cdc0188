"""A study's report: one file that needs no network and shows every row; a failure is no blank and no zero."""

from __future__ import annotations

import builtins
import html
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from windtunnel import records
from windtunnel.errors import BadInput, StoreError, Unavailable
from windtunnel.reports import charts, design, drawing, lines, maps, page, palette, sections, study, text
from windtunnel.reports.forecast.marks import MEMORY_CLASSES
from windtunnel.reports.lines import sheet
from windtunnel.results import PARTS
from windtunnel.study import study as studies
from windtunnel.study.rows import NOT_RUNNABLE, ClaimVerdict, StudyRow
from windtunnel.study.run import run_environment

SCALE = 2000.0  # 1,000 examples twice over
N_REC, N_STEPS = (10, 20, 50, 100, 200), (10, 20, 50, 100)
# Brandfonbrener 2017, Figure 3, in the paper's seconds.
FIGURE_3 = "4.8 7.4 16.8 32.6  4.3 7.4 16.9 32.4  4.3 7.5 16.9 32.7  4.3 7.5 16.9 32.5  4.8 8.5 19.6 37.7"
STATES = ("timeout", "out of memory", "crashed", "unsupported", "no result")
needs_drawing = pytest.mark.skipif(
    importlib.util.find_spec("vl_convert") is None, reason="the extra plots is not installed"
)


FIGURE = studies.Figure(
    name="figure-03",
    title="Unshared dataset",
    source="Brandfonbrener 2017, Figure 3",
    published_scale=SCALE,
    published_unit="seconds for 1,000 examples twice over",
    grid={"n_rec": N_REC, "n_steps": N_STEPS},
)
STUDY = studies.Study(
    name="brandfonbrener-2017",
    title="GPU Performance on Small Recurrent Neural Networks",
    authors="David Brandfonbrener",
    year=2017,
    source="Final project, Yale University, 2017",
    figures=(FIGURE,),
)


def row(n_rec: int = 10, n_steps: int = 10, **other: Any) -> StudyRow:
    usual: dict[str, Any] = {
        "study": "s",
        "figure": "figure-03",
        "case": "cpu",
        "label": "torch:loop",
        "job": "rnn",
        "threads": 1,
    }
    settings = {"n_rec": n_rec, "n_steps": n_steps, "n_in": 2, "activation": "relu"}
    return StudyRow(**{**usual, "settings": settings, **other})


def published() -> list[StudyRow]:
    places = [(n_rec, n_steps) for n_rec in N_REC for n_steps in N_STEPS]
    usual = {
        "case": "K80",
        "label": "theano:scan",
        "device": "gpu",
        "device_name": "k80",
        "threads": None,
        "origin": "published",
    }
    return [
        row(*place, **usual, step_seconds=float(value) / SCALE)
        for place, value in zip(places, FIGURE_3.split(), strict=True)
    ]


def measured(label: str, seed: int = 0, failing: bool = True) -> list[StudyRow]:
    chance, rows = random.Random(f"{label}{seed}"), []
    environment = {"cpu": "Xeon", "versions": {label.split(":")[0]: "1.2.3"}, "threads": 1}
    for number, (n_rec, n_steps) in enumerate((n_rec, n_steps) for n_rec in N_REC for n_steps in N_STEPS):
        fields = {"label": label, "environment": environment, "measured_at": "2026-11-15"}
        if failing and number < len(STATES):
            rows.append(
                row(
                    n_rec,
                    n_steps,
                    **fields,
                    state=STATES[number],
                    error=f"The process was ended: {STATES[number]}.",
                )
            )
            continue
        seconds = 1e-3 * (0.2 + n_steps / 40) * (1 + n_rec / 100) * chance.uniform(0.9, 1.1)
        groups = tuple(tuple(seconds * chance.lognormvariate(0, 0.05) for _ in range(30)) for _ in range(3))
        times = {
            "step_seconds": seconds,
            "low_seconds": 0.95 * seconds,
            "high_seconds": 1.1 * seconds,
            "first_seconds": 40 * seconds,
            "groups": groups,
        }
        rows.append(row(n_rec, n_steps, **fields, **times))
    return rows


def forecasts() -> list[StudyRow]:
    usual = {"device": "gpu", "device_name": "h200", "origin": "forecast", "case": "gpu"}
    return [
        row(n_rec, n_steps, **usual, step_seconds=1e-3 * n_steps) for n_rec in N_REC for n_steps in N_STEPS
    ]


def everything() -> list[StudyRow]:
    return [*published(), *measured("torch:loop"), *measured("jax:scan", failing=False), *forecasts()]


VERDICTS = (
    ClaimVerdict(
        claim="a",
        text="Linear in timesteps",
        source="4.1.2",
        ruling="holds everywhere",
        effect=0.94,
        low=0.9,
        high=0.99,
        counted="slope",
        published="below 1",
    ),
    ClaimVerdict(
        claim="b",
        text="Flat in n_rec",
        source="4.1.3",
        ruling="holds nowhere",
        effect=1.6,
        low=1.5,
        high=1.8,
        reason="It rises from 50 on.",
    ),
    ClaimVerdict(
        claim="c",
        text="The GPU overtakes",
        source="4.1.3",
        ruling="can't tell",
        reason="No GPU has been measured here.",
    ),
)


class Reader(HTMLParser):
    """The tables of a page as words, its tags and its attributes."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self._inside = False
        self.feed(words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][-1][-1] += f" {data}" if self.tables[-1][-1][-1] else data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("torch:loop", "jax:scan")
    plot_lines = [
        {"figure": "figure-03", "case": case, "label": label, "fixed": {"n_rec": 100}}
        for case, label in [("K80", ""), *(("cpu", n) for n in names)]
    ]
    eleven = studies.Figure(
        name="figure-11",
        title="Increasing timesteps",
        source="Brandfonbrener 2017, Figure 11",
        plots=(records.read(studies.Plot, {"x": "n_steps", "lines": plot_lines}, "plot"),),
    )
    return study.write(
        replace(STUDY, figures=(eleven, FIGURE)),
        everything(),
        VERDICTS,
        tmp_path_factory.mktemp("report") / "deep" / "report.html",
    )


def beside(words: str) -> list[list[str]]:
    return next(table for table in Reader(words).tables if table[0][0] == "n_rec, n_steps")


# The page


def test_the_file_needs_nothing_from_anywhere(whole: Path) -> None:
    words = whole.read_text()
    reader = Reader(words)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
    assert reader.tags.count("script") == 1 and not [a for a in reader.attributes if a[0] == "script"]
    assert not [name for _, name, _ in reader.attributes if name == "style" or name.startswith("on")]
    assert all(
        value.startswith("#")
        for _, name, value in reader.attributes
        if name in ("href", "src", "xlink:href", "action", "poster")
    )
    assert not re.search(r"https?:|@import|url\((?!#)", words)
    assert "default-src 'none'" in words


def test_every_cell_shows_the_paper_s_unit_the_time_per_example_and_the_ratio_of_its_rows(
    whole: Path,
) -> None:
    table = beside(whole.read_text())
    names = table[0]
    place = next(number for number, name in enumerate(names) if name.startswith("jax:scan"))
    old = next(number for number, name in enumerate(names) if name.startswith("theano:scan"))
    rows = {(r.settings["n_rec"], r.settings["n_steps"]): r for r in measured("jax:scan", failing=False)}
    printed = {(r.settings["n_rec"], r.settings["n_steps"]): r for r in published()}
    assert len(table) == 1 + len(N_REC) * len(N_STEPS)
    for words in table[1:]:
        cell = tuple(int(part) for part in words[0].split(", "))
        here, then = rows[cell].step_seconds or 0, printed[cell].step_seconds or 0
        assert float(words[old].split()[0]) == pytest.approx(then * SCALE, rel=0.005)
        assert float(words[place].split()[0]) == pytest.approx(here * SCALE, rel=0.005)
        assert float(words[place].split()[-1].rstrip(text.TIMES)) == pytest.approx(here / then, rel=0.05)


def test_every_failed_row_shows_its_state_and_no_cell_is_zero_or_blank(whole: Path) -> None:
    table = beside(whole.read_text())
    place = next(
        number
        for number, name in enumerate(table[0])
        if name.startswith("torch:loop") and name.endswith("measured")
    )
    assert [words[place] for words in table[1 : 1 + len(STATES)]] == list(STATES)
    assert all(word.strip() not in ("", "0", "0.0") for words in table for word in words)
    table_of_failures = next(
        table for table in Reader(whole.read_text()).tables if table[0][:2] == ["Line", "State"]
    )
    assert {words[1].strip() for words in table_of_failures[1:]} == set(STATES)
    assert all(f"The process was ended: {words[1].strip()}." in words[4] for words in table_of_failures[1:])


def test_a_heat_map_names_the_state_of_every_cell_without_a_time_and_each_state_has_its_own_glyph(
    whole: Path,
) -> None:
    maps_of = [table for table in Reader(whole.read_text()).tables if table[0][0] == "n_rec \\ n_steps"]
    assert len(maps_of) == 4 and all(len(table) == 1 + len(N_REC) for table in maps_of)
    words_of_maps = " ".join(word for table in maps_of for words in table for word in words)
    assert all(state in words_of_maps for state in STATES)
    assert len({palette.glyph_of(state) for state in (*palette.GLYPHS, "another")}) == len(palette.GLYPHS) + 1


def test_every_claim_shows_its_ruling_effect_interval_and_reason(whole: Path) -> None:
    items = re.findall(r"<li><details>(.*?)</details></li>", whole.read_text(), re.DOTALL)
    words = [[html.unescape(word) for word in re.findall(r">([^<>]+)<", item)] for item in items]
    assert [word[0].split(maxsplit=1)[1] for word in words] == [
        "holds everywhere",
        "holds nowhere",
        "can't tell",
    ]
    assert [word[1] for word in words] == ["Linear in timesteps", "Flat in n_rec", "The GPU overtakes"]
    assert "0.940 (0.900 to 0.990) slope" in words[0] and "below 1" in words[0] and "4.1.2" in words[0]
    assert "It rises from 50 on." in words[1] and "no effect" in words[2]


@needs_drawing
def test_the_page_leads_with_plots_and_one_line_for_each_claim(whole: Path) -> None:
    words = whole.read_text()
    heads = re.findall(r"<h2[^>]*>([^<]*)</h2>", words)
    assert heads[:2] == ["At a glance", "Claims"]
    before_claims = words[: words.index("Claims</h2>")]
    assert before_claims.count("<figure><svg") == 1 and "<table" not in before_claims


def test_links_to_many_parts_and_the_note_of_a_study_are_folded() -> None:
    few, many = ([(f"part {n}", "text") for n in range(count)] for count in (8, 9))
    assert "<details>" not in page.document("title", "lead", few, "foot")
    assert "<details><summary>The 9 parts of this report</summary><ul>" in page.document("t", "l", many, "f")


def test_the_first_step_is_shown_beside_the_steady_ones(whole: Path) -> None:
    table = next(table for table in Reader(whole.read_text()).tables if table[0][0] == "Framework")
    assert [words[0] for words in table[1:]] == ["jax:scan", "torch:loop"]
    assert all(words[5] == words[6] == f"40{text.TIMES}" for words in table[1:])


def test_the_page_shows_the_environment_and_the_commands_to_repeat_it(whole: Path) -> None:
    words = whole.read_text()
    assert (
        "Xeon" in words
        and "versions.jax" in words
        and "windtunnel study run brandfonbrener-2017 --frameworks jax,torch" in words
    )


@needs_drawing
def test_every_chart_has_a_title_a_description_and_unique_ids(whole: Path) -> None:
    words = whole.read_text()
    drawn = re.findall(r"<figure><svg.*?</svg></figure>", words, re.DOTALL)
    assert len(drawn) >= 6 and all(
        "<title" in svg and "<desc" in svg and 'role="img"' in svg for svg in drawn
    )
    assert "<!--chart" not in words and palette.INK not in "".join(drawn), (
        "a chart takes the page's text colour, light or dark"
    )
    ids = [value for _, name, value in Reader(words).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", words)) <= set(ids)


def test_every_box_that_scrolls_has_a_name_and_is_reached_by_keyboard(whole: Path) -> None:
    boxes = re.findall(r'<div class="box[^>]*>', whole.read_text())
    assert len(boxes) > 8 and all('tabindex="0"' in box and "aria-label=" in box for box in boxes)


def test_markup_in_names_and_messages_is_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    rows = [
        replace(each, label=evil, error=evil, device_name=evil, case=evil, environment={evil: evil})
        for each in measured("a:b")
    ]
    figure = replace(FIGURE, title=evil, source=evil, published_unit=evil)
    hostile = replace(STUDY, title=evil, source=evil, figures=(figure,))
    words = study.build(
        hostile,
        rows,
        [replace(VERDICTS[0], text=evil, reason=evil, published=evil, counted=evil, source=evil)],
    )
    assert Reader(words).tags.count("script") == words.count("<script") == 1, "the page's own"
    assert words.count("&lt;script&gt;") > 10


def test_a_page_of_a_study_without_rows_says_so() -> None:
    words = study.build(STUDY, [], [])
    assert (
        "Nothing measured" in words and "There are no rows for this figure." in words and "no claims" in words
    )
    assert "Nothing has been measured here" in study.build(replace(STUDY, figures=()), [], [])


def test_a_page_of_published_rows_alone_shows_no_ratios() -> None:
    words = study.build(STUDY, published(), [])
    assert "nothing has been measured or forecast yet" in words and "37.7" in words
    assert text.TIMES not in " ".join(" ".join(line) for line in beside(words))


def many(side: int) -> list[StudyRow]:
    """Four frameworks over a square grid, one cell in five timed out."""
    rows = []
    for label in ("torch:loop", "jax:scan", "numpy:hand", "keras:fit"):
        for n_rec, n_steps in (
            (n_rec, n_steps) for n_rec in range(1, side + 1) for n_steps in range(1, side + 1)
        ):
            seconds = 1e-5 * n_rec * n_steps
            times = {
                "step_seconds": seconds,
                "low_seconds": 0.9 * seconds,
                "high_seconds": 1.1 * seconds,
                "groups": ((seconds,) * 20,) * 3,
            }
            failed = {"state": "timeout", "error": "No result within 60 s."}
            rows.append(row(n_rec, n_steps, label=label, **(times if (n_rec + n_steps) % 5 else failed)))
    return rows


def test_ten_thousand_cells_fit_in_ten_megabytes_and_none_is_lost(tmp_path: Path) -> None:
    rows = many(50)
    path = study.write(STUDY, rows, VERDICTS, tmp_path / "many.html")
    assert len(rows) == 10_000 and path.stat().st_size < 10e6
    words = path.read_text()
    assert words.count('class="failed"') == sum(r.state != "done" for r in rows) == 2000
    assert max(len(table) for table in Reader(words).tables) <= 101, "a table has at most 100 cells"


def test_the_work_grows_with_the_cells_and_not_with_their_square(without: set[str]) -> None:
    without |= {"vl_convert"}  # drawing takes the same time for both

    def seconds_for(rows: list[StudyRow]) -> float:
        start = time.process_time()  # of this process alone, so that a busy machine does not count
        study.build(STUDY, [*published(), *rows], VERDICTS)
        return time.process_time() - start

    few, four_times_as_many = many(20), many(40)
    # A square would fail every time; a neighbour on the same core spoils one time or another.
    assert any(seconds_for(four_times_as_many) < 12 * seconds_for(few) for _ in range(5))


# Hand-worked cases


def test_a_line_is_compared_with_its_own_case_else_the_same_kind_of_device_else_the_only_one() -> None:
    old = [
        row(origin="published", case=case, device_name=case, device=device, step_seconds=s)
        for case, device, s in (("K80", "gpu", 4.0), ("mac", "cpu", 2.0))
    ]
    here = [
        row(case="ours", device="cpu", step_seconds=1.0),
        row(case="K80", device="cpu", label="jax:scan", step_seconds=1.0),
    ]
    drawn = sheet(FIGURE, [*old, *here])
    ratios = {line.label: drawn.median_ratio(line) for line in drawn.current}
    assert ratios == {"torch:loop": 0.5, "jax:scan": 0.25}
    third = row(origin="published", case="pc", device_name="pc", device="cpu", step_seconds=3.0)
    assert sheet(FIGURE, [*old, third, here[0]]).median_ratio(sheet(FIGURE, [here[0]]).current[0]) is None, (
        "two published CPUs: no choice is right"
    )


def test_times_are_compared_per_example_whatever_the_batch() -> None:
    old, new = row(origin="published", step_seconds=0.1), row(step_seconds=0.8, batch=16)
    drawn = sheet(FIGURE, [old, new])
    assert drawn.median_ratio(drawn.current[0]) == pytest.approx(0.5)


def test_lines_have_the_shortest_unique_names() -> None:
    rows = [
        row(),
        row(device="gpu", device_name="h200"),
        row(device="gpu", device_name="h200", data="streamed"),
        row(label="jax:scan"),
    ]
    assert sorted(line.name for line in sheet(FIGURE, rows).lines) == [
        "jax:scan, CPU",
        "torch:loop, CPU",
        "torch:loop, GPU, resident data",
        "torch:loop, GPU, streamed data",
    ]
    assert [line.title for line in sheet(FIGURE, forecasts()).lines] == ["torch:loop, h200 (forecast)"]


def test_a_legend_leaves_out_what_all_lines_end_with() -> None:
    titles = ["AlexNet, fast, GTX 1080 (forecast)", "ResNet, slow, GTX 1080 (forecast)"]
    assert lines.without_common_end(titles) == (["AlexNet, fast", "ResNet, slow"], "GTX 1080 (forecast)")
    for kept in (["a, x", "b, y"], ["a, x"], ["x", "b, x"]):
        assert lines.without_common_end(kept) == (kept, "")
    assert lines.without_common_end(["a, x", "a, x"])[0] == ["a", "a"]


def test_a_setting_that_only_follows_an_axis_does_not_split_a_line() -> None:
    rows = [replace(row(), settings={"n_rec": 10, "n_in": n, "n_out": n}) for n in (2, 10, 100)]
    drawn = sheet(replace(FIGURE, grid={"n_rec": (10,), "n_in,n_out": (2, 10, 100)}), rows)
    assert len(drawn.lines) == 1 and drawn.cells == ((10, 2), (10, 10), (10, 100))


def test_threads_can_be_an_axis_although_they_are_not_a_setting_of_the_job() -> None:
    drawn = sheet(
        replace(FIGURE, grid={"threads": (1, 2, 8)}),
        [row(threads=n, step_seconds=1.0 / n) for n in (1, 2, 8)],
    )
    assert drawn.cells == ((1,), (2,), (8,)) and len(drawn.lines) == 1


def test_lines_that_this_machine_cannot_run_are_listed_but_not_in_the_tables() -> None:
    rows = [
        *published(),
        *(
            replace(each, state="no gpu here", device="gpu")
            for each in measured("torch:graph", failing=False)
        ),
    ]
    words = study.build(
        STUDY,
        [replace(each, step_seconds=None, groups=()) if each.state != "done" else each for each in rows],
        [],
    )
    assert not any("torch:graph" in name for name in beside(words)[0])
    assert {run_environment.NOT_INSTALLED, run_environment.NO_GPU, run_environment.UNSUPPORTED} < set(
        NOT_RUNNABLE
    )
    listed = next(table for table in Reader(words).tables if table[0][:2] == ["Line", "State"])
    assert listed[1][1].strip() == "no gpu here" and listed[1][2] == "20"


def test_figures_are_ordered_by_their_number() -> None:
    names = ["figure-10", "figure-2", "figure-1", "table-1", "future-batching"]
    assert sorted(names, key=text.by_number) == [
        "figure-1",
        "figure-2",
        "figure-10",
        "future-batching",
        "table-1",
    ]
    assert sheet(replace(FIGURE, name="figure-02"), []).heading == "Figure 2: Unshared dataset"


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.03942, "0.039"), (0.1, "0.10"), (1.0, "1.0"), (15.4, "15"), (1234.0, "1,200")]
)
def test_ratios_have_two_digits(ratio: float, words: str) -> None:
    assert text.ratio_words(ratio) == words + text.TIMES


# The text


def test_the_text_prints_the_table_as_the_paper_does() -> None:
    printed = str(study.StudyReport(study=STUDY, rows=tuple(everything()), verdicts=VERDICTS))
    printed_lines = printed.splitlines()
    place = next(
        number for number, line in enumerate(printed_lines) if "theano:scan, k80 (published)" in line
    )
    assert printed_lines[place + 1].split() == ["n_steps", "10", "20", "50", "100"]
    assert printed_lines[place + 2].split() == ["n_rec", "10", "4.80", "7.40", "16.8", "32.6"]
    assert (
        all(state in printed for state in STATES)
        and "can't tell" in printed
        and "0.940 (0.900 to 0.990) slope" in printed
    )
    assert max(map(len, printed_lines)) <= 120


def test_a_cell_that_other_load_disturbed_is_marked_and_counted() -> None:
    rows = measured("torch:loop", failing=False)
    rows[3] = replace(rows[3], environment={**rows[3].environment, "disturbed": True})
    printed = str(study.StudyReport(study=STUDY, rows=tuple(rows)))
    assert (
        printed.count(text.MARK) == 2
        and "disturbed 1 of them throughout (~)" in printed
        and max(map(len, printed.splitlines())) <= 120
    )
    words = study.build(STUDY, rows, ())
    marked = [cell for line in beside(words) for cell in line if cell.startswith(text.MARK)]
    assert (
        len(marked) == 1
        and words.count("other programs disturbed every process") >= 1
        and "disturbed 1 of them" in words
    )
    assert text.MARK not in str(study.StudyReport(study=STUDY, rows=tuple(measured("torch:loop")))), (
        "the others are not"
    )


# The charts


def every_chart() -> list[charts.Chart]:
    drawn = sheet(FIGURE, everything())
    failing = next(line for line in drawn.lines if line.label == "torch:loop" and line.origin == "measured")
    axes, domain = ("n_rec", "n_steps"), (0.1, 100.0)
    return [
        charts.against(drawn, "n_steps", drawn.lines, {"n_rec": 10}),
        charts.against(drawn, "n_rec", drawn.published, {"n_steps": 20}),
        charts.heat(drawn, failing, axes, {}, domain),
        charts.samples(drawn, failing, (200, 100)),
    ]


def test_altair_accepts_every_chart() -> None:
    pytest.importorskip("altair", reason="the extra plots is not installed")
    for chart in every_chart():
        assert chart.altair().to_dict()["layer"]


@needs_drawing
@pytest.mark.parametrize("suffix", charts.SUFFIXES)
def test_the_suffix_chooses_the_format_of_a_saved_chart(suffix: str, tmp_path: Path) -> None:
    path = charts.save(every_chart()[0], tmp_path / f"chart{suffix}")
    content = path.read_bytes()
    assert {".png": b"\x89PNG", ".svg": b"<svg", ".html": b"<"}[suffix] == content[
        : {".png": 4, ".svg": 4, ".html": 1}[suffix]
    ]
    assert suffix != ".html" or not re.search(rb'<script[^>]+src="http', content)


def test_a_chart_with_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"chart\.bmp"):
        charts.save(charts.Chart(spec={}), tmp_path / "chart.bmp")


def test_published_lines_are_dashed_forecasts_dotted_and_failures_have_their_glyph() -> None:
    spec = every_chart()[0].spec
    line = spec["layer"][0]["layer"][1]["encoding"]["strokeDash"]["scale"]
    assert dict(zip(line["domain"], line["range"], strict=True)) == {
        "published": [6, 4],
        "measured": [1, 0],
        "forecast": [1, 3],
    }
    failed = spec["layer"][1]
    assert [value["state"] for value in failed["data"]["values"]] == list(STATES[:4]), (
        "n_rec 10 has four of them"
    )
    assert failed["encoding"]["shape"]["scale"]["range"] == [
        palette.GLYPHS[state] for state in sorted(STATES[:4])
    ]


@needs_drawing
def test_many_charts_drawn_by_several_processes_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_ENOUGH", 2)
    monkeypatch.setattr(drawing, "_cores", lambda: 2)
    four = every_chart()
    assert drawing.draw(four) == [chart.svg() for chart in four]
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert drawing.draw(four) == [chart.svg() for chart in four], (
        "this process draws what a dead child did not"
    )


def test_colours_have_enough_contrast_on_both_pages() -> None:
    def parts(colour: str) -> tuple[int, ...]:
        return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))

    for colour in palette.COLOURS:
        assert (
            maps.contrast(parts(colour), (255, 255, 255)) >= 3
            and maps.contrast(parts(colour), parts("#12161b")) >= 3
        )
    for number in range(101):
        back, ink = maps.colour(10 ** (number / 50), (1.0, 100.0))
        assert maps.contrast(parts(back), (255,) * 3 if ink == "#fff" else (0,) * 3) >= 4.5
    assert (files("windtunnel.reports.design") / "heat.css").read_text() == maps.heat_css()


def theme(dark: bool) -> dict[str, str]:
    """The colours of the page by name."""
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", design.css())
    return {name: pair[dark] for name, *pair in found}


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_parts_have_enough_contrast_in_both_themes(dark: bool) -> None:
    def parts(colour: str) -> tuple[int, ...]:
        return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))

    known = {name: parts(colour) for name, colour in theme(dark).items()}
    pairs = [("ink", "page"), ("ink", "box"), ("soft", "page"), ("soft", "box"), ("accent", "page")]
    pairs += [("accent", "box"), ("good", "good-box"), ("bad", "bad-box"), ("open", "open-box")]
    pairs += [("ink", "accent-box"), ("ink", "open-box")]
    assert [pair for pair in pairs if maps.contrast(known[pair[0]], known[pair[1]]) < 4.5] == []
    marks = [*(part for part in PARTS), *(page.anchor(name) for name in MEMORY_CLASSES), "bar", "other"]
    assert [name for name in marks if maps.contrast(known[name], known["page"]) < 3] == []


def colours(*labels: str, every: bool = True) -> dict[str, str]:
    """The colour of each line in a chart of these labels, with or without published and forecast lines."""
    drawn = sheet(
        FIGURE,
        [
            *(published() + forecasts() if every else []),
            *(each for label in labels for each in measured(label)),
        ],
    )
    scale = charts.against(drawn, "n_steps", drawn.lines, {"n_rec": 10}).spec["layer"][0]["encoding"][
        "color"
    ]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def test_a_label_has_the_same_colour_in_every_chart_whatever_is_drawn_beside_it() -> None:
    alone, few, many_of_them = (
        colours("torch:loop", every=False),
        colours("jax:scan", "torch:loop"),
        colours("fused:epoch", "mine.py:loop", "torch:loop"),
    )
    assert alone["torch:loop"] == few["torch:loop"] == many_of_them["torch:loop"]
    assert few["jax:scan"] == colours("numpy:hand", "jax:scan", every=False)["jax:scan"]
    assert few["torch:loop, h200 (forecast)"] == few["torch:loop"], (
        "its dash shows that it is a forecast, not its colour"
    )
    assert many_of_them["mine.py:loop"] == colours("mine.py:loop", every=False)["mine.py:loop"], (
        "a label outside the catalogue"
    )
    assert (
        len(
            set(
                colours(
                    "torch:loop", "torch:module", "torch:graph", "jax:scan", "fused:epoch", every=False
                ).values()
            )
        )
        == 5
    )


def test_every_label_of_the_catalogue_has_a_fixed_colour_and_lines_of_one_colour_differ_in_shape() -> None:
    known = palette.known_colours()
    for name in studies.names():
        for figure in studies.find(name).figures:
            assert {label for case in figure.cases for label in case.labels} | {
                printed.label for printed in figure.published
            } <= set(known)
    assert set(known.values()) <= {palette.INK, *palette.COLOURS}
    rows = [replace(each, device=device) for each in measured("torch:loop") for device in ("cpu", "gpu")]
    loop = known["torch:loop"]
    other = next(label for label, colour in known.items() if colour == loop and label != "torch:loop")
    drawn = sheet(FIGURE, [*rows, *measured(other)])
    encoding = charts.against(drawn, "n_steps", drawn.lines, {"n_rec": 10}).spec["layer"][0]
    assert len(set(encoding["encoding"]["color"]["scale"]["range"])) == 1, (
        "two of them are one label, the third shares its colour"
    )
    assert len(set(encoding["layer"][2]["encoding"]["shape"]["scale"]["range"])) == 3


def test_a_thinned_group_of_samples_keeps_its_smallest_its_largest_and_its_median() -> None:
    group = [random.Random(1).lognormvariate(0, 1) for _ in range(5001)]
    few = charts._thinned(group)
    assert len(few) == 80 and (few[0], few[-1]) == (min(group), max(group))
    assert abs(sorted(few)[40] / sorted(group)[2500] - 1) < 0.1


# Missing packages


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Packages in this set cannot be imported."""
    gone: set[str] = set()
    usual = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] in gone:
            raise ImportError(f"No module named {name!r}", name=name)
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    yield gone


def test_without_the_plots_extra_the_report_has_its_tables_and_says_how_to_get_charts(
    without: set[str],
) -> None:
    without |= {"altair", "vl_convert"}
    words = study.build(STUDY, everything(), VERDICTS)
    assert "<figure>" not in words and "windtunnel[plots]" in words
    assert len(beside(words)) == 21
    for ask in (
        every_chart()[0].svg,
        every_chart()[0].altair,
        lambda: charts.save(every_chart()[0], Path("x.png")),
    ):
        with pytest.raises(Unavailable, match="not installed") as error:
            ask()
        assert "windtunnel[plots]" in error.value.hint


def test_a_dataframe_has_one_record_for_every_row(without: set[str]) -> None:
    pytest.importorskip("pandas")
    report = study.StudyReport(study=STUDY, rows=tuple(everything()), verdicts=VERDICTS)
    frame = report.frame()
    assert len(frame) == len(report.rows) and {
        "n_rec",
        "n_steps",
        "origin",
        "state",
        "step_seconds",
        "example_seconds",
    } <= set(frame.columns)
    assert frame[frame.state != "done"].step_seconds.isna().all()
    without |= {"pandas"}
    with pytest.raises(Unavailable, match="pandas"):
        report.frame()


def test_a_notebook_shows_the_claims_and_a_summary_of_every_figure() -> None:
    shown = study.StudyReport(study=STUDY, rows=tuple(everything()), verdicts=VERDICTS)._repr_html_()
    assert "Linear in timesteps" in shown and "Figure 3: Unshared dataset" in shown and "jax:scan" in shown


def test_a_failed_write_leaves_the_old_page(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        study.write(STUDY, [], [], tmp_path / "file" / "report.html")
    path = study.write(STUDY, [], [], tmp_path / "report.html")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == [] and os.access(
        path, os.R_OK
    )


def test_the_report_loads_no_drawing_library_before_it_draws() -> None:
    libraries = ("altair", "vl_convert", "pandas", "torch", "numpy")
    code = f"import windtunnel.reports.study, sys; print([m for m in {libraries} if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_the_notebook_example_prints_its_stored_output() -> None:
    pytest.importorskip("pandas")
    example = Path(__file__).parent.parent / "examples" / "study_notebook.py"
    printed = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=True
    ).stdout
    assert printed == example.with_suffix(".txt").read_text()


# In a real browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1400, "light")])
def test_the_page_opens_from_disk_without_a_network_and_never_scrolls_sideways(
    browser: Any, whole: Path, width: int, scheme: str
) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened.context.set_offline(True)
    messages: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(whole.as_uri())
    assert messages == [] and requests == [whole.as_uri()]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(
        "[...document.querySelectorAll('figure > svg')]"
        ".every(svg => svg.getBoundingClientRect().width <= innerWidth)"
    )
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the results"
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light == ("rgb(18, 22, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
    opened.close()


def test_a_study_of_ten_thousand_cells_opens_with_its_tables_folded(browser: Any, tmp_path: Path) -> None:
    path = study.write(STUDY, many(50), VERDICTS, tmp_path / "many.html")
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    opened.goto(path.as_uri())
    shown = "[...document.querySelectorAll('td')].filter(each => each.checkVisibility()).length"
    assert opened.evaluate(shown) < 500
    fold = opened.locator("details.fold", has_text="All 2,500 cells").first
    fold.locator("summary").first.click()
    fold.locator("summary").nth(1).click()
    assert 400 <= opened.evaluate(shown) < 1000, "one table of 100 cells of four lines"
    opened.close()


def test_axe_finds_no_serious_violation_in_a_study(browser: Any, whole: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    # axe is put into the page, which the page's own policy forbids.
    opened = browser.new_context(bypass_csp=True, color_scheme="dark").new_page()
    opened.goto(whole.as_uri())
    opened.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    found = axe.Axe().run(opened).response["violations"]
    assert {each["id"] for each in found if each["impact"] in ("serious", "critical")} == set()
    opened.close()


def test_plain_text_is_escaped_and_markup_is_not() -> None:
    assert (
        page.element("p", "<b>", page.Markup("<i></i>"), title='"')
        == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    )
    assert sections.dotted({"a": {"b": [1, 2], "c": ""}, "d": "x"}) == {"a.b": "1, 2", "d": "x"}
    assert lines.in_order(2) < lines.in_order(10) < lines.in_order("a")
