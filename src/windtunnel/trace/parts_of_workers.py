"""DTensors: each worker holds its part of a tensor, and its kernels work on the parts.

PyTorch shows a dispatch mode the calls on whole DTensors first. A recorder that does not take them sees what
DTensor makes of them: calls on this worker's parts, and collectives.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

from torch import Tensor

_PLANNER = "torch.distributed.tensor._sharding_prop"
_PLAN = "_propagate_tensor_meta_non_cached"


def has_divided(types: Iterable[type]) -> bool:
    """Whether a call has arguments of these types that are divided among workers."""
    return any(kind.__name__ == "DTensor" for kind in types)


def own_part(tensor: Tensor) -> Tensor:
    """This worker's part of a DTensor; any other tensor is whole."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


@contextlib.contextmanager
def planned_by(quietly: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Run quietly what DTensor runs only to learn the shape of a result: no worker computes it."""
    planner = sys.modules.get(_PLANNER)
    kind = getattr(planner, "ShardingPropagator", None)
    if not hasattr(kind, _PLAN):
        yield
        return
    plan = getattr(kind, _PLAN)

    def planned(*args: Any, **kwargs: Any) -> Any:
        with quietly():
            return plan(*args, **kwargs)

    with mock.patch.object(kind, _PLAN, planned):
        yield
