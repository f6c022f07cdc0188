"""Writes the stored output of the examples and of the how-tos anew, with the code of this version.

python benchmarks/captured.py [word ...]     # only files whose name has one of these words

Output goes to examples/NAME.txt, into the cells of examples/*.ipynb, and below each `$ command` of a block
```console in docs/howto/. Figures that are measured differ from run to run: of the commands in MEASURING the
tests compare the words only, and `examples/*.txt` have # instead of figures.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES = (
    *("first_forecast", "own_model", "cpu_or_gpu", "will_it_fit", "feed", "scaling_out", "advice"),
    "rerun_paper",
)
MEASURING = ("measure", "compare")
WIDTH = "100"
# Files that commands of a page read, by their first line.
FILE = re.compile(r"^```toml\n(name = \"(.*?)\"\n.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def masked(text: str) -> str:
    """The text without the figures of lines that say "measured", and of the table rows below such a head."""
    lines, columns = [], None
    for line in text.splitlines():
        if "measured" in line and not line.rstrip().endswith("measured here"):
            line = re.sub(r"\d[\d.,]*( [a-z]+s\b)?", "#", line)
        head = line.rstrip().endswith("measured here")
        if columns and line.strip():
            line = f"{line[:columns]} #"
        columns = line.rindex("measured here") if head else columns if line.strip() else None
        lines.append(line)
    return "\n".join(lines) + "\n"


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with the output below it."""
    pieces = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(first, rest) for first, _, rest in (piece.partition("\n") for piece in pieces)]


def environment(folder: str) -> dict[str, str]:
    return {
        **os.environ,
        "COLUMNS": WIDTH,
        "WINDTUNNEL_HOME": folder,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def write_examples(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            words = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
            done = subprocess.run(
                words, capture_output=True, text=True, check=True, env=environment(folder), cwd=folder
            )
            (ROOT / "examples" / f"{name}.txt").write_text(masked(done.stdout), encoding="utf-8")
            print(f"examples/{name}.txt", flush=True)


def write_pages(pages: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "examples").symlink_to(ROOT / "examples")

        def again(block: re.Match[str]) -> str:
            shown = []
            for command, _ in commands(block[2]):
                done = subprocess.run(
                    command,
                    shell=True,
                    capture_output=True,
                    text=True,
                    env=environment(folder),
                    cwd=folder,
                )
                output = done.stdout or done.stderr
                shown.append(f"$ {command}\n{output.rstrip()}\n")
            return f"```{block[1]}\n{''.join(shown)}```"

        for page in pages:
            for content, name in FILE.findall(page.read_text(encoding="utf-8")):
                Path(folder, f"{name}.toml").write_text(content, encoding="utf-8")
            page.write_text(BLOCK.sub(again, page.read_text(encoding="utf-8")), encoding="utf-8")
            print(page.relative_to(ROOT), flush=True)


def write_notebooks(paths: list[Path]) -> None:
    import nbformat
    from nbclient import NotebookClient

    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        os.environ["COLUMNS"] = WIDTH
        NotebookClient(notebook, timeout=600).execute()
        for cell in notebook.cells:
            cell.pop("id", None)
            cell.metadata.clear()
            for output in cell.get("outputs", []):
                if "text/html" in output.get("data", {}):
                    del output["data"]["text/plain"]  # all fields, also how long a search took
        notebook.metadata.clear()
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, path)
        print(path.relative_to(ROOT), flush=True)


def main() -> None:
    words = sys.argv[1:]

    def is_asked(name: str) -> bool:
        return not words or any(word in name for word in words)

    write_examples([name for name in EXAMPLES if is_asked(name)])
    write_pages([page for page in sorted((ROOT / "docs/howto").glob("*.md")) if is_asked(page.name)])
    write_notebooks([path for path in sorted((ROOT / "examples").glob("*.ipynb")) if is_asked(path.name)])


if __name__ == "__main__":
    main()
