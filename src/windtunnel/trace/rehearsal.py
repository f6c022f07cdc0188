"""A real step at a small batch, to learn values that decide what a step does."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.trace.places import caller

_MOST_KEPT = 4096  # values of one op
# A step of two examples takes no longer, unless a loop in it does not end.
_MOST_SECONDS = 300.0
_MOST_OPS = 300_000
Place = tuple[str, int]


class NeedsRehearsal(BaseException):
    """The step depends on a value that only a real step has. Not an Exception, because user code may catch
    those."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class TooLong(BaseException):
    """A real step takes too long. Not an Exception, because user code may catch those."""


class RehearsalValues:
    """Values of a real step, by the line that computed them. A line gets them in the order it ran."""

    def __init__(self) -> None:
        self._numbers: dict[Place, list[Any]] = defaultdict(list)
        self._values: dict[tuple[str, Place], list[Tensor]] = defaultdict(list)
        self._next: dict[Any, int] = defaultdict(int)
        self.has_undefined = False  # a number that decided is none, such as the mean of nothing

    def add_number(self, place: Place, number: Any) -> None:
        self.has_undefined |= number != number
        self._numbers[place].append(number)

    def add_values(self, func: Any, place: Place, values: Tensor) -> None:
        kept = values.detach().flatten()
        if kept.numel() > _MOST_KEPT:
            kept = kept[torch.randint(0, kept.numel(), (_MOST_KEPT,))]
        self._values[str(func), place].append(kept.clone())

    def begin(self) -> None:
        """Start again with the first values."""
        self._next.clear()

    def next_number(self, place: Place) -> Any | None:
        return self._take(self._numbers.get(place), ("number", place))

    def next_values(self, func: Any, place: Place, like: Tensor) -> Tensor | None:
        """Values for a tensor of another size: booleans with the same share of true, integers sampled from
        the real ones."""
        values = self._take(self._values.get((str(func), place)), (str(func), place))
        if values is None or values.dtype != like.dtype or not values.numel():
            return None
        count = like.numel()
        if values.dtype == torch.bool:
            drawn = torch.zeros(count, dtype=torch.bool)
            drawn[torch.randperm(count)[: round(float(values.float().mean()) * count)]] = True
        else:
            drawn = values[torch.randint(0, values.numel(), (count,))]
        return drawn.view(like.shape)

    def _take(self, series: list[Any] | None, key: Any) -> Any | None:
        """The next of a series; the last one for all calls after that."""
        if not series:
            return None
        number, self._next[key] = self._next[key], self._next[key] + 1
        return series[min(number, len(series) - 1)]


class ValueRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the values of all ops that run while it is active."""

    def __init__(self, rehearsal_values: RehearsalValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rehearsal_values = rehearsal_values
        self._end, self._ops = time.monotonic() + _MOST_SECONDS, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._ops += 1
        if self._ops > _MOST_OPS or time.monotonic() > self._end:
            limits = f"{_MOST_OPS:,} ops or {_MOST_SECONDS:.0f} s"
            raise TooLong(f"a real step of a small batch took more than {limits} here")
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.rehearsal_values.add_number(caller(), result)
        elif not func._schema.is_mutable:
            results, inputs = _tensors((result,)), _tensors((*args, *(kwargs or {}).values()))
            if results and is_comparison(inputs, results):
                self.rehearsal_values.has_undefined |= any(bool(torch.isnan(each).any()) for each in inputs)
                for tensor in results:
                    self.rehearsal_values.add_values(func, caller(), tensor)
        return result


def is_comparison(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
    """Whether an op turns floats into booleans or integers only, as comparisons do."""
    return (
        bool(results)
        and not any(t.is_floating_point() or t.is_complex() for t in results)
        and any(t.is_floating_point() for t in inputs)
    )


def rehearse(run: Callable[[], Any]) -> RehearsalValues:
    """Run a real step and keep its values."""
    rehearsal_values = RehearsalValues()
    with ValueRecorder(rehearsal_values):
        run()
    return rehearsal_values


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found
