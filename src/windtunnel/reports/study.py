"""A study's report: one HTML file that opens from disk without a network, and the same rows for a notebook and as a table of data."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import windtunnel
from windtunnel.errors import BadInput, Unavailable
from windtunnel.reports import page, sections, text
from windtunnel.reports.lines import APART, NEVER_FAILED, Sheet, plotted, sheet
from windtunnel.reports.page import element, joined
from windtunnel.study.rows import Row, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a study has to show. Prints as text, shows itself in a notebook, gives a dataframe, saves as one HTML file."""

    study: Any
    rows: tuple[Row, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    def save(self, path: Path | str) -> Path:
        """Write the page."""
        return write(self.study, self.rows, self.verdicts, Path(path))

    def frame(self) -> Any:
        """One line for every row as a pandas dataframe, the settings as columns of their own; samples stay in `rows`."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise Unavailable(
                "A dataframe needs pandas, which is not installed.",
                hint="Install it with: pip install pandas",
            ) from error
        return pandas.DataFrame([flat_row(row) for row in self.rows])

    def sheets(self) -> list[Sheet]:
        """The figures ready to be laid out or drawn with `windtunnel.reports.charts`."""
        return sheets(self.study, self.rows)

    def __str__(self) -> str:
        return text.report(self.study, self.rows, self.verdicts)

    def _repr_html_(self) -> str:
        """Short, for a notebook: how far it is, the claims, each figure in brief."""
        parts: list[page.Piece] = [
            element("p", element("strong", _title(self.study)), " ", _counted(self.rows))
        ]
        if self.verdicts:
            parts.append(sections.claims(self.verdicts))
        parts += [
            joined([element("p", element("strong", drawn.heading)), sections.brief(drawn)])
            for drawn in self.sheets()
            if drawn.todays
        ]
        return element("div", *parts)


def write(study: Any, rows: Iterable[Row], verdicts: Iterable[Verdict], path: Path) -> Path:
    """The whole report as one HTML file. What was there before is replaced only when the new one is complete."""
    words = build(study, tuple(rows), tuple(verdicts))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(words)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise BadInput(
            f"The report cannot be written to {path}: {error.strerror or error}.",
            hint="Name a file in a folder you may write to.",
        ) from error
    return path


def build(study: Any, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    """The page as text."""
    album = sections.Album()
    parts: list[tuple[str, page.Piece]] = [("Claims", sections.claims(verdicts))]
    figures = {figure.name: figure for figure in _figures(study, rows)}
    by_figure = sorted_by_figure(rows)
    for name, figure in figures.items():
        drawn = sheet(figure, by_figure.get(name, ()))
        plots = tuple(getattr(figure, "plots", ()) or ())
        body: list[page.Piece] = [] if plots and not drawn.lines else [sections.figure(drawn, album)]
        if not body:
            body = [element("p", words, class_="soft") for words in (drawn.source, drawn.note) if words]
        body += [sections.plot(plotted(figure, plot, rows, figures), album) for plot in plots]
        parts.append((drawn.heading, joined(body)))
    parts.append(("Cold start", sections.cold_starts(rows)))
    parts.append(("Where it was measured", sections.environment(rows)))
    parts.append(("How to do it again", _again(study, rows)))
    lead = joined([_lead(study, rows), _tiles(rows, verdicts), _notes(album), sections.key(rows)])
    return album.filled(
        page.document(
            _title(study),
            lead,
            parts,
            f"Written by windtunnel {windtunnel.__version__}. This file has everything inside it and loads nothing.",
        )
    )


def sheets(study: Any, rows: Sequence[Row]) -> list[Sheet]:
    by_figure = sorted_by_figure(rows)
    return [sheet(figure, by_figure.get(figure.name, ())) for figure in _figures(study, rows)]


def sorted_by_figure(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.figure, []).append(row)
    return found


def flat_row(row: Row) -> dict[str, Any]:
    """A row as one level of plain values; the samples are only counted."""
    skipped = ("settings", "groups", "environment")
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__ if name not in skipped}
    return {
        **fields,
        **row.settings,
        "example_seconds": row.example_seconds,
        "processes": len(row.groups),
        "samples": sum(map(len, row.groups)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A figure that rows speak of and the study does not know."""

    name: str


def _figures(study: Any, rows: Sequence[Row]) -> list[Any]:
    """Figures by number: figure-2 before figure-10. Rows of an unknown figure are shown too."""
    known = list(getattr(study, "figures", ()) or ())
    names = {figure.name for figure in known}
    more = [_Named(name=name) for name in sorted_by_figure(rows) if name not in names]
    return sorted([*known, *more], key=lambda figure: text.by_number(figure.name))


def _title(study: Any) -> str:
    return str(getattr(study, "title", "") or getattr(study, "name", "study"))


def _counted(rows: Sequence[Row]) -> str:
    return text.counted(rows)


def _lead(study: Any, rows: Sequence[Row]) -> page.Markup:
    authors, year = getattr(study, "authors", ""), getattr(study, "year", "")
    who = ", ".join(str(part) for part in (authors, year) if part)
    words = (
        "What was published, laid beside what was measured here and, where it was asked, what is forecast. "
    )
    parts = [element("p", f"{words}{_counted(rows)}")]
    parts += (
        [element("p", f"The paper: {who}{'. ' if who else ''}{getattr(study, 'source', '')}", class_="soft")]
        if who or getattr(study, "source", "")
        else []
    )
    parts += [element("p", str(study.note).strip(), class_="soft")] if getattr(study, "note", "") else []
    return joined(parts)


def _tiles(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> page.Markup:
    todays = [row for row in rows if row.origin == "measured"]
    numbers = [
        ("measured", sum(row.state == "done" for row in todays)),
        ("failed", sum(row.state not in NEVER_FAILED for row in rows)),
        ("not possible here", sum(row.state in APART for row in todays)),
        ("waiting", sum(row.state == "waiting" for row in rows)),
        ("forecast", sum(row.origin == "forecast" and row.state == "done" for row in rows)),
        ("published", sum(row.origin == "published" for row in rows)),
    ]
    numbers += (
        [
            (f"claims: {word}", sum(v.ruling == word for v in verdicts))
            for word in ("holds", "does not hold", "can't tell")
        ]
        if verdicts
        else []
    )
    return element(
        "ul", *(element("li", element("b", f"{number:,}"), name) for name, number in numbers), class_="tiles"
    )


def _notes(album: sections.Album) -> page.Markup:
    if album.missing:
        return element(
            "p",
            f"There are no charts in this report: {album.missing} The tables have every number.",
            class_="note",
        )
    if album.left_out:
        return element(
            "p",
            f"{album.left_out} further charts were left out to keep this file small; the tables have every number.",
            class_="note",
        )
    return page.Markup("")


def _again(study: Any, rows: Sequence[Row]) -> page.Markup:
    """The commands that give this report anew."""
    name = getattr(study, "name", "STUDY")
    frameworks = sorted({row.label.split(":")[0] for row in rows if row.origin == "measured"})
    lines = [
        f"windtunnel study run {name} --dry-run       # what would be measured, and how long it would take",
        f"windtunnel study run {name}" + (f" --frameworks {','.join(frameworks)}" if frameworks else ""),
        f"windtunnel study run {name} --rerun failed  # only what failed",
        f"windtunnel study report {name}",
    ]
    words = f"With windtunnel {windtunnel.__version__}; the same command goes on where it stopped."
    return joined([element("p", words, class_="soft"), element("pre", "\n".join(lines), tabindex="0")])
