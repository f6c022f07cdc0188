"""One study: its verdicts first, then its figures, each drawn when it is asked for.

Rows come from the store, which is only read, from files that the command line named, and from what the
authors published.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windtunnel.errors import StoreError
from windtunnel.measurement.reading import ReadStore
from windtunnel.records import Plain
from windtunnel.reports import figures, glance, learned, sections, text
from windtunnel.reports.lines import plotted, sheet
from windtunnel.reports.page import Markup, Piece, element, joined
from windtunnel.reports.study import StudyReport
from windtunnel.study import export
from windtunnel.study.claims import judge
from windtunnel.study.results import by_interval, published, results
from windtunnel.study.rows import StudyRow
from windtunnel.study.study import Figure, Study
from windtunnel.web.project_rows import project_rows
from windtunnel.web.states import refusal
from windtunnel.web.worker import WorkerContext


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    """The verdicts and the list of figures, or one figure."""
    study = worker.study(request["query"])
    worker.tell(f"reading the rows of {study.name}")
    rows, note = rows_of(worker, study)
    if request.get("figure"):
        return _figure(worker, study, study.figure(str(request["figure"])), rows), {}
    return joined([note, _overview(study, rows)]), {"rows": len(rows)}


def rows_of(worker: WorkerContext, study: Study) -> tuple[list[StudyRow], Markup]:
    """All rows, and what to say if the store cannot be read or has none of this study."""
    found, trouble = list[StudyRow](), Markup("")
    if worker.store is not None and worker.store.is_file():
        try:
            store = ReadStore(worker.store)
            try:
                found = results(study, store, samples=0)
            finally:
                store.close()
        except StoreError as error:
            trouble = refusal(error.message, error.hint)
    if not found:
        found = published(study)
    for path in worker.rows:
        found += [row for row in export.read(path) if row.study == study.name and row.origin != "published"]
    if any(row.origin != "published" for row in found) or study.name in worker.studies:
        return found, trouble
    kept = project_rows(study.name)
    return [*found, *kept], joined([trouble, _not_measured(study, kept)])


def _not_measured(study: Study, kept: Sequence[StudyRow]) -> Markup:
    """What is shown where nothing was measured here, and how to measure it."""
    names = list(dict.fromkeys(row.device_name for row in kept if row.origin == "measured"))
    if names:
        shown = f"Shown is what this project measured, on {_listed(names)}."
    elif kept:
        shown = "Shown is what this project computed."
    else:
        shown = "Only published times are shown, so that most claims cannot be judged."
    how = element("code", f"windtunnel study run {study.name} --quick")
    return element(
        "p",
        "Nothing of this study was measured on this machine yet. ",
        shown,
        " To measure it here: ",
        how,
        class_="note",
    )


def _listed(names: Sequence[str]) -> str:
    plain = [" ".join(name.replace("(R)", "").replace("(TM)", "").split()) for name in names]
    return " and ".join([", ".join(plain[:-1]), plain[-1]] if plain[1:] else plain)


def _overview(study: Study, rows: Sequence[StudyRow]) -> Markup:
    measured = [row for row in rows if row.origin == "measured" and (row.step_seconds or row.training)]
    numbers = {
        "figures": len(study.figures),
        "published cells": sum(row.origin == "published" for row in rows),
        "measured cells": len(measured),
        "forecast cells": sum(row.origin == "forecast" for row in rows),
    }
    tiles = (element("li", element("b", f"{count:,}"), f" {name}") for name, count in numbers.items())
    pieces: list[Piece] = [element("ul", *tiles, class_="tiles small")]
    album = figures.Album()
    report = StudyReport(study=study, rows=tuple(rows))
    trained = [figure for figure in study.figures if figure.trains]
    first_look = glance.glance(report.sheets(), trained, rows, album)
    if first_look:
        pieces += [element("h2", "At a glance"), first_look]
    if study.claims:
        verdicts = judge(study.claims, by_interval(rows))
        pieces += [element("h2", "Claims"), sections.claims(verdicts)]
    pieces.append(element("h2", "Figures"))
    pieces += [_later(study, figure) for figure in study.figures]
    return Markup(album.fill(joined(pieces, "\n")))


def _later(study: Study, figure: Figure) -> Markup:
    """A figure that is drawn at a click: charts take a second each."""
    return element(
        "section",
        element(
            "div",
            element("h3", figure.title),
            element("p", figure.source, class_="lead"),
        ),
        element(
            "a",
            "Draw it",
            href=f"/part/studies/{study.name}/{figure.name}",
            class_="button",
            data_load="",
            aria_label=f"Draw {figure.title}",
        ),
        element("div", class_="loaded"),
        class_="panel later one-line",
    )


def _figure(worker: WorkerContext, study: Study, figure: Figure, rows: Sequence[StudyRow]) -> Markup:
    worker.tell(f"drawing {figure.title}")
    album = figures.Album()
    own = text.rows_by_figure(rows).get(figure.name, ())
    if figure.trains:
        body: Piece = learned.section(figure, own, album)
    else:
        drawn = dataclasses.replace(sheet(figure, own), source="")  # the page names the source already
        known = {each.name: each for each in study.figures}
        parts: list[Piece] = [figures.figure(drawn, album)] if drawn.lines or not figure.plots else []
        parts += [figures.plot(plotted(figure, plot, rows, known), album) for plot in figure.plots]
        body = joined(parts)
    return Markup(album.fill(joined([body])))
