"""One training step of a workload, written once: the forecast traces it, the measurement times it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils import _pytree as pytree

from windtunnel.errors import BadJob
from windtunnel.strategy import Strategy
from windtunnel.workload import Workload

_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """A built network with its optimisers on a device ("cpu" or "cuda"), ready to step."""

    def __init__(self, workload: Workload, model: torch.nn.Module, strategy: Strategy, device: str) -> None:
        self.workload = workload
        self.model = model
        self.strategy = strategy
        self.device = device
        self.optimizer = _make_optimizer(workload, model)

    def step(self, batch: Any) -> Any:
        """Drop the old gradients, then forward, backward, update."""
        if self.workload.step is not None:
            with self._precision():
                return self.workload.step(self.model, batch, self.optimizer)
        assert self.workload.loss is not None
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = self.workload.loss(self.model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise BadJob(f"The loss of {self.workload.name} must be one number, not {_describe(loss)}.", hint="Reduce it with .mean() or .sum().")
        loss.backward()  # type: ignore[no-untyped-call]
        if self.workload.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.workload.clip_norm)
        self.optimizer.step()
        return loss

    def prime(self) -> None:
        """Let every optimiser make its state, as it would in the first step, without running one."""
        for optimizer in self.all_optimizers():
            for group in optimizer.param_groups:
                for parameter in (p for p in group["params"] if p.requires_grad):
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def all_optimizers(self) -> list[Any]:
        """The optimisers, whether the job has one, several in any structure, or none."""
        return [leaf for leaf in pytree.tree_leaves(self.optimizer) if isinstance(leaf, torch.optim.Optimizer)]

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        low = _LOW.get(self.strategy.precision)
        if low is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=low)


def _make_optimizer(workload: Workload, model: torch.nn.Module) -> Any:
    if workload.optimizers is not None:
        return workload.optimizers(model)
    return workload.optimizer(model.parameters()) if workload.optimizer is not None else None


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
