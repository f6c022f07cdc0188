"""Docstrings as the site shows them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import griffe

_SITE = runpy.run_path(str(Path(__file__).with_name("site.py")))


class Columns(griffe.Extension):
    """Shows the two columns of a docstring as a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _SITE["columns_as_list"](obj.docstring.value)
