"""Style, script and sign of the page: files of the package, read once. No other file can be asked for."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources

from windtunnel.reports import design


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    body: bytes
    kind: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'


@functools.cache
def _all() -> dict[str, Asset]:
    css = f"{design.css()}\n{_text('page.css')}"
    script = f"{design.script()}\n{_text('page.js')}"
    return {
        "page.css": Asset(body=css.encode(), kind="text/css"),
        "page.js": Asset(body=script.encode(), kind="text/javascript"),
        "sign.svg": Asset(body=_text("sign.svg").encode(), kind="image/svg+xml"),
    }


def named(name: str) -> Asset | None:
    return _all().get(name)


def _text(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")
