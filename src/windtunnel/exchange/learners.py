"""What is learned when the shared weights change in the order of a simulated run. The gradients are real."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from windtunnel.exchange.run import ExchangeRun
from windtunnel.exchange.splitting import StepSplitter, only_optimizer
from windtunnel.records import Plain

NextBatch = Callable[[], Any]
# DiLoCo's outer optimizer: SGD with Nesterov momentum (Douillard et al. 2023, "DiLoCo", section 3.1).
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


def outer_step(shared: Tensor, average: Tensor, momentum: Tensor) -> Tensor:
    """Nesterov's step from the shared weights towards the average; `momentum` is changed."""
    direction = shared - average
    momentum.mul_(OUTER_MOMENTUM).add_(direction)
    return shared - OUTER_RATE * (direction + OUTER_MOMENTUM * momentum)


class Learner(Protocol):
    """Applies the changes of a run one after another.

    per_change  mini-batches that one change consumes
    """

    per_change: int

    def apply(self, change: int, next_batch: NextBatch) -> list[Tensor]:
        """Makes the change of this number and returns the losses of its mini-batches."""

    def state(self) -> Plain:
        """All tensors that the next changes depend on, besides model and optimizer."""

    def load_state(self, state: Plain) -> None: ...


class TogetherLearner:
    """All workers compute gradients at the same weights; their mean is one update."""

    def __init__(self, splitter: StepSplitter, workers: int) -> None:
        self.splitter, self.per_change = splitter, workers

    def apply(self, change: int, next_batch: NextBatch) -> list[Tensor]:
        gradients, losses = self.splitter.mean_gradients([next_batch() for _ in range(self.per_change)])
        self.splitter.update(gradients)
        return losses

    def state(self) -> Plain:
        return {}

    def load_state(self, state: Plain) -> None:
        pass


class ServedLearner:
    """Each worker, or each group of workers, computes gradients at the weights that it read last."""

    def __init__(self, splitter: StepSplitter, run: ExchangeRun, group: int) -> None:
        self.splitter, self.per_change = splitter, group
        self.comers = run.workers.tolist()
        # Which workers read the weights after how many changes.
        self.readers: dict[int, list[int]] = defaultdict(list)
        for change, (worker, stale) in enumerate(zip(self.comers, run.staleness.tolist(), strict=True)):
            self.readers[change - stale].append(worker)
        self.held: dict[int, list[Tensor]] = {}
        self._read(0)

    def apply(self, change: int, next_batch: NextBatch) -> list[Tensor]:
        shared = self.splitter.weights()
        self.splitter.load(self.held[self.comers[change]])
        gradients, losses = self.splitter.mean_gradients([next_batch() for _ in range(self.per_change)])
        self.splitter.load(shared)
        self.splitter.update(gradients)
        self._read(change + 1)
        return losses

    def _read(self, changes: int) -> None:
        for worker in self.readers.get(changes, ()):
            self.held[worker] = self.splitter.weights()

    def state(self) -> Plain:
        return {str(worker): weights for worker, weights in self.held.items()}

    def load_state(self, state: Plain) -> None:
        self.held = {int(worker): weights for worker, weights in state.items()}


class LocalLearner:
    """Each worker trains a copy of the network by itself; then the copies are averaged.

    `outer`: the average is not taken as it is, but as the direction of a step of an outer optimizer (DiLoCo).
    """

    def __init__(self, splitter: StepSplitter, workers: int, every: int, outer: bool) -> None:
        self.splitter, self.every, self.outer = splitter, every, outer
        self.per_change = workers * every
        self.copies = [copy.deepcopy(splitter.model) for _ in range(workers)]
        stage, name = splitter.stage, splitter.name
        self.optimizers = [only_optimizer(stage.optimizers(model), name) for model in self.copies]
        self.momentum = [torch.zeros_like(p) for p in splitter.parameters]

    def apply(self, change: int, next_batch: NextBatch) -> list[Tensor]:
        # In turn, step by step, so that all copies see batches of the same pass over the data.
        losses = []
        for _ in range(self.every):
            for model, optimizer in zip(self.copies, self.optimizers, strict=True):
                model.train()
                losses.append(self.splitter.stage.step(model, next_batch(), optimizer).detach())
        self._average()
        return losses

    @torch.no_grad()
    def _average(self) -> None:
        own = [[p for group in o.param_groups for p in group["params"]] for o in self.optimizers]
        for number, (shared, *parts) in enumerate(zip(self.splitter.parameters, *own, strict=True)):
            average = parts[0] if len(parts) == 1 else torch.stack(parts).mean(dim=0)
            shared.copy_(outer_step(shared, average, self.momentum[number]) if self.outer else average)
            for part in parts:
                part.copy_(shared)
        for buffer, first in zip(self.splitter.model.buffers(), self.copies[0].buffers(), strict=True):
            buffer.copy_(first)

    def state(self) -> Plain:
        return {
            "models": [dict(model.state_dict()) for model in self.copies],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "momentum": self.momentum,
        }

    def load_state(self, state: Plain) -> None:
        for model, values in zip(self.copies, state["models"], strict=True):
            model.load_state_dict(values)
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.momentum = list(state["momentum"])
