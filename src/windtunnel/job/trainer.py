"""One training step of a workload, written once: the forecast traces it, the measurement times it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from windtunnel.errors import BadJob
from windtunnel.job.workload import Workload
from windtunnel.strategy import Strategy

_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_RATE = (
    1e-3  # of an optimiser that takes the place of the job's own: small enough for any job to go on stepping
)
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused-adamw": functools.partial(torch.optim.AdamW, fused=True),
}


class Trainer:
    """A built network with its optimisers on a device ("cpu" or "cuda"), ready to step."""

    def __init__(self, workload: Workload, model: torch.nn.Module, strategy: Strategy, device: str) -> None:
        if strategy.accumulate > 1 and workload.step is not None:
            raise BadJob(
                f"{workload.name} has a step of its own, which accumulate={strategy.accumulate} cannot take apart.",
                hint="Give the job as loss and optimizer, or add gradients up inside its step.",
            )
        self.workload = workload
        self.model = model
        self.strategy = strategy
        self.device = device
        self.batch = strategy.batch or workload.default_batch
        self.micro_batch = strategy.micro_batch(self.batch)
        self.optimizer = _make_optimizer(workload, model, strategy, device)
        if strategy.recompute == "blocks":
            _recompute_blocks(workload, model)

    def step(self, batch: Any) -> Any:
        """Drop the old gradients, then forward and backward for each micro-batch, then one update."""
        if self.workload.step is not None:
            with self._precision():
                return self.workload.step(self.model, batch, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._learn(batch) if self.strategy.accumulate == 1 else self._learn_in_pieces(batch)
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
        return [
            leaf for leaf in pytree.tree_leaves(self.optimizer) if isinstance(leaf, torch.optim.Optimizer)
        ]

    def _learn(self, batch: Any) -> torch.Tensor:
        loss = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def _learn_in_pieces(self, batch: Any) -> torch.Tensor:
        """Losses are divided so that gradients add up to those of the whole batch where the loss is a mean over examples."""
        total = torch.zeros((), device=self.device)
        for piece in self._pieces(batch):
            loss = self._loss(piece) / self.strategy.accumulate
            total = total + loss.detach()
            loss.backward()  # type: ignore[no-untyped-call]
        return total

    def _loss(self, batch: Any) -> torch.Tensor:
        assert self.workload.loss is not None
        with self._precision():
            loss = self.workload.loss(self.model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise BadJob(
                f"The loss of {self.workload.name} must be one number, not {_describe(loss)}.",
                hint="Reduce it with .mean() or .sum().",
            )
        return loss

    def _pieces(self, batch: Any) -> list[Any]:
        """The batch cut into micro-batches along the first dimension that is as long as the batch in every tensor."""
        tensors = [
            leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()
        ]
        depth = min((t.dim() for t in tensors), default=0)
        along = next((d for d in range(depth) if all(t.shape[d] == self.batch for t in tensors)), None)
        if along is None:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "none"
            raise BadJob(
                f"A batch of {self.workload.name} cannot be cut into micro-batches: its tensors ({shapes}) do not all have {self.batch} along one dimension.",
                hint="Leave accumulate out, or have batch(n) give tensors whose first dimension is n.",
            )

        def piece(start: int) -> Any:
            return pytree.tree_map_only(
                torch.Tensor, lambda t: t.narrow(along, start, self.micro_batch) if t.dim() else t, batch
            )

        return [piece(start) for start in range(0, self.batch, self.micro_batch)]

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        low = _LOW.get(self.strategy.precision)
        if low is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=low)


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated pieces of a network: the children with parameters of each outermost list or sequence that has two or more."""
    return list(dict.fromkeys(_find_blocks(model)))  # a block that is used twice is one block


def _find_blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        able = [child for child in module if next(child.parameters(), None) is not None]
        if len(able) >= 2:
            yield from able
            return
    for child in module.children():
        yield from _find_blocks(child)


def _recompute_blocks(workload: Workload, model: torch.nn.Module) -> None:
    """Have each block drop what it computes and compute it again when backward asks; the user's classes stay as they are."""
    blocks = blocks_of(model)
    if not blocks:
        raise BadJob(
            f"{workload.name} has no blocks to recompute.",
            hint="Blocks are the members of an nn.ModuleList or nn.Sequential of which at least two have parameters.",
        )
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _make_optimizer(workload: Workload, model: torch.nn.Module, strategy: Strategy, device: str) -> Any:
    own = _own_optimizer(workload, model)
    if strategy.optimizer is None:
        return own
    if not isinstance(own, torch.optim.Optimizer):
        has = "has no optimiser" if own is None else "has several optimisers or an unusual one"
        raise BadJob(
            f"{workload.name} {has}, so optimizer={strategy.optimizer} cannot take its place.",
            hint="Leave optimizer out to use the job's own.",
        )
    # A captured step can count its updates only on the GPU, which Adam must be told.
    how = (
        {"capturable": True}
        if "adam" in strategy.optimizer and strategy.execution == "graph" and device == "cuda"
        else {}
    )
    groups = [{"params": group["params"]} for group in own.param_groups]
    return _OPTIMIZERS[strategy.optimizer](groups, lr=_RATE, **how)


def _own_optimizer(workload: Workload, model: torch.nn.Module) -> Any:
    if workload.optimizers is not None:
        return workload.optimizers(model)
    return workload.optimizer(model.parameters()) if workload.optimizer is not None else None


def _describe(value: Any) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    )
