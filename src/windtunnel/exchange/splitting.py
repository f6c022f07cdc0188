"""The gradients of a training step without its update, for steps that do both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from windtunnel.errors import BadInput
from windtunnel.job.lesson import Lesson, Stage

_ALONE = "One worker can train built-in networks in other ways: windtunnel network train"
Gradients = list[Tensor | None]


def only_stage(lesson: Lesson, name: str) -> Stage:
    """The stage of a lesson that workers can share: it must be the only one."""
    if len(lesson.stages) > 1:
        names = ", ".join(stage.name for stage in lesson.stages)
        raise BadInput(
            f"{name} is trained in {len(lesson.stages)} stages ({names}); workers can share only one.",
            hint=_ALONE,
        )
    return lesson.stages[0]


def only_optimizer(optimizers: Any, name: str) -> torch.optim.Optimizer:
    """The optimizer of a step that workers can share: it must be the only one."""
    if isinstance(optimizers, torch.optim.Optimizer):
        return optimizers
    raise BadInput(
        f"The step of {name} uses several optimizers or one of its own, so its gradients and its update "
        "cannot be separated.",
        hint=_ALONE,
    )


def refuse_undivided(name: str, settings: Mapping[str, object]) -> None:
    """Refuses a network whose step workers cannot share, before any of them starts."""
    from windtunnel.learning.training import prepare

    lesson, _ = prepare(name, settings)
    stage = only_stage(lesson, name)
    only_optimizer(stage.optimizers(lesson.model()), name)


class StepSplitter:
    """Runs steps whose optimizer only notes the gradients; `update` then changes the weights by any."""

    def __init__(self, model: torch.nn.Module, stage: Stage, name: str) -> None:
        self.model, self.stage, self.name = model, stage, name
        self.optimizer = only_optimizer(stage.optimizers(model), name)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._noted: list[Gradients] = []

    def gradients(self, batch: Any) -> tuple[Gradients, Tensor]:
        """The gradients of one batch at the model's weights, and its loss."""
        self._noted.clear()
        update = self.optimizer.step
        self.optimizer.step = self._note  # type: ignore[assignment,method-assign]
        try:
            loss = self.stage.step(self.model, batch, self.optimizer)
        finally:
            self.optimizer.step = update  # type: ignore[method-assign]
        if len(self._noted) != 1:
            raise BadInput(
                f"The step of {self.name} updates the weights {len(self._noted)} times; workers that "
                "exchange gradients need exactly one update a step.",
                hint=_ALONE,
            )
        return self._noted.pop(), loss.detach()

    def mean_gradients(self, batches: list[Any]) -> tuple[Gradients, list[Tensor]]:
        """The gradients over all examples of these batches, computed batch by batch, and their losses."""
        found = [self.gradients(batch) for batch in batches]
        sizes = [examples_in(batch) for batch in batches]
        return mean([gradients for gradients, _ in found], sizes), [loss for _, loss in found]

    def _note(self, closure: Any = None) -> None:
        if closure is not None:
            raise BadInput(
                f"The step of {self.name} gives its optimizer a closure, so that the gradients are computed "
                "inside of the update and cannot be exchanged.",
                hint="Call loss.backward() before optimizer.step().",
            )
        self._noted.append([None if p.grad is None else p.grad.detach().clone() for p in self.parameters])

    def update(self, gradients: Gradients) -> None:
        """One step of the optimizer with these gradients."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    @torch.no_grad()
    def weights(self) -> list[Tensor]:
        """A copy of the weights."""
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def load(self, weights: list[Tensor]) -> None:
        """Sets the weights."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.copy_(value)


def mean(parts: list[Gradients], sizes: list[int]) -> Gradients:
    """The gradient of all examples of several mini-batches; that of one mini-batch is its own, to the bit."""
    if len(parts) == 1:
        return parts[0]
    shares = [size / sum(sizes) for size in sizes]
    return [_weighted(own, shares) for own in zip(*parts, strict=True)]


def _weighted(parts: Sequence[Tensor | None], shares: Sequence[float]) -> Tensor | None:
    """The mean of a parameter's gradients. In a mini-batch that does not use it, it has none: that counts as
    zeros."""
    known = [share * part for share, part in zip(shares, parts, strict=True) if part is not None]
    return sum(known[1:], known[0]) if known else None


def examples_in(batch: Any) -> int:
    """The number of examples of a mini-batch: the length of its first tensor."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    return len(tensors[0]) if tensors else 1
