"""How results look in a notebook: headings, tables, bars and printed text as small pieces of HTML.

Text takes its colours and fonts from the notebook, so that it is legible on a light and on a dark page.
Wide pieces scroll inside of their own box. All text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

_CELL = "vertical-align:top; padding:0.2em 0.8em 0.2em 0.3em"  # columns stay apart in every viewer
_LEFT = f"text-align:left; {_CELL}; white-space:normal; overflow-wrap:anywhere"
_NUMBER = f"text-align:right; {_CELL}; white-space:nowrap"
_NAME = f"text-align:left; {_CELL}; white-space:nowrap"
_SCROLLED = '<div style="overflow-x:auto; max-width:100%">'
_BAR = "display:flex; height:0.7em; max-width:40em; margin:0.4em 0"
# The parts of a step have the same colours in every chart (reports/design/tokens.css). They are distinct with
# any colour vision, with at least 3:1 against white and against the dark pages of notebooks.
PART_COLOURS = {
    "compute": "#0072b2",
    "launch": "#b8860b",
    "feed": "#009e73",
    "copy": "#c2639a",
    "communication": "#d55e00",
    "update": "#8b4fa8",
    "waiting": "#7a7a7a",
}
_LEAST_SHARE = 0.0005  # of a bar; a smaller part is invisible


class Displayed:
    """A result that prints itself. A notebook shows the same text, its first line as a heading."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        first, *rest = str(self).splitlines() or [""]
        return display(first, printed(rest))


def display(heading: str, *pieces: str) -> str:
    """A heading and the pieces below it."""
    return f"<div><strong>{html.escape(heading)}</strong>{''.join(pieces)}</div>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A title and a text in each row."""
    cells = (
        f'<tr><th style="{_NAME}">{html.escape(title)}</th><td style="{_LEFT}">{html.escape(text)}</td></tr>'
        for title, text in rows
    )
    return f"<table>{''.join(cells)}</table>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> str:
    """Columns under their titles. Those in `words` hold words and are left-aligned, the others numbers.

    >>> "<th" in table(("devices", "step"), [("8", "20 ms")])
    True
    """
    styles = [_NAME if title in words else _NUMBER for title in head]

    def line(tag: str, cells: Sequence[str]) -> str:
        inside = (
            f'<{tag} style="{style}">{html.escape(cell)}</{tag}>'
            for cell, style in zip(cells, styles, strict=True)
        )
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"{_SCROLLED}<table>{line('th', head)}{body}</table></div>"


def printed(lines: Iterable[str]) -> str:
    """Text in a fixed-width font, so that its columns are aligned."""
    text = html.escape("\n".join(lines).strip("\n"))
    style = "background:none; color:inherit; border:0; padding:0; white-space:pre"
    return f'{_SCROLLED}<pre style="{style}">{text}</pre></div>' if text else ""


def paragraph(text: str) -> str:
    return f"<div>{html.escape(text)}</div>" if text else ""


def bar(parts: Mapping[str, float]) -> str:
    """The parts of a step side by side, the largest first; the text beside it has the figures."""
    whole = sum(parts.values())
    if whole <= 0:
        return ""
    shares = {name: value / whole for name, value in sorted(parts.items(), key=lambda part: -part[1])}
    seen = {name: share for name, share in shares.items() if share > _LEAST_SHARE}
    pieces = "".join(
        f'<div title="{html.escape(name)} {share:.0%}" '
        f'style="flex:{share:.4f} 1 0; background:{PART_COLOURS.get(name, "currentColor")}"></div>'
        for name, share in seen.items()
    )
    label = html.escape(", ".join(f"{name} {share:.0%}" for name, share in seen.items()))
    return f'<div role="img" aria-label="{label}" style="{_BAR}">{pieces}</div>'
