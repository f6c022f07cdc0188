"""Asks whether the guide's order of factors holds for its own examples, and writes what comes out.

    python benchmarks/factors_guide.py            # forecasts again, writes docs/results/factors-guide.json
    python benchmarks/factors_guide.py --text     # writes docs/factors.md from that file alone

A test holds the text to the data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA, TEXT = ROOT / "docs" / "results" / "factors-guide.json", ROOT / "docs" / "factors.md"
BOARDS = ROOT / "docs" / "results" / "inference-boards.json"
TEMPLATE = Path(__file__).with_name("factors.template.md")
Case = dict[str, Any]


def text_of(data: dict[str, Any]) -> str:
    """The page, from its template and the data."""
    counts, first = data["counts"], data["first"]
    fields = {
        "table": "\n".join(_row(case) for case in data["cases"]),
        "count": str(len(data["cases"])),
        "holds": str(counts["holds"]),
        "fails": str(counts["does not hold"]),
        "unclear": str(counts["can't tell"]),
        "first": ", ".join(f"{group} in {number}" for group, number in first.items()),
        "medians": ", ".join(f"{group} x{_digits(_median(data, group))}" for group in data["order"]),
        "boards": "\n".join(map(_board, json.loads(BOARDS.read_text(encoding="utf-8"))["summaries"])),
        "last": str(_last(data, "data flow")),
    }
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, value in fields.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    return page


def _row(case: Case) -> str:
    groups = {each["group"]: each for each in case["verdict"]["groups"]}
    cells = []
    for name in ("network", "processing unit", "data flow"):
        each = groups.get(name)
        if each is None:
            cells.append("not varied")
            continue
        interval = f"{_digits(each['low'])} to {_digits(each['high'])}"
        cells.append(f"x{_digits(each['ratio'])} ({each['factor']}; {interval})")
    words = f"{case['job']} on {case['machine']}"
    return f"| {words} | {case['source']} | {' | '.join(cells)} | {case['ruling']} |"


def _board(summary: dict[str, Any]) -> str:
    """One board, source and format with the errors of forecast and roofline."""
    errors = [
        f"{each['median']:.0%}, {each['ninetieth']:.0%}, {each['bias']:+.0%}"
        for each in (summary["forecast"], summary["roofline"])
    ]
    cells = (summary["machine"], summary["source"], str(summary["rows"]), summary["precision"], *errors)
    return f"| {' | '.join(cells)} |"


def _median(data: dict[str, Any], group: str) -> float:
    """The upper median, as the command prints it."""
    ratios = sorted(
        each["ratio"]
        for case in data["cases"]
        for each in case["verdict"]["groups"]
        if each["group"] == group
    )
    return float(ratios[len(ratios) // 2])


def _last(data: dict[str, Any], group: str) -> int:
    """In how many examples this part is the weakest."""
    return sum(case["verdict"]["groups"][-1]["group"] == group for case in data["cases"])


def _digits(value: float) -> str:
    from windtunnel import units

    return units.digits(value)


def main() -> None:
    if "--text" not in sys.argv[1:]:
        from windtunnel.influence.guide import guide_order

        order = guide_order(progress=lambda text: print(text, flush=True))
        plain = order.plain()
        for case in plain["cases"]:
            case["factors"] = [_short(factor) for factor in case["factors"]]
        DATA.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    TEXT.write_text(text_of(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")


def _short(factor: Case) -> Case:
    """A factor with the time of each of its values."""
    steps = {step["label"]: float(f"{step['example_seconds']:.6g}") for step in factor["steps"]}
    return {"name": factor["name"], "group": factor["group"], "example_seconds": steps}


if __name__ == "__main__":
    main()
