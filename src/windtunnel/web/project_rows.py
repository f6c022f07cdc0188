"""Rows that this project measured and forecast: a study shows them where nothing was measured yet."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import windtunnel
from windtunnel import records
from windtunnel.errors import WindtunnelError
from windtunnel.study import export
from windtunnel.study.rows import StudyForecasts, StudyRow

_PACKAGE = Path(windtunnel.__file__).parent
# In an installed package, and in a checkout of the source.
FOLDERS = (_PACKAGE / "measured", _PACKAGE.parent.parent / "docs" / "results")


@functools.lru_cache(maxsize=4)
def project_rows(study: str) -> tuple[StudyRow, ...]:
    """The rows of a study of the catalogue; none where they are not installed."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        return ()
    found = [row for path in sorted(folder.glob(f"{study}-*.json")) for row in _read(path)]
    for path in sorted(folder.glob(f"forecast-{study}.json")):
        found += _forecasts(path)
    return tuple(row for row in found if row.study == study and row.origin != "published")


def _read(path: Path) -> list[StudyRow]:
    try:
        return export.read(path)
    except WindtunnelError:  # another kind of file
        return []


def _forecasts(path: Path) -> tuple[StudyRow, ...]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return records.read(StudyForecasts, plain, str(path)).rows
    except (OSError, ValueError, WindtunnelError):
        return ()
