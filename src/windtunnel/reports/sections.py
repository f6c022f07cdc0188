"""The parts of a study's page that cover the whole study: claims, states, cold starts and the environment."""

from __future__ import annotations

import statistics
from collections import Counter
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
    "holds": ("holds", "✓"),
    "does not hold": ("does", "✗"),
}
# What the facts of an environment are called on the page, where their keys do not say it.
_FACT_NAMES = {
    "disturbed": "disturbed by other programs",
    "reference_loop_seconds": "reference loop, seconds",
    "stopped_by": "stopped by",
}


def claims(verdicts: Sequence[ClaimVerdict]) -> Piece:
    """Each claim in one line with its verdict; effect, reason and source are folded below it."""
    if not verdicts:
        return element("p", "This study has no claims, or none was judged.")
    counts = Counter(verdict.marked_ruling for verdict in verdicts)
    order = sorted(counts, key=lambda word: (_grade_place(word), word))
    long = " long" if any(word.endswith(BY_FORECAST) for word in order) else ""
    chips = (element("li", ruling(word, f"{counts[word]} ")) for word in order)
    return joined(
        [
            element(
                "p", "Each finding of the paper as a check with numbers. Open a line for them.", class_="soft"
            ),
            element("ul", *chips, class_="counts", aria_label="How many claims have which verdict"),
            element(
                "ul", *(element("li", _claim(verdict)) for verdict in verdicts), class_=f"verdicts{long}"
            ),
        ]
    )


def _grade_place(word: str) -> int:
    names = list(_RULINGS)
    name = word.removesuffix(BY_FORECAST).strip()
    return names.index(name) if name in names else len(names)


def _claim(verdict: ClaimVerdict) -> Markup:
    head = element("summary", ruling(verdict.marked_ruling), element("span", verdict.text or verdict.claim))
    source = f"{verdict.source}; from {verdict.rows} cells" if verdict.rows else verdict.source
    facts = {
        "Effect": effect_words(verdict),
        "Published": verdict.published or "not stated",
        "Reason": verdict.reason or "no reason given",
        "Source": source,
    }
    items = (joined([element("dt", name), element("dd", words)]) for name, words in facts.items())
    body = element("div", element("dl", *items, class_="facts"), _parts_table(verdict), class_="said")
    return element("details", head, body)


def _parts_table(verdict: ClaimVerdict) -> Markup:
    """The verdict for each framework and device, where there are several."""
    if len(verdict.parts) < 2:
        return Markup("")
    columns = [Column(head=head) for head in ("Where", "Result", "Effect", "Reason")]
    rows = [
        [
            part.where or part.claim,
            ruling(part.marked_ruling),
            effect_words(part),
            cell(part.reason, kind="wide"),
        ]
        for part in verdict.parts
    ]
    return table("By framework and device.", columns, rows, tall=len(rows) > 14)


def ruling(word: str, before: str = "") -> Markup:
    """A verdict as a chip: a sign and words, not a colour alone."""
    kind, sign = _RULINGS.get(word.removesuffix(BY_FORECAST).strip(), ("open", "?"))
    return element("span", f"{sign} {before}{word}", class_=f"ruling {kind}")


def explained(gains: Sequence[ExplainedGain]) -> Markup:
    """What would explain each stated gain."""
    columns = [Column(head=head, kind="n" if place > 1 else "") for place, head in enumerate(EXPLAINED_HEADS)]
    whole = table(EXPLAINED_CAPTION, columns, [explained_words(gain) for gain in gains], heads=0)
    summary = element("summary", f"{len(gains)} stated gains, and what would explain each")
    return element("details", summary, whole, class_="fold")


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
        return element("dl", *items, class_="facts")
    columns = [Column(head=head) for head in ("Fact", "Value", "Frameworks")]
    columns.append(Column(head="Cells", kind="n"))
    caption = "Facts that differ between cells. Threads are those that the framework reports."
    return joined([element("dl", *items, class_="facts"), table(caption, columns, rest, tall=len(rest) > 14)])


def _facts(rows: Sequence[StudyRow]) -> dict[str, dict[str, list[StudyRow]]]:
    """Each fact of the environments with its values, and the rows that have each value."""
    same: dict[tuple[object, ...], list[StudyRow]] = {}  # rows whose environments have the same facts
    for row in rows:
        same.setdefault(_facts_key(row.environment), []).append(row)
    facts: dict[str, dict[str, list[StudyRow]]] = {}
    for some in same.values():
        for name, text in dotted(some[0].environment).items():
            facts.setdefault(name, {}).setdefault(text, []).extend(some)
    return {_FACT_NAMES.get(name, name.replace("ready.", "reported: ")): facts[name] for name in facts}


def _facts_key(environment: Mapping[str, object]) -> tuple[object, ...]:
    """Equal only for environments with the same facts: nested ones count by identity, since many rows share
    them. A type stands beside each value, because 1 equals True."""
    pairs = [
        (type(value), value) if isinstance(value, (str, int, float)) else id(value)
        for value in environment.values()
    ]
    return (*environment, *pairs)


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
