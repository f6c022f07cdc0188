"""What the fused engine trains: a small recurrent network, its weights, its examples and its optimiser.

drive(t)  = input(t) W_in + state(t-1) W_rec + b_rec + recurrent_noise * xi(t)    xi ~ N(0, 1), state(-1) = 0
state(t)  = (1 - leak) state(t-1) + leak * f(drive(t))                            f = relu, sigmoid or tanh
output(t) = state(t) W_out + b_out

leak = dt / tau; 1 is the network of Brandfonbrener 2017. The leaky form is that of firing rates (Yang et al.
2019, Nature Neuroscience 22), which keeps rates positive under noise; Song, Yang and Wang 2016 leak the
current before f instead. Their noise of standard deviation sigma is recurrent_noise = sqrt(2 / leak) * sigma.
input_noise is added to the inputs, drawn anew at every step.

Masks multiply the weights: a weight with mask 0 does not exist and gets no gradient. Signs enforce Dale's
law: the outgoing weights of hidden unit j are W_rec[j, :] = signs[j] * |W[j, :]| * mask[j, :], all excitatory
(+1) or all inhibitory (-1). Song, Yang and Wang rectify, [W]+. We take the absolute value: a weight that
crosses zero keeps its gradient. A sign of 0 leaves a unit unconstrained.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import BadInput, BadRecord, nearest

Array = NDArray[Any]  # float32 or float64 weights and data, int32 classes
ACTIVATIONS = ("relu", "sigmoid", "tanh")
LOSSES = ("mse", "cross_entropy")
OPTIMIZERS = ("sgd", "adam")
CACHED_UNITS = 256  # up to this many hidden units W_rec stays in the cache of one core
WEIGHT_NAMES = ("w_in", "w_rec", "b_rec", "w_out", "b_out")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecurrentNetwork:
    """Sizes, equations and constraints; the docstring of this module defines each."""

    n_in: int = 2
    n_rec: int = 50
    n_out: int = 2
    activation: Literal["relu", "sigmoid", "tanh"] = "relu"
    leak: float = 1.0
    input_noise: float = 0.0
    recurrent_noise: float = 0.0
    mask_in: ArrayLike | None = None
    mask_rec: ArrayLike | None = None
    mask_out: ArrayLike | None = None
    signs: ArrayLike | None = None
    loss: Literal["mse", "cross_entropy"] = "mse"

    def __post_init__(self) -> None:
        for name in ("n_in", "n_rec", "n_out"):
            if getattr(self, name) < 1:
                raise BadRecord(f"fused network: {name} must be above 0, not {getattr(self, name)}.")
        _require_known("activation", self.activation, ACTIVATIONS)
        _require_known("loss", self.loss, LOSSES)
        if not 0 < self.leak <= 1:
            raise BadRecord(f"fused network: leak (dt / tau) must be above 0 and at most 1, not {self.leak}.")
        for name in ("input_noise", "recurrent_noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadRecord(
                    f"fused network: {name} is a standard deviation: 0 or above, not {getattr(self, name)}."
                )
        shapes = weight_shapes(self)
        for name, of in (("mask_in", "w_in"), ("mask_rec", "w_rec"), ("mask_out", "w_out")):
            _set_constant(self, name, shapes[of])
        _set_constant(self, "signs", (self.n_rec,))
        if self.signs is not None and not np.isin(self.signs, (-1, 0, 1)).all():
            raise BadRecord("fused network: signs are +1 (excitatory), -1 (inhibitory) or 0 (free).")

    def factor(self, name: str) -> Array | None:
        """The mask times the signs that multiply a weight matrix, or None."""
        if name not in ("w_in", "w_rec", "w_out"):
            return None
        mask: Array | None = getattr(self, name.replace("w_", "mask_"))
        if name != "w_rec" or self.signs is None:
            return mask
        signs = np.asarray(self.signs)
        column = np.where(signs == 0, np.float32(1), signs)[:, None].astype(np.float32)
        return column * (np.ones(weight_shapes(self)["w_rec"], np.float32) if mask is None else mask)

    @property
    def signed_rows(self) -> Array | None:
        """Which rows of W_rec have a fixed sign."""
        return None if self.signs is None else np.asarray(self.signs) != 0

    @property
    def constrained(self) -> bool:
        """Whether the effective weights differ from the raw ones."""
        constraints = (self.mask_in, self.mask_rec, self.mask_out, self.signs)
        return any(constraint is not None for constraint in constraints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """SGD with momentum or Adam, both as in PyTorch, after clipping all gradients by their common norm."""

    name: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.001
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        _require_known("optimizer", self.name, OPTIMIZERS)
        if not 0 < self.rate < math.inf:
            raise BadRecord(f"fused optimizer: rate must be above 0, not {self.rate}.")
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise BadRecord(
                    f"fused optimizer: {name} must be at least 0 and below 1, not {getattr(self, name)}."
                )
        if not self.eps > 0:
            raise BadRecord(f"fused optimizer: eps must be above 0, not {self.eps}.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise BadRecord(
                f"fused optimizer: clip_norm must be above 0, not {self.clip_norm}.",
                hint="Use clip_norm=None for no clipping.",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """The raw weights, before masks and signs are applied."""

    w_in: Array
    w_rec: Array
    b_rec: Array
    w_out: Array
    b_out: Array

    @classmethod
    def random(cls, network: RecurrentNetwork, seed: int = 0) -> Weights:
        """Uniform between -1 / sqrt(fan-in) and 1 / sqrt(fan-in); biases 0."""
        generator = np.random.default_rng(seed)
        weights = {}
        for name, shape in weight_shapes(network).items():
            bound = shape[0] ** -0.5 if name.startswith("w_") else 0.0
            weights[name] = generator.uniform(-bound, bound, shape).astype(np.float32)
        return cls(**weights)

    def checked(self, network: RecurrentNetwork) -> Weights:
        """The same weights as float32; raises BadInput if they do not fit the network."""
        shapes = weight_shapes(network)
        return Weights(
            **{name: _checked_weight(name, getattr(self, name), shape) for name, shape in shapes.items()}
        )

    def as_dict(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in WEIGHT_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """Sequences to learn from.

    `inputs` have the shape (example, time, n_in). `targets` have the shape (example, time, n_out) for mse,
    and (example, time) with class numbers for cross entropy. `mask` is the weight of the error at each
    (time,) or (example, time); the loss is the weighted mean.
    """

    inputs: Array
    targets: Array
    mask: Array | None = None

    def checked(self, network: RecurrentNetwork) -> Examples:
        """The same examples, contiguous, as float32 (classes as int32); raises BadInput if they are unfit."""
        inputs = _as_float32("inputs", self.inputs)
        if inputs.ndim != 3 or inputs.shape[2] != network.n_in or 0 in inputs.shape:
            raise BadInput(
                f"inputs have the shape {inputs.shape}; "
                f"the network reads (example, time, {network.n_in}), none of them 0."
            )
        _require_finite("inputs", inputs)
        count, n_steps = inputs.shape[:2]
        return Examples(
            inputs=inputs, targets=self._targets(network, count, n_steps), mask=self._mask(count, n_steps)
        )

    def _targets(self, network: RecurrentNetwork, count: int, n_steps: int) -> Array:
        if network.loss == "mse":
            targets = _as_float32("targets", self.targets)
            if targets.shape != (count, n_steps, network.n_out):
                raise BadInput(
                    f"targets have the shape {targets.shape}; "
                    f"mse needs (example, time, n_out) = {(count, n_steps, network.n_out)}."
                )
            _require_finite("targets", targets)
            return targets
        classes = np.asarray(self.targets)
        if classes.shape != (count, n_steps) or classes.dtype.kind not in "iu":
            raise BadInput(
                f"targets have the shape {classes.shape} of {classes.dtype}; "
                f"cross entropy needs integer classes, (example, time) = {(count, n_steps)}."
            )
        wrong = np.argwhere((classes < 0) | (classes >= network.n_out))
        if len(wrong):
            raise BadInput(
                f"targets of example {wrong[0][0]}: class {classes[tuple(wrong[0])]} "
                f"is not one of the {network.n_out} classes from 0 to {network.n_out - 1}."
            )
        return np.ascontiguousarray(classes, np.int32)

    def _mask(self, count: int, n_steps: int) -> Array | None:
        if self.mask is None:
            return None
        mask = _as_float32("mask", self.mask)
        if mask.shape not in ((n_steps,), (count, n_steps)):
            raise BadInput(
                f"the loss mask has the shape {mask.shape}; "
                f"it needs (time,) = {(n_steps,)} or (example, time) = {(count, n_steps)}."
            )
        if not np.isfinite(mask).all() or (mask < 0).any():
            raise BadInput("the loss mask must hold numbers of 0 or above.")
        empty = np.flatnonzero(mask.reshape(-1, n_steps).sum(1) == 0)
        if len(empty):
            raise BadInput(
                f"the loss mask of example {empty[0]} is 0 at all times, so there is no error to learn from."
            )
        return mask


def weight_shapes(network: RecurrentNetwork) -> dict[str, tuple[int, ...]]:
    return {
        "w_in": (network.n_in, network.n_rec),
        "w_rec": (network.n_rec, network.n_rec),
        "b_rec": (network.n_rec,),
        "w_out": (network.n_rec, network.n_out),
        "b_out": (network.n_out,),
    }


def without_noise(network: RecurrentNetwork) -> RecurrentNetwork:
    return dataclasses.replace(network, input_noise=0.0, recurrent_noise=0.0)


def _require_known(what: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise BadRecord(f"fused network: no {what} {word!r}.", hint=nearest(str(word), known))


def _set_constant(network: RecurrentNetwork, name: str, shape: tuple[int, ...]) -> None:
    """Replaces a mask or the signs by a checked, read-only float32 array."""
    value = getattr(network, name)
    if value is None:
        return
    array = np.array(value, np.float32)
    if array.shape != shape:
        raise BadRecord(f"fused network: {name} has the shape {array.shape}, which must be {shape}.")
    if not np.isfinite(array).all():
        raise BadRecord(f"fused network: {name} holds numbers that are not finite.")
    array.flags.writeable = False
    object.__setattr__(network, name, array)


def _checked_weight(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    array = _as_float32(name, value)
    if array.shape != shape:
        raise BadInput(f"{name} has the shape {array.shape}; this network needs {shape}.")
    if not np.isfinite(array).all():
        raise BadInput(f"{name} holds numbers that are not finite.")
    return array


def _as_float32(name: str, value: ArrayLike) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise BadInput(
            f"{name} are {array.dtype}; the fused engine works in float32.", hint="Convert them to float32."
        )
    return np.ascontiguousarray(array, np.float32)


def _require_finite(name: str, array: Array) -> None:
    wrong = np.argwhere(~np.isfinite(array.reshape(len(array), -1)).all(1))
    if len(wrong):
        raise BadInput(
            f"{name} of example {int(wrong[0][0])} hold numbers that are not finite "
            f"({len(wrong)} of {len(array)} examples do)."
        )
