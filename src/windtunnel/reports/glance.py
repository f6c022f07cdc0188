"""The first look at a study: one plot of each of its first figures, before any claim and any table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windtunnel.reports import figures, learned
from windtunnel.reports.lines import Sheet
from windtunnel.reports.page import Markup, element, joined

if TYPE_CHECKING:
    from windtunnel.study.rows import StudyRow
    from windtunnel.study.study import Figure

_MOST = 6
_TITLE = 44  # characters of a line above a plot


def glance(
    sheets: Sequence[Sheet], trained: Sequence[Figure], rows: Sequence[StudyRow], album: figures.Album
) -> Markup:
    """Figures with rows of this machine first come, else published ones; nothing where none can be drawn."""
    planned = [*_timed(sheets), *_learned(trained, rows)][:_MOST]
    shown = [drawn for each in planned if (drawn := album.add(*each))]
    if not shown:
        return Markup("")
    words = "One plot of each figure. Published lines are dashed, forecasts dotted; bars are intervals."
    return joined([element("p", words, class_="soft"), element("div", *shown, class_="charts")])


def _timed(sheets: Sequence[Sheet]) -> Iterator[figures.PlannedChart]:
    telling = [sheet for sheet in sheets if sheet.current] or sheets
    for sheet in telling:
        yield from list(figures.plots_of(sheet, textwrap.wrap(sheet.heading, _TITLE)))[:1]


def _learned(trained: Sequence[Figure], rows: Sequence[StudyRow]) -> Iterator[figures.PlannedChart]:
    for figure in trained:
        yield from list(learned.plots_of(figure, learned.lines_of(figure, rows)))[:1]
