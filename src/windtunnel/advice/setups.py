"""A job, a machine and a strategy together, and changes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from windtunnel.errors import BadInput
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a job is run. `on` is the machine as --on names it (empty: nothing names it), `storage` the storage
    as --storage names it (empty: the machine's own)."""

    workload: Workload
    machine: Machine
    strategy: Strategy
    on: str
    storage: str = ""

    @property
    def batch(self) -> int:
        """Examples in one step: without a batch of the strategy, each worker has the job's own."""
        if self.strategy.batch is not None:
            return self.strategy.batch
        degree = self.strategy.data_parallel
        workers = self.machine.devices * self.machine.nodes // self.strategy.model_parallel
        return self.workload.default_batch * max(1, degree or workers)

    @property
    def per_device(self) -> int:
        """Examples in one step of one device."""
        degree = self.strategy.data_parallel
        workers = degree or self.machine.devices * self.machine.nodes // self.strategy.model_parallel
        return max(1, self.batch // max(1, workers))

    @property
    def job_words(self) -> tuple[str, ...]:
        """The words that name the job on a command line; none for a job that was made in Python."""
        origin = self.workload.origin
        if origin is None:
            return ()
        return origin.job, *(f"{name}={value}" for name, value in origin.settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The changes of a proposal.

    strategy  new values of fields of the strategy
    machine   makes the new machine from the old one
    on        the name of the new machine; `storage`: of its new storage
    settings  new settings of the job
    """

    strategy: Mapping[str, object] = field(default_factory=dict)
    machine: Callable[[Machine], Machine] | None = None
    on: str = ""
    storage: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def changed_names(self) -> frozenset[str]:
        """The names of what is changed. A later change of the same names replaces this one."""
        machine = {"storage"} if self.storage else {"machine"} if self.machine else set()
        return frozenset({*self.strategy, *machine, *(f"setting {name}" for name in self.settings)})

    def applied_to(self, setup: Setup) -> Setup:
        """The setup with this change. Raises an error if the change is impossible. Storage that an option
        names is kept."""
        machine = self.machine(setup.machine) if self.machine else setup.machine
        if self.on and setup.storage:
            machine = dataclasses.replace(machine, storage=setup.machine.storage)
        is_named = self.machine is None or self.storage
        return Setup(
            workload=with_settings(setup.workload, self.settings) if self.settings else setup.workload,
            machine=machine,
            strategy=dataclasses.replace(setup.strategy, **self.strategy),  # type: ignore[arg-type]
            on=self.on or (setup.on if is_named else ""),
            storage=self.storage or setup.storage,
        )


def with_settings(workload: Workload, settings: Mapping[str, object]) -> Workload:
    """The job with other settings and the same stored data."""
    if workload.origin is None:
        raise BadInput(f"{workload.name} was made in Python: its settings cannot be changed.")
    changed = Workload.named(workload.origin.job, **{**workload.origin.settings, **settings})
    return dataclasses.replace(changed, data=workload.data)
