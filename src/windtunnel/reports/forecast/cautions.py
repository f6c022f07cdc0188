"""What a reader must know before relying on a forecast."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.reports.page import Markup, element


def cautions(texts: Sequence[str]) -> Markup:
    """Each caution as an item; nothing where there are none."""
    if not texts:
        return Markup("")
    items = (element("li", _sentence(text)) for text in texts)
    return element("aside", element("h3", "Cautions"), element("ul", *items), class_="cautions")


def _sentence(text: str) -> str:
    first = text.split(" ", 1)[0]
    whole = text[:1].upper() + text[1:] if first.isalpha() else text  # a name keeps its spelling
    return whole if whole.endswith((".", ")", ":")) else f"{whole}."
