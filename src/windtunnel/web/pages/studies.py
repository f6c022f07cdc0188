"""The studies of the catalogue, and one study, whose rows a worker reads."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException

from windtunnel.reports.page import Column, Markup, element, joined, table
from windtunnel.study import study as catalogue
from windtunnel.study.study import Study


@functools.cache
def _catalogue() -> dict[str, Study]:
    return {name: catalogue.find(name) for name in catalogue.names()}


class Studies:
    """The studies of the catalogue and those that the command line registered, by name."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._own = {name: catalogue.load(Path(folder)) for name, folder in folders.items()}

    def known(self) -> dict[str, Study]:
        return {**self._own, **_catalogue()}

    def find(self, name: str) -> Study:
        """A study by its name; a folder cannot be named here."""
        found = self.known().get(name)
        if found is None:
            raise HTTPException(404, f"There is no study {name[:60]!r}.")
        return found

    def every(self) -> tuple[str, Markup]:
        return "Studies", _table(self.known())


def _table(known: Mapping[str, Study]) -> Markup:
    columns = [Column(head="Study"), Column(head="Title"), Column(head="Authors")]
    columns += [Column(head=head, kind="n") for head in ("Year", "Figures", "Claims")]
    rows = [
        [
            element("a", study.name, href=f"/studies/{study.name}"),
            study.title,
            study.authors,
            str(study.year),
            str(len(study.figures)),
            str(len(study.claims)),
        ]
        for study in known.values()
    ]
    return joined(
        [
            element("h1", "Studies"),
            element(
                "p",
                "Published experiments as data: what their authors printed, what was measured again here, "
                "and whether their claims hold.",
                class_="lead",
            ),
            table("Studies of the catalogue", columns, rows),
        ],
        "\n",
    )


def body(study: Study, answer: Markup) -> Markup:
    """The frame of one study; `answer` is what the worker says, or how far it is."""
    return joined(
        [
            element("p", element("a", "Studies", href="/studies"), " / ", study.name, class_="crumbs"),
            element("h1", study.title),
            element("p", f"{study.authors}, {study.year}. {study.source}", class_="lead"),
            element("section", answer, data_source=f"/part/studies/{study.name}", aria_label="Results"),
        ],
        "\n",
    )
