"""A study's report for a terminal: claims, then each figure as the paper prints its tables, one grid for every line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from windtunnel import units
from windtunnel.reports.lines import APART, NEVER_FAILED, Line, Sheet, sheet
from windtunnel.study.rows import Row, Verdict

TIMES = "\N{MULTIPLICATION SIGN}"
_WIDTH = 110
MARK = "~"  # of a cell that met no calm moment
_MOST_CELLS = 200  # beyond which a line is told in brief


def report(study: Any, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    """The whole report as text."""
    by_figure: dict[str, list[Row]] = {}
    for row in rows:
        by_figure.setdefault(row.figure, []).append(row)
    lines = [
        str(getattr(study, "title", "") or getattr(study, "name", "study")),
        *textwrap.wrap(counted(rows), _WIDTH),
        "",
    ]
    lines += claim_lines(verdicts)
    for figure in sorted(getattr(study, "figures", ()) or (), key=lambda each: by_number(each.name)):
        if figure.name in by_figure:
            lines += figure_lines(sheet(figure, by_figure[figure.name]))
    return "\n".join(lines).rstrip() + "\n"


def claim_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Every claim with its ruling, the effect and why."""
    lines = ["Claims"] if verdicts else []
    for verdict in verdicts:
        lines += textwrap.wrap(
            f"{verdict.ruling:<14} {verdict.text or verdict.claim}",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * 17,
        )
        found = f"{effect_words(verdict)}; published {verdict.published or 'not stated'}. {verdict.reason}".rstrip()
        lines += textwrap.wrap(found, _WIDTH, initial_indent=" " * 17, subsequent_indent=" " * 17)
    return [*lines, ""] if lines else []


def effect_words(verdict: Verdict) -> str:
    """The effect with its interval: 0.97 (0.94 to 1.01) slope."""
    if verdict.effect is None:
        return "no effect found"
    span = (
        f" ({units.digits(verdict.low)} to {units.digits(verdict.high)})"
        if verdict.low is not None and verdict.high is not None
        else ""
    )
    return f"{units.digits(verdict.effect)}{span} {verdict.counted}".rstrip()


def ratio_words(ratio: float) -> str:
    """Two digits are enough for a ratio of noisy times."""
    return (f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:#.2g}") + TIMES


def figure_lines(drawn: Sheet) -> list[str]:
    """One figure: its lines as grids, published ones first."""
    head = textwrap.wrap(f"{drawn.name}: {drawn.title}", _WIDTH, subsequent_indent="  ")
    lines = [*head, f"  {drawn.counted}" + ("" if drawn.published else "; nothing was published for it"), ""]
    for line in drawn.shown:
        lines += _line_lines(drawn, line)
    apart = [
        f"{line.title} ({next(iter(line.rows.values())).state})" for line in drawn.lines if line.is_apart
    ]
    told = (
        textwrap.wrap(
            f"Not measured: {', '.join(apart)}.", _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
        if apart
        else []
    )
    return [*lines, *told, ""] if told else lines


def _line_lines(drawn: Sheet, line: Line) -> list[str]:
    ratio = drawn.middle_ratio(line) if line.origin != "published" else None
    beside = f", {ratio_words(ratio)} the published at the median" if ratio is not None else ""
    lines = [f"  {line.name} ({line.origin}{beside})"]
    if len(line.rows) > _MOST_CELLS:
        return [
            *lines,
            *textwrap.wrap(
                counted(list(line.rows.values())), _WIDTH, initial_indent="    ", subsequent_indent="    "
            ),
            "",
        ]
    return [*lines, *(f"    {words}" for words in _grid(drawn, line)), ""]


def _grid(drawn: Sheet, line: Line) -> list[str]:
    """Rows go by all axes but the last, columns by the last, as the paper prints it."""
    if not drawn.axes:
        return [_word(drawn, row) for row in line.rows.values()]
    cells = sorted(line.rows, key=drawn.cells.index)
    downs = list(dict.fromkeys(cell[:-1] for cell in cells))
    across = [value for value in drawn.values(drawn.axes[-1]) if any(cell[-1] == value for cell in cells)]
    heads = [
        ", ".join(f"{axis} {value}" for axis, value in zip(drawn.axes[:-1], down, strict=True))
        for down in downs
    ]
    words = [[_word(drawn, line.rows.get((*down, value))) for value in across] for down in downs]
    top = [f"{drawn.axes[-1]} {across[0]}", *(str(value) for value in across[1:])]
    return columns(["", *top], [[head, *row] for head, row in zip(heads, words, strict=True)])


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first to the left, numbers to the right."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    return [
        "  ".join(
            word.ljust(w) if place == 0 else word.rjust(w)
            for place, (word, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]


def _word(drawn: Sheet, row: Row | None) -> str:
    if row is None:
        return "not asked"
    if row.state != "done" or row.example_seconds is None:
        return row.state
    return MARK * row.disturbed + units.digits(row.example_seconds * drawn.scale)


def counted(rows: Sequence[Row]) -> str:
    """How far the study is: 720 of 800 cells measured, 12 failed, 68 waiting."""
    measured = [row for row in rows if row.origin == "measured"]
    failed = sum(row.state not in NEVER_FAILED for row in measured)
    waiting = sum(row.state == "waiting" for row in measured)
    apart = sum(row.state in APART for row in measured)
    done = sum(row.state == "done" for row in measured)
    more = (
        [f"{failed:,} failed"] * bool(failed)
        + [f"{apart:,} not possible here"] * bool(apart)
        + [f"{waiting:,} waiting"] * bool(waiting)
    )
    more += [
        f"{n:,} {origin}"
        for origin in ("forecast", "published")
        if (n := sum(row.origin == origin for row in rows))
    ]
    told = (
        ", ".join(
            [f"{done:,} of {len(measured):,} cells measured" if measured else "Nothing measured", *more]
        )
        + "."
    )
    slowed = sum(row.disturbed for row in measured)
    return told + (
        f" {slowed:,} met no calm moment ({MARK}): their pace is reckoned from the machine's pulse, their intervals are wider."
        if slowed
        else ""
    )


def by_number(name: str) -> list[tuple[bool, int, str]]:
    """Names in the order a person counts: figure-2 before figure-10."""
    return [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
