"""Small functions from which families make their features."""

from __future__ import annotations

import math

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
# Libraries have different kernels for bf16 and fp16, although both have two bytes.
_FORMATS = {"fp32": 0.0, "tf32": 1.0, "bf16": 2.0, "fp16": 3.0, "fp64": -1.0}


def log2(value: float) -> float:
    """The logarithm of a size; -1 for a size of zero."""
    return math.log2(value) if value > 0 else -1.0


def evenness(value: float) -> float:
    """How many times two divides the value, at most 6 times: kernels prefer multiples of 8."""
    whole = int(value)
    return float(min(6, (whole & -whole).bit_length() - 1)) if whole == value and whole > 0 else 0.0


def wave_fill(tiles: float, cores: int) -> float:
    """How full the waves over all cores are: one tile more than cores takes twice the time."""
    return tiles / cores / math.ceil(tiles / cores)


def element_bytes(dtype: str) -> float:
    """The bytes of one element."""
    return float(BYTES.get(dtype, 4))


def number_format(dtype: str) -> float:
    """The number format of a product, as a number."""
    return _FORMATS.get(dtype, 0.0)


def direction(name: str) -> str:
    """The last word of a kind that is timed forward and backward."""
    return "backward" if "backward" in name else "forward"


def both_directions(kinds: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Every kind forward and backward."""
    return {f"{kind} {d}": names for kind, names in kinds.items() for d in ("forward", "backward")}
