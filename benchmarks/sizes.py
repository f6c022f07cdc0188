"""Lines per source file and the longest functions: places to look at, not verdicts."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src"


def main() -> None:
    files, functions = [], []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        files.append((text.count("\n"), path))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(
                    (
                        (node.end_lineno or 0) - node.lineno + 1,
                        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                    )
                )
    for lines, path in sorted(files, reverse=True):
        print(f"{lines:5} {path.relative_to(ROOT)}")
    print(f"{sum(lines for lines, _ in files):5} lines in {len(files)} files; longest functions:")
    for lines, name in sorted(functions, reverse=True)[:8]:
        print(f"{lines:5} {name}")


if __name__ == "__main__":
    main()
