"""A study's report for a terminal: the claims, then each figure as the paper prints its tables."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from windtunnel import units
from windtunnel.reports.lines import FigureLine, Sheet, sheet
from windtunnel.study.rows import NOT_FAILED, NOT_RUNNABLE, ClaimVerdict, ExplainedGain, StudyRow

if TYPE_CHECKING:
    from windtunnel.study.study import Study

TIMES = "\N{MULTIPLICATION SIGN}"
MARK = "~"  # of a cell that other programs disturbed throughout
_WIDTH = 110
_MOST_CELLS = 200  # a line with more cells is only summed up


def report(
    study: Study,
    rows: Sequence[StudyRow],
    verdicts: Sequence[ClaimVerdict],
    explained: Sequence[ExplainedGain] = (),
    sheets: Mapping[str, Sheet] | None = None,
) -> str:
    """The whole report as text. `sheets` are those of the figures, if they were made before."""
    from windtunnel.reports import clusters, learned

    by_figure = rows_by_figure(rows)
    lines = [study.title, *textwrap.wrap(counted(rows), _WIDTH), "", *claim_lines(verdicts)]
    for figure in sorted(study.figures, key=lambda each: by_number(each.name)):
        if figure.is_clustered and figure.name in by_figure:
            lines += clusters.figure_lines(figure, by_figure[figure.name])
        elif figure.trains and figure.name in by_figure:
            lines += learned.figure_lines(figure, by_figure[figure.name])
        elif figure.name in by_figure:
            drawn = sheets[figure.name] if sheets else sheet(figure, by_figure[figure.name])
            lines += figure_lines(drawn)
        lines += explained_lines([each for each in explained if each.figure == figure.name])
    return "\n".join(lines).rstrip() + "\n"


def rows_by_figure(rows: Iterable[StudyRow]) -> dict[str, list[StudyRow]]:
    by_figure: dict[str, list[StudyRow]] = {}
    for row in rows:
        by_figure.setdefault(row.figure, []).append(row)
    return by_figure


def claim_lines(verdicts: Sequence[ClaimVerdict]) -> list[str]:
    """Each claim with its ruling, its effect and the reason."""
    lines = ["Claims"] if verdicts else []
    for verdict in verdicts:
        lines += textwrap.wrap(
            f"{verdict.marked_ruling:<17} {verdict.text or verdict.claim}",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * 20,
        )
        for name, words in (
            ("forecast" if verdict.basis == "forecast" else "effect", effect_words(verdict)),
            ("reason", verdict.reason or "no reason given"),
            ("paper", verdict.published or "not stated"),
        ):
            indent = " " * 20
            lines += textwrap.wrap(
                f"{name:<8} {words}", _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}{'':9}"
            )
    return [*lines, ""] if lines else []


EXPLAINED_HEADS = (
    *("Gain of", "Case", "Efficiency stated", "Forecast, not overlapped", "Forecast, overlapped"),
    *("Link, not overlapped", "Link, overlapped", "Host, each step"),
)
EXPLAINED_CAPTION = (
    "What would explain each stated gain, by forecast: the rate of the link between the GPUs with an exchange"
    " after backward, that with an exchange which overlaps backward, or the host's time to launch a step."
    " Each factor is solved for alone. Behind it: times what the machine has."
)


def explained_words(gain: ExplainedGain) -> list[str]:
    """One stated gain as cells of a table."""
    shares = [f"{share:.0%}" for share in (gain.efficiency, gain.not_overlapped, gain.overlapped)]
    factors = [
        f"{units.show(each.value, each.unit)} ({units.digits(each.factor)}{TIMES})"
        if each.factor is not None and each.value is not None
        else "none"
        for each in gain.factors
    ]
    return [gain.name, gain.case, *shares, *factors]


def explained_lines(explained: Sequence[ExplainedGain]) -> list[str]:
    """What would explain the stated gains of a figure."""
    if not explained:
        return []
    head = textwrap.wrap(EXPLAINED_CAPTION, _WIDTH - 2)
    table = columns(EXPLAINED_HEADS, [explained_words(gain) for gain in explained])
    return [*(f"  {line}" for line in [*head, "", *table]), ""]


def effect_words(verdict: ClaimVerdict) -> str:
    """The effect with its interval: 0.97 (0.94 to 1.01) slope."""
    if verdict.effect is None:
        return "no effect"
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        interval = f" ({units.digits(verdict.low)} to {units.digits(verdict.high)})"
    return f"{units.digits(verdict.effect)}{interval} {verdict.counted}".rstrip()


def ratio_words(ratio: float) -> str:
    """Two digits are enough for a ratio of noisy times."""
    return (f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:#.2g}") + TIMES


def figure_lines(drawn: Sheet) -> list[str]:
    """One figure: its lines as grids, published ones first."""
    head = textwrap.wrap(f"{drawn.name}: {drawn.title}", _WIDTH, subsequent_indent="  ")
    lines = [*head, f"  {drawn.counted}" + ("" if drawn.published else "; nothing published"), ""]
    for line in drawn.shown:
        lines += _line_lines(drawn, line)
    missing = [
        f"{line.title} ({next(iter(line.rows.values())).state})" for line in drawn.lines if line.not_runnable
    ]
    if not missing:
        return lines
    words = f"Not measured: {', '.join(missing)}."
    return [*lines, *textwrap.wrap(words, _WIDTH, initial_indent="  ", subsequent_indent="    "), ""]


def _line_lines(drawn: Sheet, line: FigureLine) -> list[str]:
    ratio = drawn.median_ratio(line) if line.origin != "published" else None
    beside = f", median {ratio_words(ratio)} of the published time" if ratio is not None else ""
    head = f"  {line.name} ({line.origin}{beside})"
    if len(line.rows) > _MOST_CELLS:
        words = counted(list(line.rows.values()))
        return [head, *textwrap.wrap(words, _WIDTH, initial_indent="    ", subsequent_indent="    "), ""]
    return [head, *(f"    {words}" for words in _grid(drawn, line)), ""]


def _grid(drawn: Sheet, line: FigureLine) -> list[str]:
    """The last axis goes across, all others go down, as the paper prints it."""
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
            word.ljust(width) if place == 0 else word.rjust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]


def _word(drawn: Sheet, row: StudyRow | None) -> str:
    if row is None:
        return "not in grid"
    if row.state != "done" or row.example_seconds is None:
        return row.state
    return MARK * row.disturbed + units.digits(drawn.in_unit(row.example_seconds))


def counted(rows: Sequence[StudyRow]) -> str:
    """How far the study is: 720 of 800 cells measured, 12 failed, 68 waiting."""
    measured = [row for row in rows if row.origin == "measured"]
    states, origins = Counter(row.state for row in measured), Counter(row.origin for row in rows)
    done = states["done"]
    counts = {
        "failed": sum(count for state, count in states.items() if state not in NOT_FAILED),
        "not possible here": sum(states[state] for state in NOT_RUNNABLE),
        "waiting": states["waiting"],
        "forecast": origins["forecast"],
        "published": origins["published"],
    }
    verb = (
        "trained"
        if measured and all(row.training or not row.step_seconds for row in measured)
        else "measured"
    )
    first = f"{done:,} of {len(measured):,} cells {verb}" if measured else "Nothing measured"
    words = ", ".join([first, *(f"{count:,} {name}" for name, count in counts.items() if count)]) + "."
    diverged = sum(row.diverged for row in measured)
    if diverged:
        words += (
            f" In {diverged:,} of them the loss was no finite number: their steps may have done other work"
            " than those of a training."
        )
    disturbed_rows = [row for row in measured if row.disturbed]
    beside = sum(row.training is not None for row in disturbed_rows)
    if beside:
        words += (
            f" Other programs ran beside {beside:,} of them ({MARK}): their seconds may be too long;"
            " scores and steps do not depend on it."
        )
    disturbed = len(disturbed_rows) - beside
    if not disturbed:
        return words
    return (
        f"{words} Other programs disturbed {disturbed:,} of them throughout ({MARK}): their times may be"
        " too long, so no claim is judged by them."
    )


def by_number(name: str) -> list[tuple[bool, int, str]]:
    """A sort key for names with numbers: figure-2 before figure-10."""
    return [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
