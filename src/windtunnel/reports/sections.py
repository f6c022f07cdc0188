"""The parts of a study's page that cover the whole study: claims, states, cold starts and the environment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from windtunnel import units
from windtunnel.reports import maps
from windtunnel.reports.page import Column, Markup, Piece, cell, element, joined, table
from windtunnel.reports.text import (
    EXPLAINED_CAPTION,
    EXPLAINED_HEADS,
    effect_words,
    explained_words,
    ratio_words,
)
from windtunnel.study.rows import BY_FORECAST, ClaimVerdict, ExplainedGain, StudyRow

_MOST_VALUES = 8  # a fact with more values is shown by a few examples
_RULINGS = {
    "holds everywhere": ("holds", "✓"),
    "holds in most": ("holds", "✓"),
    "holds in few": ("does", "✗"),
    "holds nowhere": ("does", "✗"),
    "can't tell": ("open", "?"),
    "not asked here": ("open", "·"),
}
# What the facts of an environment are called on the page, where their keys do not say it.
_FACT_NAMES = {
    "disturbed": "disturbed by other programs",
    "reference_loop_seconds": "reference loop, seconds",
    "stopped_by": "stopped by",
}


def claims(verdicts: Sequence[ClaimVerdict]) -> Piece:
    """Each claim with its verdict."""
    if not verdicts:
        return element("p", "This study has no claims, or none was judged.")
    columns = [Column(head=head) for head in ("Result here", "Claim", "Effect", "Published", "Reason")]
    rows = [[ruling(verdict.marked_ruling), *_claim_cells(verdict)] for verdict in verdicts]
    return table("Each finding of the paper as a check with numbers.", columns, rows, heads=0)


def ruling(word: str) -> Markup:
    kind, sign = _RULINGS.get(word.removesuffix(BY_FORECAST).strip(), ("open", "?"))
    return element("span", f"{sign} {word}", class_=f"ruling {kind}")


def explained(gains: Sequence[ExplainedGain]) -> Markup:
    """What would explain each stated gain."""
    columns = [Column(head=head, kind="n" if place > 1 else "") for place, head in enumerate(EXPLAINED_HEADS)]
    return table(EXPLAINED_CAPTION, columns, [explained_words(gain) for gain in gains], heads=0)


def _claim_cells(verdict: ClaimVerdict) -> list[Piece]:
    source = f"{verdict.source}; from {verdict.rows} cells" if verdict.rows else verdict.source
    return [
        cell(verdict.text or verdict.claim, " ", element("small", source), kind="wide"),
        cell(effect_words(verdict), kind="mid"),
        cell(verdict.published or "not stated", kind="mid"),
        cell(verdict.reason or "no reason given", kind="wide"),
    ]


def key(rows: Sequence[StudyRow]) -> Markup:
    """The glyph of each state without a time."""
    states = sorted({row.state for row in rows if row.state != "done"})
    if not states:
        return Markup("")
    return element(
        "ul",
        *(element("li", maps.glyph(state), state) for state in states),
        class_="key",
        aria_label="Glyphs of cells without a time",
    )


def cold_starts(rows: Sequence[StudyRow]) -> Piece:
    """The first step against a steady one, by framework and device."""
    groups: dict[tuple[str, str], list[StudyRow]] = {}
    for row in rows:
        if row.origin == "measured" and row.first_seconds is not None and row.step_seconds:
            groups.setdefault((row.label, row.device_name or row.device.upper()), []).append(row)
    if not groups:
        return element("p", "No first step has been timed.")
    columns = [Column(head="Framework"), Column(head="Device")]
    columns += [
        Column(head=head, kind="n")
        for head in (
            "Cells",
            "First step, median",
            "Steady step, median",
            "First over steady, median",
            "First over steady, largest",
        )
    ]
    body = [[label, device, *_cold_words(some)] for (label, device), some in sorted(groups.items())]
    words = "The first step also compiles, allocates and loads. Its time is not part of the times above."
    return joined(
        [
            element("p", words, class_="soft"),
            table("Cold start: the first step against steady steps.", columns, body),
        ]
    )


def _cold_words(rows: Sequence[StudyRow]) -> list[str]:
    pairs = [
        (row.first_seconds, row.step_seconds)
        for row in rows
        if row.first_seconds is not None and row.step_seconds
    ]
    ratios = [first / steady for first, steady in pairs]
    times = [units.show(statistics.median(values), "s") for values in zip(*pairs, strict=True)]
    return [str(len(rows)), *times, ratio_words(statistics.median(ratios)), ratio_words(max(ratios))]


def environment(rows: Sequence[StudyRow]) -> Piece:
    """Where and with what the rows were measured: what all rows share as a list, what differs as a table."""
    known = [row for row in rows if row.origin == "measured" and row.environment]
    measured = [row for row in known if row.state == "done"] or known
    if not measured:
        return element("p", "Nothing has been measured here, so there is no environment to show.")
    facts = _facts(measured)
    common = _measured_dates(measured) | {
        name: next(iter(values))
        for name, values in facts.items()
        if len(values) == 1 and len(next(iter(values.values()))) == len(measured)
    }
    items = (joined([element("dt", name), element("dd", value)]) for name, value in common.items())
    rest = [line for name, values in facts.items() if name not in common for line in _differing(name, values)]
    if not rest:
        return element("dl", *items)
    columns = [Column(head=head) for head in ("Fact", "Value", "Frameworks")]
    columns.append(Column(head="Cells", kind="n"))
    caption = "Facts that differ between cells. Threads are those that the framework reports."
    return joined([element("dl", *items), table(caption, columns, rest, tall=len(rest) > 14)])


def _facts(rows: Sequence[StudyRow]) -> dict[str, dict[str, list[StudyRow]]]:
    """Each fact of the environments with its values, and the rows that have each value."""
    facts: dict[str, dict[str, list[StudyRow]]] = {}
    for row in rows:
        for name, value in dotted(row.environment).items():
            shown = _FACT_NAMES.get(name, name.replace("ready.", "reported: "))
            facts.setdefault(shown, {}).setdefault(value, []).append(row)
    return facts


def _measured_dates(rows: Sequence[StudyRow]) -> dict[str, str]:
    dates = sorted(row.measured_at for row in rows if row.measured_at)
    if not dates:
        return {}
    return {"measured": dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"}


def _differing(name: str, values: Mapping[str, Sequence[StudyRow]]) -> list[list[Piece]]:
    """A fact value by value, or by a few examples where nearly every cell has another."""
    if len(values) > _MOST_VALUES:
        labels = sorted({row.label for some in values.values() for row in some})
        examples = f"{len(values)} values, such as {_few(sorted(values), 3)}"
        return [[name, examples, _few(labels), str(sum(map(len, values.values())))]]
    return [
        [name, value, _few(sorted({row.label for row in some})), str(len(some))]
        for value, some in sorted(values.items())
    ]


def dotted(environment: Mapping[str, object], before: str = "") -> dict[str, str]:
    """Nested facts as one level with dotted names: versions.torch."""
    facts: dict[str, str] = {}
    for name, value in environment.items():
        if isinstance(value, Mapping):
            facts |= dotted(value, f"{before}{name}.")
        elif isinstance(value, (list, tuple)):
            facts[f"{before}{name}"] = ", ".join(map(str, value))
        else:
            facts[f"{before}{name}"] = str(value)
    return {name: value for name, value in facts.items() if value}


def _few(words: Sequence[str], most: int = 6) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
