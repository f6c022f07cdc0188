"""Jobs that any framework can build: settings, initial weights and data, in NumPy alone.

Each job has one file with a frozen `Settings`; `start(settings, batch, rng)`, which draws the weights and
batches that every framework starts from; and `TRIALS`, small steps by which frameworks are compared. Nothing
here imports PyTorch, because the environment of another framework may lack it.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy

from windtunnel import bounds, records
from windtunnel.errors import BadRecord, UnknownName, nearest
from windtunnel.records import Plain

Array = numpy.ndarray[Any, Any]
KEPT_BYTES = 64 * 2**20
_MOST_BATCHES = 100
_HELD = "held"


class StepSettings(Protocol):
    """What every definition's settings have. Those of a job that clips its gradient have `clip_norm`, too."""

    __dataclass_fields__: ClassVar[Plain]

    @property
    def rate(self) -> float: ...
    @property
    def examples(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Weights and data from which every framework takes the same steps.

    `weights` are named in the order of use: matrices are (in, out), kernels (height, width, in, out).
    `inputs` and `targets` hold one batch after the other. `activation` is that of hidden layers, where there
    is a choice.
    """

    weights: Mapping[str, Array]
    inputs: Array
    targets: Array
    loss: Literal["squared error", "cross-entropy"]
    activation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A small step in which differences between frameworks show."""

    settings: Mapping[str, object]
    batch: int
    optimizer: Literal["sgd", "momentum", "adam"]
    data: Literal["resident", "streamed"] = "resident"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One job's file: its settings, how its weights and data are drawn, and its trials."""

    job: str
    settings: type[StepSettings]
    start: Callable[[Any, int, numpy.random.Generator], Start]
    trials: tuple[Trial, ...]

    @property
    def step_settings(self) -> tuple[str, ...]:
        """Settings that describe the step itself: a task or a study may set these and no others."""
        return tuple(f.name for f in _fields(self.settings) if _HELD not in f.metadata)

    @property
    def held_settings(self) -> Plain:
        """Values that a framework's step needs where they differ from the network's defaults."""
        held = {f: f.metadata[_HELD] for f in _fields(self.settings) if _HELD in f.metadata}
        return {f.name: value for f, value in held.items() if value != f.default}

    def read(self, settings: Mapping[str, object]) -> StepSettings:
        """The settings of a framework's step, read strictly."""
        for name in settings:
            if name not in self.step_settings:
                raise BadRecord(
                    f"job {self.job}: a step in a framework has no setting {name!r}.",
                    hint=nearest(name, self.step_settings),
                )
        chosen = records.read(self.settings, {**self.held_settings, **settings}, f"job {self.job}")
        bounds.check_settings(chosen, f"job {self.job}")
        return chosen


def held(default: Any, *, at: Any = None) -> Any:
    """A setting that a framework's step does not have: it belongs to lessons, to PyTorch, or to random draws.

    No task and no study may set it. A framework's step is the one with this setting at `at`, or else its
    default.
    """
    return field(default=default, metadata={_HELD: default if at is None else at})


def names() -> tuple[str, ...]:
    """Jobs that have a definition here."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "checks"))


def named(job: str) -> Definition:
    if job not in names():
        raise UnknownName(f"No framework builds a job {job!r}.", hint=nearest(job, names()))
    module = importlib.import_module(f"{__name__}.{job}")
    return Definition(job=job, settings=module.Settings, start=module.start, trials=module.TRIALS)


def count_batches(numbers: int) -> int:
    """How many batches of this many numbers are drawn: a hundred, or fewer where they would fill the
    memory."""
    return max(1, min(_MOST_BATCHES, KEPT_BYTES // (4 * numbers)))


def scaled(rng: numpy.random.Generator, rows: int, columns: int) -> Array:
    """A matrix drawn uniformly within one over the root of its rows."""
    bound = numpy.float32(rows**-0.5)
    return (rng.random((rows, columns), dtype=numpy.float32) * 2 - 1) * bound


def zeros(count: int) -> Array:
    return numpy.zeros(count, numpy.float32)


def _fields(settings: type[StepSettings]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast(Any, settings))
