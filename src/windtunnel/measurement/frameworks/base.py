"""The jobs in numbers that every framework starts from: the same weights, data, optimiser and clipping, drawn once with NumPy.

A framework's file has `build(problem, task)`, which gives a `Built`; `environment(task)`, what must be set before its interpreter
starts; and `refusal(task)`, why it cannot do a task, where its catalogue entry does not say so already. It imports its framework
inside these functions only, and nothing of ours that needs more than NumPy: MXNet lives with a NumPy of 2022.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy

from windtunnel import records
from windtunnel.errors import BadRecord, UnknownName, nearest
from windtunnel.measurement.frameworks.task import Task

Array = numpy.ndarray[Any, Any]
MOMENTUM = 0.9
BETAS = (0.9, 0.999)
EPSILON = 1e-8
_MOST_BATCHES = 100
KEPT_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RnnSettings:
    """The recurrent network of Brandfonbrener 2017; `examples` is what an epoch has, and changes nothing in a step."""

    n_in: int = 2
    n_rec: int = 50
    n_out: int = 2
    n_steps: int = 20
    activation: Literal["relu", "sigmoid"] = "relu"
    rate: float = 0.001
    clip_norm: float = 1.0
    examples: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fcn5Settings:
    """The fully connected network of Shi et al. 2016."""

    layers: tuple[int, ...] = (26752, 2048, 2048, 2048, 26752)
    rate: float = 0.01
    examples: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnSettings:
    """One hidden layer, twice as wide as the inputs where it is not said."""

    inputs: int = 64
    hidden: int | None = None
    classes: int = 10
    rate: float = 0.003
    examples: int = 1442


Settings = RnnSettings | Fcn5Settings | FfnSettings
_SETTINGS: dict[str, type[Settings]] = {"rnn": RnnSettings, "fcn5": Fcn5Settings, "ffn": FfnSettings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`weights` by name in the order in which they are used: matrices as (in, out), then their bias. `inputs` and `targets` have one
    batch after the other: (batches, timesteps, batch, width) for the recurrent job, else (batches, batch, width) with classes as
    targets. `clip_norm` is None where the job does not clip. An epoch has `epoch` batches, of which fewer may be kept."""

    job: str
    activation: str
    weights: Mapping[str, Array]
    inputs: Array
    targets: Array
    optimizer: str
    rate: float
    clip_norm: float | None
    epoch: int

    @property
    def is_recurrent(self) -> bool:
        return self.job == "rnn"

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

    `step()` issues the next step and gives its loss in the framework's own form; `sync()` waits until all is done; `number` makes
    a float of a loss. A framework that is driven by the epoch does many steps a call: `first()` is then a call of one step, and
    `settle()` chooses how many steps a call of `step` does from then on, and says it. `threads()` is what the framework
    says it computes with, None where it cannot be asked. `built_seconds` is what compiling took before the first call.
    """

    step: Callable[[], Any]
    number: Callable[[Any], float]
    parameters: int
    dtype: str
    versions: Mapping[str, str]
    sync: Callable[[], None] = lambda: None
    threads: Callable[[], int | None] = lambda: None
    first: Callable[[], Any] | None = None
    settle: Callable[[], int] | None = None
    compiles: bool = False
    built_seconds: float = 0.0
    peak: Callable[[], dict[str, float]] | None = None
    device_name: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def settings_of(task: Task) -> Settings:
    """The job's settings, read strictly."""
    if task.job not in _SETTINGS:
        raise UnknownName(f"No framework builds a job {task.job!r}.", hint=nearest(task.job, _SETTINGS))
    settings = records.read(_SETTINGS[task.job], task.settings, f"job {task.job}")
    for name in ("n_in", "n_rec", "n_out", "n_steps", "inputs", "classes", "rate", "clip_norm"):
        if not getattr(settings, name, 1) > 0:
            raise BadRecord(f"job {task.job}: {name} must be above 0, not {getattr(settings, name)}.")
    if isinstance(settings, Fcn5Settings) and (len(settings.layers) < 2 or min(settings.layers) < 1):
        raise BadRecord(f"job fcn5: layers must be at least two widths above 0, not {settings.layers}.")
    return settings


def problem_of(task: Task) -> Problem:
    """Weights and data of a task. Nothing but job, settings, batch and seed has a say in them."""
    settings = settings_of(task)
    rng = numpy.random.default_rng(task.seed)
    if isinstance(settings, RnnSettings):
        return _recurrent(settings, task, rng)
    if isinstance(settings, Fcn5Settings):
        return _stack(settings.layers, "sigmoid", settings, task, rng)
    widths = (
        settings.inputs,
        2 * settings.inputs if settings.hidden is None else settings.hidden,
        settings.classes,
    )
    return _stack(widths, "relu", settings, task, rng)


def _recurrent(settings: RnnSettings, task: Task, rng: numpy.random.Generator) -> Problem:
    weights = {
        "w_in": _scaled(rng, settings.n_in, settings.n_rec),
        "w_rec": _scaled(rng, settings.n_rec, settings.n_rec),
        "b_rec": numpy.zeros(settings.n_rec, numpy.float32),
        "w_out": _scaled(rng, settings.n_rec, settings.n_out),
        "b_out": numpy.zeros(settings.n_out, numpy.float32),
    }
    count = _batches(settings.n_steps * task.batch * (settings.n_in + settings.n_out))
    inputs = _noise(rng, count, settings.n_steps, task.batch, settings.n_in)
    targets = _noise(rng, count, settings.n_steps, task.batch, settings.n_out)
    return Problem(
        job=task.job,
        activation=settings.activation,
        weights=weights,
        inputs=inputs,
        targets=targets,
        optimizer=task.optimizer,
        rate=settings.rate,
        clip_norm=settings.clip_norm,
        epoch=max(1, settings.examples // task.batch),
    )


def _stack(
    widths: tuple[int, ...],
    activation: str,
    settings: Fcn5Settings | FfnSettings,
    task: Task,
    rng: numpy.random.Generator,
) -> Problem:
    weights: dict[str, Array] = {}
    for i, (wide, narrow) in enumerate(itertools.pairwise(widths)):
        weights[f"w{i}"] = _scaled(rng, wide, narrow)
        weights[f"b{i}"] = numpy.zeros(narrow, numpy.float32)
    count = _batches(task.batch * widths[0])
    inputs = rng.random((count, task.batch, widths[0]), dtype=numpy.float32)
    targets = rng.integers(0, widths[-1], (count, task.batch))
    return Problem(
        job=task.job,
        activation=activation,
        weights=weights,
        inputs=inputs,
        targets=targets,
        optimizer=task.optimizer,
        rate=settings.rate,
        clip_norm=None,
        epoch=max(1, settings.examples // task.batch),
    )


def _batches(numbers: int) -> int:
    """How many batches are kept: a hundred, and fewer where they would fill the memory."""
    return max(1, min(_MOST_BATCHES, KEPT_BYTES // (4 * numbers)))


def _scaled(rng: numpy.random.Generator, rows: int, columns: int) -> Array:
    bound = numpy.float32(rows**-0.5)
    return (rng.random((rows, columns), dtype=numpy.float32) * 2 - 1) * bound


def _noise(rng: numpy.random.Generator, *shape: int) -> Array:
    return rng.random(shape, dtype=numpy.float32) * 10 - 5


class Feed:
    """The batches in turn, again and again."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.next = batches, 0

    def __call__(self) -> Any:
        batch = self.batches[self.next]
        self.next = (self.next + 1) % len(self.batches)
        return batch


def library(name: str) -> Any:
    """A framework's module. Most have no types, and none may be imported before it is asked for."""
    return importlib.import_module(name)
