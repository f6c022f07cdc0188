"""Which factor matters: how far each one, alone, stretches the time of an example."""

from __future__ import annotations

import math

from windtunnel import units
from windtunnel.influence.effects import FactorInfluence, RangeEffect
from windtunnel.influence.result import Influence
from windtunnel.reports.forecast.marks import box, drawing, numbers, rule
from windtunnel.reports.page import Markup, element, joined

_MOST = 14


def factors_chart(influence: Influence) -> Markup:
    """Bars on a logarithmic scale around the base, the most influential factor on top."""
    base = influence.base.step_seconds / influence.base.batch
    found = [(factor, effect) for factor in influence.ranked() if (effect := factor.effect())][:_MOST]
    if not found:
        return element("p", "No factor of this job could be varied.", class_="note")
    low = min([base, *(effect.least.example_seconds for _, effect in found)])
    high = max([base, *(effect.most.example_seconds for _, effect in found)])
    rows = element("ol", *(_row(f, e, base, low, high) for f, e in found), class_="rows tornado")
    said = (
        "Each bar is one factor over its range, all else equal, from its fastest to its slowest value. "
        f"The line is the job as it is: {units.show(base, 's')} for an example. The scale is logarithmic."
    )
    table = [
        [
            factor.name,
            factor.group,
            f"{effect.least.label} ({units.show(effect.least.example_seconds, 's')})",
            f"{effect.most.label} ({units.show(effect.most.example_seconds, 's')})",
            f"{units.digits(effect.ratio)} ({units.digits(effect.low)} to {units.digits(effect.high)})",
        ]
        for factor, effect in found
    ]
    heads = ("Factor", "Group", "Fastest", "Slowest", "Influence")
    return joined(
        [
            element("p", said, class_="lead"),
            rows,
            numbers("Influence of each factor on the time", heads, table),
        ]
    )


def _row(factor: FactorInfluence, effect: RangeEffect, base: float, low: float, high: float) -> Markup:
    def place(seconds: float) -> float:
        return 0.0 if high <= low else math.log(seconds / low) / math.log(high / low)

    start, end = place(effect.least.example_seconds), place(effect.most.example_seconds)
    ends = f"{effect.least.label} to {effect.most.label}"
    label = f"{factor.name}: {ends}, {units.digits(effect.ratio)} times"
    clear = [] if effect.is_clear else [element("span", "no clear effect", class_="chip")]
    return element(
        "li",
        element("span", element("b", factor.name), " ", *clear, class_="row-name"),
        drawing(
            22,
            box(0, 1, 10, 2, "track"),
            box(start, max(0.004, end - start), 4, 14, "range" if effect.is_clear else "range vague"),
            rule(place(base), 0, place(base), 22, "mark"),
            label=label,
        ),
        element(
            "span",
            element("b", f"\N{MULTIPLICATION SIGN}{units.digits(effect.ratio)}"),
            f" {ends}",
            class_="row-value",
        ),
    )
