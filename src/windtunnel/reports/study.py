"""A study's report: one HTML file that needs no network, text for a terminal, a view for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import windtunnel
from windtunnel import records
from windtunnel.errors import BadInput
from windtunnel.reports import clusters, figures, glance, learned, page, sections, text
from windtunnel.reports.lines import Sheet, plotted, sheet
from windtunnel.reports.page import element, joined
from windtunnel.study import export
from windtunnel.study.rows import (
    NOT_RUNNABLE,
    ClaimVerdict,
    ExplainedGain,
    StudyRow,
)

if TYPE_CHECKING:
    from windtunnel.reports.charts import Chart
    from windtunnel.study.study import Figure, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """A study's rows and verdicts. Prints as text, shows itself in a notebook, saves as one HTML file."""

    study: Study
    rows: tuple[StudyRow, ...] = ()
    verdicts: tuple[ClaimVerdict, ...] = ()
    explained: tuple[ExplainedGain, ...] = ()
    _kept: dict[str, Sheet] = field(default_factory=dict, init=False, repr=False, compare=False)

    def save(self, path: Path | str) -> Path:
        """Write the page. A failure leaves the old file whole."""
        return records.write_whole(Path(path), self.html())

    def html(self) -> str:
        """The page as text."""
        return _page(self, self._drawn())

    def frame(self) -> Any:
        """The rows as a pandas dataframe, with a column for each setting; the samples are only in `rows`."""
        return export.frame(self.rows)

    def sheets(self) -> list[Sheet]:
        """The figures, ready to be drawn with `windtunnel.reports.charts`."""
        return list(self._drawn().values())

    def figure_text(self, name: str) -> str:
        """One figure as text."""
        figure = self.study.figure(name)
        if figure.is_clustered:
            return "\n".join(clusters.figure_lines(figure, self.rows))
        if figure.trains:
            return "\n".join(learned.figure_lines(figure, self.rows))
        return "\n".join(text.figure_lines(self._sheet(name)))

    def chart(self, name: str, axis: str, title: str = "", **fixed: object) -> Chart:
        """The times of one figure against one axis; `fixed` holds the other settings at a value.

        Of networks that were trained: the skill of all cases against the figure's only axis.
        """
        from windtunnel.reports import charts

        figure = self.study.figure(name)
        if figure.trains:
            drawn_skill = (
                clusters.target_chart([row for row in self.rows if row.figure == name], figure.title)
                if figure.is_clustered
                else learned.chart(figure, learned.lines_of(figure, self.rows))
            )
            if drawn_skill is None:
                raise BadInput(f"{name} has no axis of numbers to draw.", hint="Its table has every score.")
            return drawn_skill
        drawn = self._sheet(name)
        return charts.against(drawn, axis, drawn.lines, fixed, title)

    def _sheet(self, name: str) -> Sheet:
        self.study.figure(name)  # an unknown name is an error
        return self._drawn()[name]

    def _drawn(self) -> Mapping[str, Sheet]:
        """The sheets by the names of their figures, made once for the page and the text."""
        if not self._kept:
            self._kept.update(_sheets(self.study, self.rows))
        return self._kept

    def __str__(self) -> str:
        return text.report(self.study, self.rows, self.verdicts, self.explained, self._drawn())

    def _repr_html_(self) -> str:
        """A short view for a notebook: progress, claims and the summary of each figure."""
        parts: list[page.Piece] = [
            element("p", element("strong", self.study.title), " ", text.counted(self.rows))
        ]
        if self.verdicts:
            parts.append(sections.claims(self.verdicts))
        parts += [
            joined([element("p", element("strong", drawn.heading)), figures.summary(drawn)])
            for drawn in self.sheets()
            if drawn.current
        ]
        return element("div", *parts)


def write(
    study: Study,
    rows: Iterable[StudyRow],
    verdicts: Iterable[ClaimVerdict],
    path: Path,
    explained: Iterable[ExplainedGain] = (),
) -> Path:
    """Write the report as one HTML file. A failure leaves the old file whole."""
    return _report(study, rows, verdicts, explained).save(path)


def build(
    study: Study,
    rows: Iterable[StudyRow],
    verdicts: Iterable[ClaimVerdict],
    explained: Iterable[ExplainedGain] = (),
) -> str:
    """The page as text."""
    return _report(study, rows, verdicts, explained).html()


def _report(
    study: Study,
    rows: Iterable[StudyRow],
    verdicts: Iterable[ClaimVerdict],
    explained: Iterable[ExplainedGain],
) -> StudyReport:
    return StudyReport(study=study, rows=tuple(rows), verdicts=tuple(verdicts), explained=tuple(explained))


def _page(report: StudyReport, sheets: Mapping[str, Sheet]) -> str:
    album, study, rows = figures.Album(), report.study, report.rows
    trained = [figure for figure in study.figures if figure.trains]
    first_look = glance.glance(list(sheets.values()), trained, rows, album)
    parts: list[tuple[str, page.Piece]] = [
        *([("At a glance", first_look)] if first_look else []),
        ("Claims", sections.claims(report.verdicts)),
        *(
            [("What would explain the gains, by forecast", sections.explained(report.explained))]
            if report.explained
            else []
        ),
        *_figure_parts(study, rows, sheets, album),
        ("Cold start", sections.cold_starts(rows)),
        ("Where it was measured", sections.environment(rows)),
        ("How to repeat it", _commands(study, rows)),
    ]
    lead = joined([_lead(study, rows), _tiles(rows), _notes(album), sections.key(rows)])
    foot = f"Written by windtunnel {windtunnel.__version__}. This file is complete and loads nothing."
    return album.fill(page.document(study.title, lead, parts, foot))


def _figure_parts(
    study: Study, rows: Sequence[StudyRow], sheets: Mapping[str, Sheet], album: figures.Album
) -> Iterable[tuple[str, page.Piece]]:
    known = {figure.name: figure for figure in _figures(study, rows)}
    by_figure = text.rows_by_figure(rows)
    for name, figure in known.items():
        if figure.is_clustered:
            yield figure.title, clusters.section(figure, by_figure.get(name, ()), album)
            continue
        if figure.trains:
            yield figure.title, learned.section(figure, by_figure.get(name, ()), album)
            continue
        drawn = sheets[name]
        if drawn.lines or not figure.plots:
            body = [figures.figure(drawn, album)]
        else:
            body = [element("p", words, class_="soft") for words in (drawn.source, drawn.note) if words]
        body += [figures.plot(plotted(figure, plot, rows, known), album) for plot in figure.plots]
        yield drawn.heading, joined(body)


def _sheets(study: Study, rows: Sequence[StudyRow]) -> dict[str, Sheet]:
    by_figure = text.rows_by_figure(rows)
    timed = [figure for figure in _figures(study, rows) if not figure.trains]
    return {figure.name: sheet(figure, by_figure.get(figure.name, ())) for figure in timed}


def _figures(study: Study, rows: Sequence[StudyRow]) -> list[Figure]:
    """Figures by number: figure-2 before figure-10. Rows of an unknown figure get a figure too."""
    from windtunnel.study.study import Figure

    names = {figure.name for figure in study.figures}
    more = [
        Figure(name=name, title=name, source="") for name in text.rows_by_figure(rows) if name not in names
    ]
    return sorted([*study.figures, *more], key=lambda figure: text.by_number(figure.name))


def _lead(study: Study, rows: Sequence[StudyRow]) -> page.Markup:
    about = "Published times beside the times measured here and, for devices that are not here, forecasts."
    if any(figure.trains for figure in study.figures):
        about = "What networks learned that were trained here, each from several seeds."
    parts = [element("p", f"{about} {text.counted(rows)}")]
    parts.append(element("p", f"The paper: {study.authors}, {study.year}. {study.source}", class_="soft"))
    if study.note:
        note = element("p", study.note.strip(), class_="soft")
        parts.append(element("details", element("summary", "What was asked, and how"), note))
    return joined(parts)


def _tiles(rows: Sequence[StudyRow]) -> page.Markup:
    """The large numbers at the top of the page."""
    measured = [row for row in rows if row.origin == "measured"]
    numbers = {
        "measured": sum(row.state == "done" for row in measured),
        "failed": sum(row.failed for row in rows),
        "not possible here": sum(row.state in NOT_RUNNABLE for row in measured),
        "waiting": sum(row.state == "waiting" for row in rows),
        "forecast": sum(row.origin == "forecast" and row.state == "done" for row in rows),
        "published": sum(row.origin == "published" for row in rows),
    }
    tiles = (element("li", element("b", f"{number:,}"), name) for name, number in numbers.items() if number)
    return element("ul", *tiles, class_="tiles small", aria_label="Cells of this study")


def _notes(album: figures.Album) -> page.Markup:
    words = ""
    if album.missing:
        words = f"This report has no charts: {album.missing} The tables have every number."
    elif album.left_out:
        words = (
            f"{album.left_out} charts were left out to keep this file small; the tables have every number."
        )
    return element("p", words, class_="note") if words else page.Markup("")


def _commands(study: Study, rows: Sequence[StudyRow]) -> page.Markup:
    """The commands that make this report again."""
    labels = sorted({row.label.split(":")[0] for row in rows if row.origin == "measured"})
    lines = [
        f"windtunnel study run {study.name} --dry-run       # list the cells and the expected time",
        f"windtunnel study run {study.name}" + (f" --frameworks {','.join(labels)}" if labels else ""),
        f"windtunnel study run {study.name} --rerun failed  # measure again what failed",
        f"windtunnel study report {study.name}",
    ]
    words = (
        f"Use windtunnel {windtunnel.__version__}. After an interruption the same command continues the run."
    )
    return joined([element("p", words, class_="soft"), element("pre", "\n".join(lines), tabindex="0")])
