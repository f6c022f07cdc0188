"""The fused engine on one core: buffers laid out for the kernel, and the kernel called on them.

The machine code is written for one network when it is first asked for (a fraction of a second) and runs outside of Python's lock,
so that several engines can work side by side in threads.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from typing import Any

import numpy as np

from windtunnel.errors import BadInput, Unavailable
from windtunnel.fused.settings import Array, Examples, Network, Optimizer, Weights

CACHED = 256  # units up to which a weight matrix stays in a core's own cache


def available() -> bool:
    """Whether llvmlite is here, which writes the machine code."""
    return importlib.util.find_spec("llvmlite") is not None


def suits(network: Network, batch: int) -> bool:
    """Whether the vector code is the faster way: it reads a wide matrix once for each example, a matrix library once for the batch."""
    most = 4000 if network.activation == "relu" and network.leak == 1 else 2000
    return network.n_rec <= CACHED or batch == 1 or batch * network.n_rec <= most


class Engine:
    """One network with its optimiser's state; `train` goes through mini-batches of the examples, each in the given order."""

    def __init__(
        self,
        network: Network,
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
        self.network, self.optimizer, self.n_steps, self.batch = (
            network,
            optimizer or Optimizer(),
            n_steps,
            batch,
        )
        self.spec = spec_of(network, self.optimizer)
        self._calls: dict[str, Any] = {}
        self._slots = layout.SLOTS
        self._table = np.zeros(len(self._slots), np.int64)
        self._held: dict[str, Array] = {}
        self._allocate(layout.HYPER)
        self.load(weights)

    def load(self, weights: Weights) -> None:
        """Take these weights, and forget the optimiser's momenta."""
        self.put(weights.checked(self.network))
        for name in ("first", "second"):
            self._held[name][...] = 0
        self._hyper("power1", 1.0)
        self._hyper("power2", 1.0)

    def put(self, weights: Weights) -> None:
        """Take these weights, which are known to fit, and keep the optimiser's momenta."""
        for name, row in self._raw.items():
            row[...] = getattr(weights, name)
        self._stale = True

    def weights(self) -> Weights:
        """A copy of the raw weights as they are now."""
        return Weights(**{name: np.array(row) for name, row in self._raw.items()})

    def gradients(self) -> Weights:
        """A copy of the last gradients of the raw weights, before clipping."""
        return Weights(**{name: np.array(row) for name, row in self._gradient.items()})

    def train(self, examples: Examples, order: Array, noise: Array | None = None) -> Array:
        """One update for each row of `order`, which names the examples of a mini-batch; returns the losses before each update.

        Fewer losses than rows come back when the loss stopped being finite: the last one is it, and that update was not made.
        `examples` must have been checked; `noise` (update, batch, time, n_rec) is added to the drive.
        """
        order = np.ascontiguousarray(order, np.int32)
        if order.ndim != 2 or order.shape[1] != self.batch or examples.inputs.shape[1] != self.n_steps:
            raise BadInput(
                f"fused engine: made for batches of {self.batch} and {self.n_steps} timesteps, given {order.shape} and {examples.inputs.shape[1]}."
            )
        if order.size and not 0 <= order.min() <= order.max() < len(examples.inputs):
            raise BadInput(
                f"fused engine: the order names examples outside of the {len(examples.inputs)} there are."
            )
        losses = np.zeros(len(order), np.float32)
        mask = np.ones(self.n_steps, np.float32) if examples.mask is None else examples.mask
        self._point(
            inputs=examples.inputs,
            targets=examples.targets,
            mask=mask,
            order=order,
            losses=losses,
            scales=scales_of(self.network, mask, order),
        )
        self._point_noise(noise)
        self._number(updates=len(order), mask_stride=0 if mask.ndim == 1 else self.n_steps)
        done = self._run("train")
        return losses[: done + 1]

    def forward(self, inputs: Array, noise: Array | None = None) -> Array:
        """Outputs (example, time, n_out) of one batch; what `backward` needs is kept."""
        if inputs.shape != (self.batch, self.n_steps, self.network.n_in) or inputs.dtype != np.float32:
            raise BadInput(
                f"fused engine: inputs {inputs.shape} of {inputs.dtype}; made for {(self.batch, self.n_steps, self.network.n_in)} of float32."
            )
        self._point(inputs=np.ascontiguousarray(inputs), order=self._in_turn)
        self._point_noise(noise)
        self._run("forward")
        return np.array(self._held["outputs"][:, :, : self.network.n_out])

    def backward(self, slopes: Array) -> Weights:
        """Gradients of the raw weights, given the loss's slope at every output of the last `forward`."""
        held = self._held["outputs"]
        held[...] = 0
        held[:, :, : self.network.n_out] = slopes
        self._run("backward")
        return self.gradients()

    def input_slopes(self) -> Array:
        """The loss's slope at every input of the last `backward`."""
        drive = self._held["slopes"][:, : self.n_steps, : self.network.n_rec]
        first = self.network.n_rec + 1
        return drive @ self._held["weights"][first : first + self.network.n_in, : self.network.n_rec].T

    def states(self) -> Array:
        """States (example, time, n_rec) of the last `forward`, or of the last mini-batch trained."""
        return np.array(self._held["states"][:, 1:, : self.network.n_rec])

    def _allocate(self, hyper: list[str]) -> None:
        s, b, t = self.spec, self.batch, self.n_steps
        rows = max(-(-s.rows // 4) * 4, s.width)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("raw", "gradient", "first", "second"), (rows, s.width)
        )
        shapes |= {
            "turned": (1,) if s.wide else (s.width, s.width),
            "states": (b, t + 1, s.width),
            "slopes": (b, t + 1, s.width),
            "inputs_here": (b, t, s.n_in),
        }
        shapes |= {
            "outputs": (b, t, s.out_width),
            "carry": (s.width,),
            "rates": (b, t, s.width) if s.leaky else (1,),
        }
        shapes |= {name: (rows, s.width) for name in ("weights", "factor", "signed") if s.constrained}
        made = {name: _aligned(shape, np.float32) for name, shape in shapes.items()}
        made["lists"] = _aligned((b, t + 2, s.list_width), np.int32)
        made["counts"] = _aligned((b, t + 2), np.int64)
        made["lists"][:, 0] = s.width - 1
        made["lists"][:, 0, 0] = s.n_rec
        made["counts"][:, 0] = 1
        made["states"][:, 0, s.n_rec] = 1
        if s.constrained:
            made["factor"][...] = 1
            self._constrain(made)
        else:
            made["weights"] = made["raw"]
        made["hyper"] = np.zeros(len(hyper))
        self._raw, self._gradient = self._places(made["raw"]), self._places(made["gradient"])
        self._names, self._in_turn = hyper, np.arange(b, dtype=np.int32)
        self._point(**made)
        self._number(batch=b, n_steps=t)
        o = self.optimizer
        clip = math.inf if o.clip_norm is None else o.clip_norm
        for name in ("rate", "momentum", "beta1", "beta2", "eps"):
            self._hyper(name, getattr(o, name))
        self._hyper("clip", clip)
        self._hyper("leak", self.network.leak)

    def _constrain(self, made: dict[str, Array]) -> None:
        places = self._places(made["factor"])
        for name in ("w_in", "w_rec", "w_out"):
            factor = self.network.factor(name)
            if factor is not None:
                places[name][...] = factor
        if self.network.signed is not None:
            self._places(made["signed"])["w_rec"][self.network.signed] = 1

    def _places(self, block: Array) -> dict[str, Array]:
        """Where each weight lies in the block of rows."""
        n, first, out = self.network.n_rec, self.network.n_rec + 1, self.network.n_rec + 1 + self.network.n_in
        last = out + self.network.n_out
        return {
            "w_in": block[first:out, :n],
            "w_rec": block[:n, :n],
            "b_rec": block[n, :n],
            "w_out": block[out:last, :n].T,
            "b_out": block[out:last, n],
        }

    def _point(self, **arrays: Array) -> None:
        for name, array in arrays.items():
            self._held[name] = array  # kept alive while the kernel may look at it
            self._table[self._slots.index(name)] = array.ctypes.data

    def _point_noise(self, noise: Array | None) -> None:
        if (noise is not None) != self.spec.noisy:
            raise BadInput("fused engine: noise must be given just when the network has recurrent_noise.")
        if noise is not None:
            self._point(noise=np.ascontiguousarray(noise, np.float32))

    def _number(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self._table[self._slots.index(name)] = number

    def _hyper(self, name: str, value: float) -> None:
        self._held["hyper"][self._names.index(name)] = value

    def _run(self, name: str) -> int:
        if name not in self._calls:
            self._prepare("train" if name == "train" else "module")
        if self._stale:
            self._calls["refresh"](self._table.ctypes.data)
            self._stale = False
        return int(self._calls[name](self._table.ctypes.data))

    def _prepare(self, part: str) -> None:
        """Have the code written that this call is part of."""
        from windtunnel.fused import kernel

        code, call = kernel.compiled(self.spec, part), ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        for name in ("train", "refresh") if part == "train" else ("forward", "backward", "refresh"):
            self._calls[name] = call(code.address(name))


def spec_of(network: Network, optimizer: Optimizer) -> Any:
    """What the kernel for this network and optimiser is written for."""
    from windtunnel.fused.layout import Spec

    constrained = any(
        value is not None for value in (network.mask_in, network.mask_rec, network.mask_out, network.signs)
    )
    kind = "momentum" if optimizer.name == "sgd" and optimizer.momentum else optimizer.name
    return Spec(
        n_in=network.n_in,
        n_rec=network.n_rec,
        n_out=network.n_out,
        activation=network.activation,
        leaky=network.leak != 1,
        noisy=network.recurrent_noise > 0,
        constrained=constrained,
        loss=network.loss,
        optimizer=kind,
    )


def scales_of(network: Network, mask: Array, order: Array) -> Array:
    """One over the number of errors that each mini-batch's mean is taken over."""
    sizes = (
        np.full(order.shape, mask.sum(), np.float64)
        if mask.ndim == 1
        else mask.sum(1, dtype=np.float64)[order]
    )
    return np.asarray(1 / (sizes.sum(1) * (network.n_out if network.loss == "mse" else 1)), np.float32)


def _aligned(shape: tuple[int, ...], kind: Any) -> Array:
    """Zeros that begin on a cache line, with a vector of slack behind."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    raw = np.zeros(size + 192, np.uint8)
    start = -raw.ctypes.data % 64
    return np.asarray(raw[start : start + size].view(kind).reshape(shape))
