"""The order that a child process carries out: measure a job with its strategy, or tasks of a framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel import records
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.records import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """A job that PyTorch runs with a strategy. `job` is empty for a forked child, which has the job already.

    With `timeline` the child also sends the events of one profiled step. With `folder` its batches come from
    the files there.
    """

    strategy: Mapping[str, object]
    device: str
    threads: int
    job: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    timeline: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """Tasks for one framework, one after another: `module` builds them, `imports` are loaded before.

    With `loss_steps` above 0 nothing is timed: the child sends the losses of the first `loss_steps` steps of
    each task.
    """

    tasks: tuple[Task, ...]
    module: str
    imports: tuple[str, ...] = ()
    loss_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOrder:
    """An order for a job or for tasks, the protocol, and the file that a child locks while it times.

    With `locks_first` a child takes the lock before it builds and keeps it until it ends, so that two jobs
    are never in the device's memory at once. A child that `takes_turns` samples only when it reads a line on
    its standard input, until that ends.
    """

    protocol: Protocol
    job: JobOrder | None = None
    tasks: TaskOrder | None = None
    lock: str = ""
    locks_first: bool = False
    takes_turns: bool = False

    @property
    def timeout_seconds(self) -> float:
        return self.protocol.timeout_seconds

    def plain(self) -> Plain:
        data: Plain = records.plain(self)
        return data

    @classmethod
    def read(cls, data: Plain) -> ChildOrder:
        return records.read(cls, data, "order")
