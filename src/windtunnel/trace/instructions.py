"""Integer instructions of a generated kernel: the arithmetic that decides which elements it reads.

Most generated kernels wait for memory, and a probe has timed such kernels. A few compute far more than they
move: the gradient of a max pool looks, for each element, at every window that holds it, and compares which
element of the window was the largest. Their time is bounded by the rate of a GPU's lanes. Only index
arithmetic, accesses and decisions are counted here; the probe's kernels have the functions of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]

# Instructions of an operation on 32-bit and on 64-bit integers. GPUs compute with 64-bit integers in several
# 32-bit instructions (CUDA programming guide, arithmetic instructions). A division by a constant is a
# product and shifts, by a power of two only shifts; if the sign is not known, also a remainder and two
# decisions.
_ADD, _MULTIPLY, _COMPARE, _DIVIDE, _SHIFT = (1, 2), (1, 4), (1, 3), (4, 32), (1, 12)
_DIVISIONS = ("FloorDiv", "ModularIndexing", "PythonMod", "Mod", "CleanDiv")
_LOADED = "indirect"  # how Inductor names an index that was loaded, of 64 bits
_ACCESS = 2  # an address and the access itself
_ACCESSES = ("load", "store", "store_reduction")
_DECISIONS = ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "where", "masked")


def instructions_of(bodies: Iterable[Any]) -> float:
    """Instructions of the loop bodies of a kernel, over all elements. What several bodies with the same loops
    compute alike is computed once: of such bodies, the largest count of each operation is taken."""
    loops: dict[tuple[sympy.Expr, ...], list[Any]] = {}
    for body in bodies:
        loops.setdefault(tuple(body.var_ranges.values()), []).append(body)
    return sum(float(sympy.prod(sizes)) * _of_element(some) for sizes, some in loops.items())


def _of_element(bodies: Sequence[Any]) -> int:
    counts = [getattr(body, "op_counts", {}) for body in bodies]
    accesses, decisions = (_most(counts, names) for names in (_ACCESSES, _DECISIONS))
    expressions = (whole for body in bodies for whole in body.indexing_exprs.values())
    return _ACCESS * accesses + decisions + _of_expressions(expressions)


def _most(counts: Sequence[Mapping[str, int]], names: Iterable[str]) -> int:
    return sum(max(count.get(name, 0) for count in counts) for name in names)


def _of_expressions(expressions: Iterable[sympy.Expr]) -> int:
    parts = {part for whole in expressions for part in sympy.preorder_traversal(whole) if part.args}
    return sum(_of_part(part) for part in parts)


def _of_part(part: sympy.Expr) -> int:
    wide = int(any(symbol.name.startswith(_LOADED) for symbol in part.free_symbols))
    if type(part).__name__ in _DIVISIONS:
        return _SHIFT[wide] if _is_power_of_two(part.args[1]) else _DIVIDE[wide]
    cost = _ADD if part.is_Add else _MULTIPLY if part.is_Mul else _COMPARE
    return cost[wide] * (len(part.args) - 1)


def _is_power_of_two(divisor: sympy.Expr) -> bool:
    return bool(divisor.is_Integer) and int(divisor).bit_count() == 1
