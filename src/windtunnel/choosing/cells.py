"""What the cells of a table mean: numbers as people write them, dates, or nothing.

>>> read_number("1.234,50 €", comma=True), read_number("$1,200", comma=False), read_number("12%", comma=False)
(1234.5, 1200.0, 12.0)
>>> is_date("2024-03-01"), is_date("1.3.24"), is_date("14:30"), is_date("3.5")
(True, True, True, False)
"""

from __future__ import annotations

import math
import re

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?", "-", "missing", "#n/a"))
_SIGNS = "$€£¥% \u00a0"  # beside a number; the last one is a space that does not break
_GROUPED = {  # thousands in groups of three
    "comma": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?"),
    "point": re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d*|[+-]?\d{1,3}(\.\d{3}){2,}"),
    "space": re.compile(r"[+-]?\d{1,3}([ \u00a0']\d{3})+([.,]\d*)?"),
}
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(\D.*)?"  # 2024-03-01, also with a time after it
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(\D.*)?"
    r"|\d{1,2}:\d{2}.*"
)


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def is_date(cell: str) -> bool:
    """Whether a cell looks like a date or a time of the day."""
    return _DATE.fullmatch(cell.strip()) is not None


def read_number(cell: str, comma: bool) -> float | None:
    """The number in a cell, without a currency or percent sign and without separators of thousands.

    `comma`: commas do not separate columns, so 3,5 is a number and 1,234 is between 1 and 2.
    """
    plain = cell.strip().strip(_SIGNS)
    if _GROUPED["space"].fullmatch(plain):
        plain = re.sub(r"[ \u00a0']", "", plain)
    if _GROUPED["point"].fullmatch(plain):
        plain = plain.replace(".", "")
    if _is_grouped_by_comma(plain, comma):
        plain = plain.replace(",", "")
    try:
        value = float(plain.replace(",", ".", 1) if comma and "." not in plain else plain)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _is_grouped_by_comma(plain: str, comma: bool) -> bool:
    if _GROUPED["comma"].fullmatch(plain) is None:
        return False
    return not comma or "." in plain or plain.count(",") > 1


def reading(cell: str, value: float) -> str:
    """How a cell was read, such as "$1,200 is read as 1200"; empty for a plain number."""
    try:
        is_plain = float(cell) == value
    except ValueError:
        is_plain = False
    return "" if is_plain else f"{cell.strip()} is read as {value:.10g}"
