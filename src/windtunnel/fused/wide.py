"""The fused engine for wide networks: the same equations by hand over PyTorch's matrix products, without autograd.

A matrix beyond a core's own cache is read from memory at every timestep, whoever multiplies it, so a good matrix library is as fast
as code of our own. What is left to save: one product for all weight gradients, no record of the graph, and one pass for each update.
It is also the plain way where llvmlite is missing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.fused.cpu import scales_of
from windtunnel.fused.settings import NAMES, Array, Examples, Network, Optimizer, Weights


class WideEngine:
    """The same calls as `cpu.Engine`, for any number of timesteps and any batch."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        *,
        n_steps: int,
        batch: int = 1,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.network, self.optimizer, self.n_steps, self.batch = (
            network,
            optimizer or Optimizer(),
            n_steps,
            batch,
        )
        self._factors = {
            name: torch.tensor(factor) for name in NAMES if (factor := network.factor(name)) is not None
        }
        self._signed = None if network.signed is None else torch.tensor(network.signed)[:, None]
        self.load(weights)

    def load(self, weights: Weights) -> None:
        self._raw = {
            name: torch.tensor(value) for name, value in weights.checked(self.network).named().items()
        }
        self._slopes = {name: torch.zeros_like(value) for name, value in self._raw.items()}
        kept = self.optimizer.name == "adam" or self.optimizer.momentum > 0
        self._first = {name: torch.zeros_like(value) for name, value in self._raw.items()} if kept else {}
        self._second = (
            {name: torch.zeros_like(value) for name, value in self._raw.items()}
            if self.optimizer.name == "adam"
            else {}
        )
        self._number = 0
        self._refresh()

    def put(self, weights: Weights) -> None:
        for name, value in self._raw.items():
            value.copy_(torch.from_numpy(getattr(weights, name)))
        self._refresh()

    def weights(self) -> Weights:
        return Weights(**{name: value.numpy().copy() for name, value in self._raw.items()})

    def gradients(self) -> Weights:
        return Weights(**{name: value.numpy().copy() for name, value in self._slopes.items()})

    @torch.no_grad()
    def train(self, examples: Examples, order: Array, noise: Array | None = None) -> Array:
        """As `cpu.Engine.train`."""
        mask = np.ones(self.n_steps, np.float32) if examples.mask is None else examples.mask
        inputs, targets, weighing = (
            torch.from_numpy(examples.inputs),
            torch.from_numpy(examples.targets),
            torch.from_numpy(mask),
        )
        scales, losses = scales_of(self.network, mask, order), []
        for number, row in enumerate(torch.from_numpy(np.asarray(order, np.int64))):
            self._forward(
                inputs[row].transpose(0, 1),
                None if noise is None else torch.from_numpy(noise[number]).transpose(0, 1),
            )
            weight = (weighing.expand(len(row), -1) if weighing.ndim == 1 else weighing[row]).T
            value, slopes = self._loss(targets[row].transpose(0, 1), weight, float(scales[number]))
            losses.append(value)
            if not math.isfinite(value):
                break
            self._backward(slopes)
            self._step()
        return np.array(losses, np.float32)

    @torch.no_grad()
    def forward(self, inputs: Array, noise: Array | None = None) -> Array:
        self._forward(
            torch.from_numpy(inputs).transpose(0, 1),
            None if noise is None else torch.from_numpy(noise).transpose(0, 1),
        )
        return np.array(self._outputs.transpose(0, 1).numpy())

    @torch.no_grad()
    def backward(self, slopes: Array) -> Weights:
        self._backward(torch.from_numpy(np.ascontiguousarray(slopes)).transpose(0, 1))
        return self.gradients()

    def input_slopes(self) -> Array:
        return np.asarray((self._drives @ self._used["w_in"].T).transpose(0, 1).numpy())

    def states(self) -> Array:
        return np.array(self._states[1:].transpose(0, 1).numpy())

    def _forward(self, inputs: Tensor, noise: Tensor | None) -> None:
        w, leak = self._used, self.network.leak
        n_steps, batch = inputs.shape[:2]
        self._inputs = inputs.reshape(n_steps * batch, -1)
        drives = torch.addmm(w["b_rec"], self._inputs, w["w_in"]).view(n_steps, batch, -1)
        if noise is not None:
            drives += noise
        self._states = torch.empty(n_steps + 1, batch, self.network.n_rec)
        self._states[0] = 0
        for t in range(n_steps):
            if t:
                _add_product(drives[t], self._states[t], w["w_rec"])
            self._activate(drives[t])
            if leak == 1:
                self._states[t + 1] = drives[t]
            else:
                torch.lerp(self._states[t], drives[t], leak, out=self._states[t + 1])
        self._rates = drives
        self._outputs = (self._states[1:].reshape(n_steps * batch, -1) @ w["w_out"] + w["b_out"]).view(
            n_steps, batch, -1
        )

    def _activate(self, drive: Tensor) -> Tensor:
        return {"relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}[self.network.activation](
            drive
        )

    def _loss(self, targets: Tensor, weight: Tensor, scale: float) -> tuple[float, Tensor]:
        if self.network.loss == "mse":
            difference = self._outputs - targets
            weighed = difference * weight[..., None]
            return float((weighed * difference).sum()) * scale, weighed.mul_(2 * scale)
        logs = torch.log_softmax(self._outputs, -1)
        asked = torch.nn.functional.one_hot(targets.long(), self.network.n_out).to(logs.dtype)
        weight = weight[..., None] * scale
        return -float((weight * asked * logs).sum()), weight * (logs.exp() - asked)

    def _backward(self, slopes: Tensor) -> None:
        w, leak, (n_steps, batch) = self._used, self.network.leak, slopes.shape[:2]
        felt_here = (slopes.reshape(n_steps * batch, -1) @ w["w_out"].T).view(n_steps, batch, -1)
        self._drives = torch.empty_like(self._rates)
        felt = torch.zeros_like(felt_here[0])
        for t in reversed(range(n_steps)):
            felt += felt_here[t]
            self._slope(felt, t)
            if t:
                if leak == 1:
                    felt.zero_()
                else:
                    self._drives[t] *= leak
                    felt *= 1 - leak
                _add_product(felt, self._drives[t], w["w_rec"].T)
            elif leak != 1:
                self._drives[t] *= leak
        drives, flat = self._drives.view(n_steps * batch, -1), slopes.reshape(n_steps * batch, -1)
        made = self._slopes
        torch.mm(self._inputs.T, drives, out=made["w_in"])
        torch.mm(self._states[:-1].reshape(n_steps * batch, -1).T, drives, out=made["w_rec"])
        torch.mm(self._states[1:].reshape(n_steps * batch, -1).T, flat, out=made["w_out"])
        torch.sum(drives, 0, out=made["b_rec"])
        torch.sum(flat, 0, out=made["b_out"])
        for name, factor in self._factors.items():
            made[name] *= factor
        if self._signed is not None:
            made["w_rec"].copy_(
                torch.where(self._signed, made["w_rec"] * self._raw["w_rec"].sign(), made["w_rec"])
            )

    def _slope(self, felt: Tensor, t: int) -> None:
        rates = self._rates[t]
        if self.network.activation == "relu":
            torch.mul(felt, rates > 0, out=self._drives[t])
        elif self.network.activation == "sigmoid":
            torch.mul(felt, rates * (1 - rates), out=self._drives[t])
        else:
            torch.mul(felt, 1 - rates * rates, out=self._drives[t])

    def _step(self) -> None:
        o = self.optimizer
        self._number += 1
        clip = 1.0
        if o.clip_norm is not None:
            norm = math.sqrt(
                sum(float(torch.linalg.vector_norm(value)) ** 2 for value in self._slopes.values())
            )
            clip = min(1.0, o.clip_norm / (norm + 1e-6))
        for name, raw in self._raw.items():
            self._change(name, raw, self._slopes[name], clip)
        self._refresh()

    def _change(self, name: str, raw: Tensor, slope: Tensor, clip: float) -> None:
        o = self.optimizer
        if o.name == "sgd" and not o.momentum:
            raw.add_(slope, alpha=-o.rate * clip)
            return
        if o.name == "sgd":
            self._first[name].mul_(o.momentum).add_(slope, alpha=clip)
            raw.add_(self._first[name], alpha=-o.rate)
            return
        self._first[name].mul_(o.beta1).add_(slope, alpha=(1 - o.beta1) * clip)
        self._second[name].mul_(o.beta2).addcmul_(slope, slope, value=(1 - o.beta2) * clip * clip)
        size = self._second[name].sqrt().mul_((1 - o.beta2**self._number) ** -0.5).add_(o.eps)
        raw.addcdiv_(self._first[name], size, value=-o.rate / (1 - o.beta1**self._number))

    def _refresh(self) -> None:
        self._used: dict[str, Any] = dict(self._raw)
        if self._signed is not None:
            self._used["w_rec"] = torch.where(self._signed, self._raw["w_rec"].abs(), self._raw["w_rec"])
        for name, factor in self._factors.items():
            self._used[name] = self._used[name] * factor


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """into += left @ right; one row is a matrix times a vector, which PyTorch does better under that name."""
    if len(left) == 1:
        into[0].addmv_(right.T, left[0])
    else:
        into.addmm_(left, right)
