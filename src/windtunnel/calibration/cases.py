"""What a probe times: one call of one op on tensors of given shapes. The same call runs on real tensors to be timed and on
fake ones to be described."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Call = Callable[[list[Tensor]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A tensor to be made: `high` is the number of rows an index may point at, `turned` swaps its last two sides in memory, `cut`
    says that it is cut out of one with so many more channels (its second side), `channels_last` that its second side lies closest."""

    shape: tuple[int, ...]
    dtype: str = ""
    grad: bool = False
    high: int = 0
    turned: bool = False
    cut: int = 0
    channels_last: bool = False

    @property
    def whole(self) -> tuple[int, ...]:
        """As it lies in memory, before it is cut and turned."""
        if self.channels_last:
            return (self.shape[0], *self.shape[2:], self.shape[1])
        shape = self.shape if not self.cut else (self.shape[0], self.shape[1] + self.cut, *self.shape[2:])
        return (*shape[:-2], shape[-1], shape[-2]) if self.turned else shape

    @property
    def elements(self) -> int:
        return math.prod(self.whole)

    def view(self, tensor: Tensor) -> Tensor:
        """This tensor within the whole one."""
        if self.channels_last:
            return tensor.movedim(-1, 1)
        tensor = tensor.transpose(-1, -2) if self.turned else tensor
        return tensor[:, : self.shape[1]] if self.cut else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of one op, forward, and backward where a tensor wants a gradient. `prepare` puts tensors in order, or has code written, first."""

    family: str
    precision: str
    tensors: tuple[Spec, ...]
    call: Call
    prepare: Callable[[list[Tensor]], None] | None = None

    @property
    def elements(self) -> int:
        return sum(spec.elements for spec in self.tensors)

    @property
    def backward(self) -> bool:
        return any(spec.grad for spec in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a case may be on this device ("cpu" or "gpu"), so that none takes longer than a few thousandths of a second."""

    flop: float
    elements: int
    precisions: tuple[str, ...]
    target: str = "cpu"
