"""For networks too wide for one block of a GPU: the whole step of plain PyTorch, captured once as a CUDA graph and replayed.

The library's matrix products are as fast as ours would be at these sizes; what the host pays to launch them is not. In the captured step
nothing is left to it: the graph picks its own examples from the order that lies on the GPU, updates the weights and notes the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from windtunnel.fused.many import Job
from windtunnel.fused.module import beside_kernel
from windtunnel.fused.settings import NAMES, Array, Optimizer, Weights

_WARM_STEPS = 3


class Captured:
    """One network with its examples and its optimiser's state, all in fixed places on the GPU (elsewhere the step runs as it is written)."""

    def __init__(self, job: Job, device: str = "cuda") -> None:
        self.network, self.batch, self.optimizer = job.network, job.batch, job.optimizer or Optimizer()
        given = job.examples.checked(job.network)
        start = (job.weights or Weights.random(job.network, job.seed or 0)).checked(job.network).named()
        self.raw = {name: torch.tensor(start[name], device=device).requires_grad_() for name in NAMES}
        self.inputs, self.targets = (
            torch.tensor(np.ascontiguousarray(a), device=device) for a in (given.inputs, given.targets)
        )
        mask = (
            np.ones(given.inputs.shape[:2], np.float32)
            if given.mask is None
            else np.broadcast_to(given.mask, given.inputs.shape[:2])
        )
        self.mask = torch.tensor(np.ascontiguousarray(mask, np.float32), device=device)
        count = len(given.inputs)
        self.order = torch.zeros(max(1, count // self.batch), self.batch, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.done = torch.zeros((), device=device)
        self.losses = torch.zeros(len(self.order), device=device)
        self.first = [torch.zeros_like(value) for value in self.raw.values()]
        self.second = [torch.zeros_like(value) for value in self.raw.values()]
        self._advance = self._capture().replay if device == "cuda" else self._step

    def run(self, order: Array) -> Tensor:
        """Losses of the updates over the examples in the rows of the order, at most an epoch's."""
        self.order[: len(order)] = torch.as_tensor(np.asarray(order, np.int64))
        self.place.zero_()
        for _ in range(len(order)):
            self._advance()
        return self.losses[: len(order)].clone()

    def put(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in weights.items():
                self.raw[name].copy_(value)

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.raw.items()}

    def state(self) -> dict[str, Tensor]:
        """The optimiser's momenta by the names of the weights, in the engine's own memory."""
        return {
            f"{order} {name}": value
            for order, kept in (("first", self.first), ("second", self.second))
            for name, value in zip(NAMES, kept, strict=True)
        }

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Runs that warm up libraries on a stream of their own; what they learn is undone."""
        before = {name: value.detach().clone() for name, value in self.raw.items()}
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_STEPS):
                self.place.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.put(before)
        for tensor in (*self.first, *self.second, self.done, self.place):
            tensor.zero_()
        return graph

    def _step(self) -> None:
        raw = list(self.raw.values())
        rows = self.order.index_select(0, self.place)[0]
        with _full_precision():
            outputs = beside_kernel(
                self.network, self.inputs.index_select(0, rows).transpose(0, 1).contiguous(), None, raw
            )
            loss = self._loss(
                outputs.transpose(0, 1), self.targets.index_select(0, rows), self.mask.index_select(0, rows)
            )
            slopes = list(torch.autograd.grad(loss, raw))
        with torch.no_grad():
            self._update(raw, slopes)
            self.losses.index_copy_(0, self.place, loss.detach()[None])
            self.place.add_(1)

    def _loss(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        if self.network.loss == "mse":
            return ((outputs - targets) ** 2 * mask[..., None]).sum() / (mask.sum() * self.network.n_out)
        logs = torch.log_softmax(outputs, -1).gather(-1, targets.long()[..., None])[..., 0]
        return -(logs * mask).sum() / mask.sum()

    def _update(self, raw: list[Tensor], slopes: list[Tensor]) -> None:
        o = self.optimizer
        if o.clip_norm is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
            torch._foreach_mul_(slopes, (o.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        self.done.add_(1)
        if o.name == "sgd":
            if o.momentum:
                torch._foreach_mul_(self.first, o.momentum)
                torch._foreach_add_(self.first, slopes)
                slopes = self.first
            torch._foreach_add_(raw, slopes, alpha=-o.rate)
            return
        torch._foreach_lerp_(self.first, slopes, 1 - o.beta1)
        torch._foreach_mul_(self.second, o.beta2)
        torch._foreach_addcmul_(self.second, slopes, slopes, 1 - o.beta2)
        sizes = torch._foreach_sqrt(self.second)
        torch._foreach_div_(sizes, torch.sqrt(1 - o.beta2**self.done))
        torch._foreach_add_(sizes, o.eps)
        moves = torch._foreach_div(self.first, sizes)
        torch._foreach_mul_(moves, -o.rate / (1 - o.beta1**self.done))
        torch._foreach_add_(raw, moves)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """This engine is float32 everywhere, also where PyTorch would let cuDNN round its factors."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def capture(job: Job) -> Captured | None:
    """None where this PyTorch cannot capture such a step."""
    try:
        return Captured(job)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
