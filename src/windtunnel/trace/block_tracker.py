"""Note, while a step is recorded, to which block of the network each op belongs and when gradients are
complete.

Backward runs outside of modules, so blocks are followed there by their outputs: when the gradient of a
block's output is known, that block's backward begins. FSDP uses the same signal.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from windtunnel.families.tensors import tensor_bytes
from windtunnel.job.trainer import blocks_of
from windtunnel.trace import BEFORE, Gradient, Trace
from windtunnel.trace.recorder import Recorder, tensors_of


class BlockTracker:
    """Watches the blocks and parameters of a model for a recorder."""

    def __init__(self, recorder: Recorder, model: torch.nn.Module) -> None:
        self._recorder, self._model = recorder, model
        self._blocks = blocks_of(model)
        self._owners = {
            id(parameter): number
            for number, block in enumerate(self._blocks)
            for parameter in block.parameters()
        }
        self._complete: dict[str, Gradient] = {}
        self._owned: dict[int, int] = {}
        self.boundary_bytes = 0.0

    def own(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Note to which block the memory of each weight, its gradient and its optimizer state belongs."""
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                self._hold(tensors_of(dict(state)), self._owners.get(id(parameter), BEFORE))
        for parameter in self._model.parameters():
            sums = [parameter.main_grad] if hasattr(parameter, "main_grad") else []
            self._hold([parameter, *sums], self._owners.get(id(parameter), BEFORE))

    def _hold(self, tensors: Iterable[Tensor], block: int) -> None:
        for tensor in tensors:
            name = self._recorder.name_of(tensor)
            if name is not None:
                self._owned[name] = block

    def added_to(self, trace: Trace) -> Trace:
        """The trace with the blocks and gradients that were seen; gradients in the order of completion."""
        return dataclasses.replace(
            trace,
            blocks=len(self._blocks),
            gradients=tuple(sorted(self._complete.values(), key=lambda gradient: gradient.position)),
            boundary_bytes=self.boundary_bytes,
            owners=dict(self._owned),
        )

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        hooks = [self._model.register_forward_pre_hook(lambda *_: self._begin())]
        for number, block in enumerate(self._blocks):
            hooks.append(block.register_forward_pre_hook(self._entering(number), with_kwargs=True))
            # Before other hooks, which may gather what the block returns.
            hooks.append(block.register_forward_hook(self._leaving(number), prepend=True))
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and parameter.is_leaf:
                hooks.append(parameter.register_post_accumulate_grad_hook(self._completing(name)))  # type: ignore[no-untyped-call]
        self._recorder.block = BEFORE
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._recorder.block = BEFORE

    def _entering(self, number: int) -> Any:
        def enter(_: Any, args: Any, kwargs: Any) -> None:
            if torch._C._current_graph_task_id() != -1:
                return  # a block that is computed again in backward
            self._recorder.block = number
            if number == 0:
                for tensor in tensors_of((args, kwargs)):
                    self._on_gradient(tensor, BEFORE)

        return enter

    def _leaving(self, number: int) -> Any:
        def leave(_: Any, __: Any, output: Any) -> None:
            if torch._C._current_graph_task_id() != -1:
                return
            tensors = [t for t in tensors_of(output) if t.is_floating_point()]
            for tensor in tensors:
                self._on_gradient(tensor, number)
            self.boundary_bytes = max(self.boundary_bytes, sum(map(tensor_bytes, tensors)))
            if number == len(self._blocks) - 1:
                self._recorder.block = len(self._blocks)

        return leave

    def _on_gradient(self, tensor: Tensor, number: int) -> None:
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(lambda _: self._set(number))  # type: ignore[no-untyped-call]

    def _set(self, number: int) -> None:
        self._recorder.block = number

    def _completing(self, name: str) -> Any:
        def complete(parameter: Tensor) -> None:
            # Code that adds gradients up in another number format keeps them there, as Megatron-LM does.
            gradient = getattr(parameter, "main_grad", parameter.grad)
            if gradient is None:
                return
            self._complete[name] = Gradient(
                name,
                parameter.numel(),
                float(parameter.numel() * gradient.element_size()),
                self._owners.get(id(parameter), BEFORE),
                self._recorder.position,
            )

        return complete


def main_gradients(model: torch.nn.Module) -> list[Tensor]:
    """Gradients that a job keeps from step to step beside its weights, under Megatron-LM's name."""
    sums = (getattr(parameter, "main_grad", None) for parameter in model.parameters())
    return [each for each in sums if isinstance(each, Tensor)]
