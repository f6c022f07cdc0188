"""The guide: its chapters are Markdown files. Without them the page says where to find help."""

from __future__ import annotations

import functools
import html as entities
import re
from pathlib import Path

from starlette.exceptions import HTTPException

import windtunnel
from windtunnel.reports.charts import inline
from windtunnel.reports.page import Markup, element, joined
from windtunnel.web.assets import Asset
from windtunnel.web.states import empty

_PACKAGE = Path(windtunnel.__file__).parent
# In an installed package, and in a checkout of the source.
FOLDERS = (_PACKAGE / "guide", _PACKAGE.parent.parent / "docs" / "guide")
_PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
_HEADING = re.compile(r"^#\s+(.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)  # for those who write the chapters
_PICTURE = re.compile(r'<p><img src="/guide/(?P<name>guide-[\w-]+\.svg)" alt="(?P<words>[^"]*)" ?/?></p>')
_WHITE = re.compile(r'<rect width="\d+" height="\d+" fill="white"/>')  # behind a drawing that stands alone
_VERDICT = re.compile(
    r"<td><strong>(holds|holds with a condition|does not hold|cannot be told)</strong></td>"
)
_RULINGS = {
    words: str(element("td", element("span", words, class_=f"ruling {kind}".strip()), class_="whole"))
    for words, kind in {
        "holds": "holds",
        "holds with a condition": "open",
        "does not hold": "does",
        "cannot be told": "",
    }.items()
}
_MOST_BYTES = 4 * 2**20


def _files() -> dict[str, Path]:
    """The files of the guide by name; only these can be asked for."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        return {}
    files = [*folder.glob("*"), *(folder.parent / "pictures").glob("guide-*")]
    return {path.name: path for path in sorted(files) if path.is_file()}


def _chapters() -> dict[str, tuple[str, str]]:
    """Title and text of each chapter by its name, in the order of the file names, the index first."""
    found = {}
    files = [path for path in _files().values() if path.suffix == ".md"]
    for path in sorted(files, key=lambda path: (path.stem not in ("index", "README"), path.name)):
        text = path.read_text(encoding="utf-8")[:_MOST_BYTES]
        heading = _HEADING.search(text)
        found[path.stem] = (heading[1] if heading else path.stem, text)
    return found


def first() -> tuple[str, Markup]:
    chapters = _chapters()
    if not chapters:
        return "Guide", joined(
            [
                element("h1", "Guide"),
                empty(
                    "The guide is not installed here",
                    "A checkout of the source has it in docs/guide.",
                    joined(
                        [
                            "Begin with a ",
                            element("a", "forecast", href="/"),
                            ", look at the ",
                            element("a", "networks", href="/networks"),
                            " and what they are for, or at the published experiments among the ",
                            element("a", "studies", href="/studies"),
                            ".",
                        ]
                    ),
                ),
            ]
        )
    return _chapter(next(iter(chapters)), chapters)


def one(name: str) -> tuple[str, Markup] | Asset:
    """A chapter, or a picture of the guide."""
    files, chapters = _files(), _chapters()
    stem = name.removesuffix(".md")
    if stem in chapters:
        return _chapter(stem, chapters)
    path = files.get(name)
    if path is None or path.suffix not in _PICTURES or path.stat().st_size > _MOST_BYTES:
        raise HTTPException(404, "The guide has no such chapter.")
    return Asset(body=path.read_bytes(), kind=_PICTURES[path.suffix])


def _chapter(name: str, chapters: dict[str, tuple[str, str]]) -> tuple[str, Markup]:
    title, text = chapters[name]
    links = (
        element(
            "li",
            element("a", words, href=f"/guide/{other}", aria_current="page" if other == name else None),
        )
        for other, (words, _) in chapters.items()
    )
    aside = element("nav", element("ol", *links), class_="chapters", aria_label="Chapters of the guide")
    return title, element("div", aside, element("article", rendered(text), class_="prose"), class_="book")


def _inlined(tag: re.Match[str]) -> str:
    """A drawing of the guide as a part of the page, in the colours of its theme; other pictures stay as they
    are. The drawing is a file of the package, not of a reader."""
    path = _files().get(tag["name"])
    if path is None or path.stat().st_size > _MOST_BYTES:
        return tag[0]
    svg = path.read_text(encoding="utf-8")
    svg = _WHITE.sub("", svg[: svg.rindex("</svg>") + len("</svg>")], count=1)
    drawn = inline(svg, path.stem, entities.unescape(tag["words"]), "Its numbers are in this chapter.")
    return f'<figure class="drawing">{drawn}</figure>'


@functools.lru_cache(maxsize=64)
def rendered(text: str) -> Markup:
    """Markdown as HTML. HTML inside of it is shown, not obeyed."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    html = str(markdown.render(_COMMENT.sub("", text)))
    html = re.sub(r'(<img [^>]*src=")(?!/)(?:\.\./pictures/)?([^"/]+")', r"\1/guide/\2", html)
    html = _PICTURE.sub(_inlined, html)
    html = html.replace('<a href="../accuracy.md"', '<a href="/accuracy"')
    # Other documents are not served: their names stay as plain words.
    html = re.sub(r'<a href="\.\./[^"]*">(.*?)</a>', r"\1", html, flags=re.DOTALL)
    html = re.sub(r'(<a href=")(?:\./)?([\w-]+)\.md((?:#[^"]*)?")', r"\1/guide/\2\3", html)
    html = html.replace(' style="text-align:right"', ' class="n"')  # the policy allows no style of an element
    html = _VERDICT.sub(lambda found: _RULINGS[found[1]], html)
    html = html.replace("<table>", '<div class="box" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )
    return Markup(html.replace("<pre>", '<pre tabindex="0">'))
