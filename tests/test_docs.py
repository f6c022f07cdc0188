"""The pages of the docs: links lead somewhere, commands and code can be run, and the site can be built."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run
from test_examples import CAPTURED
from typer.testing import CliRunner

import windtunnel as wt

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
HOWTOS = sorted((DOCS / "howto").glob("*.md"))
SITE = runpy.run_path(str(DOCS / "site.py"))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(path: Path) -> set[str]:
    """The anchors that headings get, as MkDocs and GitHub make them, and those that are written out."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found, seen = set(re.findall(r'(?:id|name)="([^"]+)"', text)), dict[str, int]()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        own = re.search(r"\{#([\w-]+)\}\s*$", heading)
        plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower()
        slug = own[1] if own else re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", plain).strip())
        for each in {slug, re.sub(r"-+", "-", slug)}:
            count = seen.get(each, 0)
            found.add(each if not count else f"{each}-{count}")
            found.add(each if not count else f"{each}_{count}")
            seen[each] = count + 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_to_a_file_and_an_anchor(page: Path) -> None:
    for match in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        target = match[0] or match[1]
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name_of(page)}: {target} leads nowhere"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name_of(page)}: {target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_that_are_named_in_a_text_exist(page: Path) -> None:
    for named in re.findall(r"`(docs/[\w/.-]+\.(?:md|json|svg|png))`", page.read_text(encoding="utf-8")):
        if page.name != "CHANGELOG.md":
            assert (ROOT / named).exists(), f"{name_of(page)} names {named}"


def commands_of(page: Path) -> list[str]:
    """The lines of a page's code blocks that are commands, without comments."""
    found = []
    for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind.strip() in ("text", "python", "toml"):
            continue
        joined = block.replace("\\\n", " ")
        for line in joined.splitlines():
            if kind.strip() == "console" and not line.startswith("$ "):
                continue  # what the command prints
            line = line.removeprefix("$ ").strip()
            if line.startswith("windtunnel "):
                found.append(re.split(r"\s+#", line)[0])
    return found


def parse(command: str) -> str:
    """An empty text if the command line takes these words: help is asked after them, so nothing runs."""
    words = shlex.split(command.split(" | ")[0])[1:]
    if "..." in words or "…" in command:
        return ""
    from windtunnel.cli import app

    done = CliRunner().invoke(app, [*words, "--help"])
    return "" if done.exit_code == 0 else done.output


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=name_of)
def test_commands_in_code_blocks_are_taken_by_the_command_line(page: Path) -> None:
    for command in commands_of(page):
        assert not parse(command), f"{name_of(page)}: {command}\n{parse(command)}"


def test_a_command_with_an_unknown_option_or_command_is_found() -> None:
    assert parse("windtunnel predict rnn --onn h200") and parse("windtunnel prdict rnn")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_code_blocks_parses_and_uses_public_names(page: Path) -> None:
    for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind.strip() != "python":
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "wt":
                assert node.attr in wt.__all__, f"{name_of(page)}: wt.{node.attr}"


def test_the_python_of_the_notebook_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = FENCE.findall((DOCS / "howto/notebook.md").read_text(encoding="utf-8"))
    exec("\n".join(block for kind, block in blocks if kind == "python"), {})
    assert "('h200', 'launch')" in capsys.readouterr().out


# How-tos: what the page shows is what the command prints


def console_blocks() -> list[tuple[Path, bool, str, str]]:
    return [
        (page, command.split()[1] in CAPTURED.MEASURING, command, output)
        for page in HOWTOS
        for _, block in CAPTURED.BLOCK.findall(page.read_text(encoding="utf-8"))
        for command, output in CAPTURED.commands(block)
    ]


@pytest.mark.parametrize(
    ("page", "measured", "command", "output"),
    console_blocks(),
    ids=[f"{page.stem}-{number}" for number, (page, *_) in enumerate(console_blocks())],
)
def test_a_how_to_shows_what_its_command_prints(
    page: Path, measured: bool, command: str, output: str, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for content, name in CAPTURED.FILE.findall(page.read_text(encoding="utf-8")):
        (tmp_path / f"{name}.toml").write_text(content)
    words = shlex.split(command)[1:]
    done = run(*words, folder=tmp_path, COLUMNS=CAPTURED.WIDTH, WINDTUNNEL_HOME=str(tmp_path / "home"))
    said = (done.stdout or done.stderr).rstrip()
    if not measured:
        assert said == output.rstrip(), "the output changed: python benchmarks/captured.py"
        return
    titles = {line.split()[0] for line in output.splitlines() if re.match(r"  \w", line)} - {"caution"}
    assert done.returncode == 0 and len(titles) > 3
    for title in titles:
        assert re.search(rf"^  {re.escape(title)} ", said, re.MULTILINE), f"no row {title}\n{said}"


def test_every_how_to_is_in_the_list_and_shows_a_command() -> None:
    index = (DOCS / "howto/index.md").read_text(encoding="utf-8")
    pages = [page for page in HOWTOS if page.name != "index.md"]
    assert len(pages) == 10
    for page in pages:
        assert f"({page.name})" in index
        assert "```" in page.read_text(encoding="utf-8")


# The site


def test_the_order_of_the_site_has_every_page_once_and_takes_pages_that_come_later(tmp_path: Path) -> None:
    def pages(entries: list[object]) -> list[str]:
        found = []
        for entry in entries:
            assert isinstance(entry, dict)
            for value in entry.values():
                found += pages(value) if isinstance(value, list) else [value]
        return found

    placed = pages(SITE["navigation"](DOCS))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(placed) == len(set(placed)) and set(placed) == there | {"index.md", SITE["REFERENCE"]}
    (tmp_path / "guide").mkdir()
    for name in ("guide/index.md", "guide/data.md", "page.md", "strange.md"):
        (tmp_path / name).write_text("# Page\n")
    assert pages(SITE["navigation"](tmp_path))[:3] == ["index.md", "guide/index.md", "guide/data.md"]
    assert "strange.md" in pages(SITE["navigation"](tmp_path))


def test_the_site_has_the_chapters_of_the_guide_in_their_order_by_their_titles() -> None:
    (guide,) = [part["Guide"] for part in SITE["navigation"](DOCS) if "Guide" in part]
    titles = [title for entry in guide for title in entry]
    numbers = [int(title.split(".")[0]) for title in titles if title[0].isdigit()]
    assert numbers == list(range(1, 16))
    assert titles[0] == "A beginner's guide to training time" and titles[-1] == "The statements examined"


def test_the_reference_has_every_public_name_and_each_says_what_it_is() -> None:
    names, homes = SITE["public_names"]()
    assert names == wt.__all__
    text = SITE["reference"]()
    for name in names:
        assert f"::: {homes[name]}\n" in text
        described = getattr(wt, name).__doc__ or ""
        assert len(described.split()) >= 6, f"{name} says too little about itself"
        assert not re.match(rf"{name}\(", described), f"{name} has no docstring of its own"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a broken link fails."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_every_page_and_the_reference(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page
    reference = (site / "reference.html").read_text(encoding="utf-8")
    for name in wt.__all__:
        assert re.search(rf'id="windtunnel\.(?:[\w.]+\.)?{name}"', reference) or name == "load_data", name


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//")
    for page in site.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), page
    assert (site / "search/search_index.js").exists(), "search needs a server"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8"))


def test_make_docs_builds_strictly() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^docs: .*\n\t.*mkdocs build --strict", makefile, re.MULTILINE)
