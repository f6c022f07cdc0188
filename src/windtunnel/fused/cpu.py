"""The fused engine on one core: allocates the buffers of the generated kernel and calls the kernel on them.

The kernel is generated and compiled at the first call for a network, which takes a fraction of a second. It
runs without Python's GIL, so several engines can run in parallel threads.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from windtunnel.errors import BadInput, Unavailable
from windtunnel.fused.settings import CACHED_UNITS, Array, Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.fused.layout import KernelSpec


def available() -> bool:
    """Whether llvmlite, which compiles the kernel, is installed."""
    return importlib.util.find_spec("llvmlite") is not None


def is_fastest(network: RecurrentNetwork, batch: int) -> bool:
    """Whether the generated code is faster than PyTorch's matrix products.

    It reads a wide matrix once per example; a matrix library reads it once per batch.
    """
    limit = 4000 if network.activation == "relu" and network.leak == 1 else 2000
    return network.n_rec <= CACHED_UNITS or batch == 1 or batch * network.n_rec <= limit


class CompiledEngine:
    """One network with its optimiser state, run by generated vector code."""

    def __init__(
        self,
        network: RecurrentNetwork,
        weights: Weights,
        *,
        n_steps: int,
        batch: int = 1,
        optimizer: Optimizer | None = None,
    ) -> None:
        if not available():
            raise Unavailable(
                "The fused engine on a CPU needs llvmlite, which is not installed.",
                hint="pip install 'windtunnel[fused]'",
            )
        from windtunnel.fused import layout

        for name, value in (("n_steps", n_steps), ("batch", batch)):
            if value < 1:
                raise BadInput(f"fused engine: {name} must be above 0, not {value}.")
        self.network, self.optimizer = network, optimizer or Optimizer()
        self.n_steps, self.batch = n_steps, batch
        self.spec = spec_of(network, self.optimizer)
        self._functions: Plain = {}  # ctypes functions
        self._argument_names, self._hyperparameter_names = layout.ARGUMENTS, layout.HYPERPARAMETERS
        self._table = np.zeros(len(layout.ARGUMENTS), np.int64)
        self._buffers: dict[str, Array] = {}
        self._allocate()
        self.reset(weights)

    def reset(self, weights: Weights) -> None:
        """Sets the weights and clears the optimiser state."""
        self.set_weights(weights.checked(self.network))
        for name in ("first_moment", "second_moment"):
            self._buffers[name][...] = 0
        self.set_updates_done(0)

    def set_weights(self, weights: Weights) -> None:
        """Sets the weights, which must fit, and keeps the optimiser state."""
        for name, view in self._raw.items():
            view[...] = getattr(weights, name)
        self._stale = True

    def set_updates_done(self, count: int) -> None:
        """Sets how many updates Adam's bias correction assumes."""
        self._set_hyperparameter("beta1_power", self.optimizer.beta1**count)
        self._set_hyperparameter("beta2_power", self.optimizer.beta2**count)

    def moments(self, order: str) -> dict[str, Array]:
        """The optimiser's `first` or `second` moments by weight, as views of the engine's memory."""
        return self._weight_views(self._buffers[f"{order}_moment"])

    def weights(self) -> Weights:
        """A copy of the raw weights."""
        return Weights(**{name: np.array(view) for name, view in self._raw.items()})

    def gradients(self) -> Weights:
        """A copy of the last gradients of the raw weights, before clipping."""
        return Weights(**{name: np.array(view) for name, view in self._gradient.items()})

    def train(self, examples: Examples, order: Array, noise: Array | None = None) -> Array:
        """One update per row of `order`, the examples of a mini-batch; returns the loss before each update.

        If a loss is not finite it is the last one returned, and its update is not made. `examples` must have
        been checked. `noise` (update, batch, time, n_rec) is added to the drive.
        """
        order = np.ascontiguousarray(order, np.int32)
        self._require_fitting(examples, order)
        losses = np.zeros(len(order), np.float32)
        mask = np.ones(self.n_steps, np.float32) if examples.mask is None else examples.mask
        self._set_pointers(
            inputs=examples.inputs,
            targets=examples.targets,
            mask=mask,
            order=order,
            losses=losses,
            loss_scales=loss_scales(self.network, mask, order),
        )
        self._set_noise(noise)
        self._set_integers(updates=len(order), mask_stride=0 if mask.ndim == 1 else self.n_steps)
        completed = self._call("train")
        return losses[: completed + 1]

    def forward(self, inputs: Array, noise: Array | None = None) -> Array:
        """Outputs (example, time, n_out) of one batch; the engine keeps what `backward` needs."""
        expected = (self.batch, self.n_steps, self.network.n_in)
        if inputs.shape != expected or inputs.dtype != np.float32:
            raise BadInput(
                f"fused engine: inputs {inputs.shape} of {inputs.dtype}; expected {expected} of float32."
            )
        self._set_pointers(inputs=np.ascontiguousarray(inputs), order=self._identity_order)
        self._set_noise(noise)
        self._call("forward")
        return np.array(self._buffers["outputs"][:, :, : self.network.n_out])

    def backward(self, output_gradients: Array) -> Weights:
        """Gradients of the raw weights from those of every output of the last `forward`."""
        outputs = self._buffers["outputs"]
        outputs[...] = 0
        outputs[:, :, : self.network.n_out] = output_gradients
        self._call("backward")
        return self.gradients()

    def input_gradients(self) -> Array:
        """The gradients of every input of the last `backward`."""
        drives = self._buffers["drive_gradients"][:, : self.n_steps, : self.network.n_rec]
        first = self.spec.first_input_row
        rows = self._buffers["weights"][first : first + self.network.n_in, : self.network.n_rec]
        return drives @ rows.T

    def states(self) -> Array:
        """States (example, time, n_rec) of the last `forward`, or of the last mini-batch trained."""
        return np.array(self._buffers["states"][:, 1:, : self.network.n_rec])

    def _require_fitting(self, examples: Examples, order: Array) -> None:
        n_steps, count = examples.inputs.shape[1], len(examples.inputs)
        if order.ndim != 2 or order.shape[1] != self.batch or n_steps != self.n_steps:
            raise BadInput(
                f"fused engine: made for batches of {self.batch} and {self.n_steps} timesteps, "
                f"not for an order of shape {order.shape} and {n_steps} timesteps."
            )
        if order.size and not 0 <= order.min() <= order.max() < count:
            raise BadInput(f"fused engine: the order has an index outside of the {count} examples.")

    def _allocate(self) -> None:
        buffers = {name: _aligned_zeros(shape, np.float32) for name, shape in self._float_shapes().items()}
        s, b, t = self.spec, self.batch, self.n_steps
        buffers["active_units"] = _aligned_zeros((b, t + 2, s.list_width), np.int32)
        buffers["active_counts"] = _aligned_zeros((b, t + 2), np.int64)
        # In state 0 only the lane of the 1 is active; the rest of its list is padding.
        buffers["active_units"][:, 0] = s.width - 1
        buffers["active_units"][:, 0, 0] = s.n_rec
        buffers["active_counts"][:, 0] = 1
        buffers["states"][:, 0, s.n_rec] = 1
        if s.constrained:
            buffers["factor"][...] = 1
            self._set_constraints(buffers)
        else:
            buffers["weights"] = buffers["raw"]
        buffers["hyperparameters"] = np.zeros(len(self._hyperparameter_names))
        self._raw = self._weight_views(buffers["raw"])
        self._gradient = self._weight_views(buffers["gradient"])
        self._identity_order = np.arange(b, dtype=np.int32)
        self._set_pointers(**buffers)
        self._set_integers(batch=b, n_steps=t)
        o = self.optimizer
        for name in ("rate", "momentum", "beta1", "beta2", "eps"):
            self._set_hyperparameter(name, getattr(o, name))
        self._set_hyperparameter("clip", math.inf if o.clip_norm is None else o.clip_norm)
        self._set_hyperparameter("leak", self.network.leak)

    def _float_shapes(self) -> dict[str, tuple[int, ...]]:
        s, b, t = self.spec, self.batch, self.n_steps
        matrix = (max(-(-s.rows // 4) * 4, s.width), s.width)
        constraints = ("weights", "factor", "signed") if s.constrained else ()
        return {
            **dict.fromkeys(("raw", "gradient", "first_moment", "second_moment", *constraints), matrix),
            "w_rec_transposed": (1,) if s.wide else (s.width, s.width),
            "states": (b, t + 1, s.width),
            "drive_gradients": (b, t + 1, s.width),
            "batch_inputs": (b, t, s.n_in),
            "outputs": (b, t, s.out_width),
            "carry": (s.width,),
            "rates": (b, t, s.width) if s.leaky else (1,),
        }

    def _set_constraints(self, buffers: dict[str, Array]) -> None:
        factors = self._weight_views(buffers["factor"])
        for name in ("w_in", "w_rec", "w_out"):
            factor = self.network.factor(name)
            if factor is not None:
                factors[name][...] = factor
        if self.network.signed_rows is not None:
            self._weight_views(buffers["signed"])["w_rec"][self.network.signed_rows] = 1

    def _weight_views(self, matrix: Array) -> dict[str, Array]:
        """The part of the padded matrix that holds each weight (see `layout`)."""
        n, first, out = self.network.n_rec, self.spec.first_input_row, self.spec.first_output_row
        last = out + self.network.n_out
        return {
            "w_in": matrix[first:out, :n],
            "w_rec": matrix[:n, :n],
            "b_rec": matrix[n, :n],
            "w_out": matrix[out:last, :n].T,
            "b_out": matrix[out:last, n],
        }

    def _set_pointers(self, **arrays: Array) -> None:
        for name, array in arrays.items():
            self._buffers[name] = array  # keeps the memory alive while the kernel may access it
            self._table[self._argument_names.index(name)] = array.ctypes.data

    def _set_noise(self, noise: Array | None) -> None:
        if (noise is not None) != self.spec.noisy:
            raise BadInput("fused engine: pass noise if and only if the network has recurrent_noise.")
        if noise is not None:
            self._set_pointers(noise=np.ascontiguousarray(noise, np.float32))

    def _set_integers(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self._table[self._argument_names.index(name)] = number

    def _set_hyperparameter(self, name: str, value: float) -> None:
        self._buffers["hyperparameters"][self._hyperparameter_names.index(name)] = value

    def _call(self, name: str) -> int:
        if name not in self._functions:
            self._compile(name)
        if self._stale:
            self._functions["refresh"](self._table.ctypes.data)
            self._stale = False
        return int(self._functions[name](self._table.ctypes.data))

    def _compile(self, name: str) -> None:
        """Compiles the kernel that contains this function."""
        from windtunnel.fused import kernel

        code = kernel.compile_kernel(self.spec, "train" if name == "train" else "module")
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        for each in ("train", "refresh") if name == "train" else ("forward", "backward", "refresh"):
            self._functions[each] = function(code.address(each))


def spec_of(network: RecurrentNetwork, optimizer: Optimizer) -> KernelSpec:
    """The specification of the kernel for this network and optimiser."""
    from windtunnel.fused.layout import KernelSpec

    return KernelSpec(
        n_in=network.n_in,
        n_rec=network.n_rec,
        n_out=network.n_out,
        activation=network.activation,
        leaky=network.leak != 1,
        noisy=network.recurrent_noise > 0,
        constrained=network.constrained,
        loss=network.loss,
        optimizer="momentum" if optimizer.name == "sgd" and optimizer.momentum else optimizer.name,
    )


def loss_scales(network: RecurrentNetwork, mask: Array, order: Array) -> Array:
    """One over the number of errors in the mean of each mini-batch."""
    if mask.ndim == 1:
        sizes = np.full(order.shape, mask.sum(), np.float64)
    else:
        sizes = mask.sum(1, dtype=np.float64)[order]
    return np.asarray(1 / (sizes.sum(1) * (network.n_out if network.loss == "mse" else 1)), np.float32)


def _aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Zeros that begin at a cache line, with one vector of unused memory behind."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 192, np.uint8)
    start = -memory.ctypes.data % 64
    return np.asarray(memory[start : start + size].view(dtype).reshape(shape))
