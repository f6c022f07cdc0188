"""The networks, and one network, which a worker describes."""

from __future__ import annotations

from windtunnel import networks
from windtunnel.reports.page import Column, Markup, element, joined, table

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
    columns = [Column(head="Name"), Column(head="What"), Column(head="For"), Column(head="Source")]
    for kind, (title, about) in _KINDS.items():
        entries = [networks.named(name) for name in networks.names()]
        rows = [
            [element("a", e.name, href=f"/networks/{e.name}"), e.title, e.purpose, e.source]
            for e in entries
            if e.kind == kind
        ]
        parts += [element("h2", title), element("p", about, class_="lead"), table(title, columns, rows)]
    return "Networks", joined(parts, "\n")


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
