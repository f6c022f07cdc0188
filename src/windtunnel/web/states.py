"""What is shown while there is no answer, or where there is none: pieces that need no template."""

from __future__ import annotations

from windtunnel.reports.page import Markup, element, joined

NOT_FOUND = "There is no such page.", "Use the links above."
FAULT = (
    "A fault of windtunnel itself.",
    "The terminal in which the page was started says more. The other pages still work.",
)


def progress(stage: str, seconds: float) -> Markup:
    """How far an answer is. The script asks again until it is there."""
    said = f"{stage[:1].upper()}{stage[1:]}"
    return element(
        "div",
        element("div", element("span", class_="bar-run"), class_="bar-track", aria_hidden="true"),
        element("p", element("b", said), f", {seconds:.0f} s so far.", role="status"),
        element(
            "p",
            "The first trace of a job takes some seconds, since PyTorch starts and one step is recorded. "
            "After that, other machines and strategies are answered at once.",
            class_="soft",
        ),
        class_="progress",
        data_waiting="",
    )


def busy(message: str) -> Markup:
    return element(
        "div",
        element("p", element("b", "Busy. "), message),
        element("p", "The page asks again by itself in a few seconds.", class_="soft"),
        class_="alert",
        role="status",
        data_waiting="",
    )


def refusal(message: str, hint: str) -> Markup:
    """Why there is no forecast, and what to do now."""
    first, *rest = message.splitlines() or [""]
    more = [element("p", line.strip()) for line in rest if line.strip()]
    hints = [element("p", line.strip(), class_="soft") for line in hint.splitlines() if line.strip()]
    return element("div", element("p", element("b", first)), *more, *hints, class_="alert", role="alert")


def error_page(message: str, hint: str) -> Markup:
    return joined([element("h1", message), element("p", hint, class_="lead")])


def empty(title: str, *lines: str | Markup) -> Markup:
    """A place that has nothing to show yet, and what fills it."""
    return element("div", element("h2", title), *(element("p", line) for line in lines), class_="empty")
