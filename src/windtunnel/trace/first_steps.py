"""Networks that do some work in their first step only: they set scales from first data, or build tables.

Such a network remembers it: in a truth or an empty attribute of a module, or in a buffer of one number. If
one of these changes while a step is recorded, the step after it may do other work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Batch normalisation counts its steps, and does the same in each.
_COUNTER = "num_batches_tracked"
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))

Memory = dict[tuple[str, str], Any]


def memory_of(model: torch.nn.Module, known: Callable[[Tensor], Any]) -> Memory:
    """What a network's modules may remember of earlier steps. `known`: the value of a tensor, or None."""
    found: Memory = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE and (value is None or isinstance(value, bool)):
                found[path, name] = value
        for name, buffer in module._buffers.items():
            if buffer is None:
                found[path, name] = None
            elif buffer.numel() == 1 and name != _COUNTER:
                value = known(buffer)
                found[path, name] = None if value is None else value.value.item()
    return found


def has_learned(before: Memory, after: Memory) -> bool:
    """Whether a step changed what the network remembers."""
    missing = object()
    return any(after.get(place, missing) != value for place, value in before.items())
