"""What every framework starts from: the same weights, data, optimiser and clipping, drawn once with NumPy.

A framework's file has

- `JOBS`: the jobs that it builds, by name, each with its variants;
- `build(problem, task)`, which returns a `Built`;
- `environment(task)`: variables to set before its interpreter starts;
- perhaps `refusal(task)`: why it cannot run a task;
- perhaps `traced(task)`: the step of PyTorch by which a task is forecast.

It imports its framework inside these functions only, and no file of this package that needs more than NumPy,
because MXNet runs with a NumPy of 2022.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypedDict

import numpy

from windtunnel.machine.machine import torch_device
from windtunnel.measurement.frameworks.task import Task
from windtunnel.networks import definitions
from windtunnel.networks.definitions import Array as Array
from windtunnel.networks.definitions import StepSettings

MOMENTUM = 0.9
BETAS = (0.9, 0.999)
EPSILON = 1e-8
KEPT_BYTES = definitions.KEPT_BYTES
Tensor = Any  # an array in the framework's own form; most frameworks have no types
Tensors = dict[str, Tensor]
Step = Callable[[], Tensor]  # one step; its result is the loss
Batch = Any  # inputs and targets, or what stands for them
Device = Any  # a jax.Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A task in numbers. `weights`, `inputs` and `targets` are those of the job's `definitions.Start`.

    `clip_norm` is None where the job does not clip. An epoch has `epoch` batches, of which fewer may be kept.
    """

    job: str
    settings: StepSettings
    weights: Mapping[str, Array]
    inputs: Array
    targets: Array
    loss: Literal["squared error", "cross-entropy"]
    activation: str
    optimizer: str
    rate: float
    clip_norm: float | None
    epoch: int

    @property
    def has_classes(self) -> bool:
        """Whether targets are classes, and not numbers to come near to."""
        return self.loss == "cross-entropy"

    @property
    def batches(self) -> int:
        return len(self.inputs)

    @property
    def parameters(self) -> int:
        return sum(w.size for w in self.weights.values())

    def layers(self) -> list[tuple[str, str]]:
        """Names of matrix and bias of each layer, where the job is a stack of them."""
        names = list(self.weights)
        return list(zip(names[::2], names[1::2], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A job as a framework holds it, ready to step.

    `step()` launches the next step and returns its loss in the framework's own form; `sync()` waits until all
    work is done; `number` turns a loss into a float. A framework that is driven by the epoch does many steps
    in a call: `first()` is then a call of one step, and `settle()` chooses how many steps each later call of
    `step` does, and returns that number. `threads()` is the number of threads that the framework reports,
    None where it reports none. `built_seconds` is the time of compiling before the first call.
    """

    step: Step
    number: Callable[[Tensor], float]
    parameters: int
    dtype: str
    versions: Mapping[str, str]
    sync: Callable[[], None] = lambda: None
    threads: Callable[[], int | None] = lambda: None
    first: Step | None = None
    settle: Callable[[], int] | None = None
    compiles: bool = False
    built_seconds: float = 0.0
    peak: Callable[[], dict[str, float]] | None = None
    device_name: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Calls(TypedDict, total=False):
    """The fields of `Built` by which a job steps."""

    step: Step
    first: Step
    settle: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochShape:
    """The sizes by which a probe times epochs of a recurrent network; `ends` counts inputs and outputs."""

    n_rec: int
    ends: int
    timesteps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """The step of PyTorch by which a task is forecast: settings of the network, execution and CPU threads.

    `epoch` is set where the framework runs whole epochs in one call: its steps launch nothing from the host.
    """

    settings: Mapping[str, object]
    execution: Literal["eager", "compiled", "graph"] = "eager"
    threads: int | None = None
    epoch: EpochShape | None = None


def settings_of(task: Task) -> StepSettings:
    """The job's settings, read strictly."""
    return definitions.named(task.job).read(task.settings)


def problem_of(task: Task) -> Problem:
    """Weights and data of a task. They depend on job, settings, batch and seed alone."""
    settings = settings_of(task)
    start = definitions.named(task.job).start(settings, task.batch, numpy.random.default_rng(task.seed))
    return Problem(
        job=task.job,
        settings=settings,
        weights=start.weights,
        inputs=start.inputs,
        targets=start.targets,
        loss=start.loss,
        activation=start.activation,
        optimizer=task.optimizer,
        rate=settings.rate,
        clip_norm=getattr(settings, "clip_norm", None),
        epoch=max(1, settings.examples // task.batch),
    )


class Feed:
    """The batches in turn, again and again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches, self.next = batches, 0

    def __call__(self) -> Batch:
        batch = self.batches[self.next]
        self.next = (self.next + 1) % len(self.batches)
        return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A captured step. `keeps` holds the tensors that the graph uses: a CUDA graph knows addresses only.

    PyTorch reuses the memory of a tensor that nobody holds, and gives it back to the driver at the next
    capture. Then a replay writes into other data, or fails with an illegal memory access.
    """

    graph: Any  # a torch.cuda.CUDAGraph
    keeps: object
    result: Tensor = None

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.result


def library(name: str) -> ModuleType:
    """A framework's module. Most have no types, and each is imported only when it is needed."""
    return importlib.import_module(name)


def platform(device: str) -> str:
    """A device's name in frameworks, which is PyTorch's."""
    return torch_device(device)


def torch_peak(torch: ModuleType) -> dict[str, float]:
    """Peak memory on a GPU, as PyTorch's allocator counts it."""
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def jax_peak(device: Device) -> dict[str, float]:
    """Peak memory of a device, as XLA's allocator counts it."""
    return {"peak_bytes": float((device.memory_stats() or {}).get("peak_bytes_in_use", 0))}
