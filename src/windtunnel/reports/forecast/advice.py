"""Advice as a list: what to change, what it gains, why, and the flag and the line of code that do it."""

from __future__ import annotations

import math
from collections.abc import Callable

from windtunnel import units
from windtunnel.advice.result import Advice, Combination, Suggestion, gain_words, short_gain
from windtunnel.reports.forecast.marks import box, drawing, rule
from windtunnel.reports.page import Markup, Piece, element, joined

# From a suggestion to the address of the page with it applied; None where there is none.
Link = Callable[[Suggestion], str | None]
_SHOWN = 8
_SCOPES = {
    "step": "same machine, same batch",
    "batch": "another batch",
    "machine": "other hardware",
    "code": "new code",
}


def advice_list(advice: Advice, link: Link | None = None, together: str | None = None) -> Markup:
    """What helps, by its gain. `link` gives each suggestion an address that applies it, `together` is that
    of the best combination."""
    if not advice.suggestions:
        return element("p", _sentence(advice.why_nothing()), class_="note")
    scale = (
        min(0.7, *(each.gain.low for each in advice.suggestions)),
        max(1.5, *(each.gain.high for each in advice.suggestions)),
    )
    shown, rest = advice.suggestions[:_SHOWN], advice.suggestions[_SHOWN:]
    items = element("ol", *(_item(each, scale, advice, link) for each in shown), class_="advice")
    more = (
        element(
            "details",
            element("summary", f"{len(rest)} more that gain less"),
            element("ol", *(_item(each, scale, advice, link) for each in rest), class_="advice"),
        )
        if rest
        else ""
    )
    return joined([_together(advice, together), items, more, _not_applied(advice)])


def _item(each: Suggestion, scale: tuple[float, float], advice: Advice, link: Link | None) -> Markup:
    proposal = each.proposal
    address = link(each) if link else None
    name: Piece = element("b", each.name)
    apply = (
        element("a", "Apply", href=address, class_="button", aria_label=f"Apply {each.name}")
        if address
        else ""
    )
    gain = "makes it fit" if not advice.base.fits else f"{short_gain(each.gain)} times as fast"
    unsure = not each.gain.is_sure and advice.base.fits and proposal.goal != "smaller"
    chips: list[Piece] = [element("span", _SCOPES[proposal.scope], class_="chip")]
    if unsure:
        chips.append(element("span", "measure first", class_="chip open", title="Its interval includes 1"))
    if each.basis == "study":
        chips.append(element("span", "by a study", class_="chip"))
    lines = [("Costs", proposal.costs), ("Source", proposal.source)]
    details = joined(joined([element("dt", title), element("dd", text)]) for title, text in lines if text)
    return element(
        "li",
        element("div", name, " ", joined(chips, " "), apply, class_="advice-head"),
        element("div", _gain_bar(each, *scale), element("span", gain), class_="advice-gain"),
        element("p", _sentence(proposal.reason)),
        _codes(proposal.flag, proposal.code),
        element("details", element("summary", "Costs and source"), element("dl", details, class_="facts")),
    )


def _gain_bar(each: Suggestion, least: float, most: float) -> Markup:
    """How many times as fast, with its interval, on a logarithmic scale; the line is 1: no change."""

    def place(gain: float) -> float:
        return min(1.0, max(0.0, math.log(gain / least) / math.log(most / least)))

    gain = each.gain
    start, end = sorted((place(1.0), place(gain.gain)))
    return drawing(
        14,
        box(0, 1, 4, 6, "track"),
        box(start, end - start, 4, 6, "gain" if gain.gain >= 1 else "loss"),
        rule(place(gain.low), 7, place(gain.high), 7, "whisker"),
        rule(place(1.0), 0, place(1.0), 14, "mark"),
        label=f"{each.name}: {short_gain(gain)} times as fast",
    )


def _codes(flag: str, code: str) -> Markup:
    """The flag of windtunnel and the line of PyTorch."""
    rows = [
        element(
            "div",
            element("span", title, class_="code-title"),
            element("code", text, data_copy=""),
            class_="code",
        )
        for title, text in (("flag", flag), ("PyTorch", code))
        if text
    ]
    return element("div", *rows, class_="codes")


def _together(advice: Advice, address: str | None) -> Markup:
    """The best combination, on top; `address` applies it."""
    whole: Combination | None = advice.together
    if whole is None:
        return Markup("")
    step = units.show(whole.tried.forecast.step_seconds, "s")
    said = gain_words(whole.gain, advice.base, whole.tried)
    words = f"Apply all {len(whole.names)} together"
    title = "All together" if whole.tried.fits else "Nearest to fitting"
    return element(
        "div",
        element(
            "p",
            element("b", f"{title}: "),
            f"{', '.join(whole.names)}. ",
            f"{said[:1].upper()}{said[1:]}: {step}.",
        ),
        _codes(" ".join(whole.flags), ""),
        *([element("a", words, href=address, class_="button strong")] if address else []),
        class_="together",
    )


def _not_applied(advice: Advice) -> Markup:
    """What does not help or apply, folded."""
    rows = [(other.name, gain_words(other.gain, advice.base, other.tried)) for other in advice.others]
    rows += [(rule.name or rule.rule, rule.reason) for rule in advice.not_applied]
    rows += [(name, "not tried: the time of the search was up") for name in advice.untried]
    if not rows:
        return Markup("")
    items = joined(joined([element("dt", name), element("dd", _sentence(text))]) for name, text in rows)
    return element(
        "details",
        element("summary", f"{len(rows)} changes do not help or apply"),
        element("dl", items, class_="facts"),
    )


def _sentence(text: str) -> str:
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith(".") else f"{whole}."
