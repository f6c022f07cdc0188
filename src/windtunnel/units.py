"""Numbers and quantities as text: parse what people write, format what people read.

Inside the package every quantity is a plain float in base units (seconds, bytes, flop, hertz, watts).
Only this module knows prefixes.

>>> parse("312 TFLOP/s", "flop/s")
312000000000000.0
>>> show(0.0225, "s")
'22.5 ms'
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from windtunnel.errors import BadQuantity

KIB, MIB, GIB = 2**10, 2**20, 2**30
DAY_SECONDS, HOUR_SECONDS, MINUTE_SECONDS = 86400.0, 3600.0, 60.0

Seconds = Annotated[float, "s"]
Bytes = Annotated[float, "B"]
ByteRate = Annotated[float, "B/s"]
FlopRate = Annotated[float, "flop/s"]
Frequency = Annotated[float, "Hz"]
Watts = Annotated[float, "W"]

_DECIMAL = {
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 2**40}
_SYMBOLS = {"s": "s", "B": "B", "B/s": "B/s", "flop": "flop", "flop/s": "flop/s", "Hz": "Hz", "W": "W"}
_DURATIONS = {
    **dict.fromkeys(("m", "min", "minute", "minutes"), MINUTE_SECONDS),
    **dict.fromkeys(("h", "hour", "hours"), HOUR_SECONDS),
    **dict.fromkeys(("d", "day", "days"), DAY_SECONDS),
}
_RANGE = re.compile(r"^\s*(-?[0-9][0-9_]*(?:\.[0-9]+)?)?\.\.(-?[0-9][0-9_]*(?:\.[0-9]+)?)?\s*$")
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_MOST_DIGITS = 300  # a longer text is no number that anything can be
_NUMBER = re.compile(r"^\s*([-+]?[0-9][0-9_,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$")


def parse(text: str | float, unit: str) -> float:
    """Return the quantity in `text` ("4.8 TB/s") in base units. A number without a unit is in base units."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _finite(float(text), str(text), unit)
    match = _NUMBER.match(str(text))
    if not match:
        raise BadQuantity(f"{text!r} is not a quantity in {unit}.", hint=f'Write it like "{_example(unit)}".')
    number, symbol = float(match[1].replace(",", "").replace("_", "")), match[2]
    return _finite(number * _scale(symbol, unit, str(text)), str(text), unit)


def parse_duration(text: str) -> float:
    """Read a long time: seconds, or a number of minutes, hours or days.

    >>> parse_duration("24h"), parse_duration("90 min"), parse_duration("10m"), parse_duration("2 days")
    (86400.0, 5400.0, 600.0, 172800.0)
    """
    match = _NUMBER.match(text)
    scale = _DURATIONS.get(match[2]) if match else None
    if match is None or scale is None:
        return parse(text, "s")
    return float(match[1].replace(",", "").replace("_", "")) * scale


def literal(text: str) -> int | float | bool | str:
    """Read `text` as Python code would write it: a number, true or false, else the text itself.

    >>> literal("50"), literal("1e-3"), literal("true"), literal("relu")
    (50, 0.001, True, 'relu')
    """
    for kind in (int, float) if len(text) <= _MOST_DIGITS else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def parse_range(text: str) -> tuple[float | None, float | None] | None:
    """Read the two ends of a range; an end that is left out is None. None if `text` is no range.

    >>> parse_range("10..5000"), parse_range("1000.."), parse_range("10")
    ((10.0, 5000.0), (1000.0, None), None)
    """
    match = _RANGE.match(text)
    if not match:
        return None
    low, high = (float(end.replace("_", "")) if end else None for end in match.groups())
    return low, high


def show(value: float, unit: str) -> str:
    """Format `value` with three significant digits and a suitable prefix ("22.5 ms", "41.2 GiB")."""
    if math.isnan(value):
        return "unknown"
    if unit == "B":
        return _show_scaled(value, "B", (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)))
    if unit == "s":
        return _show_seconds(value)
    name = unit.replace("flop", "FLOP")
    return _show_scaled(value, name, tuple((p + name, _DECIMAL[p]) for p in ("P", "T", "G", "M", "k", "")))


def digits(value: float) -> str:
    """Format `value` with three significant digits and no exponent."""
    if 1 <= value < 999.5:  # the same, in one step: a report of a long study has many of them
        return f"{value:#.3g}".rstrip(".")
    value = float(f"{value:.3g}")
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _show_scaled(value: float, base: str, scales: tuple[tuple[str, float], ...]) -> str:
    for name, scale in scales:
        if abs(value) >= scale * 0.9995:
            return f"{digits(value / scale)} {name}"
    return f"{digits(value)} {base}"


def _show_seconds(value: float) -> str:
    if abs(value) < 2 * MINUTE_SECONDS:
        return _show_scaled(value, "s", _SECONDS)
    if abs(value) >= 2 * DAY_SECONDS:
        return f"{digits(value / DAY_SECONDS)} days"
    if abs(value) >= 2 * HOUR_SECONDS:
        return f"{digits(value / HOUR_SECONDS)} h"
    return f"{digits(value / MINUTE_SECONDS)} min"


def _scale(symbol: str, unit: str, text: str) -> float:
    if symbol == "":
        return 1.0
    base = symbol.replace("FLOP", "flop")
    for prefix in (*_BINARY, *_DECIMAL):
        rest = base[len(prefix) :]
        if base.startswith(prefix) and rest in _SYMBOLS:
            if _SYMBOLS[rest] != unit:
                raise BadQuantity(
                    f"{text!r} is in {rest}; this needs {unit}.", hint=f'Write it like "{_example(unit)}".'
                )
            return _BINARY.get(prefix) or _DECIMAL[prefix]
    raise BadQuantity(
        f"{text!r} has the unknown unit {symbol!r}; this needs {unit}.",
        hint=f'Write it like "{_example(unit)}".',
    )


def _finite(value: float, text: str, unit: str) -> float:
    if not math.isfinite(value):
        raise BadQuantity(f"{text!r} is not a finite quantity in {unit}.")
    return value


def _example(unit: str) -> str:
    return {
        "s": "22.5 ms",
        "B": "16 GiB",
        "B/s": "4.8 TB/s",
        "flop": "2 Gflop",
        "flop/s": "312 TFLOP/s",
        "Hz": "3.6 GHz",
        "W": "700 W",
    }[unit]
