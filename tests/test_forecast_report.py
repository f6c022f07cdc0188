"""The report of a forecast: pieces that are true, harmless and alike in every chart, and one whole file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from conftest import run

import windtunnel as wt
from windtunnel.advice.engine import advise
from windtunnel.errors import BadInput
from windtunnel.forecast.schedule import Contention, Lane, LaneTask, StepBuilder
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.influence.scaling import ScalingCurve, scaling_curve
from windtunnel.influence.survey import FactorOptions, factors
from windtunnel.reports import design
from windtunnel.reports import forecast as pieces
from windtunnel.reports.forecast import document, lanes, memory
from windtunnel.reports.forecast.gather import ForecastReport, gather
from windtunnel.reports.forecast.marks import MEMORY_CLASSES, kind
from windtunnel.reports.forecast.measured import measured_table
from windtunnel.reports.forecast.operations import longest_tasks
from windtunnel.reports.forecast.view import ForecastView, view_of
from windtunnel.results import PARTS
from windtunnel.strategy import Strategy

HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\u202e"
SMALL = {"n_rec": 20, "n_steps": 5}


class Page(HTMLParser):
    """The tags and attributes of a page, and whether every tag was closed."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def classes(self) -> set[str]:
        return {word for _, name, value in self.attributes if name == "class" for word in value.split()}


@pytest.fixture(scope="module")
def job() -> wt.Workload:
    return wt.Workload.named("rnn", **SMALL)


@pytest.fixture(scope="module")
def views(job: wt.Workload) -> list[ForecastView]:
    return [
        view_of(job, wt.Machine.named("k80"), on="k80"),
        view_of(job, wt.Machine.named("i7-3820"), on="i7-3820"),
        view_of(job, wt.Machine.named("4xk80"), Strategy(batch=8), on="4xk80"),
    ]


@pytest.fixture(scope="module")
def report(job: wt.Workload, views: list[ForecastView]) -> ForecastReport:
    machine = wt.Machine.named("k80")
    return ForecastReport(
        job=job.name,
        command="windtunnel report rnn --on k80",
        views=tuple(views),
        feeds=(None,) * len(views),
        advice=advise(job, machine),
        scaling=scaling_curve(job, machine, counts=(1, 2)),
        influence=factors(job, machine, options=FactorOptions(only=("batch", "timesteps"))),
    )


def every_piece(report: ForecastReport) -> dict[str, str]:
    first = report.views[0]
    assert report.advice is not None and not isinstance(report.advice, str)
    assert report.influence is not None and not isinstance(report.influence, str)
    assert report.scaling is not None
    return {
        "headline": pieces.headline(first),
        "parts": pieces.parts_bar(first),
        "memory": pieces.memory_chart(first),
        "need": pieces.memory_need(first),
        "timeline": pieces.timeline_chart(first),
        "comparison": pieces.comparison(report.views),
        "advice": pieces.advice_list(report.advice),
        "factors": pieces.factors_chart(report.influence),
        "scaling": pieces.scaling_chart(report.scaling),
        "feed": pieces.feed_chart(first),
        "cautions": pieces.cautions(first.forecast.cautions),
        "accuracy": pieces.accuracy_note(first),
    }


# Physical questions


def widths(drawn: str, class_: str = "seg") -> list[float]:
    found = re.findall(rf'width="([\d.e-]+)%"[^>]*class="{class_} ', drawn)
    return [float(width) for width in found]


def test_the_longest_tasks_are_those_of_the_part_that_bounds_the_step() -> None:
    one = view_of(wt.Workload.named("resnet18"), wt.Machine.named("h200"), Strategy(batch=64))
    drawn = longest_tasks(one)
    times = one.timeline.labels_of(one.forecast.bound_by)
    assert f'title="{max(times, key=lambda name: times[name])}"' in drawn
    shares = [float(share) for share in re.findall(r"\((\d+) %\)</span>", drawn)]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100
    several = view_of(wt.Workload.named("resnet18"), wt.Machine.named("2xh200"), Strategy(batch=64))
    assert longest_tasks(several) == "", "runs of ops have the name of one op only"


def test_the_segments_of_the_parts_bar_sum_to_the_step(views: list[ForecastView]) -> None:
    for view in views:
        assert sum(widths(pieces.parts_bar(view))) == pytest.approx(100, abs=0.01)


def test_a_faster_machine_has_a_shorter_bar_however_far_apart_they_are(views: list[ForecastView]) -> None:
    fast, slow = (
        views[0],
        replace(
            views[0],
            on="slow",
            forecast=replace(
                views[0].forecast,
                step_seconds=1000 * views[0].forecast.step_seconds,
                low_seconds=1000 * views[0].forecast.low_seconds,
                high_seconds=1000 * views[0].forecast.high_seconds,
                parts={part: 1000 * seconds for part, seconds in views[0].forecast.parts.items()},
            ),
        ),
    )
    rows = re.findall(r"<li>.*?</li>", pieces.comparison([fast, slow]))
    short, long = (sum(widths(row)) for row in rows[:2])
    assert 3 < short < long < 100, "the short one can still be seen"
    near = pieces.comparison([fast, views[0]])
    assert "logarithmic" not in near and "logarithmic" in pieces.comparison([fast, slow])


def test_the_memory_of_the_curve_peaks_where_the_forecast_says(views: list[ForecastView]) -> None:
    for view in views:
        peak = view.memory.peak
        assert peak.bytes == pytest.approx(view.forecast.memory.peak_bytes)
        assert sum(peak.parts.values()) == pytest.approx(peak.bytes)
        assert all(0 <= moment.place <= 1 for moment in view.memory.moments)
        places = [moment.place for moment in view.memory.moments]
        assert places == sorted(places)


def test_thinning_the_memory_curve_keeps_its_peak(views: list[ForecastView]) -> None:
    moments = views[0].memory.moments
    few = memory.thinned(moments, 7)
    assert len(few) <= 7 and max(m.bytes for m in few) == max(m.bytes for m in moments)


def test_the_peak_is_named_by_its_op_and_its_largest_class(views: list[ForecastView]) -> None:
    words = memory.peak_in_words(views[0].memory)
    peak = views[0].memory.peak
    assert peak.op in words and max(peak.parts, key=lambda part: peak.parts[part]) in words


def test_one_device_is_as_efficient_as_itself_and_more_are_never_more_than_linear(job: wt.Workload) -> None:
    found = scaling_curve(job, wt.Machine.named("h200"), Strategy(batch=8), counts=(1, 2, 8))
    assert isinstance(found, ScalingCurve)
    assert [step.devices for step in found.own_batch] == [1, 2, 8]
    assert found.own_batch[0].efficiency == 1.0
    assert all(step.efficiency <= 1.0 + 1e-6 for step in found.own_batch)
    assert all(step.batch == 8 for step in found.shared_batch)
    assert all(step.batch == 8 * step.devices for step in found.own_batch)


def test_a_cpu_and_a_divided_model_have_no_scaling_curve_and_say_why(job: wt.Workload) -> None:
    assert "computes on its CPU" in str(scaling_curve(job, wt.Machine.named("i7-3820")))
    tensor = Strategy(tensor_parallel=2)
    assert "divide the model" in str(scaling_curve(job, wt.Machine.named("2xh100"), tensor))
    assert "computes on its CPU" in pieces.scaling_chart("x computes on its CPU")


# The timeline


def timeline_of(count: int, seconds: float, device: float) -> Timeline:
    """A host that launches `count` ops and a device that runs them."""
    step = StepBuilder()
    for number in range(count):
        launch = step.add(LaneTask(Lane("host"), seconds, "launch", f"op{number}"))
        step.add(LaneTask(Lane("device"), device, "compute", f"op{number}"), after=(launch,))
    return steady_timeline(step.build())


@pytest.mark.parametrize(("host", "device"), [(1e-6, 3e-6), (3e-6, 1e-6), (2e-6, 2e-6)])
def test_a_lane_is_drawn_as_busy_as_it_is(host: float, device: float) -> None:
    timeline = timeline_of(50, host, device)
    drawn = lanes.drawn_lanes(timeline)
    busy = timeline.busy_shares()
    assert {lane.kind for lane in drawn} == {"host", "device"}
    for lane, spans in drawn.items():
        assert sum(span.work for span in spans) == pytest.approx(busy[lane.kind], rel=0.05)
        assert all(0 <= span.start <= span.end <= 1 + 1e-9 for span in spans)


def test_a_timeline_of_many_tasks_has_few_boxes_and_loses_no_time() -> None:
    timeline = timeline_of(20_000, 1e-6, 1e-6)
    drawn = lanes.drawn_lanes(timeline, most=200)
    assert sum(map(len, drawn.values())) <= 200
    for spans in drawn.values():
        assert sum(span.work for span in spans) == pytest.approx(1.0, rel=0.01)
    assert sum(span.count for span in drawn[Lane("device")]) >= 20_000


def test_long_tasks_are_never_merged() -> None:
    short = [
        lanes.DrawnSpan(start=i / 100, end=(i + 0.9) / 100, part="compute", label=f"s{i}") for i in range(50)
    ]
    long = lanes.DrawnSpan(start=0.5, end=0.9, part="copy", label="long")
    boxes = lanes.merged([*short, long], 0.02)
    assert sum(box.work for box in boxes) == pytest.approx(50 * 0.009 + 0.4), "gaps count as idle"
    assert boxes[-1] == long and len(boxes) < 20
    assert sum(box.count for box in boxes) == 51


def test_contended_tasks_and_many_workers_are_drawn_in_a_bounded_number_of_lanes() -> None:
    step = StepBuilder()
    for worker in range(40):
        slow = (Contention(Lane("peer link", worker), 1.2),)
        step.add(LaneTask(Lane("device", worker), 1.0, "compute", "op", contention=slow))
    assert len(lanes.drawn_lanes(steady_timeline(step.build()))) == lanes.MOST_LANES


# Colours and design


def test_every_part_and_memory_class_has_one_colour_that_the_style_knows() -> None:
    style = design.css()
    for name in (*PARTS, *MEMORY_CLASSES):
        assert f".{kind(name)} {{" in style, name
        assert f"--{kind(name).removeprefix('c-')}: light-dark(" in style, name
    assert kind("something new") == "c-other"
    assert len({kind(name) for name in PARTS}) == len(PARTS)


def test_every_part_of_a_forecast_is_coloured_alike_in_every_chart(report: ForecastReport) -> None:
    """Hand-worked: each chart that shows parts uses the class of the part, and no colour of its own."""
    drawn = every_piece(report)
    parts = {part for view in report.views for part, seconds in view.forecast.parts.items() if seconds > 0}
    assert {kind(part) for part in parts} <= Page(drawn["comparison"]).classes()
    own = {kind(part) for part, seconds in report.views[0].forecast.parts.items() if seconds > 0}
    for name in ("parts", "timeline"):
        assert own <= Page(drawn[name]).classes(), name
    for words in drawn.values():
        assert not re.search(r'(fill|stroke|style)="', words), "colours come from classes"


def test_every_class_that_a_piece_uses_with_a_colour_is_in_the_style(report: ForecastReport) -> None:
    style = design.css()
    used = {c for words in every_piece(report).values() for c in Page(words).classes() if c.startswith("c-")}
    assert used and all(f".{name} {{" in style for name in used)


def test_every_chart_says_in_words_what_it_shows_and_has_its_numbers_as_a_table(
    report: ForecastReport,
) -> None:
    for name, words in every_piece(report).items():
        page = Page(words)
        charts = re.findall(r'<svg class="chart[^>]*>', words)
        assert all('role="img"' in chart and 'aria-label="' in chart for chart in charts), name
        if name in ("parts", "memory", "need", "timeline", "factors", "scaling", "feed", "comparison"):
            assert "table" in page.tags, name
        assert page.wrong == [] and page.open == [], name


# Hostile input


def test_names_from_outside_can_only_be_read(report: ForecastReport) -> None:
    view = report.views[0]
    forecast = replace(
        view.forecast, job=HOSTILE, machine=HOSTILE, cautions=(HOSTILE,), host=HOSTILE, inputs=HOSTILE
    )
    tasks = tuple(task._replace(label=HOSTILE, module=HOSTILE) for task in view.timeline.tasks)
    moments = tuple(replace(moment, op=HOSTILE, module=HOSTILE) for moment in view.memory.moments)
    hostile = replace(
        view,
        on=HOSTILE,
        forecast=forecast,
        timeline=replace(view.timeline, tasks=tasks),
        memory=replace(view.memory, moments=moments),
        machine=replace(view.machine, name=HOSTILE),
    )
    words = document.build(
        ForecastReport(
            job=HOSTILE,
            command=HOSTILE,
            views=(hostile, hostile),
            feeds=(None, None),
            advice=HOSTILE,
            scaling=HOSTILE,
            influence=HOSTILE,
        )
    )
    page = Page(words)
    assert page.tags.count("script") == words.count("<script") == 1, "the page's own"
    assert page.wrong == [] and "\x1b" not in words and "\u202e" not in words
    assert words.count("&lt;script&gt;") > 10


def test_a_link_that_applies_advice_is_escaped(report: ForecastReport) -> None:
    assert report.advice is not None and not isinstance(report.advice, str)
    words = pieces.advice_list(report.advice, link=lambda each: '/?a="><script>')
    assert "<script" not in words and 'class="button"' in words
    assert "button" not in Page(pieces.advice_list(report.advice)).classes()


# The file


def test_the_report_is_one_file_that_fetches_nothing_and_allows_only_its_own_script(
    report: ForecastReport,
) -> None:
    words = document.build(report)
    page = Page(words)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not re.search(r"https?://|@import|url\((?!#)", words)
    assert not [name for _, name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert all(value.startswith("#") for _, name, value in page.attributes if name in ("href", "src"))
    assert page.wrong == []
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    assert policy == design.policy() and "unsafe" not in policy
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_style_and_script_are_files_of_the_package() -> None:
    folder = files("windtunnel.reports.design")
    kept = {each.name for each in folder.iterdir() if each.name.endswith((".css", ".js"))}
    assert kept == {*design._STYLES, *design._SCRIPTS}
    declared = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert '"reports/design/*.css"' in declared and '"reports/design/*.js"' in declared


def test_what_cannot_be_had_is_said_in_its_place(job: wt.Workload) -> None:
    found = gather(job, [("i7-3820", wt.Machine.named("i7-3820"))], Strategy(), brief=True)
    assert found.advice is None and "What to change" not in document.build(found)
    told = replace(found, advice="no rule applies", scaling="a CPU is one device", influence="none")
    words = document.build(told)
    assert "no rule applies" in words and "a CPU is one device" in words


def test_a_step_that_does_not_fit_has_a_report_that_says_so() -> None:
    big = view_of(wt.Workload.named("resnet50"), wt.Machine.named("k80"), Strategy(batch=512), on="k80")
    assert not big.fits
    assert "does not fit" in pieces.headline(big) and "It does not fit." in pieces.memory_need(big)
    assert "does not fit" in pieces.comparison([big, big])


@pytest.mark.parametrize(
    ("job", "machines", "name"),
    [
        ("resnet50", ("h200",), "resnet50-h200.html"),
        ("my job", ("a/b.toml", "8xh100"), "my-job-b-8xh100.html"),
        ("../../etc/passwd", ("h200",), "etc-passwd-h200.html"),
        ("x" * 300, ("h200",), "x" * 80 + ".html"),
        ("<>", ("\u202e",), "part.html"),
    ],
)
def test_the_name_of_the_file_follows_from_job_and_machine(
    job: str, machines: tuple[str, ...], name: str
) -> None:
    assert document.file_name(job, machines) == name


def test_a_report_replaces_a_report_and_nothing_else(tmp_path: Path, report: ForecastReport) -> None:
    path = tmp_path / "a.html"
    document.refuse_other_file(path)
    document.write(report, path)
    document.refuse_other_file(path)
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    with pytest.raises(BadInput, match="is not a report of windtunnel"):
        document.refuse_other_file(other)
    with pytest.raises(BadInput, match="a report is an HTML file"):
        document.refuse_other_file(tmp_path / "report.pdf")


# At the command line

RNN = ("report", "rnn", "n_rec=20", "n_steps=5")


def test_the_command_writes_a_report_of_several_machines_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    done = run(*RNN, "--on", "k80", "--on", "i7-3820", "--brief", "--out", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {path}: open it in a browser; it needs no network.\n"
    words = path.read_text()
    assert "Machines side by side" in words and "rnn on k80 and i7-3820" in words
    assert "n_rec=20" in words, "the command to repeat it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*RNN, "--on", "nowhere"), "No machine is called"),
        ((*RNN, "--on", "k80", "--out", "x.txt"), "a report is an HTML file"),
        ((*RNN, "--on", "k80", "--out", "/nowhere/x.html"), "cannot be written"),
        ((*RNN, *(word for i in range(13) for word in ("--on", f"{i + 1}xk80"))), "at most 12"),
        (("report", "--on", "k80"), "No job is named"),
        ((*RNN, "--on", "k80", "--json"), "No such option"),
        ((*RNN, "--on", "k80", "--precision", "fp7"), "precision"),
    ],
)
def test_bad_input_is_refused_before_any_work(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(*words, folder=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    done = run(*RNN, "--on", "k80", "--brief", "--out", str(path))
    assert done.returncode == 2 and "is not replaced" in done.stderr and path.read_text() == "mine"


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


@pytest.fixture(scope="module")
def file(report: ForecastReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return document.write(report, tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_the_report_opens_offline_without_a_message_and_never_scrolls_sideways(
    browser: Any, file: Path, width: int, scheme: str
) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened.context.set_offline(True)
    messages: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(file.as_uri())
    assert messages == [] and requests == [file.as_uri()]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


def test_a_timeline_zooms_by_button_and_key_and_says_what_a_box_is(browser: Any, file: Path) -> None:
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    opened.goto(file.as_uri())
    scroll = opened.locator(".scroll").first
    before = scroll.evaluate("each => each.scrollWidth")
    opened.locator("[data-zoom=in]").first.click()
    assert scroll.evaluate("each => each.scrollWidth") > 1.9 * before
    scroll.focus()
    opened.keyboard.press("+")
    assert scroll.evaluate("each => each.scrollWidth") > 3.8 * before
    opened.keyboard.press("0")
    assert scroll.evaluate("each => each.scrollWidth") == before
    box = opened.locator(".task").first
    box.hover()
    said = box.locator("title").text_content()
    assert opened.locator(".readout").first.text_content() == said
    opened.close()


def test_the_theme_button_overrides_the_system(browser: Any, file: Path) -> None:
    opened = browser.new_page(color_scheme="light")
    opened.goto(file.as_uri())
    colour = "getComputedStyle(document.body).backgroundColor"
    assert opened.evaluate(colour) == "rgb(255, 255, 255)"
    opened.get_by_role("button", name="Dark").click()
    assert opened.evaluate(colour) == "rgb(18, 22, 27)"
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(browser: Any, file: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    # axe is put into the page, which the page's own policy forbids.
    opened = browser.new_context(bypass_csp=True, color_scheme=scheme).new_page()
    opened.goto(file.as_uri())
    opened.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    found = axe.Axe().run(opened).response["violations"]
    serious = {
        each["id"]: each["nodes"][0]["html"] for each in found if each["impact"] in ("serious", "critical")
    }
    assert serious == {}
    opened.close()


def test_measured_steps_stand_beside_their_forecasts_and_misses_are_counted() -> None:
    """A forecast of 10 ms (8 to 12 ms) beside measured steps of 11 and 20 ms: one is inside."""
    from types import SimpleNamespace

    forecast = SimpleNamespace(step_seconds=0.010, low_seconds=0.008, high_seconds=0.012)
    rows = [
        (what, forecast, SimpleNamespace(step_seconds=seconds))
        for what, seconds in (("<a>", 0.011), ("b", 0.020))
    ]
    text = str(measured_table(rows))  # type: ignore[arg-type]
    assert "1 of 2 measured steps" in text and "&lt;a&gt;" in text and "<a>" not in text
    assert text.index("0.91") < text.index(">yes<") < text.index("0.50") < text.index(">no<")
