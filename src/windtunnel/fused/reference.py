"""The equations of the fused engine in plain NumPy: slow, in any precision, and easy to check."""

from __future__ import annotations

import math

import numpy as np

from windtunnel.fused.settings import WEIGHT_NAMES, Array, Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.records import Plain


def effective_weights(network: RecurrentNetwork, weights: Weights) -> dict[str, Array]:
    """The raw weights after masks and signs."""
    effective = dict(weights.as_dict())
    if network.signed_rows is not None:
        recurrent = effective["w_rec"]
        effective["w_rec"] = np.where(network.signed_rows[:, None], np.abs(recurrent), recurrent)
    for name in WEIGHT_NAMES:
        factor = network.factor(name)
        if factor is not None:
            effective[name] = effective[name] * factor.astype(effective[name].dtype)
    return effective


def forward(
    network: RecurrentNetwork, weights: Weights, inputs: Array, noise: Array | None = None
) -> tuple[Array, Array, Array]:
    """Outputs, states and rates f(drive), each (example, time, ...).

    The states include the initial one. `noise` (example, time, n_rec) is added to the drive.
    """
    w, count, n_steps = effective_weights(network, weights), inputs.shape[0], inputs.shape[1]
    states = np.zeros((count, n_steps + 1, network.n_rec), w["w_rec"].dtype)
    rates = np.zeros((count, n_steps, network.n_rec), w["w_rec"].dtype)
    for t in range(n_steps):
        drive = inputs[:, t] @ w["w_in"] + states[:, t] @ w["w_rec"] + w["b_rec"]
        rates[:, t] = activate(network, drive if noise is None else drive + noise[:, t])
        states[:, t + 1] = (1 - network.leak) * states[:, t] + network.leak * rates[:, t]
    return states[:, 1:] @ w["w_out"] + w["b_out"], states, rates


def activate(network: RecurrentNetwork, drive: Array) -> Array:
    if network.activation == "relu":
        return np.maximum(drive, 0)
    return np.tanh(drive) if network.activation == "tanh" else 1 / (1 + np.exp(-drive))


def loss(
    network: RecurrentNetwork, outputs: Array, targets: Array, mask: Array | None
) -> tuple[float, Array]:
    """The mean error, weighted by the mask, and its gradient at every output."""
    weight = np.broadcast_to(np.ones(1) if mask is None else mask, outputs.shape[:2])[..., None]
    weight = weight.astype(outputs.dtype)
    if network.loss == "mse":
        count = weight.sum() * network.n_out
        difference = outputs - targets
        return float((weight * difference**2).sum() / count), 2 * weight * difference / count
    shifted = outputs - outputs.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    one_hot = np.eye(network.n_out, dtype=outputs.dtype)[targets]
    value = float(-(weight * one_hot * logs).sum() / weight.sum())
    return value, weight * (np.exp(logs) - one_hot) / weight.sum()


def backward(
    network: RecurrentNetwork,
    weights: Weights,
    inputs: Array,
    states: Array,
    rates: Array,
    output_gradients: Array,
) -> Weights:
    """Gradients of the raw weights by back-propagation through time, from the gradient at every output."""
    w, n_steps = effective_weights(network, weights), inputs.shape[1]
    drives = np.zeros_like(rates)
    state_gradient = np.zeros_like(rates[:, 0])
    for t in reversed(range(n_steps)):
        state_gradient = state_gradient + output_gradients[:, t] @ w["w_out"].T
        drives[:, t] = network.leak * state_gradient * activation_derivative(network, rates[:, t])
        state_gradient = (1 - network.leak) * state_gradient + drives[:, t] @ w["w_rec"].T
    gradients = {
        "w_in": np.einsum("bti,btk->ik", inputs, drives),
        "w_rec": np.einsum("btj,btk->jk", states[:, :-1], drives),
        "b_rec": drives.sum((0, 1)),
        "w_out": np.einsum("btj,bto->jo", states[:, 1:], output_gradients),
        "b_out": output_gradients.sum((0, 1)),
    }
    return Weights(
        **{name: _raw_gradient(network, weights, name, value) for name, value in gradients.items()}
    )


def activation_derivative(network: RecurrentNetwork, rates: Array) -> Array:
    """The derivative of the activation, from its value."""
    if network.activation == "relu":
        return (rates > 0).astype(rates.dtype)
    return 1 - rates**2 if network.activation == "tanh" else rates * (1 - rates)


def _raw_gradient(network: RecurrentNetwork, weights: Weights, name: str, gradient: Array) -> Array:
    """The chain rule back through `effective_weights`."""
    factor = network.factor(name)
    if factor is not None:
        gradient = gradient * factor.astype(gradient.dtype)
    if name == "w_rec" and network.signed_rows is not None:
        gradient = np.where(network.signed_rows[:, None], gradient * np.sign(weights.w_rec), gradient)
    return gradient


def gradients(
    network: RecurrentNetwork, weights: Weights, examples: Examples, noise: Array | None = None
) -> tuple[float, Weights]:
    """The loss of a mini-batch and the gradients of the raw weights."""
    inputs = examples.inputs.astype(weights.w_rec.dtype)
    outputs, states, rates = forward(network, weights, inputs, noise)
    value, output_gradients = loss(network, outputs, examples.targets, examples.mask)
    return value, backward(network, weights, inputs, states, rates, output_gradients)


class ReferenceOptimizer:
    """SGD with momentum or Adam as in PyTorch, after clipping all gradients by their common norm."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.updates = optimizer, 0
        self.first: Plain = dict.fromkeys(WEIGHT_NAMES, 0.0)  # numbers at first, then arrays
        self.second: Plain = dict.fromkeys(WEIGHT_NAMES, 0.0)

    def step(self, weights: Weights, gradients: Weights) -> Weights:
        o, named = self.optimizer, gradients.as_dict()
        self.updates += 1
        norm = math.sqrt(sum(float((value.astype(np.float64) ** 2).sum()) for value in named.values()))
        clip = 1.0 if o.clip_norm is None else min(1.0, o.clip_norm / (norm + 1e-6))
        before = weights.as_dict()
        return Weights(
            **{name: before[name] - self._change(name, clip * value) for name, value in named.items()}
        )

    def _change(self, name: str, gradient: Array) -> Array:
        o = self.optimizer
        if o.name == "sgd":
            self.first[name] = o.momentum * self.first[name] + gradient
            return np.asarray(o.rate * self.first[name])
        self.first[name] = o.beta1 * self.first[name] + (1 - o.beta1) * gradient
        self.second[name] = o.beta2 * self.second[name] + (1 - o.beta2) * gradient**2
        size = np.sqrt(self.second[name] / (1 - o.beta2**self.updates)) + o.eps
        return np.asarray(o.rate / (1 - o.beta1**self.updates) * self.first[name] / size)
