"""Colours, shapes and glyphs of all charts and maps."""

from __future__ import annotations

import functools
import zlib

INK = "#1f2328"  # a chart inside a page takes the page's text colour instead
# Seven colours that are distinct with any colour vision, at least 3:1 against white and the dark page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#8B4FA8", "#7A7A7A")
MOST_LINES = len(COLOURS)
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = {"published": [6, 4], "measured": [1, 0], "forecast": [1, 3]}
# The outline of each failure, a path so that no font is needed.
GLYPHS = {
    "out of memory": "M-1,-1L1,-1L1,1L-1,1Z",
    "timeout": "M-.8,-1L.8,-1L-.8,1L.8,1Z",
    "crashed": "M-1,-1L1,1M1,-1L-1,1",
    "raised": "M0,-1.1L1,.8L-1,.8Z",
    "refused": "M-1,0L1,0",
    "no result": "M0,-1A1,1,0,1,1,0,1A1,1,0,1,1,0,-1Z",
    "unsupported": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z",
    "not installed": "M-1,0L1,0M0,-1L0,1",
    "no gpu here": "M-1,-.5L1,-.5M-1,.5L1,.5",
    "not available": "M-1,1L1,-1",
    "waiting": "M-1,-.2L-.6,-.2L-.6,.2L-1,.2ZM-.2,-.2L.2,-.2L.2,.2L-.2,.2ZM.6,-.2L1,-.2L1,.2L.6,.2Z",
}
_OTHER_GLYPH = "M-1,-1L1,-1L0,1Z"


def glyph_of(state: str) -> str:
    """The outline of a state as an SVG path."""
    return GLYPHS.get(state, _OTHER_GLYPH)


def colour_of(label: str) -> str:
    """The colour of a label, the same in every chart. Lines of one label differ in shape and dash."""
    known = known_colours()
    return known[label] if label in known else COLOURS[zlib.crc32(label.encode()) % len(COLOURS)]


@functools.cache
def known_colours() -> dict[str, str]:
    """The labels of the catalogue in a fixed order: its frameworks', then those that only papers have."""
    from windtunnel.measurement import frameworks
    from windtunnel.study import study as studies

    places: dict[str, int] = {}
    for name in frameworks.names():
        start = max(places.values(), default=-1) + 1
        # Variants for different jobs are never in one chart, so they share places.
        for variants in frameworks.named(name).variants.values():
            for place, variant in enumerate(variants, start):
                places.setdefault(f"{name}:{variant}", place)
    colours = {label: COLOURS[place % len(COLOURS)] for label, place in places.items()}
    published = dict.fromkeys(
        printed.label
        for name in studies.names()
        for figure in studies.find(name).figures
        for printed in figure.published
    )
    only_published = [label for label in published if label not in colours]
    inks = (
        INK,
        *COLOURS,
    )  # the most frequent published label gets the ink, so that current ones have the colours
    return colours | {label: inks[place % len(inks)] for place, label in enumerate(only_published)}
