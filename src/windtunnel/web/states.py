"""What is shown while there is no answer, or where there is none: pieces that need no template."""

from __future__ import annotations

from windtunnel.reports.page import Markup, element, joined

NOT_FOUND = "There is no such page.", "The address may be old or mistyped. These pages exist:"
FAULT = (
    "A fault of windtunnel itself.",
    "The terminal in which the page was started says more. The other pages still work.",
)


# What takes long, by the kind of question.
_WHY = {
    "study": "Rows are read, claims are judged and charts are drawn. Larger studies take some seconds.",
    "network": "The network is built and one step of it is recorded. The next time it is there at once.",
    "advice": "Each change is forecast by itself, then the best ones together. Some need another trace.",
    "factors": "Each factor is forecast over its range. Some values need a trace of their own.",
    "scaling": "The step is forecast on 1 to 64 devices. Each share of the batch needs a trace of its own.",
    "feed": "The step is forecast with each remedy.",
}
_WHY_TRACE = (
    "The first trace of a job takes some seconds, since PyTorch starts and one step is recorded. "
    "After that, other machines and strategies are answered at once."
)


def progress(stage: str, seconds: float, task: str = "") -> Markup:
    """How far an answer is. The script asks again until it is there."""
    said = f"{stage[:1].upper()}{stage[1:]}"
    return element(
        "div",
        element("div", element("span", class_="bar-run"), class_="bar-track", aria_hidden="true"),
        element("p", element("b", said), f", {seconds:.0f} s so far.", role="status"),
        element("p", _WHY.get(task, _WHY_TRACE), class_="soft"),
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


_PLACES = (
    ("/", "Forecast", "Step time, memory and bottleneck of a job on a machine"),
    ("/machines", "Machines", "GPUs, CPUs and nodes, every figure with its source"),
    ("/networks", "Networks", "What each is for, its layers and settings"),
    ("/studies", "Studies", "Published experiments, measured again"),
    ("/accuracy", "Accuracy", "How far forecasts are from measured steps"),
    ("/guide", "Guide", "Training time explained, in an hour"),
)


def error_page(message: str, hint: str) -> Markup:
    """What went wrong, and where to go from here."""
    places = (
        element("li", element("a", name, href=address), element("p", says)) for address, name, says in _PLACES
    )
    return joined(
        [
            element("h1", message),
            element("p", hint, class_="lead"),
            element("ul", *places, class_="places"),
        ]
    )


def empty(title: str, *lines: str | Markup) -> Markup:
    """A place that has nothing to show yet, and what fills it."""
    return element("div", element("h2", title), *(element("p", line) for line in lines), class_="empty")
