"""The pictures of the guide by its chapters: each module says in `drawings` what it draws, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from guidebook.tables import Tables

Spec = dict[str, Any]
Drawings = Mapping[str, Callable[[Tables], Spec]]
GIB = 2.0**30
