"""The optimizers of a job, wherever it keeps them: in a class of its own, in the network, in a hook.

An optimizer is found when it steps, so the steps before the recorded one are observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from windtunnel.trace import lower

# Steps in which an update is sought: micro-batches of one update are rarely more. Fewer if a step is long.
_MOST_STEPS = 64
_MOST_OPS = 200_000


class OptimizerTracker:
    """The optimizers of a job, and which of them a step calls."""

    def __init__(self, target: str, known: Iterable[Optimizer]) -> None:
        self.target = target
        self.optimizers: list[Optimizer] = []
        self._called: set[int] = set()  # since the last step began
        for optimizer in known:
            self._meet(optimizer)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Register every optimizer that steps in this context."""

        def begin(optimizer: Optimizer, *_: Any) -> None:
            self._meet(optimizer)
            self._called.add(id(optimizer))

        self._called.clear()
        hook = register_optimizer_step_pre_hook(begin)
        try:
            yield
        finally:
            hook.remove()

    def _meet(self, optimizer: Optimizer) -> None:
        if not any(optimizer is each for each in self.optimizers):
            self.optimizers.append(optimizer)
            if self.target == "gpu":
                lower.prefer_lists(optimizer)

    @property
    def idle(self) -> int:
        """How many optimizers the watched step did not call."""
        return sum(id(each) not in self._called for each in self.optimizers)

    def seek(self, step: Callable[[], Any], ops: int) -> int | None:
        """The number of steps between two updates by all optimizers. Runs steps until the next one is such an
        update.

        None if none of many steps updates. `ops`: the ops of a step.
        """
        most = max(2, min(_MOST_STEPS, _MOST_OPS // max(ops, 1)))
        if self._run_to_update(step, most) is None:
            return None
        period = self._run_to_update(step, most)
        for _ in range((period or 1) - 1):
            step()
        return period

    def _run_to_update(self, step: Callable[[], Any], most: int) -> int | None:
        for number in range(1, most + 1):
            with self.watch():
                step()
            if not self.idle:
                return number
        return None
