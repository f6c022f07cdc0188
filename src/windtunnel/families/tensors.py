"""How tensors lie in memory. Only shapes and strides are read, so no framework is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.families.base import OpCall


def tensor_bytes(tensor: Tensor) -> float:
    """The bytes that reading the tensor moves: an expanded tensor is no larger than its storage.

    A tensor that a transform of torch.func wraps has no storage of its own.
    """
    size = tensor.numel() * tensor.element_size()
    try:
        return float(min(size, tensor.untyped_storage().nbytes()))
    except NotImplementedError:
        return float(size)


def elements(call: OpCall) -> tuple[int, int, int]:
    """Elements, layout and number of tensors read.

    Layout is 0 if all tensors have the same layout, 1 if some are broadcast, 2 if one is read in another
    order than it is written, 3 if one has gaps because it is part of a larger one.
    """
    tensors = [*call.inputs, *call.outputs]
    if not tensors:
        return 0, 0, 0
    first = call.args[0] if call.args else None
    if isinstance(first, (list, tuple)) and first and hasattr(first[0], "numel"):
        is_joined = call.name in ("cat", "stack")
        return sum(t.numel() for t in first), layout(call) if is_joined else 0, len(first)
    largest = max(tensors, key=lambda t: t.numel())
    return largest.numel(), layout(call), len(call.inputs)


def layout(call: OpCall) -> int:
    """The number of the layout, as `elements` explains it."""
    whole = call.outputs[0] if call.outputs else call.inputs[0]
    alike = [t for t in call.inputs if t.numel() == whole.numel() and t.dim() == whole.dim()]
    if any(_order(t) != _order(whole) for t in alike):
        return 2
    if any(_has_gaps(t) for t in alike):
        return 3
    return int(len(alike) < len(call.inputs))


def has_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of an image or a volume are the fastest dimension in memory."""
    return tensor.dim() >= 4 and tensor.shape[1] > 1 and tensor.stride(1) == 1 and not tensor.is_contiguous()


def plane(sides: Sequence[int]) -> tuple[int, int]:
    """Height and width; a line has height 1, a volume counts as a stack of its planes."""
    return (1, sides[0]) if len(sides) == 1 else (math.prod(sides[:-1]), sides[-1])


def around(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, int, int]:
    """Elements before, within and after the dimensions that are reduced."""
    if not shape:
        return 1, 1, 1
    chosen = {dim % len(shape) for dim in dims}
    first, last = min(chosen), max(chosen)
    reduced = math.prod(shape[d] for d in chosen)
    outer = math.prod(shape[:first]) * math.prod(shape[d] for d in range(first, last) if d not in chosen)
    return outer, reduced, math.prod(shape[last + 1 :])


def _has_gaps(tensor: Tensor) -> bool:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(reach > tensor.numel())


def _order(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions from the fastest to the slowest; those of length one do not count."""
    sides = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    ranked = sorted(range(len(sides)), key=lambda i: sides[i][0])
    return tuple(ranked) if sides and sides[ranked[0]][0] == 1 else (-1, *ranked)
