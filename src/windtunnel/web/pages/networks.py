"""The networks, and one network, which a worker describes."""

from __future__ import annotations

from windtunnel import networks
from windtunnel.reports.page import Markup, element, joined

_KINDS = {
    "shallow": ("Shallow networks", "One hidden layer: quick to train, for simple tasks."),
    "deep": ("Deep networks", "Several layers, sequences, pictures and generated data."),
    "landmark": ("Landmark networks", "Published networks by which machines are compared."),
}


def every() -> tuple[str, Markup]:
    parts = [
        element("h1", "Networks"),
        element(
            "p",
            "What each network is for. Open one to see its layers, its sizes and its settings.",
            class_="lead",
        ),
    ]
    for kind, (title, about) in _KINDS.items():
        entries = [networks.named(name) for name in networks.names()]
        cards = (_card(entry) for entry in entries if entry.kind == kind)
        parts += [element("h2", title), element("p", about, class_="lead")]
        parts.append(element("ul", *cards, class_="places"))
    return "Networks", joined(parts, "\n")


def _card(entry: networks.NetworkEntry) -> Markup:
    purpose = f"{entry.purpose[:1].upper()}{entry.purpose[1:].rstrip('.')}."
    return element(
        "li",
        element("a", entry.name, href=f"/networks/{entry.name}"),
        element("span", f" {entry.title}", class_="soft"),
        element("p", purpose),
        element("p", entry.source, class_="source"),
    )


def body(entry: networks.NetworkEntry, answer: Markup) -> Markup:
    """The frame of one network; `answer` is what the worker says, or how far it is."""
    return joined(
        [
            element("p", element("a", "Networks", href="/networks"), " / ", entry.name, class_="crumbs"),
            element("h1", f"{entry.name}: {entry.title}"),
            element("p", element("a", "Forecast it", href=f"/?job={entry.name}", class_="button strong")),
            element("section", answer, data_source=f"/part/networks/{entry.name}", aria_label="Description"),
        ],
        "\n",
    )
