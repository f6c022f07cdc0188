"""The fused engine on PyTorch's matrix products, without autograd: for wide networks, or without llvmlite.

A weight matrix larger than the cache of a core is read from memory at every timestep, so a matrix library is
as fast as generated code. This engine still saves time: one product for all weight gradients, no autograd
graph, and one pass per update.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from windtunnel.fused.cpu import loss_scales
from windtunnel.fused.settings import WEIGHT_NAMES, Array, Examples, Optimizer, RecurrentNetwork, Weights

_ACTIVATIONS = {"relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}


class TorchEngine:
    """The interface of `cpu.CompiledEngine`, for any number of timesteps and any batch."""

    def __init__(
        self,
        network: RecurrentNetwork,
        weights: Weights,
        *,
        n_steps: int,
        batch: int = 1,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.network, self.optimizer = network, optimizer or Optimizer()
        self.n_steps, self.batch = n_steps, batch
        self._factors = {
            name: torch.tensor(factor)
            for name in WEIGHT_NAMES
            if (factor := network.factor(name)) is not None
        }
        rows = network.signed_rows
        self._signed = None if rows is None else torch.tensor(rows)[:, None]
        self.reset(weights)

    def reset(self, weights: Weights) -> None:
        checked = weights.checked(self.network).as_dict()
        self._raw = {name: torch.tensor(value) for name, value in checked.items()}
        self._gradients = self._zeros()
        is_adam = self.optimizer.name == "adam"
        self._first = self._zeros() if is_adam or self.optimizer.momentum > 0 else {}
        self._second = self._zeros() if is_adam else {}
        self._updates_done = 0
        self._apply_constraints()

    def set_weights(self, weights: Weights) -> None:
        for name, value in self._raw.items():
            value.copy_(torch.from_numpy(getattr(weights, name)))
        self._apply_constraints()

    def set_updates_done(self, count: int) -> None:
        self._updates_done = count

    def moments(self, order: str) -> dict[str, Array]:
        """The optimiser's `first` or `second` moments by weight, as views; none if the optimiser has none."""
        moments = self._first if order == "first" else self._second
        return {name: value.numpy() for name, value in moments.items()}

    def weights(self) -> Weights:
        return Weights(**{name: value.numpy().copy() for name, value in self._raw.items()})

    def gradients(self) -> Weights:
        return Weights(**{name: value.numpy().copy() for name, value in self._gradients.items()})

    @torch.no_grad()
    def train(self, examples: Examples, order: Array, noise: Array | None = None) -> Array:
        mask = np.ones(self.n_steps, np.float32) if examples.mask is None else examples.mask
        inputs, targets = torch.from_numpy(examples.inputs), torch.from_numpy(examples.targets)
        error_weights = torch.from_numpy(mask)
        scales, losses = loss_scales(self.network, mask, order), []
        for update, rows in enumerate(torch.from_numpy(np.asarray(order, np.int64))):
            self._forward(inputs[rows].transpose(0, 1), _time_first(None if noise is None else noise[update]))
            by_example = error_weights.ndim == 2
            weight = (error_weights[rows] if by_example else error_weights.expand(len(rows), -1)).T
            loss, gradients = self._loss(targets[rows].transpose(0, 1), weight, float(scales[update]))
            losses.append(loss)
            if not math.isfinite(loss):
                break
            self._backward(gradients)
            self._step()
        return np.array(losses, np.float32)

    @torch.no_grad()
    def forward(self, inputs: Array, noise: Array | None = None) -> Array:
        self._forward(torch.from_numpy(inputs).transpose(0, 1), _time_first(noise))
        return np.array(self._outputs.transpose(0, 1).numpy())

    @torch.no_grad()
    def backward(self, output_gradients: Array) -> Weights:
        self._backward(torch.from_numpy(np.ascontiguousarray(output_gradients)).transpose(0, 1))
        return self.gradients()

    def input_gradients(self) -> Array:
        return np.asarray((self._drive_gradients @ self._effective["w_in"].T).transpose(0, 1).numpy())

    def states(self) -> Array:
        return np.array(self._states[1:].transpose(0, 1).numpy())

    def _zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value) for name, value in self._raw.items()}

    def _forward(self, inputs: Tensor, noise: Tensor | None) -> None:
        w, leak = self._effective, self.network.leak
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
            _ACTIVATIONS[self.network.activation](drives[t])
            if leak == 1:
                self._states[t + 1] = drives[t]
            else:
                torch.lerp(self._states[t], drives[t], leak, out=self._states[t + 1])
        self._rates = drives  # the activation was computed in place
        states = self._states[1:].reshape(n_steps * batch, -1)
        self._outputs = (states @ w["w_out"] + w["b_out"]).view(n_steps, batch, -1)

    def _loss(self, targets: Tensor, weight: Tensor, scale: float) -> tuple[float, Tensor]:
        """The loss and its gradient at every output."""
        if self.network.loss == "mse":
            difference = self._outputs - targets
            weighted = difference * weight[..., None]
            return float((weighted * difference).sum()) * scale, weighted.mul_(2 * scale)
        logs = torch.log_softmax(self._outputs, -1)
        one_hot = torch.nn.functional.one_hot(targets.long(), self.network.n_out).to(logs.dtype)
        weight = weight[..., None] * scale
        return -float((weight * one_hot * logs).sum()), weight * (logs.exp() - one_hot)

    def _backward(self, output_gradients: Tensor) -> None:
        w, leak, (n_steps, batch) = self._effective, self.network.leak, output_gradients.shape[:2]
        outputs = output_gradients.reshape(n_steps * batch, -1)
        from_outputs = (outputs @ w["w_out"].T).view(n_steps, batch, -1)
        self._drive_gradients = torch.empty_like(self._rates)
        state_gradient = torch.zeros_like(from_outputs[0])
        for t in reversed(range(n_steps)):
            state_gradient += from_outputs[t]
            self._set_drive_gradient(state_gradient, t)
            if t:
                if leak == 1:
                    state_gradient.zero_()
                else:
                    self._drive_gradients[t] *= leak
                    state_gradient *= 1 - leak
                _add_product(state_gradient, self._drive_gradients[t], w["w_rec"].T)
            elif leak != 1:
                self._drive_gradients[t] *= leak
        self._set_weight_gradients(self._drive_gradients.view(n_steps * batch, -1), outputs)

    def _set_weight_gradients(self, drives: Tensor, outputs: Tensor) -> None:
        """All weight gradients, each as one product over timesteps and examples."""
        gradients, rows = self._gradients, len(drives)
        torch.mm(self._inputs.T, drives, out=gradients["w_in"])
        torch.mm(self._states[:-1].reshape(rows, -1).T, drives, out=gradients["w_rec"])
        torch.mm(self._states[1:].reshape(rows, -1).T, outputs, out=gradients["w_out"])
        torch.sum(drives, 0, out=gradients["b_rec"])
        torch.sum(outputs, 0, out=gradients["b_out"])
        for name, factor in self._factors.items():
            gradients[name] *= factor
        if self._signed is not None:
            recurrent = gradients["w_rec"]
            recurrent.copy_(torch.where(self._signed, recurrent * self._raw["w_rec"].sign(), recurrent))

    def _set_drive_gradient(self, state_gradient: Tensor, t: int) -> None:
        rates, out = self._rates[t], self._drive_gradients[t]
        if self.network.activation == "relu":
            torch.mul(state_gradient, rates > 0, out=out)
        elif self.network.activation == "sigmoid":
            torch.mul(state_gradient, rates * (1 - rates), out=out)
        else:
            torch.mul(state_gradient, 1 - rates * rates, out=out)

    def _step(self) -> None:
        o, gradients = self.optimizer, self._gradients
        self._updates_done += 1
        clip = 1.0
        if o.clip_norm is not None:
            norm = math.sqrt(sum(float(torch.linalg.vector_norm(value)) ** 2 for value in gradients.values()))
            clip = min(1.0, o.clip_norm / (norm + 1e-6))
        for name, raw in self._raw.items():
            self._update(name, raw, gradients[name], clip)
        self._apply_constraints()

    def _update(self, name: str, raw: Tensor, gradient: Tensor, clip: float) -> None:
        o = self.optimizer
        if o.name == "sgd" and not o.momentum:
            raw.add_(gradient, alpha=-o.rate * clip)
            return
        if o.name == "sgd":
            self._first[name].mul_(o.momentum).add_(gradient, alpha=clip)
            raw.add_(self._first[name], alpha=-o.rate)
            return
        self._first[name].mul_(o.beta1).add_(gradient, alpha=(1 - o.beta1) * clip)
        self._second[name].mul_(o.beta2).addcmul_(gradient, gradient, value=(1 - o.beta2) * clip * clip)
        size = self._second[name].sqrt().mul_((1 - o.beta2**self._updates_done) ** -0.5).add_(o.eps)
        raw.addcdiv_(self._first[name], size, value=-o.rate / (1 - o.beta1**self._updates_done))

    def _apply_constraints(self) -> None:
        """The effective weights from the raw ones."""
        self._effective = dict(self._raw)
        if self._signed is not None:
            raw = self._raw["w_rec"]
            self._effective["w_rec"] = torch.where(self._signed, raw.abs(), raw)
        for name, factor in self._factors.items():
            self._effective[name] = self._effective[name] * factor


def _time_first(noise: Array | None) -> Tensor | None:
    return None if noise is None else torch.from_numpy(noise).transpose(0, 1)


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """into += left @ right; PyTorch is faster at one row as a matrix-vector product."""
    if len(left) == 1:
        into[0].addmv_(right.T, left[0])
    else:
        into.addmm_(left, right)
