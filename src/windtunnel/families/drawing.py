"""The cases that a probe times: one call of one op on tensors of random synthetic sizes.

The same call runs on real tensors to be timed and on fake ones to be described. Sizes are drawn evenly on a
logarithmic scale. Most are round, as in common layers; some are odd. No shape is taken from a network.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

COMMON_WIDTHS = sorted(
    {base << power for base in (8, 12, 10, 9, 7) for power in range(9) if base << power <= 2048} | {3}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor to be made. `high`: the number of rows that an index may point at. `step`: an index that grows
    by this step from one element to the next, beginning with 0. `transposed`: its last two dimensions are
    swapped in memory. `cut`: it is part of a tensor that has this many more channels (dimension 1).
    `channels_last`: dimension 1 is the fastest in memory."""

    shape: tuple[int, ...]
    dtype: str = ""
    grad: bool = False
    high: int = 0
    step: int = 0
    transposed: bool = False
    cut: int = 0
    channels_last: bool = False

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape in memory, before the tensor is cut and transposed."""
        if self.channels_last:
            return (self.shape[0], *self.shape[2:], self.shape[1])
        shape = self.shape if not self.cut else (self.shape[0], self.shape[1] + self.cut, *self.shape[2:])
        return (*shape[:-2], shape[-1], shape[-2]) if self.transposed else shape

    @property
    def is_index(self) -> bool:
        return self.high > 0 or self.step > 0

    @property
    def elements(self) -> int:
        return math.prod(self.whole)

    def view(self, tensor: Tensor) -> Tensor:
        """This tensor within the whole one."""
        if self.channels_last:
            return tensor.movedim(-1, 1)
        tensor = tensor.transpose(-1, -2) if self.transposed else tensor
        return tensor[:, : self.shape[1]] if self.cut else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """One call of one op: forward, and also backward if a tensor needs a gradient. `prepare` runs once before
    the call is timed."""

    family: str
    precision: str
    tensors: tuple[TensorSpec, ...]
    call: Callable[[list[Tensor]], Any]
    prepare: Callable[[list[Tensor]], None] | None = None

    @property
    def elements(self) -> int:
        return sum(spec.elements for spec in self.tensors)

    @property
    def has_backward(self) -> bool:
        return any(spec.grad for spec in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a case may be on a device ("cpu" or "gpu"), so that each takes milliseconds."""

    flop: float
    elements: int
    precisions: tuple[str, ...]
    target: str = "cpu"


class Sizes:
    """Samples sizes that are typical of networks; the same seed gives the same sizes."""

    def __init__(self, limits: Limits, seed: int = 0) -> None:
        self.limits = limits
        self.rng = random.Random(seed)

    def size(self, low: int, high: int) -> int:
        """Even on a logarithmic scale; mostly a multiple of a power of two."""
        value = math.exp(self.rng.uniform(math.log(low), math.log(high + 0.5)))
        grain = self.rng.choice((1, 2, 4, 8, 8, 16, 32, 64, 64))
        value = round(value / grain) * grain if value > 2 * grain else round(value)
        return max(low, min(high, int(value)))

    def side(self) -> int:
        """The side of an image or a feature map: a small number doubled a few times, sometimes any number."""
        if self.rng.random() < 0.25:
            return self.size(2, 256)
        return min(256, self.rng.randint(4, 9) << self.rng.randint(0, 5))

    def examples(self) -> int:
        return 1 << self.rng.randint(0, 8) if self.rng.random() < 0.6 else self.size(1, 256)

    def width(self, low: int, high: int) -> int:
        """Channels: mostly a multiple of 8."""
        value = self.size(low, high)
        return value if self.rng.random() < 0.12 else max(low, round(value / 8) * 8)

    def precision(self) -> str:
        return self.rng.choice(self.limits.precisions)

    def dtype(self) -> str:
        """For ops without products: full or low precision."""
        low = [p for p in self.limits.precisions if p in ("bf16", "fp16")]
        return self.rng.choice(["fp32", *low[:1]]) if low else "fp32"

    def stored(self) -> str:
        """For ops without products: any number format in which tensors are stored."""
        return self.rng.choice([p for p in self.limits.precisions if p != "tf32"])

    def flop_limit(self, precision: str) -> float:
        """Full precision gets a lower limit if the device has a lower precision, because it then takes
        longer."""
        return self.limits.flop * (0.25 if precision == "fp32" and len(self.limits.precisions) > 1 else 1.0)
