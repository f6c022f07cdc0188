"""What the fused engine trains: a small recurrent network, its weights, its examples and its optimiser.

drive(t)  = input(t) W_in + state(t-1) W_rec + b_rec + recurrent_noise * xi(t),     xi standard normal, state(-1) = 0
state(t)  = (1 - leak) state(t-1) + leak * f(drive(t)),                             f = relu, sigmoid or tanh
output(t) = state(t) W_out + b_out

leak = dt / tau; 1 is the plain network of Brandfonbrener 2017. The leaky form is that of firing rates (Yang et al. 2019, Nature
Neuroscience 22), so that rates stay positive under noise; Song, Yang and Wang 2016 leak the current before f instead. Their sigma
of the noise is reached with recurrent_noise = sqrt(2 / leak) * sigma. input_noise is added to the inputs, afresh at every step.

Masks multiply the weights: a weight of mask 0 is absent and gets no gradient. Signs keep Dale's law: what unit j sends out is
W_rec[j, :] = signs[j] * |W[j, :]| * mask[j, :], all excitatory (+1) or all inhibitory (-1). Song, Yang and Wang rectify, [W]+, where
we take the absolute value, so that a weight which crosses zero comes back rather than stays dead. A sign of 0 leaves a unit free.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import BadInput, BadRecord, nearest

Array = NDArray[Any]
ACTIVATIONS = ("relu", "sigmoid", "tanh")
LOSSES = ("mse", "cross_entropy")
OPTIMIZERS = ("sgd", "adam")
NAMES = ("w_in", "w_rec", "b_rec", "w_out", "b_out")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Sizes, equations and constraints; the module's docstring says what each means."""

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
        shapes = shapes_of(self)
        for name, of in (("mask_in", "w_in"), ("mask_rec", "w_rec"), ("mask_out", "w_out")):
            _freeze(self, name, shapes[of])
        _freeze(self, "signs", (self.n_rec,))
        if self.signs is not None and not np.isin(self.signs, (-1, 0, 1)).all():
            raise BadRecord("fused network: signs are +1 (excitatory), -1 (inhibitory) or 0 (free).")

    def factor(self, name: str) -> Array | None:
        """What multiplies a weight matrix, or nothing."""
        if name not in ("w_in", "w_rec", "w_out"):
            return None
        mask: Array | None = getattr(self, name.replace("w_", "mask_"))
        if name != "w_rec" or self.signs is None:
            return mask
        signs = np.asarray(self.signs)
        column = np.where(signs == 0, np.float32(1), signs)[:, None].astype(np.float32)
        return column * (np.ones(shapes_of(self)["w_rec"], np.float32) if mask is None else mask)

    @property
    def signed(self) -> Array | None:
        """Which rows of W_rec keep a sign."""
        return None if self.signs is None else np.asarray(self.signs) != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """SGD with momentum or Adam, both as PyTorch writes them, after clipping all gradients together by their norm."""

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
                hint="Use clip_norm=None to leave gradients as they are.",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """The raw weights: before masks and signs."""

    w_in: Array
    w_rec: Array
    b_rec: Array
    w_out: Array
    b_out: Array

    @classmethod
    def random(cls, network: Network, seed: int = 0) -> Weights:
        """Uniform within one over the root of the number of senders; biases 0."""
        generator = np.random.default_rng(seed)
        made = {}
        for name, shape in shapes_of(network).items():
            bound = shape[0] ** -0.5 if name.startswith("w_") else 0.0
            made[name] = generator.uniform(-bound, bound, shape).astype(np.float32)
        return cls(**made)

    def checked(self, network: Network) -> Weights:
        """The same weights as float32, refused where they do not fit the network."""
        return Weights(
            **{name: _fitting(name, getattr(self, name), shape) for name, shape in shapes_of(network).items()}
        )

    def named(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in NAMES}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """`inputs`: example, time, n_in. `targets`: example, time, n_out for mse; example, time with classes for cross entropy.

    `mask` weighs the error: time alone, or example, time. The loss is the mean over what the mask lets through.
    """

    inputs: Array
    targets: Array
    mask: Array | None = None

    def checked(self, network: Network) -> Examples:
        """The same examples, contiguous, as float32 (classes as int32), refused where they cannot be used."""
        inputs = _floats("inputs", self.inputs)
        if inputs.ndim != 3 or inputs.shape[2] != network.n_in or 0 in inputs.shape:
            raise BadInput(
                f"inputs have the shape {inputs.shape}; the network reads (example, time, {network.n_in}), none of them 0."
            )
        _require_finite("inputs", inputs)
        count, n_steps = inputs.shape[:2]
        return Examples(
            inputs=inputs, targets=self._targets(network, count, n_steps), mask=self._mask(count, n_steps)
        )

    def _targets(self, network: Network, count: int, n_steps: int) -> Array:
        if network.loss == "mse":
            targets = _floats("targets", self.targets)
            if targets.shape != (count, n_steps, network.n_out):
                raise BadInput(
                    f"targets have the shape {targets.shape}; mse needs (example, time, n_out) = {(count, n_steps, network.n_out)}."
                )
            _require_finite("targets", targets)
            return targets
        classes = np.asarray(self.targets)
        if classes.shape != (count, n_steps) or classes.dtype.kind not in "iu":
            raise BadInput(
                f"targets have the shape {classes.shape} of {classes.dtype}; cross entropy needs whole classes, (example, time) = {(count, n_steps)}."
            )
        wrong = np.argwhere((classes < 0) | (classes >= network.n_out))
        if len(wrong):
            raise BadInput(
                f"targets of example {wrong[0][0]}: class {classes[tuple(wrong[0])]} is not among the {network.n_out} from 0 to {network.n_out - 1}."
            )
        return np.ascontiguousarray(classes, np.int32)

    def _mask(self, count: int, n_steps: int) -> Array | None:
        if self.mask is None:
            return None
        mask = _floats("mask", self.mask)
        if mask.shape not in ((n_steps,), (count, n_steps)):
            raise BadInput(
                f"the loss mask has the shape {mask.shape}; it needs (time,) = {(n_steps,)} or (example, time) = {(count, n_steps)}."
            )
        if not np.isfinite(mask).all() or (mask < 0).any():
            raise BadInput("the loss mask must hold numbers of 0 or above.")
        empty = np.flatnonzero(mask.reshape(-1, n_steps).sum(1) == 0)
        if len(empty):
            raise BadInput(
                f"the loss mask of example {empty[0]} is 0 at all times, so there is no error to learn from."
            )
        return mask


def shapes_of(network: Network) -> dict[str, tuple[int, ...]]:
    return {
        "w_in": (network.n_in, network.n_rec),
        "w_rec": (network.n_rec, network.n_rec),
        "b_rec": (network.n_rec,),
        "w_out": (network.n_rec, network.n_out),
        "b_out": (network.n_out,),
    }


def plain(network: Network) -> Network:
    """The same network without noise."""
    return dataclasses.replace(network, input_noise=0.0, recurrent_noise=0.0)


def _require_known(what: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise BadRecord(f"fused network: no {what} {word!r}.", hint=nearest(str(word), known))


def _freeze(network: Network, name: str, shape: tuple[int, ...]) -> None:
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


def _fitting(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    array = _floats(name, value)
    if array.shape != shape:
        raise BadInput(f"{name} has the shape {array.shape}; this network needs {shape}.")
    if not np.isfinite(array).all():
        raise BadInput(f"{name} holds numbers that are not finite.")
    return array


def _floats(name: str, value: Any) -> Array:
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
            f"{name} of example {int(wrong[0][0])} hold numbers that are not finite ({len(wrong)} of {len(array)} examples do)."
        )
