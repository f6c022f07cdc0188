"""Networks too wide for one thread block: the whole PyTorch step, captured as a CUDA graph and replayed.

At these sizes the library's matrix products are as fast as a kernel of our own, but launching them costs host
time. The captured step needs no host work: the graph picks its examples from the order stored on the GPU,
updates the weights and stores the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from windtunnel.fused.module import library_call_or_loop
from windtunnel.fused.settings import WEIGHT_NAMES, Array, Examples, Optimizer
from windtunnel.fused.train import TrainingRun

_WARMUP_STEPS = 3


class GraphTrainer:
    """One network with its examples and optimiser state at fixed addresses on the GPU.

    On another device the same step runs without a graph.
    """

    def __init__(self, run: TrainingRun, device: str = "cuda") -> None:
        self.network, self.batch, self.optimizer = run.network, run.batch, run.optimizer or Optimizer()
        examples = run.examples.checked(run.network)
        start = run.initial_weights().checked(run.network).as_dict()
        self.raw = {name: torch.tensor(start[name], device=device).requires_grad_() for name in WEIGHT_NAMES}
        self.inputs, self.targets = (
            torch.tensor(np.ascontiguousarray(a), device=device) for a in (examples.inputs, examples.targets)
        )
        self.mask = torch.tensor(_full_mask(examples), device=device)
        updates = max(1, len(examples.inputs) // self.batch)
        self.order = torch.zeros(updates, self.batch, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.updates_done = torch.zeros((), device=device)
        self.losses = torch.zeros(updates, device=device)
        self.first = [torch.zeros_like(value) for value in self.raw.values()]
        self.second = [torch.zeros_like(value) for value in self.raw.values()]
        self._advance = self._capture().replay if device == "cuda" else self._step

    def run(self, order: Array) -> Tensor:
        """The losses of one update per row of `order`; at most the updates of one epoch."""
        self.order[: len(order)] = torch.as_tensor(np.asarray(order, np.int64))
        self.position.zero_()
        for _ in range(len(order)):
            self._advance()
        return self.losses[: len(order)].clone()

    def set_weights(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in weights.items():
                self.raw[name].copy_(value)

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.raw.items()}

    def state(self) -> dict[str, Tensor]:
        """The optimiser's moments by weight, as views of the trainer's memory."""
        return {
            f"{order} {name}": value
            for order, moments in (("first", self.first), ("second", self.second))
            for name, value in zip(WEIGHT_NAMES, moments, strict=True)
        }

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warms up the libraries on a side stream, captures the step, and undoes the warm-up updates."""
        before = {name: value.detach().clone() for name, value in self.raw.items()}
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP_STEPS):
                self.position.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.set_weights(before)
        for tensor in (*self.first, *self.second, self.updates_done, self.position):
            tensor.zero_()
        return graph

    def _step(self) -> None:
        raw = list(self.raw.values())
        rows = self.order.index_select(0, self.position)[0]
        with _full_precision():
            inputs = self.inputs.index_select(0, rows).transpose(0, 1).contiguous()
            outputs = library_call_or_loop(self.network, inputs, None, raw).transpose(0, 1)
            loss = self._loss(outputs, self.targets.index_select(0, rows), self.mask.index_select(0, rows))
            gradients = list(torch.autograd.grad(loss, raw))
        with torch.no_grad():
            self._update(raw, gradients)
            self.losses.index_copy_(0, self.position, loss.detach()[None])
            self.position.add_(1)

    def _loss(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        if self.network.loss == "mse":
            return ((outputs - targets) ** 2 * mask[..., None]).sum() / (mask.sum() * self.network.n_out)
        logs = torch.log_softmax(outputs, -1).gather(-1, targets.long()[..., None])[..., 0]
        return -(logs * mask).sum() / mask.sum()

    def _update(self, raw: list[Tensor], gradients: list[Tensor]) -> None:
        o = self.optimizer
        if o.clip_norm is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, (o.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        self.updates_done.add_(1)
        if o.name == "sgd":
            if o.momentum:
                torch._foreach_mul_(self.first, o.momentum)
                torch._foreach_add_(self.first, gradients)
                gradients = self.first
            torch._foreach_add_(raw, gradients, alpha=-o.rate)
            return
        torch._foreach_lerp_(self.first, gradients, 1 - o.beta1)
        torch._foreach_mul_(self.second, o.beta2)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - o.beta2)
        sizes = torch._foreach_sqrt(self.second)
        torch._foreach_div_(sizes, torch.sqrt(1 - o.beta2**self.updates_done))
        torch._foreach_add_(sizes, o.eps)
        changes = torch._foreach_div(self.first, sizes)
        torch._foreach_mul_(changes, -o.rate / (1 - o.beta1**self.updates_done))
        torch._foreach_add_(raw, changes)


def _full_mask(examples: Examples) -> Array:
    shape = examples.inputs.shape[:2]
    mask = np.ones(shape, np.float32) if examples.mask is None else np.broadcast_to(examples.mask, shape)
    return np.ascontiguousarray(mask, np.float32)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Disables TF32 in cuDNN: this engine computes in float32 everywhere."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def try_capture(run: TrainingRun) -> GraphTrainer | None:
    """None if this PyTorch cannot capture the step."""
    try:
        return GraphTrainer(run)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
