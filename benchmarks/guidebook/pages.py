"""The pages of the guide, from their templates and the kept numbers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import findings_text

from guidebook import pictures, tables, values
from guidebook.values import Values
from windtunnel import records
from windtunnel.machine.building import shared_link

ROOT = Path(__file__).parents[2]
TEMPLATES, FOLDER = Path(__file__).parent / "templates", ROOT / "docs" / "guide"
STATEMENTS = Path(__file__).parent / "statements.toml"
# In the order in which they are read; the index comes before, the statements after them.
CHAPTERS = (
    *("01-network", "02-nodes-and-layers", "03-initial-weights", "04-cpu", "05-gpu", "06-several-gpus"),
    *("07-parallelism", "08-clusters", "09-exchange", "10-data-flow", "11-memory", "12-storage"),
    *("13-recurrent", "14-after-training", "15-first-steps"),
)
NAMES = ("index", *CHAPTERS, "statements")
_NOTE = "<!-- Written by benchmarks/guide.py from benchmarks/guidebook/templates. Change it there. -->"


def render() -> dict[str, str]:
    """Every page by its name."""
    names = expressions()
    names["statements"] = lambda: statements(names)
    return {name: _page(name, names) for name in NAMES}


def expressions() -> dict[str, Any]:
    """What templates can call."""
    figures, own = tables.figures_of_studies(), Values()
    return {
        "f": figures,
        "g": own,
        "t": tables.Tables(own, figures),
        **{name: getattr(values, name) for name in ("plain", "percent", "count", "duration", "sure")},
        "fused": findings_text.fused_names()["g"],
        "link": lambda name: shared_link(name).rate,
        "contents": contents,
        "tally": tally,
    }


def _page(name: str, names: dict[str, Any]) -> str:
    template = (TEMPLATES / f"{name}.md").read_text(encoding="utf-8")
    body = findings_text.filled_with(template, names)
    return f"{_NOTE}\n{values.aligned(body).rstrip()}\n\n{_onward(name)}\n"


def title(name: str) -> str:
    """The first line of a template, without its mark."""
    return (TEMPLATES / f"{name}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def contents() -> str:
    """The list of all chapters."""
    lines = [f"- [{title(name)}]({name}.md)" for name in (*CHAPTERS, "statements")]
    return "\n".join(lines)


def _onward(name: str) -> str:
    """Links to the page before and the page after."""
    place = NAMES.index(name)
    links = []
    if place:
        links.append(f"Before: [{title(NAMES[place - 1])}]({NAMES[place - 1]}.md)")
    if place + 1 < len(NAMES):
        links.append(f"Next: [{title(NAMES[place + 1])}]({NAMES[place + 1]}.md)")
    if place > 1:
        links.append("[All chapters](index.md)")
    return " · ".join(links)


VERDICTS = ("holds", "holds with a condition", "does not hold", "cannot be told")


def tally() -> str:
    """How many statements have each verdict, as a sentence."""
    rows = [row for section in _known() for row in section["statement"]]
    counts = [sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS]
    words = ("hold", "hold with a condition", "do not hold", "cannot be told")
    parts = ", ".join(f"{count} {word}" for count, word in zip(counts, words, strict=True))
    return f"Of {len(rows)} statements, {parts}."


def _known() -> list[dict[str, Any]]:
    sections: list[dict[str, Any]] = tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))["section"]
    return sections


def statements(names: dict[str, Any]) -> str:
    """The statements of the earlier guide, each with what this tool finds, as tables by section."""
    parts = []
    for section in _known():
        lines = [
            [
                str(row["source"]),
                str(row["says"]),
                f"**{row['verdict']}**",
                findings_text.inserted(str(row["found"]), names),
                f"`{row['command']}`",
            ]
            for row in section["statement"]
        ]
        heads = ("where", "what it says", "verdict", "what this tool finds", "command")
        parts.append(f"## {section['title']}\n\n{values.table(heads, lines)}")
    return "\n\n".join(parts)


def commands(text: str) -> Iterator[str]:
    """The commands of a page: lines of its blocks of code, and the last cells of its tables."""
    for block in re.findall(r"```\w*\n(.*?)```", text, flags=re.S):
        for line in block.splitlines():
            if line.startswith("windtunnel "):
                yield line.split(" #")[0].strip()
    yield from re.findall(r"\| `(windtunnel [^`]+)` \|$", text, flags=re.M)


def write() -> Iterator[tuple[str, int]]:
    """Write pages and pictures; each page with its number of words."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in render().items():
        records.write_whole(FOLDER / f"{name}.md", text)
        yield f"docs/guide/{name}.md", len(text.split())
    for name in pictures.write_all():
        yield f"docs/pictures/guide-{name}.svg", 0
