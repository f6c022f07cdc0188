"""The timeline of one steady step by lanes: what runs where, when. Tiny spans are merged, never dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windtunnel import units
from windtunnel.forecast.schedule import Lane, Span
from windtunnel.forecast.timeline import Timeline
from windtunnel.perfetto import LANES as ORDER
from windtunnel.reports.forecast.marks import (
    box,
    drawing,
    kind,
    legend,
    note,
    numbers,
    percent,
    rule,
    share,
    words,
)
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, Piece, element, joined

MOST_BOXES = 900  # in one timeline: more are slow to draw and cannot be told apart
MOST_LANES = 16
_ROW, _BAR, _TOP = 30.0, 22.0, 20.0
_LEAST_BAR = 2.0
_AHEAD = "The host runs ahead: while the device computes this step, the host launches a later one."
_TICKS = 4
_TITLES = {
    "host": "host (launches)",
    "copy": "copy engine",
    "memory": "host memory",
    "cores": "host cores",
    "loader": "loaders",
}
# Text in a box shows from a zoom on at which the box is wide enough: (share of the step, class).
_WIDE = ((0.07, "z1"), (0.02, "z4"), (0.005, "z16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSpan:
    """A box of a timeline, from 0 to 1 of the step.

    `count`: how many spans were merged to it; `busy`: the share of the box in which they work. A box is as
    high as that share, so that its area is its work.
    """

    start: float
    end: float
    part: str
    label: str
    module: str = ""
    count: int = 1
    busy: float = 1.0

    @property
    def work(self) -> float:
        """Its share of the step."""
        return (self.end - self.start) * self.busy


def timeline_chart(view: ForecastView) -> Markup:
    """One lane below the other over one steady step. The script zooms; without it all is there, at once."""
    timeline = view.timeline
    spans_by_lane = _spans_by_lane(timeline)
    lanes = _few_boxes(spans_by_lane, MOST_BOXES)
    length = (timeline.end - timeline.begin) or 1.0
    hidden = len(spans_by_lane) - len(lanes)
    busy = {lane: sum(span.work for span in spans) for lane, spans in lanes.items()}
    label = f"Timeline of one step on {view.name}: " + "; ".join(
        f"{lane_title(lane)} busy {percent(min(1.0, total))}" for lane, total in busy.items()
    )
    height = _TOP + _ROW * len(lanes)
    names = element("ul", *(element("li", lane_title(lane)) for lane in lanes), class_="lanes")
    marks: list[Piece] = [*_axis(length, height)]
    for row, spans in enumerate(lanes.values()):
        marks += [_box(span, _TOP + row * _ROW + (_ROW - _BAR) / 2, length) for span in spans]
    chart = drawing(height, *marks, label=label, class_="chart timeline")
    scroll = element(
        "div", chart, class_="scroll", tabindex="0", role="group", aria_label=f"{label}. Scrolls."
    )
    parts = {span.part for spans in lanes.values() for span in spans}
    several = f" {timeline.period_steps} steps, which repeat." if timeline.period_steps > 1 else ""
    more = [note(f"{hidden} more lanes of like workers are not drawn.")] if hidden > 0 else []
    more += [note(_AHEAD)] if _runs_ahead(timeline) else []
    return joined(
        [
            element(
                "div",
                _controls(),
                element("div", names, scroll, class_="frame"),
                _readout(several),
                class_="zoomable",
                data_zoomable="1",
            ),
            legend((part, "") for part in kinds_in_order(parts)),
            *more,
            _table(lanes, length),
        ]
    )


def _runs_ahead(timeline: Timeline) -> bool:
    """Whether the host has launched most of a step before the device begins it."""
    first = len(timeline.tasks) - timeline.tasks_per_step * timeline.period_steps
    ahead = work = 0.0
    for span in timeline.spans:
        if span.task >= first and timeline.tasks[span.task].lane.kind == "host":
            work += span.end - span.start
            ahead += max(0.0, min(span.end, timeline.begin) - span.start)
    return work > 0 and ahead > 0.5 * work


def drawn_lanes(timeline: Timeline, most: int = MOST_BOXES) -> dict[Lane, list[DrawnSpan]]:
    """The boxes of each lane, merged until there are at most this many in all."""
    return _few_boxes(_spans_by_lane(timeline), most)


def _few_boxes(spans_by_lane: dict[Lane, list[DrawnSpan]], most: int) -> dict[Lane, list[DrawnSpan]]:
    found = dict(list(spans_by_lane.items())[:MOST_LANES])
    least = 0.0
    lanes = {lane: merged(spans, least) for lane, spans in found.items()}
    while sum(map(len, lanes.values())) > most and least < 1.0:
        least = max(1.3 * least, 1e-4)
        lanes = {lane: merged(spans, least) for lane, spans in found.items()}
    return lanes


def merged(spans: Sequence[DrawnSpan], least: float) -> list[DrawnSpan]:
    """Spans in a row that are each shorter than `least`, with gaps shorter than it, become one box."""
    boxes: list[list[DrawnSpan]] = []
    for span in spans:
        before = boxes[-1] if boxes else None
        is_tiny = span.end - span.start < least
        if before and is_tiny and before[-1].end - before[-1].start < least:
            gap, length = span.start - before[-1].end, before[-1].end - before[0].start
            if gap < least and length < 4 * least:
                before.append(span)
                continue
        boxes.append([span])
    return [_one(group) for group in boxes]


def lane_title(lane: Lane) -> str:
    name = _TITLES.get(lane.kind, lane.kind)
    return f"{name}, worker {lane.worker}" if lane.worker else name


def kinds_in_order(parts: set[str]) -> list[str]:
    from windtunnel.results import PARTS

    return [part for part in PARTS if part in parts] + sorted(parts - set(PARTS))


def _spans_by_lane(timeline: Timeline) -> dict[Lane, list[DrawnSpan]]:
    """The spans of the steady period by lane, from top to bottom of the chart.

    A lane that runs ahead of the others (a host that launches faster than the device computes) has done the
    work of the period before it begins. It is drawn later by whole steps.
    """
    length = timeline.end - timeline.begin
    first = len(timeline.tasks) - timeline.tasks_per_step * timeline.period_steps
    own: dict[Lane, list[Span]] = {}
    inside: dict[Lane, list[Span]] = {}
    for span in timeline.spans:
        lane = timeline.tasks[span.task].lane
        if span.end > span.start and span.task >= first:
            own.setdefault(lane, []).append(span)
        if min(span.end, timeline.end) > max(span.start, timeline.begin):
            inside.setdefault(lane, []).append(span)
    lanes = {}
    for lane, spans in own.items():
        seen = sum(min(s.end, timeline.end) - max(s.start, timeline.begin) for s in inside.get(lane, ()))
        work = sum(span.end - span.start for span in spans)
        chosen = _later(spans, timeline.begin, length) if seen < 0.5 * work else inside[lane]
        lanes[lane] = sorted(_drawn(timeline, chosen), key=lambda each: each.start)
    return dict(sorted(lanes.items(), key=lambda item: (item[0].worker, _order(item[0].kind))))


def _later(spans: Sequence[Span], begin: float, length: float) -> list[Span]:
    """The spans later by as many whole periods as bring their first one into the period."""
    first = min(span.start for span in spans)
    shift = math.ceil(max(0.0, begin - first) / length) * length if length else 0.0
    moved = [span._replace(start=span.start + shift, end=span.end + shift) for span in spans]
    # What then lies behind the end is also what the period before leaves at the beginning.
    wrapped = [span._replace(start=span.start - length, end=span.end - length) for span in moved]
    return [*wrapped, *moved]


def _drawn(timeline: Timeline, spans: Sequence[Span]) -> Iterator[DrawnSpan]:
    """What of the spans lies within the period."""
    length = (timeline.end - timeline.begin) or 1.0
    for span in spans:
        start, end = max(span.start, timeline.begin), min(span.end, timeline.end)
        if end > start:
            task = timeline.tasks[span.task]
            yield DrawnSpan(
                start=(start - timeline.begin) / length,
                end=(end - timeline.begin) / length,
                part=task.part,
                label=task.label or task.part,
                module=task.module,
            )


def _order(name: str) -> tuple[int, str]:
    title = {"copy": "copy engine"}.get(name, name)
    place = next((place for place, known in enumerate(ORDER) if title.startswith(known)), len(ORDER))
    return place, name


def _one(group: Sequence[DrawnSpan]) -> DrawnSpan:
    if len(group) == 1:
        return group[0]
    work: dict[str, float] = {}
    for span in group:
        work[span.part] = work.get(span.part, 0.0) + span.work
    start, end = group[0].start, group[-1].end
    return DrawnSpan(
        start=start,
        end=end,
        part=max(work, key=lambda part: work[part]),
        label=f"{len(group)} short tasks, such as {group[0].label}",
        module=group[0].module,
        count=len(group),
        busy=min(1.0, sum(work.values()) / (end - start)) if end > start else 1.0,
    )


def _axis(length: float, height: float) -> list[Piece]:
    """Four parts of the step; sixteen and sixty-four where the zoom makes room for them."""
    marks: list[Piece] = []
    for parts, tier in ((_TICKS, ""), (4 * _TICKS, " z4"), (16 * _TICKS, " z16")):
        for tick in range(parts + 1):
            if tier and tick % 4 == 0:
                continue  # the coarser ticks are there already
            x = tick / parts
            side = "" if tick == 0 else " end" if tick == parts else " mid"
            odd = " odd" if not tier and tick % 2 else ""  # left out where there is little room
            marks += [
                rule(x, 16, x, height, f"grid{tier}"),
                words(x, 11, units.show(length * x, "s"), f"tick{side}{odd}{tier}"),
            ]
    return marks


def _box(span: DrawnSpan, y: float, length: float) -> Markup:
    """A box; its title is what a pointer that rests on it shows."""
    width = span.end - span.start
    said = f"{span.label}: {units.show(span.work * length, 's')}, {span.part}"
    if span.module:
        said += f", in {span.module}"
    height = max(_LEAST_BAR, _BAR * span.busy)
    place_y = y + _BAR - height
    drawn = box(span.start, width, place_y, height, f"task {kind(span.part)}", element("title", said))
    tier = next((class_ for least, class_ in _WIDE if width >= least), "")
    if not tier or span.count > 1:
        return drawn
    # An inner drawing cuts off what does not fit.
    text = element("text", span.label, x="5", y="15", class_=f"on {kind(span.part)}")
    place = {"x": share(span.start), "width": share(width)}
    return joined(
        [drawn, element("svg", text, y=f"{y:g}", height=f"{_BAR:g}", class_=f"label {tier}", **place)]
    )


def _controls() -> Markup:
    """Buttons of the zoom; hidden until the script makes them work."""
    buttons = (
        element("button", sign, type="button", data_zoom=step, aria_label=said, title=said)
        for sign, step, said in (
            ("\N{MINUS SIGN}", "out", "Zoom out"),
            ("+", "in", "Zoom in"),
            ("1:1", "fit", "Show the whole step"),
        )
    )
    return element(
        "div", *buttons, class_="controls", role="group", aria_label="Zoom of the timeline", hidden=""
    )


def _readout(more: str) -> Markup:
    keys = "In the timeline, the keys + and \N{MINUS SIGN} zoom and the arrows move."
    said = f"Point at a box to see what it is.{more} {keys}"
    return element("p", said, class_="readout soft", aria_live="polite")


def _table(lanes: dict[Lane, list[DrawnSpan]], length: float) -> Markup:
    """The longest boxes of each lane as text."""
    rows = []
    for lane, spans in lanes.items():
        longest = sorted(spans, key=lambda span: -span.work)[:5]
        rows += [
            [
                lane_title(lane),
                span.label,
                span.part,
                units.show(span.start * length, "s"),
                units.show(span.work * length, "s"),
            ]
            for span in longest
        ]
    return numbers("The longest tasks of each lane", ("Lane", "Task", "Part", "Start", "Time"), rows)
