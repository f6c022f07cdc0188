"""The persistent kernel on a GPU: one thread block holds a whole network, so that no timestep needs a launch.

`kernel.cu` is compiled at run time for each size by NVRTC, which comes with PyTorch. `train_many` gives every
network its own multiprocessor. `forward` and `backward`, for autograd, give one to every example of a batch.
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
from windtunnel.fused.constraints import effective_weight, raw_gradient
from windtunnel.fused.settings import (
    ACTIVATIONS,
    WEIGHT_NAMES,
    Array,
    Examples,
    Optimizer,
    RecurrentNetwork,
    Weights,
    weight_shapes,
)
from windtunnel.fused.train import Diverged, TrainedNetwork, TrainingRun, diverged

MAX_UNITS = 128  # more do not fit in the registers of a block
HOPPER_SHARED_BYTES = 227 * 1024  # shared memory that a block can use from Hopper on; less before
# Threads of a group and hidden units that it holds: the fastest, and the one that needs fewest registers
# (benchmarks/shapes.py).
_FAST_LAYOUT, _SMALL_LAYOUT = (2, 1), (8, 4)
_MAX_HELD_FLOATS = 190  # weights and gradients per thread that leave enough registers for the computation
_SPARE_BYTES = 1024
_TRAIN, _FORWARD, _BACKWARD = 0, 1, 2  # MODE of kernel.cu
_context = threading.local()


def refusal(network: RecurrentNetwork, n_steps: int) -> str:
    """Why the kernel cannot run this network here, or an empty string."""
    if not torch.cuda.is_available():
        return "there is no CUDA device here"
    if network.n_rec > MAX_UNITS:
        return f"{network.n_rec} units are more than the {MAX_UNITS} that fit in the registers of one block"
    if network.n_in > MAX_UNITS or network.n_out > MAX_UNITS:
        sizes = f"{network.n_in} inputs or {network.n_out} outputs"
        return f"{sizes} are more than the {MAX_UNITS} that one block can hold"
    needed, limit = shared_bytes(network, n_steps), _shared_limit()
    if needed > limit:
        sizes = f"{n_steps} timesteps of {network.n_rec} units"
        return f"{sizes} need {needed:,} bytes of shared memory; a block has {limit:,}"
    return _compiler_refusal()


def available(network: RecurrentNetwork, inputs: Tensor) -> bool:
    """Whether autograd can use the kernel for inputs of shape (time, batch, n_in)."""
    return not refusal(network, inputs.shape[0])


def shared_bytes(network: RecurrentNetwork, n_steps: int) -> int:
    """Shared memory of a block of the training kernel; kernel.cu defines the layout."""
    r, i, o, layout = network.n_rec, network.n_in, network.n_out, thread_layout(network)
    padded, row = layout.padded(r), layout.padded(r + i)
    floats = (
        (n_steps + 1) * row
        + r * (padded + 4)
        + o * padded
        + 2 * max(padded, layout.rows)
        + n_steps * (3 * o + 2 * i)
        + layout.threads // 16
        + o
        + 8
    )
    if network.leak < 1:
        floats += n_steps * layout.rows
    return 4 * floats + _SPARE_BYTES


def train_many(runs: Sequence[TrainingRun]) -> list[TrainedNetwork | Diverged]:
    """Trains networks of one size in parallel, one multiprocessor each, with one launch per epoch."""
    _require_alike(runs)
    trainer = BlockTrainer(runs)
    epochs = [trainer.run_epoch() for _ in range(runs[0].epochs)]
    losses, weights = torch.cat(epochs, dim=1).cpu().numpy(), trainer.weights()
    return [_result(losses[i], weights[i], trainer.updates_per_epoch) for i in range(len(runs))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedForward:
    """What `backward` needs of `forward`."""

    flat_weights: Tensor
    inputs: Tensor
    states: Tensor
    rates: Tensor
    weights: Mapping[str, Tensor]


def forward(
    network: RecurrentNetwork, weights: Mapping[str, Tensor], inputs: Tensor, noise: Tensor | None
) -> tuple[Tensor, SavedForward]:
    """Outputs (time, batch, n_out), and what backward needs."""
    n_steps, batch = inputs.shape[:2]
    effective = {name: effective_weight(network, name, weights[name]) for name in WEIGHT_NAMES}
    flat = flatten_weights(effective, leak=network.leak)
    inputs = inputs.contiguous()
    outputs = inputs.new_empty(n_steps, batch, network.n_out)
    states = inputs.new_empty(batch, n_steps, network.n_rec)
    rates = inputs.new_empty(batch, n_steps, thread_layout(network).rows) if network.leak < 1 else states
    unused = states  # the kernel does not read these arguments in this mode
    drive_noise = unused if noise is None else noise.transpose(0, 1).contiguous()
    tensors = [flat, inputs, drive_noise, outputs, states, rates, unused, unused, unused]
    _launch(network, _FORWARD, batch, n_steps, [*tensors, n_steps, batch, int(noise is not None)])
    saved = SavedForward(flat_weights=flat, inputs=inputs, states=states, rates=rates, weights=dict(weights))
    return outputs, saved


def backward(
    network: RecurrentNetwork, saved: SavedForward, output_gradients: Tensor, *, to_inputs: bool
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Gradients of the inputs, on demand, and of the raw weights."""
    n_steps, batch = saved.inputs.shape[:2]
    by_example = output_gradients.new_empty(batch, saved.flat_weights.numel() - 1)
    drives = output_gradients.new_empty(batch, n_steps, network.n_rec)
    unused_noise, unused_outputs = saved.states, output_gradients
    tensors = [saved.flat_weights, saved.inputs, unused_noise, unused_outputs, saved.states, saved.rates]
    tensors += [output_gradients, by_example, drives]
    _launch(network, _BACKWARD, batch, n_steps, [*tensors, n_steps, batch, 0])
    gradients = unflatten_weights(by_example[0] if batch == 1 else by_example.sum(0), network)
    weights, input_gradients = saved.weights, None
    if to_inputs:
        input_gradients = (drives @ effective_weight(network, "w_in", weights["w_in"]).T).transpose(0, 1)
    return input_gradients, {
        name: raw_gradient(network, name, weights[name], gradients[name]) for name in WEIGHT_NAMES
    }


class BlockTrainer:
    """Networks of one size on the GPU, one thread block each, with their data and optimiser states."""

    def __init__(self, runs: Sequence[TrainingRun]) -> None:
        self.runs, first = runs, runs[0]
        self.network, self.batch = first.network, first.batch
        examples = [run.examples.checked(run.network) for run in runs]
        self.share_data = all(run.examples is first.examples for run in runs)
        stored = examples[:1] if self.share_data else examples
        self.count, self.n_steps = stored[0].inputs.shape[:2]
        self.updates_per_epoch = self.count // self.batch
        self.inputs = _on_gpu([e.inputs for e in stored])
        self.targets = _on_gpu([e.targets for e in stored])
        self.masks = [_full_mask(e) for e in examples]
        present = [m for m in self.masks[: len(stored)] if m is not None]
        self.mask = _on_gpu(present) if present else self.inputs  # the kernel does not read an absent mask
        start = [run.initial_weights().checked(run.network).as_dict() for run in runs]
        self.flat_weights = torch.stack(
            [flatten_weights({n: torch.as_tensor(v) for n, v in w.items()}) for w in start]
        ).cuda()
        moments = thread_layout(self.network).moment_floats(self.network)
        self.moments = torch.zeros(len(runs), 2, moments, device="cuda")
        self.hyperparameters = torch.tensor(
            [_hyperparameters(run.optimizer or Optimizer(), run.network) for run in runs], device="cuda"
        )
        self.generators = [np.random.Generator(np.random.SFC64(run.seed or 0)) for run in runs]
        self.updates_done = 0

    def run_epoch(self) -> Tensor:
        """The losses of all updates of one epoch, by network."""
        orders = [
            self._draw_order(run, generator)
            for run, generator in zip(self.runs, self.generators, strict=True)
        ]
        return self.run(*self.upload(orders))

    def upload(self, orders: Sequence[Array]) -> tuple[Tensor, Tensor]:
        """The examples of every update of every network, and the scale of each update's loss, on the GPU."""
        scales = np.stack(
            [self._loss_scales(order, mask) for order, mask in zip(orders, self.masks, strict=True)]
        )
        return torch.as_tensor(np.stack(orders).astype(np.int32)).cuda(), torch.as_tensor(scales).cuda()

    def run(self, order: Tensor, loss_scales: Tensor) -> Tensor:
        """One launch over an uploaded order; returns the losses by network and update."""
        updates = order.shape[1]
        losses = torch.empty(len(self.runs), updates, device="cuda")
        tensors = [
            self.flat_weights,
            self.moments,
            self.hyperparameters,
            self.inputs,
            self.targets,
            self.mask,
        ]
        tensors += [order, loss_scales, losses]
        sizes = [self.n_steps, updates, self.batch, self.updates_done, self.count]
        flags = [int(self.masks[0] is not None), int(self.share_data)]
        _launch(self.network, _TRAIN, len(self.runs), self.n_steps, [*tensors, *sizes, *flags])
        self.updates_done += updates
        return losses

    def weights(self) -> list[Weights]:
        return [
            Weights(
                **{name: value.numpy().copy() for name, value in unflatten_weights(row, self.network).items()}
            )
            for row in self.flat_weights.cpu()
        ]

    def _draw_order(self, run: TrainingRun, generator: np.random.Generator) -> Array:
        order = generator.permutation(self.count) if run.seed is not None else np.arange(self.count)
        updates = self.updates_per_epoch
        return np.asarray(order[: updates * self.batch].reshape(updates, self.batch))

    def _loss_scales(self, order: Array, mask: Array | None) -> Array:
        """One over the number of errors in the mean of each update."""
        per_step = 1 if self.network.loss == "cross_entropy" else self.network.n_out
        steps = np.full(len(order), float(self.batch * self.n_steps))
        if mask is not None:
            steps = mask[order].sum((1, 2))
        return np.asarray(1.0 / (steps * per_step), np.float32)


def _require_alike(runs: Sequence[TrainingRun]) -> None:
    first = runs[0]
    for run in runs:
        n, inputs = run.network, run.examples.inputs
        if n.constrained or n.input_noise or n.recurrent_noise:
            raise Unavailable(
                "The training kernel has no masks, signs or noise.",
                hint="FusedRNN has them on the GPU under PyTorch's optimisers; train_many has them on a CPU.",
            )
        if (run.epochs, run.batch, _sizes(n)) != (first.epochs, first.batch, _sizes(first.network)):
            raise Unavailable(
                "Networks trained in one launch must have one size, the same epochs and the same batch.",
                hint="Train them in groups.",
            )
        same_mask = (run.examples.mask is None) == (first.examples.mask is None)
        if not same_mask or inputs.shape != first.examples.inputs.shape:
            raise Unavailable(
                "Networks trained in one launch need the same number of examples, all of one length, "
                "either all with a mask or all without.",
                hint="Train them in groups.",
            )
    reason = refusal(first.network, first.examples.inputs.shape[1])
    if reason:
        raise Unavailable(
            f"The persistent kernel cannot hold this network: {reason}.",
            hint="Use FusedRNN, which then runs on PyTorch's own ops, or a CPU.",
        )


def _sizes(network: RecurrentNetwork) -> tuple[int | bool | str, ...]:
    return network.n_in, network.n_rec, network.n_out, network.activation, network.leak < 1, network.loss


def _result(losses: Array, weights: Weights, updates: int) -> TrainedNetwork | Diverged:
    wrong = np.flatnonzero(~np.isfinite(losses))
    if not len(wrong):
        return TrainedNetwork(losses=losses, weights=weights, updates_per_epoch=updates)
    return diverged(losses[: wrong[0] + 1], weights, updates, int(wrong[0]) // updates)


def _on_gpu(arrays: Sequence[Array]) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(np.stack(arrays), np.float32)).cuda()


def _full_mask(examples: Examples) -> Array | None:
    if examples.mask is None:
        return None
    return np.ascontiguousarray(np.broadcast_to(examples.mask, examples.inputs.shape[:2]))


def _hyperparameters(o: Optimizer, network: RecurrentNetwork) -> list[float]:
    """In the order in which the kernel reads them."""
    clip = math.inf if o.clip_norm is None else o.clip_norm
    return [o.rate, o.momentum, o.beta1, o.beta2, o.eps, clip, network.leak, float(o.name == "adam")]


def flatten_weights(weights: Mapping[str, Tensor], leak: float | None = None) -> Tensor:
    """All weights in one row, in the order of WEIGHT_NAMES, then the leak (for forward and backward)."""
    flat = [weights[name].detach().reshape(-1).float() for name in WEIGHT_NAMES]
    return torch.cat(flat if leak is None else [*flat, flat[0].new_full((1,), leak)])


def unflatten_weights(row: Tensor, network: RecurrentNetwork) -> dict[str, Tensor]:
    shapes = weight_shapes(network)
    sizes = [math.prod(shapes[name]) for name in WEIGHT_NAMES]
    return {
        name: piece.reshape(shapes[name])
        for name, piece in zip(WEIGHT_NAMES, torch.split(row[: sum(sizes)], sizes), strict=True)
    }


@dataclass(frozen=True, slots=True)
class ThreadLayout:
    """How a block divides a network among its threads: each group of `lanes` threads holds `units` units.

    The arithmetic repeats that of kernel.cu.
    """

    n_rec: int
    lanes: int
    units: int

    @property
    def groups(self) -> int:
        return _round_up(_round_up(self.n_rec, self.units) // self.units, 32 // self.lanes)

    @property
    def threads(self) -> int:
        return self.groups * self.lanes

    @property
    def rows(self) -> int:
        return self.groups * self.units

    def padded(self, floats: int) -> int:
        return _round_up(floats, self.lanes * (2 if self.lanes == 8 else 4))

    def held_floats(self, network: RecurrentNetwork) -> int:
        """Floats in the registers of one thread: incoming and outgoing weights, and their gradients."""
        outgoing = self.padded(network.n_rec) // self.lanes
        readout = 2 * (self.units + 1) * self.outputs_per_lane(network)
        return self.units * (2 * self.inputs_per_lane(network) + outgoing) + readout

    def inputs_per_lane(self, network: RecurrentNetwork) -> int:
        return self.padded(network.n_rec + network.n_in) // self.lanes

    def outputs_per_lane(self, network: RecurrentNetwork) -> int:
        return _round_up(network.n_out, self.lanes) // self.lanes

    def moment_floats(self, network: RecurrentNetwork) -> int:
        """Floats of one moment of an optimiser: one for every weight that a thread holds."""
        outputs = self.outputs_per_lane(network)
        return self.threads * (self.units * (self.inputs_per_lane(network) + outputs) + 1 + outputs)


def thread_layout(network: RecurrentNetwork) -> ThreadLayout:
    """The fastest layout whose weights fit in the registers."""
    fast = ThreadLayout(network.n_rec, *_FAST_LAYOUT)
    if fast.held_floats(network) <= _MAX_HELD_FLOATS:
        return fast
    return ThreadLayout(network.n_rec, *_SMALL_LAYOUT)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelMacros:
    """The macros for which kernel.cu is compiled."""

    layout: ThreadLayout
    n_in: int
    n_out: int
    activation: int
    leaky: bool
    cross_entropy: bool
    mode: int

    def defines(self) -> str:
        values = {
            "LANES": self.layout.lanes,
            "UNITS": self.layout.units,
            "R": self.layout.n_rec,
            "NI": self.n_in,
            "NO": self.n_out,
            "ACT": self.activation,
            "LEAKY": int(self.leaky),
            "CROSS": int(self.cross_entropy),
            "MODE": self.mode,
        }
        return "".join(f"#define {name} {value}\n" for name, value in values.items())


def _launch(
    network: RecurrentNetwork, mode: int, blocks: int, n_steps: int, arguments: Sequence[Tensor | int]
) -> None:
    _enter_context()
    layout = thread_layout(network)
    macros = _KernelMacros(
        layout=layout,
        n_in=network.n_in,
        n_out=network.n_out,
        activation=ACTIVATIONS.index(network.activation),
        leaky=network.leak < 1,
        cross_entropy=network.loss == "cross_entropy",
        mode=mode,
    )
    _compile(macros)(
        grid=(blocks, 1, 1),
        block=(layout.threads, 1, 1),
        args=list(arguments),
        shared_mem=shared_bytes(network, n_steps),
    )


def _enter_context() -> None:
    """Creates a CUDA context in this thread.

    The driver API needs one; a thread of autograd has one only after PyTorch has run an op in it.
    """
    if not hasattr(_context, "entered"):
        torch.zeros(1, device="cuda")
        _context.entered = True


@functools.lru_cache(maxsize=64)
def _compile(macros: _KernelMacros) -> Any:
    """The kernel for one size, compiled once per process."""
    source = macros.defines() + Path(__file__).with_name("kernel.cu").read_text()
    kernel = torch.cuda._compile_kernel(source, "fused", nvcc_options=["--use_fast_math"])
    kernel.set_shared_memory_config(_shared_limit())
    return kernel


@functools.cache
def _compiler_refusal() -> str:
    """Why NVRTC cannot compile for this GPU, tried once with a small network, or an empty string."""
    layout = ThreadLayout(8, 1, 1)
    try:
        _compile(
            _KernelMacros(
                layout=layout, n_in=1, n_out=1, activation=0, leaky=False, cross_entropy=False, mode=_FORWARD
            )
        )
    except (RuntimeError, OSError, AttributeError) as error:
        return f"the run-time compiler did not work here: {' '.join(str(error).split())[:200]}"
    return ""


@functools.cache
def _shared_limit() -> int:
    properties = torch.cuda.get_device_properties(0)
    limit = getattr(properties, "shared_memory_per_block_optin", HOPPER_SHARED_BYTES)
    return min(HOPPER_SHARED_BYTES, int(limit))
