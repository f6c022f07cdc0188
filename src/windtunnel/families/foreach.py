"""Ops on lists of tensors, as optimisers and gradient clipping use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from windtunnel.families.base import DescribedOp, Family, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import log2

_SLOW = ("sqrt", "div", "norm", "sgd")


class ListFeatures(NamedTuple):
    """`slow_operation`: the place of the op among those that are not a plain sum or product, from 1."""

    log_tensors: float
    log_bytes_per_tensor: float
    log_bytes: float
    log_read_per_written: float
    slow_operation: float


def list_piece(kind: str, op: DescribedOp, dtype: str) -> Piece:
    """One call on a list of tensors as one piece."""
    moved = op.read_bytes + op.written_bytes
    features = ListFeatures(
        log_tensors=log2(op.calls),
        log_bytes_per_tensor=log2(moved / max(op.calls, 1)),
        log_bytes=log2(moved),
        log_read_per_written=log2(op.read_bytes / max(op.written_bytes, 1)),
        slow_operation=next((1.0 + i for i, word in enumerate(_SLOW) if word in op.name), 0.0),
    )
    return Piece(kind, features, op.flop, moved, dtype)


def draw_list(sizes: Sizes, most_tensors: int, most_elements: int) -> list[tuple[int, ...]]:
    """Shapes of a list of tensors whose sizes spread as those of a network's weights do."""
    count, scale = sizes.size(1, most_tensors), sizes.size(8, most_elements)
    return [(max(1, int(scale * math.exp(sizes.rng.gauss(0, 1.5)))),) for _ in range(count)]


class ForeachFamily(Family):
    """Ops on lists of tensors."""

    name = "foreach"
    prefixes = ("_foreach", "_amp_foreach")
    kernels = ("multi_tensor_apply",)
    kinds: Mapping[str, tuple[str, ...]] = {"foreach": ListFeatures._fields}
    draws: Mapping[str, int] = {"foreach": 6}

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        return [list_piece("foreach", op, dtype)]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"foreach": lambda: _draw(sizes)}


def _draw(sizes: Sizes) -> ProbeCase | None:
    import torch

    shapes = draw_list(sizes, 320, 3_000_000)
    lists, count = sizes.rng.choice((1, 2, 2, 3)), len(shapes)
    calls: dict[int, tuple[Callable[..., Any], ...]] = {
        1: (
            lambda a: torch._foreach_mul_(a, 0.9),
            lambda a: torch._foreach_sqrt(a),
            lambda a: torch._foreach_norm(a),
        ),
        2: (
            lambda a, b: torch._foreach_add_(a, b, alpha=0.1),
            lambda a, b: torch._foreach_lerp_(a, b, 0.1),
            lambda a, b: torch._foreach_div_(a, b),
        ),
        3: (
            lambda a, b, c: torch._foreach_addcmul_(a, b, c, 0.1),
            lambda a, b, c: torch._foreach_addcdiv_(a, b, c, 0.1),
        ),
    }
    call = sizes.rng.choice(calls[lists])
    return ProbeCase(
        family="foreach",
        precision="fp32",
        tensors=tuple(TensorSpec(shape=shape, dtype="fp32") for shape in shapes) * lists,
        call=lambda t: call(*(t[i * count : (i + 1) * count] for i in range(lists))),
    )
