"""Parts of an HTML page. Text is escaped here and nowhere else: `Markup` is safe, a plain string is not."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from windtunnel.foreign import shown, shown_lines
from windtunnel.reports import design

GENERATOR = '<meta name="generator" content="windtunnel">'
_HARMLESS = re.compile(r"[A-Za-z0-9 .,:;%_#/()+-]*")


class Markup(str):
    """Text that already is HTML."""

    __slots__ = ()

    def __html__(self) -> str:
        """Template engines ask for this, and do not escape the text again."""
        return str(self)


Piece = str | Markup


def safe(piece: Piece) -> Markup:
    return piece if isinstance(piece, Markup) else Markup(html.escape(shown_lines(str(piece))))


def joined(pieces: Iterable[Piece], between: str = "") -> Markup:
    return Markup(between.join(safe(piece) for piece in pieces))


def element(tag: str, *pieces: Piece, **attributes: str | None) -> Markup:
    """An HTML element. `class_` and `aria_label` become class and aria-label; None omits an attribute."""
    words = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{words}>{joined(pieces)}</{tag}>")


def _value(text: str) -> str:
    """The value of an attribute, escaped. Most are numbers and classes, which need nothing."""
    return text if _HARMLESS.fullmatch(text) else html.escape(shown(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column; `kind` is the class of all its cells (n: numbers)."""

    head: Piece
    kind: str = ""


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Piece]],
    heads: int = 1,
    tall: bool = False,
) -> Markup:
    """A table in a box that scrolls and that the keyboard reaches. The first `heads` cells of a row name it.

    A piece that already is a whole cell (`cell`) is not wrapped again.
    """
    top = joined(element("th", column.head, scope="col", class_=column.kind or None) for column in columns)
    body = joined((element("tr", joined(_cells(row, columns, heads))) for row in rows), "\n")
    whole = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", top)),
        element("tbody", body),
    )
    return element(
        "div", whole, class_="box tall" if tall else "box", tabindex="0", role="group", aria_label=caption
    )


def cell(*pieces: Piece, kind: str = "", title: str | None = None) -> Markup:
    return element("td", *pieces, class_=kind or None, title=title or None)


def _cells(row: Sequence[Piece], columns: Sequence[Column], heads: int) -> Iterable[Markup]:
    for number, (piece, column) in enumerate(zip(row, columns, strict=True)):
        if number < heads:
            yield element("th", piece, scope="row", class_=column.kind or None)
        elif isinstance(piece, Markup) and piece.startswith("<td"):
            yield piece
        else:
            yield element("td", piece, class_=column.kind or None)


def anchor(words: str) -> str:
    """An id for a place in the page."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "part"


def document(title: str, lead: Piece, sections: Sequence[tuple[str, Piece]], foot: Piece) -> str:
    """The whole page: a title, links to its parts, the parts."""
    marks = [(f"p{number}-{anchor(name)}", name, body) for number, (name, body) in enumerate(sections, 1)]
    links = joined(element("li", element("a", name, href=f"#{mark}")) for mark, name, _ in marks)
    parts = joined(
        (element("section", element("h2", name, id=mark), body) for mark, name, body in marks), "\n"
    )
    theme = element("button", "Dark", type="button", class_="theme", data_theme_button="", hidden="")
    body = joined(
        [
            element("a", "Skip to the results", class_="skip", href="#main"),
            element("header", element("h1", title), theme, lead),
            element("nav", _folded(element("ul", links), len(marks)), aria_label="Parts of this report"),
            element("main", parts, id="main"),
            element("footer", foot),
        ],
        "\n",
    )
    return f"{_head(title)}\n<body>\n{body}\n<script>{design.script()}</script>\n</body></html>\n"


_MOST_LINKS = 8  # more would push the first plots out of sight


def _folded(links: Markup, count: int) -> Markup:
    if count <= _MOST_LINKS:
        return links
    return element("details", element("summary", f"The {count} parts of this report"), links)


def _head(title: str) -> str:
    """The page may load nothing: only its own style and script apply."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"{GENERATOR}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{design.policy()}">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(shown(title))}</title><style>{design.css()}</style></head>"
    )
