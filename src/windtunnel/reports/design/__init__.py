"""The design of every page: one style, one small script, one set of colours. Nothing is loaded from outside.

Both are files of the package. A report holds their text; a server may send them as files.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

_STYLES = ("tokens.css", "page.css", "parts.css", "heat.css")
_SCRIPTS = ("page.js",)


@functools.cache
def css() -> str:
    """The style of every page as one text."""
    return "\n".join(_text(name) for name in _STYLES)


@functools.cache
def script() -> str:
    """The script of every page: theme, zoom of timelines, copying of code. Pages work without it."""
    return "\n".join(_text(name) for name in _SCRIPTS)


def policy() -> str:
    """The content-security policy of a page that holds style and script itself: nothing else may run."""
    return (
        f"default-src 'none'; style-src '{_digest(css())}'; script-src '{_digest(script())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8").strip()
