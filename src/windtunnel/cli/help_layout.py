"""The layout of --help: if an option has two names, both are shown in full."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class HelpCommand(TyperCommand):
    """A command whose help breaks the line between two names of an option, where Typer would cut them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        plain: Any = rich_utils.highlighter

        def highlight(text: Any) -> Any:
            """Typer passes the names of an option as one text: "--accumulate,--micro-batches"."""
            is_names = isinstance(text, str) and text.startswith("--")
            return plain(text.replace(",", ", ") if is_names else text)

        rich_utils.highlighter = highlight  # type: ignore[assignment]
        try:
            super().format_help(ctx, formatter)
        finally:
            rich_utils.highlighter = plain
