"""The tensors of a batch in any structure: tuples, dicts, dataclasses, a library's classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

_DEPTH = 6


def tensors(batch: Any) -> list[Tensor]:
    """All tensors of a batch."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(batch, keep)
    return found


def mapped(batch: Any, change: Callable[[Tensor], Tensor], depth: int = _DEPTH) -> Any:
    """The batch with each tensor changed. Objects are copied, not changed."""

    def change_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        return _mapped_object(leaf, change, depth - 1) if depth and _holds_fields(leaf) else leaf

    return pytree.tree_map(change_leaf, batch)


def _holds_fields(leaf: Any) -> bool:
    return isinstance(leaf, Mapping) or (hasattr(leaf, "__dict__") and not isinstance(leaf, type | Callable))


def _mapped_object(leaf: Any, change: Callable[[Tensor], Tensor], depth: int) -> Any:
    """A mapping of a library's class, a dataclass, or any object with fields."""
    try:
        copied = copy.copy(leaf)
        if isinstance(copied, MutableMapping):
            for key in list(copied):
                copied[key] = mapped(copied[key], change, depth)
        elif hasattr(copied, "__dict__"):
            for name, value in list(vars(copied).items()):
                object.__setattr__(copied, name, mapped(value, change, depth))
    except (TypeError, AttributeError, NotImplementedError):
        return leaf
    return copied
