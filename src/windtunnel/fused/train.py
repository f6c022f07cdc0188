"""Trains one network over whole epochs with the fastest engine for its width.

`train_one` runs the whole training loop. `engine_for` chooses the engine: generated vector code (`cpu`) while
W_rec stays in the cache of one core, PyTorch's matrix products (`torch_engine`) for wider networks or where
llvmlite is not installed (with a warning).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from windtunnel.errors import BadInput
from windtunnel.fused import cpu
from windtunnel.fused.settings import Array, Examples, Optimizer, RecurrentNetwork, Weights

NOISE_FLOATS = 4_000_000  # drawn at a time, so that the noise of a long epoch does not fill the memory
NO_LLVMLITE = (
    "llvmlite is not installed, so recurrent networks are trained by PyTorch's matrix products, "
    "several times slower: pip install 'windtunnel[fused]'"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingRun:
    """One training of one network over all examples, `epochs` times, in mini-batches.

    The seed draws the initial weights (where `weights` is None), the order of the examples in each epoch and
    the noise. With seed None the examples keep their order. Examples that do not fill the last mini-batch are
    left out of the epoch.
    """

    network: RecurrentNetwork
    examples: Examples
    weights: Weights | None = None
    optimizer: Optimizer | None = None
    epochs: int = 1
    batch: int = 1
    seed: int | None = 0

    def initial_weights(self) -> Weights:
        return self.weights or Weights.random(self.network, self.seed or 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedNetwork:
    """`losses` has one loss per update, computed before that update, over all epochs."""

    losses: Array
    weights: Weights
    updates_per_epoch: int

    def epoch_losses(self) -> Array:
        """The mean loss of each epoch."""
        return np.asarray(self.losses.reshape(-1, self.updates_per_epoch).mean(1))


class Diverged(BadInput):
    """The loss is no longer finite; `trained` is the state before that update."""

    def __init__(self, message: str, *, trained: TrainedNetwork, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.trained = trained


class FusedEngine(Protocol):
    """The interface of every engine on a CPU; `cpu.CompiledEngine` documents each call."""

    def reset(self, weights: Weights) -> None: ...
    def set_weights(self, weights: Weights) -> None: ...
    def weights(self) -> Weights: ...
    def gradients(self) -> Weights: ...
    def train(self, examples: Examples, order: Array, noise: Array | None = None) -> Array: ...
    def forward(self, inputs: Array, noise: Array | None = None) -> Array: ...
    def backward(self, output_gradients: Array) -> Weights: ...
    def input_gradients(self) -> Array: ...
    def states(self) -> Array: ...


def engine_for(
    network: RecurrentNetwork,
    weights: Weights,
    *,
    n_steps: int,
    batch: int = 1,
    optimizer: Optimizer | None = None,
) -> FusedEngine:
    """The fastest engine on this processor for these sizes."""
    if cpu.available() and cpu.is_fastest(network, batch):
        return cpu.CompiledEngine(network, weights, n_steps=n_steps, batch=batch, optimizer=optimizer)
    if not cpu.available():
        warnings.warn(NO_LLVMLITE, stacklevel=2)
    from windtunnel.fused.torch_engine import TorchEngine

    return TorchEngine(network, weights, n_steps=n_steps, batch=batch, optimizer=optimizer)


def train_one(run: TrainingRun) -> TrainedNetwork:
    """Trains on this thread; raises `Diverged` when the loss is no longer finite."""
    network, batch = run.network, run.batch
    examples = run.examples.checked(network)
    count, n_steps = examples.inputs.shape[:2]
    if run.epochs < 1 or batch < 1:
        raise BadInput(f"fused training: epochs and batch must be above 0, not {run.epochs} and {batch}.")
    if batch > count:
        raise BadInput(
            f"fused training: a batch of {batch} from {count} examples.", hint=f"Use batch={count} or less."
        )
    engine = engine_for(network, run.initial_weights(), n_steps=n_steps, batch=batch, optimizer=run.optimizer)
    generator = np.random.Generator(np.random.SFC64(run.seed or 0))  # NumPy's fastest for normal noise
    updates, losses = count // batch, []
    for epoch in range(run.epochs):
        order = generator.permutation(count) if run.seed is not None else np.arange(count)
        for rows in _split_epoch(network, order[: updates * batch].reshape(updates, batch), n_steps):
            losses.append(_train_rows(engine, network, examples, rows, generator))
            if not math.isfinite(losses[-1][-1]):
                raise diverged(np.concatenate(losses), engine.weights(), updates, epoch)
    return TrainedNetwork(losses=np.concatenate(losses), weights=engine.weights(), updates_per_epoch=updates)


def _split_epoch(network: RecurrentNetwork, order: Array, n_steps: int) -> Iterator[Array]:
    """The epoch in parts whose noise fits in memory; one part if there is no noise."""
    noisy_values = network.n_rec * (network.recurrent_noise > 0) + network.n_in * (network.input_noise > 0)
    floats = order.shape[1] * n_steps * noisy_values
    rows = max(1, NOISE_FLOATS // floats) if floats else len(order)
    for first in range(0, len(order), rows):
        yield order[first : first + rows]


def _train_rows(
    engine: FusedEngine,
    network: RecurrentNetwork,
    examples: Examples,
    order: Array,
    generator: np.random.Generator,
) -> Array:
    """One update per row of `order`, with fresh noise."""
    shape = (*order.shape, examples.inputs.shape[1])
    noise = None
    if network.recurrent_noise:
        noise = generator.standard_normal((*shape, network.n_rec), np.float32)
        noise *= network.recurrent_noise
    if not network.input_noise:
        return engine.train(examples, order, noise)
    picked = order.ravel()
    inputs = examples.inputs[picked] + np.float32(network.input_noise) * generator.standard_normal(
        examples.inputs[picked].shape, np.float32
    )
    mask = examples.mask[picked] if examples.mask is not None and examples.mask.ndim == 2 else examples.mask
    noisy = Examples(inputs=inputs, targets=examples.targets[picked], mask=mask)
    return engine.train(noisy, np.arange(len(picked)).reshape(order.shape), noise)


def diverged(losses: Array, weights: Weights, updates: int, epoch: int) -> Diverged:
    """The error of a training whose last loss is not finite."""
    number = len(losses) - 1
    before = f", after {losses[-2]:.4g} at the step before" if number else ""
    step = f"step {number} (epoch {epoch}, step {number % updates} of {updates})"
    return Diverged(
        f"The loss became {losses[-1]} at {step}{before}; training stopped there.",
        trained=TrainedNetwork(losses=losses, weights=weights, updates_per_epoch=updates),
        hint="Use a lower rate, clip_norm=1, or smaller recurrent weights.",
    )
