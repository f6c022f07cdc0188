"""The fused engine's equations once more, line by line in NumPy: slow, in any precision, and easy to check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from windtunnel.fused.settings import NAMES, Array, Examples, Network, Optimizer, Weights


def used(network: Network, weights: Weights) -> dict[str, Array]:
    """The weights in use: raw ones after masks and signs."""
    out = dict(weights.named())
    if network.signed is not None:
        out["w_rec"] = np.where(network.signed[:, None], np.abs(out["w_rec"]), out["w_rec"])
    for name in NAMES:
        factor = network.factor(name)
        if factor is not None:
            out[name] = out[name] * factor.astype(out[name].dtype)
    return out


def forward(
    network: Network, weights: Weights, inputs: Array, noise: Array | None = None
) -> tuple[Array, Array, Array]:
    """Outputs, states and rates f(drive), each (example, time, ...); `noise` (example, time, n_rec) is added to the drive."""
    w, count, n_steps = used(network, weights), inputs.shape[0], inputs.shape[1]
    states = np.zeros((count, n_steps + 1, network.n_rec), w["w_rec"].dtype)
    rates = np.zeros((count, n_steps, network.n_rec), w["w_rec"].dtype)
    for t in range(n_steps):
        drive = inputs[:, t] @ w["w_in"] + states[:, t] @ w["w_rec"] + w["b_rec"]
        rates[:, t] = activate(network, drive if noise is None else drive + noise[:, t])
        states[:, t + 1] = (1 - network.leak) * states[:, t] + network.leak * rates[:, t]
    return states[:, 1:] @ w["w_out"] + w["b_out"], states, rates


def activate(network: Network, drive: Array) -> Array:
    if network.activation == "relu":
        return np.maximum(drive, 0)
    return np.tanh(drive) if network.activation == "tanh" else 1 / (1 + np.exp(-drive))


def loss(network: Network, outputs: Array, targets: Array, mask: Array | None) -> tuple[float, Array]:
    """The mean error over what the mask lets through, and its slope at every output."""
    weight = np.broadcast_to(np.ones(1) if mask is None else mask, outputs.shape[:2])[..., None].astype(
        outputs.dtype
    )
    if network.loss == "mse":
        count = weight.sum() * network.n_out
        difference = outputs - targets
        return float((weight * difference**2).sum() / count), 2 * weight * difference / count
    shifted = outputs - outputs.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    asked = np.eye(network.n_out, dtype=outputs.dtype)[targets]
    return float(-(weight * asked * logs).sum() / weight.sum()), weight * (
        np.exp(logs) - asked
    ) / weight.sum()


def backward(
    network: Network, weights: Weights, inputs: Array, states: Array, rates: Array, slopes: Array
) -> Weights:
    """Gradients of the raw weights, given the loss's slope at every output: back-propagation through time."""
    w, n_steps = used(network, weights), inputs.shape[1]
    drives = np.zeros_like(rates)
    felt = np.zeros_like(rates[:, 0])
    for t in reversed(range(n_steps)):
        felt = felt + slopes[:, t] @ w["w_out"].T
        drives[:, t] = network.leak * felt * slope_of(network, rates[:, t])
        felt = (1 - network.leak) * felt + drives[:, t] @ w["w_rec"].T
    made = {
        "w_in": np.einsum("bti,btk->ik", inputs, drives),
        "w_rec": np.einsum("btj,btk->jk", states[:, :-1], drives),
        "b_rec": drives.sum((0, 1)),
        "w_out": np.einsum("btj,bto->jo", states[:, 1:], slopes),
        "b_out": slopes.sum((0, 1)),
    }
    return Weights(**{name: _raw(network, weights, name, value) for name, value in made.items()})


def slope_of(network: Network, rates: Array) -> Array:
    if network.activation == "relu":
        return (rates > 0).astype(rates.dtype)
    return 1 - rates**2 if network.activation == "tanh" else rates * (1 - rates)


def _raw(network: Network, weights: Weights, name: str, slope: Array) -> Array:
    factor = network.factor(name)
    if factor is not None:
        slope = slope * factor.astype(slope.dtype)
    if name == "w_rec" and network.signed is not None:
        slope = np.where(network.signed[:, None], slope * np.sign(weights.w_rec), slope)
    return slope


def gradients(
    network: Network, weights: Weights, examples: Examples, noise: Array | None = None
) -> tuple[float, Weights]:
    """The loss of a mini-batch and the gradients of the raw weights."""
    kind = weights.w_rec.dtype
    inputs = examples.inputs.astype(kind)
    outputs, states, rates = forward(network, weights, inputs, noise)
    value, slopes = loss(network, outputs, examples.targets, examples.mask)
    return value, backward(network, weights, inputs, states, rates, slopes)


class Updater:
    """SGD with momentum or Adam, after clipping by the norm of all gradients, as PyTorch writes them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.number = optimizer, 0
        self.first: dict[str, Any] = dict.fromkeys(NAMES, 0.0)
        self.second: dict[str, Any] = dict.fromkeys(NAMES, 0.0)

    def step(self, weights: Weights, slopes: Weights) -> Weights:
        o, named = self.optimizer, slopes.named()
        self.number += 1
        norm = math.sqrt(sum(float((value.astype(np.float64) ** 2).sum()) for value in named.values()))
        clip = 1.0 if o.clip_norm is None else min(1.0, o.clip_norm / (norm + 1e-6))
        return Weights(
            **{
                name: weights.named()[name] - self._change(name, clip * value)
                for name, value in named.items()
            }
        )

    def _change(self, name: str, slope: Array) -> Array:
        o = self.optimizer
        if o.name == "sgd":
            self.first[name] = o.momentum * self.first[name] + slope
            return np.asarray(o.rate * self.first[name])
        self.first[name] = o.beta1 * self.first[name] + (1 - o.beta1) * slope
        self.second[name] = o.beta2 * self.second[name] + (1 - o.beta2) * slope**2
        size = np.sqrt(self.second[name] / (1 - o.beta2**self.number)) + o.eps
        return np.asarray(o.rate / (1 - o.beta1**self.number) * self.first[name] / size)
