"""The layout of --help: if an option has two names, both are shown in full."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class HelpCommand(TyperCommand):
    """A command whose help breaks the line between two names of an option, where Typer would cut them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        plain = rich_utils.highlighter
        rich_utils.highlighter = lambda names: plain(names.replace(",", ", "))  # type: ignore[assignment]
        try:
            super().format_help(ctx, formatter)
        finally:
            rich_utils.highlighter = plain
