"""Train one network over whole epochs, with the engine that suits its width.

`train` is the whole loop in one call; `engine_for` chooses: the vector code of `cpu` while a matrix stays in a core's own cache,
PyTorch's matrix products beyond that or where llvmlite is missing (said aloud, once).
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
from windtunnel.fused.settings import Array, Examples, Network, Optimizer, Weights

NOISE_FLOATS = 4_000_000  # drawn at a time, so that noise for a long epoch does not fill the memory
MISSING = "llvmlite is not installed, so recurrent networks are trained the plain way, several times slower: pip install 'windtunnel[fused]'"


class Exploded(BadInput):
    """The loss stopped being finite; `trained` is what there was before."""

    def __init__(self, message: str, *, trained: Trained, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.trained = trained


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """`losses`: one for each update, before it was made, epoch after epoch."""

    losses: Array
    weights: Weights
    updates_per_epoch: int

    def epoch_losses(self) -> Array:
        """The mean loss of each epoch."""
        return np.asarray(self.losses.reshape(-1, self.updates_per_epoch).mean(1))


class AnyEngine(Protocol):
    """What every engine can do; `cpu.Engine` says what each call means."""

    def load(self, weights: Weights) -> None: ...
    def put(self, weights: Weights) -> None: ...
    def weights(self) -> Weights: ...
    def gradients(self) -> Weights: ...
    def train(self, examples: Examples, order: Array, noise: Array | None = None) -> Array: ...
    def forward(self, inputs: Array, noise: Array | None = None) -> Array: ...
    def backward(self, slopes: Array) -> Weights: ...
    def input_slopes(self) -> Array: ...
    def states(self) -> Array: ...


def engine_for(
    network: Network, weights: Weights, *, n_steps: int, batch: int = 1, optimizer: Optimizer | None = None
) -> AnyEngine:
    """The fastest engine on this processor for these sizes."""
    if cpu.available() and cpu.suits(network, batch):
        return cpu.Engine(network, weights, n_steps=n_steps, batch=batch, optimizer=optimizer)
    if not cpu.available():
        warnings.warn(MISSING, stacklevel=2)
    from windtunnel.fused.wide import WideEngine

    return WideEngine(network, weights, n_steps=n_steps, batch=batch, optimizer=optimizer)


def train(
    network: Network,
    weights: Weights,
    examples: Examples,
    *,
    optimizer: Optimizer | None = None,
    epochs: int = 1,
    batch: int = 1,
    seed: int | None = None,
) -> Trained:
    """Train over all examples, `epochs` times, in mini-batches; with a seed in a new order each epoch, else as they lie.

    Examples that do not fill a last mini-batch are left out of that epoch. Noise is drawn from the seed too (0 where none is given).
    """
    given = examples.checked(network)
    count, n_steps = given.inputs.shape[:2]
    if epochs < 1 or batch < 1:
        raise BadInput(f"fused training: epochs and batch must be above 0, not {epochs} and {batch}.")
    if batch > count:
        raise BadInput(
            f"fused training: a batch of {batch} from {count} examples.", hint=f"Use batch={count} or less."
        )
    engine = engine_for(network, weights, n_steps=n_steps, batch=batch, optimizer=optimizer)
    generator = np.random.Generator(np.random.SFC64(seed or 0))  # the fastest of NumPy's at drawing noise
    updates, losses = count // batch, []
    for epoch in range(epochs):
        order = (generator.permutation(count) if seed is not None else np.arange(count))[
            : updates * batch
        ].reshape(updates, batch)
        for part in _parts(network, order, n_steps):
            losses.append(_train_part(engine, network, given, part, generator))
            if not math.isfinite(losses[-1][-1]):
                raise exploded(np.concatenate(losses), engine.weights(), updates, epoch)
    return Trained(losses=np.concatenate(losses), weights=engine.weights(), updates_per_epoch=updates)


def _parts(network: Network, order: Array, n_steps: int) -> Iterator[Array]:
    """An epoch in pieces whose noise fits in memory; without noise in one."""
    floats = (
        order.shape[1]
        * n_steps
        * (network.n_rec * (network.recurrent_noise > 0) + network.n_in * (network.input_noise > 0))
    )
    rows = max(1, NOISE_FLOATS // floats) if floats else len(order)
    for first in range(0, len(order), rows):
        yield order[first : first + rows]


def _train_part(
    engine: AnyEngine, network: Network, examples: Examples, order: Array, generator: np.random.Generator
) -> Array:
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
    blurred = Examples(inputs=inputs, targets=examples.targets[picked], mask=mask)
    return engine.train(blurred, np.arange(len(picked)).reshape(order.shape), noise)


def exploded(losses: Array, weights: Weights, updates: int, epoch: int) -> Exploded:
    """The error of a training whose last loss is not finite, with what there was before."""
    number = len(losses) - 1
    before = f", after {losses[-2]:.4g} at the step before" if number else ""
    return Exploded(
        f"The loss became {losses[-1]} at step {number} (epoch {epoch}, step {number % updates} of {updates}){before}; training stopped there.",
        trained=Trained(losses=losses, weights=weights, updates_per_epoch=updates),
        hint="Use a lower rate, clip_norm=1, or smaller recurrent weights.",
    )
