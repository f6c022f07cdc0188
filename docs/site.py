"""What `make docs` adds to the pages: the order of the site, the start page, and the API reference.

The order takes every page that is there: a page that nobody named comes last in its part.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# The parts of the site: a title, and pages or folders in the order to read. Missing ones are left out.
PARTS: dict[str, tuple[str, ...]] = {
    "Guide": ("guide/index.md", "guide/"),
    "How to": ("howto/index.md", "howto/"),
    "Use": (
        "advice.md",
        "choosing.md",
        "plan.md",
        "factors.md",
        "feed.md",
        "exchange.md",
        "page.md",
        "report.md",
    ),
    "Findings": ("findings.md", "accuracy.md", "networks.md", "frameworks.md"),
    "Inside": ("design.md", "words.md", "files.md", "trust.md"),
}
REFERENCE = "reference.md"
# Public names that belong together, in the order to read.
GROUPS = {
    "Inputs": ("Workload", "Machine", "Strategy", "StoredData"),
    "Functions": (
        *("predict", "largest_batch", "measure", "advise", "plan", "factors", "compare", "compare_remedies"),
        *("crossover", "validate", "train", "load_data"),
    ),
    "Results": (
        *("Forecast", "Measurement", "Advice", "PlanTable", "Influence", "PairedComparison", "Crossover"),
        *("Validation", "TrainingResult", "Study", "StudyReport", "Store"),
    ),
    "Options": (
        *("Protocol", "AdviceOptions", "PlanGoal", "PlanChoices", "FactorOptions", "CompareOptions"),
        "TrainingOptions",
    ),
    "Errors": (
        *("WindtunnelError", "BadInput", "DoesNotFit", "Unavailable", "MeasurementFailed", "StoreError"),
        "Interrupted",
    ),
}


def navigation(docs: Path) -> list[Any]:
    """The parts with the pages that are there, each by its title."""
    placed: set[str] = {"index.md"}
    parts: list[Any] = [{"Start": "index.md"}]
    for title, places in PARTS.items():
        pages = []
        for place in places:
            found = _in_order(docs / place) if place.endswith("/") else [docs / place]
            for path in found:
                name = path.relative_to(docs).as_posix()
                if path.is_file() and name not in placed:
                    placed.add(name)
                    pages.append({_title(path): name})
        parts += [{title: pages}] if pages else []
    others = sorted(p.relative_to(docs).as_posix() for p in docs.rglob("*.md"))
    more = [
        {_title(docs / name): name}
        for name in others
        if name not in placed and not name.startswith("pictures/")
    ]
    return [*parts, *([{"More": more}] if more else []), {"Python": REFERENCE}]


def _title(path: Path) -> str:
    """The first heading; a comment may stand before it."""
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].replace("`", "") if found else path.stem


def _in_order(folder: Path) -> list[Path]:
    """The pages of a folder as its index lists them, then as its text links them; others follow by name."""
    index = folder / "index.md"
    text = index.read_text(encoding="utf-8") if index.is_file() else ""
    listed = re.findall(r"^- \[[^\]]*\]\(([\w.-]+\.md)\)$", text, re.MULTILINE)
    linked = re.findall(r"\]\(([\w.-]+\.md)", text)
    return [*(folder / name for name in (*listed, *linked)), *sorted(folder.glob("*.md"))]


def reference() -> str:
    """The API reference: every public name, by group; names without a group come last."""
    names, homes = public_names()
    grouped = {name for group in GROUPS.values() for name in group}
    groups = {**GROUPS, "More": tuple(name for name in names if name not in grouped)}
    lines = [
        "# Python",
        "",
        "`import windtunnel as wt` has these names. Importing it loads no framework.",
        "",
    ]
    for title, members in groups.items():
        known = [name for name in members if name in names]
        if not known:
            continue
        lines += [f"## {title}", ""]
        for name in known:
            lines += [f"::: {homes[name]}", "    options:", "      heading_level: 3", ""]
            if homes[name].count(".") == 1:  # a whole module: its first lines only
                lines[-1:] = ["      members: false", ""]
    return "\n".join(lines)


def public_names() -> tuple[list[str], dict[str, str]]:
    """The names of `windtunnel.__all__`, and where each is defined; read, not imported."""
    tree = ast.parse((ROOT / "src/windtunnel/__init__.py").read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("__all__", "_HOMES"):
                found[name] = ast.literal_eval(node.value)
    homes = {}
    for name in found["__all__"]:
        module, _, alias = found["_HOMES"].get(name, "").partition(":")
        homes[name] = f"windtunnel.{module}.{alias or name}" if module else f"windtunnel.{name}"
    return found["__all__"], homes


def start_page() -> str:
    """The README, with links that lead inside of the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"`docs/([\w/.-]+\.md)`", r"[\1](\1)", text)


def columns_as_list(text: str) -> str:
    """Docstrings describe fields in two columns; a page shows them as a list.

    >>> print(columns_as_list("What to vary.\\n\\nonly      names\\n          of factors\\nscale     time"))
    What to vary.
    <BLANKLINE>
    - **only**: names of factors
    - **scale**: time
    """
    lines: list[str] = []
    column = 0
    for line in text.splitlines():
        entry = re.match(r"(\S(?:\S| (?! ))*) {2,}(?=\S)", line)
        if entry and (not column or entry.end() == column or len(entry[1]) >= column - 2):
            column = column or entry.end()
            lines.append(f"- **{entry[1]}**: {line[entry.end() :]}")
        elif column and line.startswith(" " * column):
            lines[-1] += f" {line.strip()}"
        else:
            column = 0
            lines.append(line)
    return "\n".join(lines)


def on_config(config: Any) -> Any:
    config.nav = navigation(Path(config.docs_dir))
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, text in (("index.md", start_page()), (REFERENCE, reference())):
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, content=text))
    return files
