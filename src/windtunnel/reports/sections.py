"""The parts of a study's page: claims, figures with their tables and charts, cold starts, failures, the environment."""

from __future__ import annotations

import functools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windtunnel import units
from windtunnel.errors import Unavailable
from windtunnel.reports import charts, drawing, maps
from windtunnel.reports.lines import Cell, Line, Sheet, in_order
from windtunnel.reports.page import Column, Markup, Piece, cell, element, joined, table
from windtunnel.reports.text import MARK, TIMES, effect_words, ratio_words
from windtunnel.study.rows import Row, Verdict

_SLOWED = 1.02  # less is not worth a word
_MOST_MAPS, _MOST_STRIPS, _MOST_CHARTS = 6, 3, 140
_PLACE = "<!--chart {}-->"
_MOST_FACTS = 8
_LONG = 60  # cells beyond which a table is folded away
_RULINGS = {"holds": ("holds", "✓"), "does not hold": ("does", "✗"), "can't tell": ("open", "?")}


class Album:
    """Takes charts until there are enough for one page, and draws them all at the end; says why there are none where none can be drawn."""

    def __init__(self) -> None:
        self._kept: list[tuple[charts.Chart, str, str]] = []
        self.left_out = 0
        self.missing = ""
        try:
            charts.can_draw()
        except Unavailable as error:
            self.missing = str(error)

    def draw(self, make: Callable[[], charts.Chart], title: str, description: str) -> Markup:
        """A place for the chart, which `filled` fills."""
        if self.missing:
            return Markup("")
        if len(self._kept) >= _MOST_CHARTS:
            self.left_out += 1
            return Markup("")
        self._kept.append((make(), title, description))
        return element("figure", Markup(_PLACE.format(len(self._kept))))

    def filled(self, text: str) -> str:
        """The page with every chart in its place."""
        svgs = drawing.draw([chart for chart, _, _ in self._kept])
        drawn = [
            charts.inline(svg, f"c{number}", title, words)
            for number, (svg, (_, title, words)) in enumerate(zip(svgs, self._kept, strict=True), 1)
        ]
        return re.sub(_PLACE.format(r"(\d+)"), lambda found: drawn[int(found[1]) - 1], text)

    def grid(self, heading: str, words: str, figures: Sequence[Markup]) -> Markup:
        shown = [figure for figure in figures if figure]
        if not shown:
            return Markup("")
        return joined(
            [
                element("h3", heading),
                element("p", words, class_="soft"),
                element("div", *shown, class_="charts"),
            ]
        )


def claims(verdicts: Sequence[Verdict]) -> Piece:
    """Every claim with what became of it."""
    if not verdicts:
        return element("p", "This study has no claims, or none was judged.")
    columns = [Column(head=head) for head in ("Here", "Claim", "Effect found", "Published", "Why")]
    rows = [[ruling(verdict.ruling), *_claim_cells(verdict)] for verdict in verdicts]
    return table("Each finding of the paper as a check with numbers.", columns, rows, heads=0)


def ruling(word: str) -> Markup:
    kind, sign = _RULINGS.get(word, ("open", "?"))
    return element("span", f"{sign} {word}", class_=f"ruling {kind}")


def _claim_cells(verdict: Verdict) -> list[Piece]:
    source = f"{verdict.source}; from {verdict.rows} cells" if verdict.rows else verdict.source
    claim = cell(verdict.text or verdict.claim, " ", element("small", source), kind="wide")
    published = cell(verdict.published or "not stated", kind="mid")
    return [
        claim,
        cell(effect_words(verdict), kind="mid"),
        published,
        cell(verdict.reason or "no reason given", kind="wide"),
    ]


def figure(sheet: Sheet, album: Album) -> Piece:
    """One figure: in brief, its plots, published beside today's, its maps, its samples and what failed."""
    parts: list[Piece] = [element("p", words, class_="soft") for words in (sheet.source, sheet.note) if words]
    if sheet.quoted:
        columns = [
            Column(head="Figure"),
            Column(head="Value", kind="n"),
            Column(head="Counted in"),
            Column(head="Source"),
        ]
        rows = [
            [
                each.name,
                units.digits(each.value),
                each.counted,
                joined([each.source, element("small", f" {each.note}")]),
            ]
            for each in sheet.quoted
        ]
        parts.append(table("Single figures that were published.", columns, rows))
    if not sheet.lines:
        return joined(
            [
                *parts,
                *(
                    []
                    if sheet.quoted
                    else [element("p", "There are no rows for this figure.", class_="note")]
                ),
            ]
        )
    parts += [
        brief(sheet),
        _plots(sheet, album),
        _beside(sheet),
        _maps(sheet, album),
        _strips(sheet, album),
        failures(sheet),
    ]
    return joined(parts)


def plot(sheet: Sheet, album: Album) -> Markup:
    """A picture of the paper drawn again from the rows of several figures."""
    axis = sheet.axes[0]
    if not sheet.shown:
        return element("p", f"There are no rows yet for the plot over {axis}.", class_="note")
    figures = [
        album.draw(
            functools.partial(charts.against, sheet, axis, group, {}, name),
            f"{sheet.heading}: {name}",
            _description(sheet, group),
        )
        for name, group in _panels(sheet)
    ]
    return album.grid(
        f"Over {axis}",
        f"{sheet.counted} against {axis}; published lines are dashed, forecasts dotted.",
        figures,
    )


def _panels(sheet: Sheet) -> list[tuple[str, list[Line]]]:
    """One panel where the lines can be told apart in it, else the published ones and today's by turns, all on the same axes."""
    if len(sheet.shown) <= charts.MOST_LINES:
        return [("Published and today", sheet.shown)]
    return [
        *_numbered("Published", _batched(sheet.published, charts.MOST_LINES)),
        *_numbered("Today", _batched(sheet.todays, charts.MOST_LINES)),
    ]


def _batched(lines: Sequence[Line], most: int) -> list[list[Line]]:
    return [list(lines[start : start + most]) for start in range(0, len(lines), most)]


def _numbered(name: str, groups: Sequence[Sequence[Line]]) -> list[tuple[str, list[Line]]]:
    return [
        (name if len(groups) == 1 else f"{name}, {number} of {len(groups)}", list(group))
        for number, group in enumerate(groups, 1)
    ]


def brief(sheet: Sheet) -> Markup:
    """Every line of today's with its middle ratio to what was published."""
    if not sheet.todays:
        return element(
            "p", "Only what was published is here; nothing has been measured or forecast yet.", class_="note"
        )
    columns = [
        Column(head="Line"),
        Column(head="Origin"),
        Column(head="Cells", kind="n"),
        Column(head="Failed", kind="n"),
        Column(head="Median ratio", kind="n"),
    ]
    columns += [Column(head="Lowest to highest", kind="n")]
    rows = []
    for line in sheet.todays:
        ratios = sheet.ratios(line)
        middle = ratio_words(statistics.median(ratios)) if ratios else "nothing beside it"
        span = f"{ratio_words(min(ratios))} to {ratio_words(max(ratios))}" if ratios else "nothing beside it"
        rows.append([line.name, line.origin, str(len(line.rows)), str(len(line.failed)), middle, span])
    return table(
        f"In brief: today's time over the published one of the same cell, of the same kind of device where there is one. Below 1{TIMES} is faster.",
        columns,
        rows,
    )


def _plots(sheet: Sheet, album: Album) -> Markup:
    """Time against each numeric axis at the ends of the others."""
    figures = []
    for axis in sheet.axes:
        if len(sheet.values(axis)) < 2 or not all(
            isinstance(value, (int, float)) for value in sheet.values(axis)
        ):
            continue
        held = _held(sheet, axis)
        words = ", ".join([f"Time against {axis}", *(f"{key} {value}" for key, value in held.items())])
        for name, group in _chunks(sheet):
            title = words if not name else f"{words} ({name})"
            make = functools.partial(charts.against, sheet, axis, group, held, title)
            figures.append(album.draw(make, f"{sheet.heading}: {title}", _description(sheet, group)))
    return album.grid(
        "Drawn again",
        "Published lines are dashed, forecasts dotted; bars are intervals. A failed cell has its glyph at the top.",
        figures,
    )


def _chunks(sheet: Sheet) -> list[tuple[str, list[Line]]]:
    """Lines few enough for one chart; the published ones are in each, for comparison."""
    workspace = max(2, charts.MOST_LINES - len(sheet.published))
    groups = _batched(sheet.todays, workspace) or [[]]
    kept = sheet.published[: charts.MOST_LINES]
    return [
        ("" if len(groups) == 1 else f"{number} of {len(groups)}", [*kept, *group])
        for number, group in enumerate(groups[:3], 1)
    ]


def _held(sheet: Sheet, axis: str) -> dict[str, Any]:
    """The other axes each at the value where most lines have a cell, the largest of those."""
    held = {}
    for other in sheet.axes:
        if other != axis:
            place = sheet.axes.index(other)
            counts = Counter(value for line in sheet.shown for value in {cell[place] for cell in line.rows})
            held[other] = max(counts, key=lambda value: (counts[value], in_order(value)))
    return held


def _beside(sheet: Sheet) -> Markup:
    """Published beside today's, cell by cell."""
    lines = [*sheet.published, *sheet.todays]
    columns = [Column(head=", ".join(sheet.axes) or "cell")]
    columns += [
        Column(head=joined([line.name, element("small", f" {line.origin}")]), kind=f"n {line.origin}")
        for line in lines
    ]
    rows = [
        [", ".join(map(str, place)) or "the only one", *(_time(sheet, line, place) for line in lines)]
        for place in sheet.cells
    ]
    counted = (
        f"Large: {sheet.counted}, as the paper counts; small: per example"
        if sheet.in_own_unit
        else "Seconds for an example"
    )
    caption = f"Published beside today's. {counted}; {TIMES} is today's over published."
    whole = table(caption, columns, rows, tall=len(rows) > 14)
    heading = element(
        "h3", "Published beside today's" if sheet.published and sheet.todays else "Cell by cell"
    )
    if len(rows) <= _LONG:
        return joined([heading, whole])
    return joined(
        [heading, element("details", element("summary", f"The table of all {len(rows):,} cells"), whole)]
    )


def _time(sheet: Sheet, line: Line, place: Cell) -> Markup:
    row = line.rows.get(place)
    if row is None:
        return cell("not printed" if line.origin == "published" else "not asked", kind="none")
    seconds = line.seconds(place)
    if seconds is None:
        return cell(row.state, kind="waiting" if row.state == "waiting" else "failed", title=row.error)
    ratio = sheet.ratio(line, place) if line.origin != "published" else None
    kind, mark = f"n {line.origin}", MARK * row.disturbed
    if sheet.in_own_unit:
        small = [units.show(seconds, "s")] + ([ratio_words(ratio)] if ratio is not None else [])
        return cell(
            mark + units.digits(charts.in_paper(sheet, seconds)),
            element("small", " · ".join(small)),
            kind=kind,
            title=_interval(row),
        )
    return cell(
        mark + units.show(seconds, "s"),
        *([element("small", ratio_words(ratio))] if ratio is not None else []),
        kind=kind,
        title=_interval(row),
    )


def _interval(row: Row) -> str:
    if row.low_seconds is None or row.high_seconds is None:
        return ""
    slowed = row.environment.get("slowed", 1.0)
    pace = f"; at the calm machine's pace, it was {slowed:.2f} times as slow then" if slowed > _SLOWED else ""
    calm = "; no process of it was calm" if row.disturbed else ""
    return f"{units.show(row.low_seconds, 's')} to {units.show(row.high_seconds, 's')} a step{pace}{calm}"


def _maps(sheet: Sheet, album: Album) -> Markup:
    """A heat-map for each line over the first two axes that are swept."""
    axes = [axis for axis in sheet.axes if len(sheet.values(axis)) > 1]
    values = [
        charts.in_paper(sheet, s)
        for line in sheet.shown
        for place in line.rows
        if (s := line.seconds(place)) is not None
    ]
    full = [line for line in sheet.shown if len(line.rows) >= 4]
    if len(axes) < 2 or not values or not full:
        return Markup("")
    pair, domain = (axes[0], axes[1]), (min(values), max(values))
    held = {axis: _held(sheet, "")[axis] for axis in sheet.axes if axis not in pair}
    if maps.is_small(sheet, pair):
        grids = [maps.grid(sheet, line, pair, held, domain) for line in full]
        return joined(
            [
                element("h3", "Over the grid"),
                maps.legend(domain, sheet.counted),
                element("div", *grids, class_="charts maps"),
            ]
        )
    figures = [
        album.draw(
            functools.partial(charts.heat, sheet, line, pair, held, domain),
            f"{sheet.heading}: {line.title} over {pair[0]} and {pair[1]}",
            f"A heat-map of {sheet.counted}. {_description(sheet, [line])}",
        )
        for line in full[:_MOST_MAPS]
    ]
    more = f" {len(full) - _MOST_MAPS} further lines are in the table." if len(full) > _MOST_MAPS else ""
    return album.grid(
        "Over the grid",
        f"All maps share one scale, {sheet.counted}. A cell without a time has the glyph of its reason.{more}",
        figures,
    )


def _strips(sheet: Sheet, album: Album) -> Markup:
    """The raw steady samples of a few cells: the first, the last, and the one with the widest interval."""
    figures = [
        album.draw(
            functools.partial(charts.samples, sheet, line, place),
            f"{sheet.heading}: samples of {line.title}, {sheet.words(place)}",
            f"Steady steps of {len(line.rows[place].groups)} processes; {sum(map(len, line.rows[place].groups))} samples. {_interval(line.rows[place])}",
        )
        for line, place in chosen_cells(sheet)
    ]
    words = "Each point is one timed step (large sets thinned by even ranks), each bar a process's median, the dashed line the result. "
    eased = any("slowed" in line.rows[place].environment for line, place in chosen_cells(sheet))
    pace = "Times are at the calm machine's pace, by the pulse each process felt. " if eased else ""
    return album.grid(
        "Samples",
        f"{words}{pace}Shown: the first cell, the last, and the one whose interval is widest.",
        figures,
    )


def chosen_cells(sheet: Sheet) -> list[tuple[Line, Cell]]:
    """Measured cells worth looking into, no more than a few."""
    kept = [
        (line, place)
        for line in sheet.lines
        if line.origin == "measured"
        for place, row in line.rows.items()
        if any(row.groups) and row.state == "done"
    ]
    if not kept:
        return []
    ordered = sorted(kept, key=lambda pair: [in_order(value) for value in pair[1]])
    widest = max(kept, key=lambda pair: _width(pair[0].rows[pair[1]]))
    chosen: list[tuple[Line, Cell]] = []
    for pair in (ordered[0], ordered[-1], widest):
        if not any(pair[0] is line and pair[1] == place for line, place in chosen):
            chosen.append(pair)
    return chosen[:_MOST_STRIPS]


def _width(row: Row) -> float:
    if row.low_seconds is None or row.high_seconds is None or not row.step_seconds:
        return 0.0
    return (row.high_seconds - row.low_seconds) / row.step_seconds


def failures(sheet: Sheet) -> Markup:
    """What has no time, by line and state, with the first word of each."""
    found: dict[tuple[str, str], list[tuple[Cell, Row]]] = {}
    for line in sheet.lines:
        for place, row in line.rows.items():
            if row.state not in ("done", "waiting"):
                found.setdefault((line.title, row.state), []).append((place, row))
    if not found:
        return Markup("")
    columns = [
        Column(head="Line"),
        Column(head="State"),
        Column(head="Cells", kind="n"),
        Column(head="First of them"),
        Column(head="What it said"),
    ]
    rows = [
        [
            name,
            joined([maps.glyph(state), state]),
            str(len(some)),
            sheet.words(some[0][0]),
            cell(_shortened(some[0][1].error), kind="wide"),
        ]
        for (name, state), some in found.items()
    ]
    words = "Cells that gave no time: each is a result with a name."
    return joined(
        [
            element("h3", "What failed or could not be measured"),
            table(words, columns, rows, tall=len(rows) > 14),
        ]
    )


def key(rows: Sequence[Row]) -> Markup:
    """Every state that occurs without a time, with its glyph."""
    states = sorted({row.state for row in rows if row.state != "done"})
    if not states:
        return Markup("")
    return element(
        "ul",
        *(element("li", maps.glyph(state), state) for state in states),
        class_="key",
        aria_label="Glyphs of cells without a time",
    )


def cold_starts(rows: Sequence[Row]) -> Piece:
    """The first step against a steady one, by framework and device_name."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.origin == "measured" and row.first_seconds is not None and row.step_seconds:
            groups.setdefault((row.label, row.device_name or row.device), []).append(row)
    if not groups:
        return element("p", "No first step has been timed.")
    heads = (
        "Framework",
        "Device",
        "Cells",
        "First step, median",
        "Steady step, median",
        "First in steady steps",
        "At most",
    )
    columns = [Column(head=head, kind="n" if number > 1 else "") for number, head in enumerate(heads)]
    body = [[label, device_name, *cold_words(some)] for (label, device_name), some in sorted(groups.items())]
    words = "The first step also pays for compiling, allocating and loading; it is kept apart from the times above."
    return joined(
        [
            element("p", words, class_="soft"),
            table("Cold start: first step against steady steps.", columns, body),
        ]
    )


def cold_words(rows: Sequence[Row]) -> list[str]:
    firsts = [row.first_seconds for row in rows if row.first_seconds is not None]
    ratios = [
        row.first_seconds / row.step_seconds
        for row in rows
        if row.first_seconds is not None and row.step_seconds
    ]
    steady = [row.step_seconds for row in rows if row.step_seconds]
    times = [units.show(statistics.median(values), "s") for values in (firsts, steady)]
    return [str(len(rows)), *times, ratio_words(statistics.median(ratios)), ratio_words(max(ratios))]


def environment(rows: Sequence[Row]) -> Piece:
    """Where and with what it was measured: what all rows share as a list, what differs as a table."""
    known = [row for row in rows if row.origin == "measured" and row.environment]
    measured = [row for row in known if row.state == "done"] or known
    if not measured:
        return element("p", "Nothing has been measured here, so there is no environment to tell.")
    seen: dict[str, dict[str, list[Row]]] = {}
    for row in measured:
        for name, value in flat(row.environment).items():
            name = name.replace("ready.", "read back: ")
            seen.setdefault(name, {}).setdefault(value, []).append(row)
    dates = sorted(row.measured_at for row in measured if row.measured_at)
    shared = (
        [("measured", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}")] if dates else []
    )
    shared += [
        (name, next(iter(values)))
        for name, values in seen.items()
        if len(values) == 1 and len(next(iter(values.values()))) == len(measured)
    ]
    told = element("dl", *(joined([element("dt", name), element("dd", value)]) for name, value in shared))
    rest = [
        line for name, values in seen.items() if name not in dict(shared) for line in _differing(name, values)
    ]
    if not rest:
        return told
    columns = [
        Column(head="What"),
        Column(head="Value"),
        Column(head="Where"),
        Column(head="Cells", kind="n"),
    ]
    return joined(
        [
            told,
            table(
                "What differs between cells; threads are as read back from the framework.",
                columns,
                rest,
                tall=len(rest) > 14,
            ),
        ]
    )


def _differing(name: str, values: Mapping[str, Sequence[Row]]) -> list[list[Piece]]:
    """A fact that differs, value by value; only a few examples where it is another in nearly every cell."""
    if len(values) > _MOST_FACTS:
        labels = sorted({row.label for some in values.values() for row in some})
        return [
            [
                name,
                f"{len(values)} values, such as {_few(sorted(values), 3)}",
                _few(labels),
                str(sum(map(len, values.values()))),
            ]
        ]
    return [
        [name, value, _few(sorted({row.label for row in some})), str(len(some))]
        for value, some in sorted(values.items())
    ]


def flat(environment: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested facts as one level: versions.torch."""
    found: dict[str, str] = {}
    for name, value in environment.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = (
                ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            )
    return {name: value for name, value in found.items() if value}


def _few(words: Sequence[str], most: int = 6) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _shortened(words: str, most: int = 400) -> str:
    return (words if len(words) <= most else words[: most - 1] + "…") or "it said nothing"


def _description(sheet: Sheet, lines: Sequence[Line]) -> str:
    """The chart in words, for those who cannot see it."""
    told = []
    for line in lines:
        values = [charts.in_paper(sheet, s) for place in line.rows if (s := line.seconds(place)) is not None]
        span = f"{units.digits(min(values))} to {units.digits(max(values))}" if values else "no times"
        told.append(f"{line.title}: {span}" + (f", {len(line.failed)} failed" if line.failed else ""))
    return f"{sheet.counted}. {'; '.join(told)}. The table has every number."
