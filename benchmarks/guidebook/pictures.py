"""The pictures of the guide, one for each section, from the kept numbers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from guidebook.drawings import Drawings, Spec, choosing, devices, feeding, several, using
from guidebook.tables import Tables, figures_of_studies
from guidebook.values import Values
from windtunnel import records
from windtunnel.reports.charts import Chart

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
ALL: Drawings = {
    name: drawing
    for chapter in (choosing, devices, several, feeding, using)
    for name, drawing in chapter.drawings.items()
}


def write_all() -> list[str]:
    """Draw those whose description has changed, and remove those that are drawn no more; the names of all."""
    specs = all_specs()
    for name, spec in specs.items():
        path = FOLDER / f"guide-{name}.svg"
        if not path.exists() or mark(spec) not in path.read_text(encoding="utf-8"):
            records.write_whole(path, f"{Chart(spec=spec).svg()}\n{mark(spec)}\n")
    for path in FOLDER.glob("guide-*.svg"):
        if path.stem.removeprefix("guide-") not in specs:
            path.unlink()
    return list(specs)


def mark(spec: Spec) -> str:
    """A comment by which a test sees that a picture shows these numbers."""
    return f"<!-- {hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]} -->"


def all_specs() -> dict[str, Spec]:
    """The description of every picture."""
    tables = Tables(Values(), figures_of_studies())
    return {name: drawing(tables) for name, drawing in ALL.items()}
