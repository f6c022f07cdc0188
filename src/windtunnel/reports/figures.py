"""One figure of a study's page: summary, plots, the table of all cells, heat maps, samples and failures."""

from __future__ import annotations

import functools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from windtunnel import units
from windtunnel.errors import Unavailable
from windtunnel.reports import charts, drawing, maps
from windtunnel.reports.lines import AxisValues, FigureLine, Sheet, in_order
from windtunnel.reports.page import Column, Markup, Piece, cell, element, joined, table
from windtunnel.reports.palette import MOST_LINES
from windtunnel.reports.text import MARK, TIMES, ratio_words
from windtunnel.study.rows import StudyRow

_MOST_MAPS, _MOST_STRIPS, _MOST_CHARTS = 6, 3, 140
_PLACE = "<!--chart {}-->"
_PAGE = 100  # cells in one table; more are folded page by page, so that opening one stays quick


PlannedChart = tuple[Callable[[], charts.Chart], str, str]


class Album:
    """Collects the charts of a page, up to a limit, and draws them at the end. `missing`: why it cannot."""

    def __init__(self) -> None:
        self._charts: list[tuple[charts.Chart, str, str]] = []
        self.left_out = 0
        self.missing = ""
        try:
            charts.require_converter()
        except Unavailable as error:
            self.missing = str(error)

    def add(self, make: Callable[[], charts.Chart], title: str, description: str) -> Markup:
        """A place for the chart, which `fill` fills."""
        if self.missing:
            return Markup("")
        if len(self._charts) >= _MOST_CHARTS:
            self.left_out += 1
            return Markup("")
        self._charts.append((make(), title, description))
        return element("figure", Markup(_PLACE.format(len(self._charts))))

    def fill(self, page: str) -> str:
        """The page with every chart in its place."""
        svgs = drawing.draw([chart for chart, _, _ in self._charts])
        drawn = [
            charts.inline(svg, f"c{number}", title, words)
            for number, (svg, (_, title, words)) in enumerate(zip(svgs, self._charts, strict=True), 1)
        ]
        return re.sub(_PLACE.format(r"(\d+)"), lambda match: drawn[int(match[1]) - 1], page)


def figure(sheet: Sheet, album: Album) -> Piece:
    """The whole section of one figure."""
    parts = [element("p", words, class_="soft") for words in (sheet.source, sheet.note) if words]
    if sheet.quoted:
        parts.append(_quoted(sheet))
    if sheet.lines:
        parts += [
            _plots(sheet, album),
            summary(sheet),
            _maps(sheet, album),
            _all_cells(sheet),
            _samples(sheet, album),
            failures(sheet),
        ]
    elif not sheet.quoted:
        parts.append(element("p", "There are no rows for this figure.", class_="note"))
    return joined(parts)


def _quoted(sheet: Sheet) -> Markup:
    columns = [
        Column(head="Name"),
        Column(head="Value", kind="n"),
        Column(head="Unit"),
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
    return table("Single published numbers.", columns, rows)


def plot(sheet: Sheet, album: Album) -> Markup:
    """A plot of the paper drawn again from the rows of several figures."""
    axis = sheet.axes[0]
    if not sheet.shown:
        return element("p", f"There are no rows yet for the plot over {axis}.", class_="note")
    panels = [
        album.add(
            functools.partial(charts.against, sheet, axis, group, {}, name),
            f"{sheet.heading}: {name}",
            _description(sheet, group),
        )
        for name, group in _panels(sheet)
    ]
    words = f"{sheet.counted} against {axis}; published lines are dashed, forecasts dotted."
    return _chart_grid(f"Over {axis}", words, panels)


def _chart_grid(heading: str, words: str, drawn: Sequence[Markup]) -> Markup:
    shown = [each for each in drawn if each]
    if not shown:
        return Markup("")
    text = element("p", words, class_="soft")
    return joined([element("h3", heading), text, element("div", *shown, class_="charts")])


def _panels(sheet: Sheet) -> list[tuple[str, list[FigureLine]]]:
    """One panel if there are enough colours; otherwise one of published and one of current lines."""
    if len(sheet.shown) <= MOST_LINES:
        return [("Published and here", list(sheet.shown))]
    return [
        *_numbered("Published", _batched(sheet.published, MOST_LINES)),
        *_numbered("Here", _batched(sheet.current, MOST_LINES)),
    ]


def _batched(lines: Sequence[FigureLine], most: int) -> list[list[FigureLine]]:
    return [list(lines[start : start + most]) for start in range(0, len(lines), most)]


def _numbered(name: str, groups: Sequence[Sequence[FigureLine]]) -> list[tuple[str, list[FigureLine]]]:
    return [
        (name if len(groups) == 1 else f"{name}, {number} of {len(groups)}", list(group))
        for number, group in enumerate(groups, 1)
    ]


def summary(sheet: Sheet) -> Markup:
    """Each measured or forecast line with its median ratio to the published times."""
    if not sheet.current:
        words = "Only published times are shown: nothing has been measured or forecast yet."
        return element("p", words, class_="note")
    columns = [Column(head="Line"), Column(head="Origin")]
    columns += [
        Column(head=head, kind="n") for head in ("Cells", "Failed", "Median ratio", "Lowest to highest")
    ]
    rows = []
    for line in sheet.current:
        ratios = sheet.ratios(line)
        middle = ratio_words(statistics.median(ratios)) if ratios else "nothing published"
        ends = f"{ratio_words(min(ratios))} to {ratio_words(max(ratios))}" if ratios else "nothing published"
        rows.append([line.name, line.origin, str(len(line.rows)), str(len(line.failed)), middle, ends])
    caption = (
        "Summary. A ratio is the time here over the published time of the same cell, on the same kind of"
        f" device where there is one; below 1{TIMES} is faster here."
    )
    return table(caption, columns, rows)


def _plots(sheet: Sheet, album: Album) -> Markup:
    """Time against each numeric axis, the other axes at one value each."""
    drawn = [album.add(*each) for each in plots_of(sheet)]
    words = (
        "Published lines are dashed, forecasts dotted; bars are intervals."
        " A cell that failed has its glyph at the top."
    )
    return _chart_grid("Plots", words, drawn)


def plots_of(sheet: Sheet, heading: Sequence[str] = ()) -> Iterator[PlannedChart]:
    """What draws each plot, its title and its description. `heading` replaces the title above it."""
    for axis in sheet.axes:
        values = sheet.values(axis)
        if len(values) < 2 or not all(isinstance(value, (int, float)) for value in values):
            continue
        fixed = _fixed(sheet, axis)
        words = ", ".join([f"Time against {axis}", *(f"{key} {value}" for key, value in fixed.items())])
        for name, group in _chunks(sheet):
            title = f"{words} ({name})" if name else words
            make = functools.partial(charts.against, sheet, axis, group, fixed, list(heading) or title)
            yield make, f"{sheet.heading}: {title}", _description(sheet, group)


def _chunks(sheet: Sheet) -> list[tuple[str, list[FigureLine]]]:
    """Lines few enough for one chart each; the published ones are in every chart, for comparison."""
    free = max(2, MOST_LINES - len(sheet.published))
    groups = _batched(sheet.current, free) or [[]]
    published = sheet.published[:MOST_LINES]
    return [
        ("" if len(groups) == 1 else f"{number} of {len(groups)}", [*published, *group])
        for number, group in enumerate(groups[:3], 1)
    ]


def _fixed(sheet: Sheet, axis: str) -> dict[str, object]:
    """For each other axis, the largest of the values at which most lines have a cell."""
    fixed = {}
    for other in sheet.axes:
        if other != axis:
            place = sheet.axes.index(other)
            counts = Counter(value for line in sheet.shown for value in {cell[place] for cell in line.rows})
            fixed[other] = max(counts, key=lambda value: (counts[value], in_order(value)))
    return fixed


def _all_cells(sheet: Sheet) -> Markup:
    """Every cell of every line, published ones first."""
    lines = [*sheet.published, *sheet.current]
    columns = [Column(head=", ".join(sheet.axes) or "cell")]
    columns += [
        Column(head=joined([line.name, element("small", f" {line.origin}")]), kind=f"n {line.origin}")
        for line in lines
    ]
    rows = [
        [", ".join(map(str, place)) or "the only one", *(_time(sheet, line, place) for line in lines)]
        for place in sheet.cells
    ]
    unit = "Seconds for an example"
    if sheet.in_own_unit:
        unit = f"Large: {sheet.counted}, the paper's unit; small: per example"
    caption = f"All cells. {unit}; {TIMES} is the time here over the published one."
    both = "published and measured here" if sheet.published and sheet.current else "with their times"
    if len(rows) <= _PAGE:
        return fold(f"All {len(rows):,} cells, {both}", table(caption, columns, rows, tall=len(rows) > 14))
    pages = [
        fold(
            f"Cells {start + 1:,} to {start + len(some):,}: from {some[0][0]} to {some[-1][0]}",
            table(caption, columns, some, tall=True),
        )
        for start in range(0, len(rows), _PAGE)
        if (some := rows[start : start + _PAGE])
    ]
    return fold(f"All {len(rows):,} cells, {both}, in {len(pages)} tables", *pages)


def fold(title: str, *pieces: Piece) -> Markup:
    return element("details", element("summary", title), *pieces, class_="fold")


def _time(sheet: Sheet, line: FigureLine, place: AxisValues) -> Markup:
    row = line.rows.get(place)
    if row is None:
        return cell("not printed" if line.origin == "published" else "not in grid", kind="none")
    seconds = line.seconds(place)
    if seconds is None:
        return cell(row.state, kind="waiting" if row.state == "waiting" else "failed", title=row.error)
    ratio = sheet.ratio(line, place) if line.origin != "published" else None
    small = [ratio_words(ratio)] if ratio is not None else []
    large = units.show(seconds, "s")
    if sheet.in_own_unit:
        small, large = [large, *small], units.digits(sheet.in_unit(seconds))
    return cell(
        MARK * row.disturbed + large,
        *([element("small", " · ".join(small))] if small else []),
        kind=f"n {line.origin}",
        title=_interval(row),
    )


def _interval(row: StudyRow) -> str:
    if row.low_seconds is None or row.high_seconds is None:
        return ""
    words = f"{units.show(row.low_seconds, 's')} to {units.show(row.high_seconds, 's')} per step"
    return f"{words}; other programs disturbed every process" if row.disturbed else words


def _maps(sheet: Sheet, album: Album) -> Markup:
    """A heat map for each line over the first two axes that are swept."""
    axes = [axis for axis in sheet.axes if len(sheet.values(axis)) > 1]
    values = [value for line in sheet.shown for value in sheet.times(line)]
    full = [line for line in sheet.shown if len(line.rows) >= 4]
    if len(axes) < 2 or not values or not full:
        return Markup("")
    pair, domain = (axes[0], axes[1]), (min(values), max(values))
    fixed = {axis: value for axis, value in _fixed(sheet, "").items() if axis not in pair}
    if maps.is_small(sheet, pair):
        grids = [maps.grid(sheet, line, pair, fixed, domain) for line in full]
        legend = maps.legend(domain, sheet.counted)
        return joined([element("h3", "Heat maps"), legend, element("div", *grids, class_="charts maps")])
    drawn = [
        album.add(
            functools.partial(charts.heat, sheet, line, pair, fixed, domain),
            f"{sheet.heading}: {line.title} over {pair[0]} and {pair[1]}",
            f"A heat map of {sheet.counted}. {_description(sheet, [line])}",
        )
        for line in full[:_MOST_MAPS]
    ]
    words = f"All maps share one scale, {sheet.counted}. A cell without a time has the glyph of its reason."
    if len(full) > _MOST_MAPS:
        words += f" {len(full) - _MOST_MAPS} further lines are in the table."
    return _chart_grid("Heat maps", words, drawn)


def _samples(sheet: Sheet, album: Album) -> Markup:
    """The steady samples of a few cells."""
    chosen = chosen_cells(sheet)
    drawn = []
    for line, place in chosen:
        row = line.rows[place]
        count = sum(map(len, row.groups))
        words = f"Steady steps of {len(row.groups)} processes; {count} samples. {_interval(row)}"
        title = f"{sheet.heading}: samples of {line.title}, {sheet.words(place)}"
        drawn.append(album.add(functools.partial(charts.samples, sheet, line, place), title, words))
    words = (
        "Each point is one timed step (large sets are thinned by even ranks), each bar the median of a"
        " process, the dashed line the result. "
    )
    words += "Shown: the first cell, the last cell and the cell with the widest interval."
    shown = [each for each in drawn if each]
    if not shown:
        return Markup("")
    charts_of = element("div", *shown, class_="charts")
    return fold(f"Samples of {len(shown)} cells", element("p", words, class_="soft"), charts_of)


def chosen_cells(sheet: Sheet) -> list[tuple[FigureLine, AxisValues]]:
    """The first measured cell, the last one, and the one with the widest interval."""
    cells = [
        (line, place)
        for line in sheet.lines
        if line.origin == "measured"
        for place, row in line.rows.items()
        if any(row.groups) and row.state == "done"
    ]
    if not cells:
        return []
    ordered = sorted(cells, key=lambda pair: [in_order(value) for value in pair[1]])
    widest = max(cells, key=lambda pair: _width(pair[0].rows[pair[1]]))
    chosen: list[tuple[FigureLine, AxisValues]] = []
    for pair in (ordered[0], ordered[-1], widest):
        if not any(pair[0] is line and pair[1] == place for line, place in chosen):
            chosen.append(pair)
    return chosen[:_MOST_STRIPS]


def _width(row: StudyRow) -> float:
    if row.low_seconds is None or row.high_seconds is None or not row.step_seconds:
        return 0.0
    return (row.high_seconds - row.low_seconds) / row.step_seconds


def failures(sheet: Sheet) -> Markup:
    """Cells without a time by line and state, with the first message of each."""
    groups: dict[tuple[str, str], list[tuple[AxisValues, StudyRow]]] = {}
    for line in sheet.lines:
        for place, row in line.rows.items():
            if row.state not in ("done", "waiting"):
                groups.setdefault((line.title, row.state), []).append((place, row))
    if not groups:
        return Markup("")
    columns = [
        Column(head="Line"),
        Column(head="State"),
        Column(head="Cells", kind="n"),
        Column(head="First cell"),
        Column(head="Its message"),
    ]
    rows = [
        [
            name,
            joined([maps.glyph(state), state]),
            str(len(some)),
            sheet.words(some[0][0]),
            cell(_shortened(some[0][1].error), kind="wide"),
        ]
        for (name, state), some in groups.items()
    ]
    whole = table("Cells without a time, by line and state.", columns, rows, tall=len(rows) > 14)
    count = sum(map(len, groups.values()))
    return fold(f"{count:,} cells failed or could not be measured", whole)


def _shortened(words: str, most: int = 400) -> str:
    return (words if len(words) <= most else words[: most - 1] + "…") or "no message"


def _description(sheet: Sheet, lines: Sequence[FigureLine]) -> str:
    """The chart in words, for those who cannot see it."""
    phrases = []
    for line in lines:
        values = sheet.times(line)
        ends = f"{units.digits(min(values))} to {units.digits(max(values))}" if values else "no times"
        phrases.append(f"{line.title}: {ends}" + (f", {len(line.failed)} failed" if line.failed else ""))
    return f"{sheet.counted}. {'; '.join(phrases)}. The table has every number."
