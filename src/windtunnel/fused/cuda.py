"""The persistent kernel on a GPU: one block of threads holds a whole network, so that no timestep needs a launch.

`kernel.cu` is compiled for each size at run time by the compiler that comes with PyTorch (NVRTC). `train_many` gives every network a
multiprocessor of its own; `forward` and `backward` give one to every example of a batch, for autograd.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.errors import Unavailable
from windtunnel.fused.many import Job
from windtunnel.fused.settings import (
    ACTIVATIONS,
    NAMES,
    Array,
    Examples,
    Network,
    Optimizer,
    Weights,
    shapes_of,
)
from windtunnel.fused.train import Exploded, Trained, exploded

MOST_UNITS = 128  # more do not fit in a block's registers
_SHAPES = (
    (2, 1),
    (8, 4),
)  # threads of a group and units it holds: the quickest, and what needs fewest registers (benchmarks/shapes.py)
_HELD = 190  # floats that a thread can hold beside what it works with
_SHARED_BYTES = (
    227 * 1024
)  # what a block may have of a multiprocessor's shared memory, from Hopper on; less before
_SPARE_BYTES = 1024
_entered = threading.local()


def refusal(network: Network, n_steps: int) -> str:
    """Why the kernel cannot hold this network, or nothing."""
    if not torch.cuda.is_available():
        return "there is no CUDA device here"
    if network.n_rec > MOST_UNITS:
        return f"{network.n_rec} units are more than the {MOST_UNITS} that fit in the registers of one block"
    if network.n_in > MOST_UNITS or network.n_out > MOST_UNITS:
        return f"{network.n_in} inputs or {network.n_out} outputs are more than the {MOST_UNITS} that one block can hold"
    needed, there = shared_bytes(network, n_steps), _shared_limit()
    if needed > there:
        return f"{n_steps} timesteps of {network.n_rec} units need {needed:,} bytes of shared memory; a block has {there:,}"
    return _compiler_refusal()


def available(network: Network, timed: Tensor) -> bool:
    """Whether autograd can use the kernel for inputs of (time, batch, n_in)."""
    return not refusal(network, timed.shape[0])


def shared_bytes(network: Network, n_steps: int) -> int:
    """What a block of the training kernel keeps in shared memory; the layout is the kernel's."""
    r, i, o, shape = network.n_rec, network.n_in, network.n_out, _shape(network)
    padded, row = shape.padded(r), shape.padded(r + i)
    floats = (
        (n_steps + 1) * row
        + r * (padded + 4)
        + o * padded
        + 2 * max(padded, shape.rows)
        + n_steps * (3 * o + 2 * i)
        + shape.threads // 16
        + o
        + 8
    )
    if network.leak < 1:
        floats += n_steps * shape.rows
    return 4 * floats + _SPARE_BYTES


def train_many(jobs: Sequence[Job]) -> list[Trained | Exploded]:
    """Train networks of one size side by side, a multiprocessor each, in one launch an epoch."""
    first = jobs[0]
    _require_alike(jobs)
    batch = Batch(jobs)
    losses = [batch.run_epoch() for _ in range(first.epochs)]
    found = torch.cat(losses, dim=1).cpu().numpy()
    weights = batch.weights()
    return [_outcome(found[place], weights[place], batch.updates) for place in range(len(jobs))]


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
    """As `windtunnel.fused.train.train`, on the GPU."""
    job = Job(
        network=network,
        examples=examples,
        weights=weights,
        optimizer=optimizer,
        epochs=epochs,
        batch=batch,
        seed=seed,
    )
    (found,) = train_many([job])
    if isinstance(found, Exploded):
        raise found
    return found


def forward(
    network: Network, weights: Mapping[str, Tensor], timed: Tensor, noise: Tensor | None
) -> tuple[Tensor, Any]:
    """Outputs (time, batch, n_out), and what backward needs."""
    n_steps, batch = timed.shape[:2]
    flat = _pack({name: _effective(network, name, weights[name]) for name in NAMES}, network)
    inputs = timed.contiguous()
    outputs = timed.new_empty(n_steps, batch, network.n_out)
    states = timed.new_empty(batch, n_steps, network.n_rec)
    rates = timed.new_empty(batch, n_steps, _shape(network).rows) if network.leak < 1 else states
    heard = states if noise is None else noise.transpose(0, 1).contiguous()
    arguments = [
        flat,
        inputs,
        heard,
        outputs,
        states,
        rates,
        states,
        states,
        states,
        n_steps,
        batch,
        int(noise is not None),
    ]
    _launch(network, 1, batch, n_steps, arguments)
    return outputs, (flat, inputs, states, rates, dict(weights))


def backward(
    network: Network, kept: Any, slopes: Tensor, *, to_inputs: bool
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Gradients of the inputs where they are wanted, and of the raw weights."""
    flat, inputs, states, rates, weights = kept
    n_steps, batch = inputs.shape[:2]
    gradients = slopes.new_empty(batch, flat.numel() - 1)
    drives = slopes.new_empty(batch, n_steps, network.n_rec)
    arguments = [flat, inputs, states, slopes, states, rates, slopes, gradients, drives, n_steps, batch, 0]
    _launch(network, 2, batch, n_steps, arguments)
    found = _unpack(gradients[0] if batch == 1 else gradients.sum(0), network)
    inward = (drives @ _effective(network, "w_in", weights["w_in"]).T).transpose(0, 1) if to_inputs else None
    return inward, {name: _raw_gradient(network, name, weights[name], found[name]) for name in NAMES}


class Batch:
    """Networks of one size on the GPU, with their data, optimiser states and the order of their examples."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, first = jobs, jobs[0]
        self.network, self.batch = first.network, first.batch
        given = [job.examples.checked(job.network) for job in jobs]
        self.shared = all(job.examples is first.examples for job in jobs)
        kept = given[:1] if self.shared else given
        self.count, self.n_steps = kept[0].inputs.shape[:2]
        self.updates = self.count // self.batch
        self.inputs = _on_gpu([e.inputs for e in kept])
        self.targets = _on_gpu([e.targets for e in kept])
        self.masks = [_whole_mask(e) for e in given]
        self.mask = (
            self.inputs
            if self.masks[0] is None
            else _on_gpu([m for m in (self.masks[:1] if self.shared else self.masks) if m is not None])
        )
        start = [
            (job.weights or Weights.random(job.network, job.seed or 0)).checked(job.network) for job in jobs
        ]
        self.flat = torch.stack(
            [_pack({name: torch.as_tensor(value) for name, value in w.named().items()}, None) for w in start]
        ).cuda()
        self.states = torch.zeros(len(jobs), 2, _shape(self.network).slots(self.network), device="cuda")
        self.hypers = torch.tensor(
            [_hyper(job.optimizer or Optimizer(), job.network) for job in jobs], device="cuda"
        )
        self.generators = [np.random.Generator(np.random.SFC64(job.seed or 0)) for job in jobs]
        self.done = 0

    def run_epoch(self) -> Tensor:
        """Losses of every network's updates over all its examples once."""
        return self.run(
            *self.place(
                [
                    self._order(job, generator)
                    for job, generator in zip(self.jobs, self.generators, strict=True)
                ]
            )
        )

    def place(self, orders: Sequence[Array]) -> tuple[Tensor, Tensor]:
        """For every network the rows of examples of its updates, and one over what each update takes the mean of, on the GPU."""
        norms = np.stack([self._norms(order, mask) for order, mask in zip(orders, self.masks, strict=True)])
        return torch.as_tensor(np.stack(orders).astype(np.int32)).cuda(), torch.as_tensor(norms).cuda()

    def run(self, order: Tensor, norms: Tensor) -> Tensor:
        """One launch over what was placed; losses by network and update."""
        updates = order.shape[1]
        losses = torch.empty(len(self.jobs), updates, device="cuda")
        sizes = [
            self.n_steps,
            updates,
            self.batch,
            self.done,
            self.count,
            int(self.masks[0] is not None),
            int(self.shared),
        ]
        arguments = [
            self.flat,
            self.states,
            self.hypers,
            self.inputs,
            self.targets,
            self.mask,
            order,
            norms,
            losses,
            *sizes,
        ]
        _launch(self.network, 0, len(self.jobs), self.n_steps, arguments)
        self.done += updates
        return losses

    def weights(self) -> list[Weights]:
        return [
            Weights(**{name: value.numpy().copy() for name, value in _unpack(row, self.network).items()})
            for row in self.flat.cpu()
        ]

    def _order(self, job: Job, generator: np.random.Generator) -> Array:
        whole = generator.permutation(self.count) if job.seed is not None else np.arange(self.count)
        return np.asarray(whole[: self.updates * self.batch].reshape(self.updates, self.batch))

    def _norms(self, order: Array, mask: Array | None) -> Array:
        """One over how many errors each update takes the mean of."""
        each = 1 if self.network.loss == "cross_entropy" else self.network.n_out
        counted = (
            np.full(len(order), float(self.batch * self.n_steps)) if mask is None else mask[order].sum((1, 2))
        )
        return np.asarray(1.0 / (counted * each), np.float32)


def _require_alike(jobs: Sequence[Job]) -> None:
    first = jobs[0]
    for job in jobs:
        n = job.network
        if (
            n.signs is not None
            or any(m is not None for m in (n.mask_in, n.mask_rec, n.mask_out))
            or n.input_noise
            or n.recurrent_noise
        ):
            raise Unavailable(
                "The training kernel has no masks, signs or noise.",
                hint="FusedRNN has them on the GPU under PyTorch's optimisers; train_many has them on a CPU.",
            )
        if (job.epochs, job.batch, _sizes(job.network)) != (first.epochs, first.batch, _sizes(first.network)):
            raise Unavailable(
                "Networks trained in one launch must be of one size, with as many epochs and examples in a batch.",
                hint="Train them in groups.",
            )
        if (job.examples.mask is None) != (
            first.examples.mask is None
        ) or job.examples.inputs.shape != first.examples.inputs.shape:
            raise Unavailable(
                "Networks trained in one launch need as many examples, alike in length and mask.",
                hint="Train them in groups.",
            )
    why = refusal(first.network, first.examples.inputs.shape[1])
    if why:
        raise Unavailable(
            f"The persistent kernel cannot hold this network: {why}.",
            hint="Use FusedRNN, which then runs the plain way, or a CPU.",
        )


def _sizes(network: Network) -> tuple[Any, ...]:
    return network.n_in, network.n_rec, network.n_out, network.activation, network.leak < 1, network.loss


def _outcome(losses: Array, weights: Weights, updates: int) -> Trained | Exploded:
    wrong = np.flatnonzero(~np.isfinite(losses))
    if not len(wrong):
        return Trained(losses=losses, weights=weights, updates_per_epoch=updates)
    return exploded(losses[: wrong[0] + 1], weights, updates, int(wrong[0]) // updates)


def _on_gpu(arrays: Sequence[Array]) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(np.stack(arrays), np.float32)).cuda()


def _whole_mask(examples: Examples) -> Array | None:
    if examples.mask is None:
        return None
    return np.ascontiguousarray(np.broadcast_to(examples.mask, examples.inputs.shape[:2]))


def _hyper(o: Optimizer, network: Network) -> list[float]:
    """As the kernel reads them."""
    clip = math.inf if o.clip_norm is None else o.clip_norm
    return [o.rate, o.momentum, o.beta1, o.beta2, o.eps, clip, network.leak, float(o.name == "adam")]


def _effective(network: Network, name: str, raw: Tensor) -> Tensor:
    """A weight matrix after masks and signs."""
    factor = network.factor(name)
    if name == "w_rec" and network.signed is not None:
        raw = torch.where(torch.as_tensor(network.signed, device=raw.device)[:, None], raw.abs(), raw)
    return raw if factor is None else raw * torch.as_tensor(np.array(factor), device=raw.device)


def _raw_gradient(network: Network, name: str, raw: Tensor, gradient: Tensor) -> Tensor:
    """The chain rule back through `_effective`."""
    factor = network.factor(name)
    if factor is not None:
        gradient = gradient * torch.as_tensor(np.array(factor), device=raw.device)
    if name == "w_rec" and network.signed is not None:
        gradient = torch.where(
            torch.as_tensor(network.signed, device=raw.device)[:, None], gradient * raw.sign(), gradient
        )
    return gradient


def _pack(weights: Mapping[str, Tensor], network: Network | None) -> Tensor:
    """All weights in one row; for autograd with the leak behind them."""
    flat = [weights[name].detach().reshape(-1).float() for name in NAMES]
    return torch.cat(flat if network is None else [*flat, flat[0].new_full((1,), network.leak)])


def _unpack(row: Tensor, network: Network) -> dict[str, Tensor]:
    shapes = shapes_of(network)
    sizes = [math.prod(shapes[name]) for name in NAMES]
    return {
        name: piece.reshape(shapes[name])
        for name, piece in zip(NAMES, torch.split(row[: sum(sizes)], sizes), strict=True)
    }


@dataclass(frozen=True)
class _Shape:
    """How a block divides a network among its threads; the kernel's own arithmetic."""

    n_rec: int
    lanes: int
    units: int

    @property
    def groups(self) -> int:
        return _up(_up(self.n_rec, self.units) // self.units, 32 // self.lanes)

    @property
    def threads(self) -> int:
        return self.groups * self.lanes

    @property
    def rows(self) -> int:
        return self.groups * self.units

    def padded(self, floats: int) -> int:
        return _up(floats, self.lanes * (2 if self.lanes == 8 else 4))

    def held(self, network: Network) -> int:
        """Floats in one thread's registers: weights, those of the recurrent matrix from both sides, and gradients."""
        outward = self.padded(network.n_rec) // self.lanes
        return self.units * (2 * self.inward(network) + outward) + 2 * (self.units + 1) * self.outputs(
            network
        )

    def inward(self, network: Network) -> int:
        return self.padded(network.n_rec + network.n_in) // self.lanes

    def outputs(self, network: Network) -> int:
        return _up(network.n_out, self.lanes) // self.lanes

    def slots(self, network: Network) -> int:
        """Floats of one state of an optimiser: every thread's weights."""
        return self.threads * (
            self.units * (self.inward(network) + self.outputs(network)) + 1 + self.outputs(network)
        )


def _shape(network: Network) -> _Shape:
    quick, slim = (_Shape(network.n_rec, lanes, units) for lanes, units in _SHAPES)
    return quick if quick.held(network) <= _HELD else slim


def _up(count: int, step: int) -> int:
    """To the next multiple of the step."""
    return -(-count // step) * step


def _launch(network: Network, mode: int, blocks: int, n_steps: int, arguments: list[Any]) -> None:
    _enter_context()
    kernel = _compiled(
        _shape(network),
        network.n_in,
        network.n_out,
        ACTIVATIONS.index(network.activation),
        network.leak < 1,
        network.loss,
        mode,
    )
    kernel(
        grid=(blocks, 1, 1),
        block=(_shape(network).threads, 1, 1),
        args=arguments,
        shared_mem=shared_bytes(network, n_steps),
    )


def _enter_context() -> None:
    """The driver's own calls need a context, which a thread of autograd's has only once PyTorch has run something in it."""
    if not hasattr(_entered, "done"):
        torch.zeros(1, device="cuda")
        _entered.done = True


@functools.lru_cache(maxsize=64)
def _compiled(
    shape: _Shape, inputs: int, outputs: int, activation: int, leaky: bool, loss: str, mode: int
) -> Any:
    """The kernel for one size, compiled once in a process."""
    chosen = {
        "LANES": shape.lanes,
        "UNITS": shape.units,
        "R": shape.n_rec,
        "NI": inputs,
        "NO": outputs,
        "ACT": activation,
        "LEAKY": int(leaky),
        "CROSS": int(loss == "cross_entropy"),
        "MODE": mode,
    }
    source = (
        "".join(f"#define {name} {value}\n" for name, value in chosen.items())
        + Path(__file__).with_name("kernel.cu").read_text()
    )
    kernel = torch.cuda._compile_kernel(source, "fused", nvcc_options=["--use_fast_math"])
    kernel.set_shared_memory_config(_shared_limit())
    return kernel


@functools.cache
def _compiler_refusal() -> str:
    """Whether the run-time compiler is there and knows this GPU, tried once with a small network."""
    try:
        _compiled(_Shape(8, 1, 1), 1, 1, 0, False, "mse", 1)
    except (RuntimeError, OSError, AttributeError) as error:
        return f"the run-time compiler did not work here: {' '.join(str(error).split())[:200]}"
    return ""


@functools.cache
def _shared_limit() -> int:
    return min(
        _SHARED_BYTES,
        int(getattr(torch.cuda.get_device_properties(0), "shared_memory_per_block_optin", _SHARED_BYTES)),
    )
