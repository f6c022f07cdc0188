"""Results in a notebook: every result shows itself, legibly on light, dark and narrow pages, and safely."""

from __future__ import annotations

import dataclasses
import functools
import html.parser
import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import fly
from test_results import result

import windtunnel as wt
from windtunnel import displays
from windtunnel.advice.engine import AdviceOptions
from windtunnel.exchange.comparison import ExchangeRow, ExchangeTable
from windtunnel.exchange.outcome import ClusterComparison, ClusterRow, ClusterTraining
from windtunnel.exchange.run import ExchangeSettings
from windtunnel.exchange.variation import Variation
from windtunnel.feed.remedies import FedStep, RemedyTable
from windtunnel.feed.worked_example import worked_example
from windtunnel.measurement.compare import ComparedSide
from windtunnel.planning.run import RunLength, RunTotals
from windtunnel.planning.table import RankedPlan, ScalingPoint
from windtunnel.results import PARTS, Result

NASTY = '<img src=x onerror=alert(1)> & "quoted" <b>'
SHOWN = {"div", "strong", "table", "tr", "th", "td", "pre", "p", "thead", "tbody", "ul", "li", "span", "a"}


class Reader(html.parser.HTMLParser):
    """Tags, styles and text of a piece of HTML; every opened tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.styles: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.names |= {name for name, _ in attrs}
        self.styles += [value or "" for name, value in attrs if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@functools.cache
def forecast() -> wt.Forecast:
    return fly("rnn", "h200", n_rec=20, n_steps=5)


def measurement() -> wt.Measurement:
    shared = {f.name: getattr(result(job=NASTY), f.name) for f in dataclasses.fields(Result)}
    return wt.Measurement(**shared, samples=300, processes=3, first_seconds=0.2, stopped_by="its interval")


def comparison() -> wt.PairedComparison:
    sides = [
        ComparedSide(name=name, words="threads", batch=1, step_seconds=0.01, first_seconds=None, samples=90)
        for name in (NASTY, "threads=2")
    ]
    return wt.PairedComparison(
        job=NASTY, machine="here", a=sides[0], b=sides[1], verdict="different", ratio=1.5, low=1.4, high=1.6,
        level=0.95, within=0.05, per="step", pairs=(1.5, 1.52), rounds=180, seconds=20.0,
        stopped_by="its interval",
    )  # fmt: skip


def remedies() -> RemedyTable:
    fed = FedStep(
        name="now", what="", step_seconds=0.02, utilisation=0.5, bound_by="feed", busy={"loader": 1.0}
    )
    none = FedStep(name="NVMe", what=NASTY, reason="no drive is stated")
    return RemedyTable(title=NASTY, steps=(fed, none), cautions=(NASTY,))


def exchange() -> ExchangeTable:
    rows = [
        ExchangeRow(form=form, workers=8, step_seconds=0.1, examples_per_second=640.0, speedup=speedup,
                    staleness=3.0, high_staleness=6.0, wait_share=0.1, served_rate=1e9)
        for form, speedup in (("sync", 7.0), ("async", 7.9))
    ]  # fmt: skip
    return ExchangeTable(
        job=NASTY, machine="h100", batch=8, variation=Variation(), rows=tuple(rows), cautions=(NASTY,)
    )


def cluster() -> ClusterTraining:
    rows = [
        ClusterRow(seconds=s, changes=s, epochs=s, examples=s, figures={"accuracy": s / 10}) for s in range(4)
    ]
    return ClusterTraining(
        network=NASTY, machine="h100", exchange="async", workers=8, settings=ExchangeSettings(),
        variation=Variation(), rows=tuple(rows), metric="accuracy", better="higher", goal=None, reached=None,
        staleness=3.0, wait_share=0.2,
    )  # fmt: skip


def plan() -> wt.PlanTable:
    run = RunTotals(steps=10, seconds=1.0, device_hours=0.5, cost=1.0)
    strategy = wt.Strategy(data_parallel=2, batch=64)
    best = RankedPlan(strategy=strategy, forecast=forecast(), devices=2, mfu=0.4, run=run)
    curve = [
        ScalingPoint(devices=n, batch=64, degrees=(n, 1, 1), step_seconds=1 / n, examples_per_second=64.0 * n,
                     efficiency=1.0, run=run)
        for n in (1, 2)
    ]  # fmt: skip
    return wt.PlanTable(
        job=NASTY, machine="2xh100", goal=wt.PlanGoal(price=2.0), length=RunLength(examples=1000),
        plans=(best, best), curve=tuple(curve), refused=(NASTY,), searched="3 ways", notes=(NASTY,),
    )  # fmt: skip


def crossover() -> wt.Crossover:
    from windtunnel.study.crossover.crossing import Crossing, Point, StepTiming

    timings = {
        side: StepTiming(seconds=s, low_seconds=s, high_seconds=s)
        for side, s in (("cpu", 1e-3), ("cuda", 2e-3))
    }
    points = (Point(value=10, timings=timings),)
    return wt.Crossover(
        job=NASTY, over="n_rec", low=10, high=5000, between=("cpu", "cuda"), points=points,
        crossings=(Crossing(at=300.0, low=250.0, high=400.0, faster="cuda"),), origins={"cpu": NASTY},
        cautions=(NASTY,),
    )  # fmt: skip


def advice() -> wt.Advice:
    return wt.advise(wt.Workload.named("fcn5"), wt.Machine.named("h200"), options=AdviceOptions(seconds=3600))


def influence() -> wt.Influence:
    return wt.factors(
        wt.Workload.named("ffn"), wt.Machine.named("h200"), options=wt.FactorOptions(only=("batch",))
    )


def training() -> wt.TrainingResult:
    return wt.train("ffn", wt.TrainingOptions(epochs=1))


def study() -> wt.StudyReport:
    paper = wt.Study.named("brandfonbrener-2017")
    return wt.StudyReport(study=paper, rows=tuple(paper.published()))


RESULTS: dict[str, Callable[[], Any]] = {
    "Forecast": forecast,
    "Measurement": measurement,
    "PairedComparison": comparison,
    "RemedyTable": remedies,
    "WorkedExample": worked_example,
    "ExchangeTable": exchange,
    "ClusterTraining": cluster,
    "ClusterComparison": lambda: ClusterComparison(trainings=(cluster(),)),
    "PlanTable": plan,
    "Crossover": crossover,
    "Advice": advice,
    "Influence": influence,
    "TrainingResult": training,
    "StudyReport": study,
}


@functools.cache
def shown(name: str) -> Reader:
    return Reader(RESULTS[name]()._repr_html_())


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_in_a_notebook_is_whole_and_has_no_markup_of_the_user(name: str) -> None:
    """A name with markup stays text: no tag, no attribute that runs code, nothing fetched."""
    reader = shown(name)
    assert (
        set(reader.tags) <= SHOWN
        and not {n for n in reader.names if n.startswith("on")} | {"src"} & reader.names
    )
    assert len(reader.text.split()) > 10
    assert "<img" not in reader.text or NASTY.split(" &")[0] in reader.text
    assert "\0" not in reader.text and "object at 0x" not in reader.text


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "StudyReport"])
def test_a_result_takes_its_colours_from_the_page_and_scrolls_in_its_own_box(name: str) -> None:
    """Only so it is legible on light and on dark pages, and never wider than a narrow one."""
    reader = shown(name)
    for style in reader.styles:
        for colour in re.findall(r"(?:color|background)\s*:\s*([^;]+)", style):
            assert colour in ("currentColor", "inherit", "none", *displays.PART_COLOURS.values())
        assert not re.search(r"(?<!max-)(?<!-)width:\s*\d", style)
    wide = [tag for tag in ("pre",) if tag in reader.tags]
    assert not wide or any("overflow-x:auto" in style for style in reader.styles)


def test_texts_of_the_user_are_shown_as_they_are() -> None:
    for name in ("Measurement", "RemedyTable", "ExchangeTable", "Crossover", "PlanTable", "PairedComparison"):
        assert NASTY in shown(name).text, name


def test_every_result_that_prints_itself_shows_itself_in_a_notebook() -> None:
    """What has plain data and a text is a result."""
    for found in pkgutil.walk_packages(wt.__path__, "windtunnel."):
        if found.name.startswith(("windtunnel.measurement.frameworks", "windtunnel.__main__")):
            continue  # they import frameworks that need not be here
        module = importlib.import_module(found.name)
        for each in vars(module).values():
            if not (
                isinstance(each, type) and each.__module__ == found.name and dataclasses.is_dataclass(each)
            ):
                continue
            prints = "__str__" in vars(each) or issubclass(each, displays.Displayed)
            if prints and hasattr(each, "plain"):
                assert hasattr(each, "_repr_html_"), each
    public = [getattr(wt, name) for name in wt.__all__]
    results = {each.__name__ for each in public if isinstance(each, type) and hasattr(each, "_repr_html_")}
    assert results <= {*RESULTS, "Validation"}, "a new result joins the contract"


def test_a_bar_has_every_part_and_its_shares_fill_it() -> None:
    reader = Reader(displays.bar({"launch": 1.0, "compute": 3.0, "copy": 0.0}))
    shares = [float(share) for style in reader.styles for share in re.findall(r"flex:([\d.]+)", style)]
    assert shares == [0.75, 0.25] and displays.bar({}) == displays.bar({"compute": 0.0}) == ""


def test_parts_have_the_colours_of_every_other_chart_and_stand_out_on_light_and_dark_pages() -> None:
    tokens = (Path(displays.__file__).parent / "reports/design/tokens.css").read_text(encoding="utf-8")
    assert set(displays.PART_COLOURS) == set(PARTS)
    for part, colour in displays.PART_COLOURS.items():
        assert re.search(rf"--{part}: {colour};", tokens), part
        for page in ("#ffffff", "#111111"):
            assert contrast(colour, page) >= 3, (part, page)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_plan_in_a_notebook_has_a_table_of_devices_and_its_bend() -> None:
    reader = shown("PlanTable")
    assert "efficiency" in reader.text and "gains" in reader.text and "d x t x p" not in reader.text


def test_columns_stay_apart_where_the_notebook_has_no_style_for_tables() -> None:
    reader = Reader(
        displays.table(("devices", "step"), [("8", "20 ms")]) + displays.facts([("step", "20 ms")])
    )
    cells = [style for style in reader.styles if "text-align" in style]
    assert len(cells) == 6 and all("padding" in style for style in cells)
