"""The studies of the catalogue, and one study, whose rows a worker reads."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException

from windtunnel.reports.page import Markup, element, joined
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
        return "Studies", _cards(self.known())


def _cards(known: Mapping[str, Study]) -> Markup:
    lead = (
        "Published experiments as data: what their authors printed, what was measured again here, and "
        "whether their claims hold."
    )
    return joined(
        [
            element("h1", "Studies"),
            element("p", lead, class_="lead"),
            element("ul", *map(_card, known.values()), class_="places wide"),
        ],
        "\n",
    )


def _card(study: Study) -> Markup:
    authors = f"{study.authors[:1].upper()}{study.authors[1:]}"
    return element(
        "li",
        element("a", study.title, href=f"/studies/{study.name}"),
        element("p", f"{authors}, {study.year}"),
        element("p", f"{len(study.figures)} figures, {len(study.claims)} claims", class_="source"),
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
