"""Text from outside, such as names and paths, made safe to print.

Escape sequences control a terminal, and some characters change the direction of text. Both are shown by their
number, as Python writes them.

>>> shown("a\\x1b[31mb\\u202ec")
'a\\\\x1b[31mb\\\\u202ec'
"""

from __future__ import annotations

import re

# Control characters; marks that change the direction of text or join it invisibly; halves of a character
# (surrogates), which no terminal or file can hold; and line separators other than "\n".
_HARMFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_LINES = re.compile(f"[{_HARMFUL}]")
_IN_ONE_LINE = re.compile(f"[{_HARMFUL}\t\n]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")


def shown(text: object) -> str:
    """A name, a path or a word of a user in one line."""
    return _IN_ONE_LINE.sub(_by_number, str(text))


def shown_lines(text: str) -> str:
    """Text of several lines, with tabs."""
    return _IN_LINES.sub(_by_number, text)


def shown_in_table(text: str) -> str:
    """A cell of a CSV file. An apostrophe comes before what a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.match(text) else text


def _by_number(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 256:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(number, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
