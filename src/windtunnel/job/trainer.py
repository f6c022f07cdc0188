"""One step of a job, training or inference. The forecast traces this code, the measurement times it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from windtunnel.errors import BadJob
from windtunnel.job.workload import Batch, Forward, Optimizers, Workload, place_of_function
from windtunnel.machine.machine import torch_device
from windtunnel.strategy import Strategy

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Learning rate of an optimiser that replaces the job's own: small enough that no job diverges.
_RATE = 1e-3
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused-adam": functools.partial(torch.optim.Adam, fused=True),
    "fused-adamw": functools.partial(torch.optim.AdamW, fused=True),
}


_RETURN_LOSS = "Return the loss as a tensor, without .item(), and nothing beside it."

# Memory formats of strategies, for images (four dimensions) and volumes (five).
_FORMATS = {
    "contiguous": {4: torch.contiguous_format, 5: torch.contiguous_format},
    "channels_last": {4: torch.channels_last, 5: torch.channels_last_3d},
}


class Trainer:
    """A network on its device with its optimisers, ready to train, or to infer.

    `device` is "cpu", "gpu" or PyTorch's "cuda"; the network must be there already. Batches must have the
    layout of the strategy; `arrange` gives it to them.
    """

    def __init__(self, workload: Workload, model: torch.nn.Module, strategy: Strategy, device: str) -> None:
        if strategy.accumulate > 1 and workload.step is not None:
            raise BadJob(
                f"{workload.name} has its own step(), which accumulate={strategy.accumulate} cannot split.",
                hint="Define the job by loss and optimizer, or accumulate gradients inside its step().",
            )
        if not isinstance(model, torch.nn.Module):
            raise BadJob(
                f"model() of {workload.name} returned {_describe(model)}, not a torch.nn.Module.",
                hint=f"Return the network. {_look_at(workload.model)}",
            )
        self.workload = workload
        self.model = model
        self.strategy = strategy
        self.device = torch_device(device)
        self.batch = strategy.batch or workload.default_batch
        self.micro_batch = strategy.micro_batch(self.batch)
        _arrange_weights(model, strategy)
        if strategy.inference:
            self.optimizer: Optimizers = None
            self._forward = _forward_of(workload)
            model.eval()
            return
        self.optimizer = _make_optimizer(workload, model, strategy)
        if strategy.execution == "graph" and self.device == "cuda":
            self._count_on_device()
        if strategy.recompute != "none":
            _recompute_blocks(workload, model, strategy)

    def step(self, batch: Batch) -> Any:
        """Clear gradients, run forward and backward for each micro-batch, then update the weights once.

        With inference, only run forward.
        """
        if self.strategy.inference:
            with torch.no_grad(), self._precision():
                return self._forward(self.model, batch)
        if self.workload.step is not None:
            with self._precision():
                return self.workload.step(self.model, batch, self.optimizer)
        self.optimizer.zero_grad()
        loss = self._backward(batch) if self.strategy.accumulate == 1 else self._accumulate(batch)
        if self.workload.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.workload.clip_norm)
        self.optimizer.step()
        return loss

    def prime(self) -> None:
        """Make every optimiser allocate its state, as the first step would, without running a step."""
        for optimizer in self.all_optimizers():
            for group in optimizer.param_groups:
                for parameter in (p for p in group["params"] if p.requires_grad):
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def _count_on_device(self) -> None:
        """Make Adam and its like count their updates on the GPU, so that a CUDA graph can capture them."""
        for optimizer in self.all_optimizers():
            for group in optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = True

    def all_optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimisers of the job, in whatever structure the job keeps them."""
        return [
            leaf for leaf in pytree.tree_leaves(self.optimizer) if isinstance(leaf, torch.optim.Optimizer)
        ]

    def _backward(self, batch: Batch) -> torch.Tensor:
        loss = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def _accumulate(self, batch: Batch) -> torch.Tensor:
        """Add up the gradients of all micro-batches.

        Each loss is divided by their number: for a loss that is a mean over examples, the sum of gradients
        then equals the gradient of the whole batch.
        """
        total = torch.zeros((), device=self.device)
        for part in self._split(batch):
            loss = self._loss(part) / self.strategy.accumulate
            total = total + loss.detach()
            loss.backward()  # type: ignore[no-untyped-call]
        return total

    def _loss(self, batch: Batch) -> torch.Tensor:
        assert self.workload.loss is not None
        with self._precision():
            loss = self.workload.loss(self.model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = "Reduce it with .mean() or .sum()." if isinstance(loss, torch.Tensor) else _RETURN_LOSS
            raise BadJob(
                f"The loss of {self.workload.name} must be one number, not {_describe(loss)}.",
                hint=f"{what} {_look_at(self.workload.loss)}",
            )
        if not loss.requires_grad and not self.strategy.inference:
            raise BadJob(
                f"The loss of {self.workload.name} has no gradient, so there is nothing to train.",
                hint="Check that parameters require gradients, and that the loss does not come from "
                f"torch.no_grad(), .detach() or .item(). {_look_at(self.workload.loss)}",
            )
        return loss

    def _split(self, batch: Batch) -> list[Batch]:
        """Split the batch into micro-batches, along the first dimension that is as long as the batch."""
        tensors = [
            leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()
        ]
        depth = min((t.dim() for t in tensors), default=0)
        along = next((d for d in range(depth) if all(t.shape[d] == self.batch for t in tensors)), None)
        if along is None:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "none"
            raise BadJob(
                f"A batch of {self.workload.name} cannot be split into micro-batches: "
                f"no dimension has length {self.batch} in all of its tensors ({shapes}).",
                hint="Leave accumulate out, or let batch(n) return tensors whose first dimension is n.",
            )

        def part(start: int) -> Batch:
            return pytree.tree_map_only(
                torch.Tensor, lambda t: t.narrow(along, start, self.micro_batch) if t.dim() else t, batch
            )

        return [part(start) for start in range(0, self.batch, self.micro_batch)]

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self.strategy.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=dtype)


def arrange(batch: Batch, strategy: Strategy) -> Batch:
    """The batch with its images and volumes in the layout of the strategy; None leaves them as they are."""
    if strategy.layout is None:
        return batch
    return pytree.tree_map_only(torch.Tensor, functools.partial(_in_layout, layout=strategy.layout), batch)


def _in_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """As `.to(memory_format=...)` does, which also marks kernels of 1 x 1: cuDNN follows their strides."""
    memory_format = _FORMATS[layout].get(tensor.dim())
    return tensor if memory_format is None else tensor.to(memory_format=memory_format)


def _arrange_weights(model: torch.nn.Module, strategy: Strategy) -> None:
    """As `model.to(memory_format=...)` does, but also for networks that have both images and volumes."""
    if strategy.layout is not None:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = _in_layout(tensor.data, strategy.layout)


def describe_inputs(examples: Batch, batch: int) -> str:
    """The size of the images or the length of the sequences of a batch, in words; empty if it has neither.

    Images and volumes have four and five dimensions. A sequence is a table of whole numbers, or of vectors,
    with examples and timesteps as its first two dimensions in either order. The largest tensor counts.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]
    for tensor in sorted(tensors, key=lambda t: -t.numel()):
        sides, is_number = tuple(tensor.shape), tensor.is_floating_point()
        if is_number and len(sides) in (4, 5):
            word = "image" if len(sides) == 4 else "volume"
            return f"{word} {' x '.join(map(str, sides[2:]))}"
        if len(sides) == (3 if is_number else 2) and batch in sides[:2]:
            return f"sequence length {sides[1] if sides[0] == batch else sides[0]}"
    return ""


def _forward_of(workload: Workload) -> Forward:
    """The function that inference runs: the job's own forward, otherwise its loss."""
    forward = workload.forward or workload.loss
    if forward is None:
        raise BadJob(
            f"{workload.name} has its own step() and no forward(), so its inference is not known.",
            hint="Add forward=lambda model, batch: model(batch) to its Workload.",
        )
    return forward


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks of a network.

    They are the members with parameters of each outermost ModuleList or Sequential with at least two such.
    """
    return list(dict.fromkeys(_find_blocks(model)))  # a block that occurs twice is one block


def _find_blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        trainable = [child for child in module if next(child.parameters(), None) is not None]
        if len(trainable) >= 2:
            yield from trainable
            return
    for child in module.children():
        yield from _find_blocks(child)


def _recompute_blocks(workload: Workload, model: torch.nn.Module, strategy: Strategy) -> None:
    """Make each block free its activations and run its forward pass again in backward.

    Only these instances change, not the user's classes.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise BadJob(
            f"recompute={strategy.recompute}: {workload.name} has no blocks.",
            hint="Blocks are the members of nn.ModuleList or nn.Sequential; at least two need parameters.",
        )
    for block in blocks:
        forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = forward if strategy.recompute == "blocks" else _to_its_end(forward)


def _to_its_end(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The checkpointed forward pass that is run again as a whole."""

    def run(*args: Any, **options: Any) -> Any:
        with set_checkpoint_early_stop(False):
            return forward(*args, **options)

    return run


def _make_optimizer(workload: Workload, model: torch.nn.Module, strategy: Strategy) -> Optimizers:
    own = _own_optimizer(workload, model)
    if strategy.optimizer is None:
        return own
    if not isinstance(own, torch.optim.Optimizer):
        has = "has no optimiser" if own is None else "has several optimisers or an unusual one"
        raise BadJob(
            f"{workload.name} {has}; optimizer={strategy.optimizer} cannot replace that.",
            hint="Leave optimizer out to use the job's own.",
        )
    groups = [{"params": group["params"]} for group in own.param_groups]
    return _OPTIMIZERS[strategy.optimizer](groups, lr=_RATE)


def _own_optimizer(workload: Workload, model: torch.nn.Module) -> Optimizers:
    name, make = "optimizers", workload.optimizers
    if workload.optimizer is not None:
        name, make = "optimizer", workload.optimizer
    if make is None:
        return None
    made = make(model if name == "optimizers" else model.parameters())
    if made is None and (workload.loss is not None or name == "optimizer"):
        raise BadJob(
            f"{name}() of {workload.name} returned nothing.",
            hint=f"Return the optimizer. {_look_at(make)}",
        )
    if workload.loss is not None and not all(
        callable(getattr(made, method, None)) for method in ("step", "zero_grad")
    ):
        raise BadJob(
            f"{name}() of {workload.name} returned {_describe(made)}; with loss() it must be one optimizer.",
            hint="Return the optimizer alone. Or define step(model, batch, optimizer) instead of loss: it "
            f"gets what {name}() returns. {_look_at(make)}",
        )
    return made


def _look_at(function: Any) -> str:
    place = place_of_function(function)
    return f"Look at {place}." if place else ""


def _describe(value: object) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, torch.Tensor)
        else "float"
        if isinstance(value, float)
        else type(value).__name__
    )
