"""The frame of every page."""

from __future__ import annotations

import functools

import jinja2

import windtunnel
from windtunnel.reports.page import Markup

SECTIONS = (
    ("Forecast", "/"),
    ("Machines", "/machines"),
    ("Networks", "/networks"),
    ("Studies", "/studies"),
    ("Accuracy", "/accuracy"),
    ("Guide", "/guide"),
)


@functools.cache
def templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("windtunnel.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(title: str, body: Markup, section: str, waits: str | None = None) -> str:
    """A whole page. `waits`: its own address, if it should be asked again where no script runs."""
    template = templates().get_template("page.html")
    return template.render(
        title=title,
        body=body,
        section=section,
        sections=SECTIONS,
        waits=waits,
        version=windtunnel.__version__,
    )
