"""The two sides of a comparison: changes to a job or its strategy, frameworks, or two whole jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windtunnel import records, units
from windtunnel.errors import BadInput, BadRecord, Unavailable, UnknownName, nearest
from windtunnel.job import libraries
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.measurement import children, environment, frameworks
from windtunnel.measurement.children import RunningChild
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.measure import MeasuredJob
from windtunnel.measurement.processes import MeasurementPlan
from windtunnel.measurement.steady import Protocol
from windtunnel.results import in_words
from windtunnel.strategy import Strategy

DEFAULT = "default"
_OF_STRATEGY = tuple(each.name for each in dataclasses.fields(Strategy))
_OF_SIDE = ("framework", "variant", "compile", "on")  # changes that are neither strategy nor setting
SideWords = str | Strategy | Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: what is run, for the store and in words, and how its child is started.

    `kind` is "job" where PyTorch runs a job with a strategy, "task" where a framework runs its own variant.
    """

    name: str
    job: str
    words: str
    batch: int
    kind: str
    plan: MeasurementPlan
    start: Callable[[int], RunningChild]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonBase:
    """The common base of both sides: a job (None if each side names one), a strategy and a machine."""

    workload: Workload | None
    strategy: Strategy
    machine: Machine
    protocol: Protocol
    framework: str = ""
    variant: str = ""

    def side(self, chosen: SideWords) -> Side:
        """The side given by words, a strategy or a job. Raises an error if it cannot run here."""
        if isinstance(chosen, Strategy):
            return dataclasses.replace(self, strategy=chosen)._side(_difference(chosen, self.strategy))
        if isinstance(chosen, Workload):
            return dataclasses.replace(self, workload=chosen)._side(chosen.name)
        return self.changed(chosen)._side(chosen)

    def changed(self, word: str) -> ComparisonBase:
        """This base with the changes that one word of a command line names."""
        if word == DEFAULT:
            return self
        if is_job(word):
            return dataclasses.replace(self, workload=Workload.named(word))
        name, colon, variant = word.partition(":")
        if name in frameworks.names() and "=" not in word:
            return dataclasses.replace(self, framework=name, variant=variant if colon else "")
        if "=" not in word:
            raise UnknownName(
                f"{word!r} is neither a change, a framework nor a job.",
                hint="Write a change as key=value (threads=2), a framework as jax or jax:scan, a job as "
                f"path/to/file.py:function, or {DEFAULT} for the job as it is.",
            )
        return self._with_changes(records.parse_settings(filter(None, word.split(","))))

    def _with_changes(self, changes: Mapping[str, str]) -> ComparisonBase:
        strategy = {name: value for name, value in changes.items() if name in _OF_STRATEGY}
        settings = {
            name: value
            for name, value in changes.items()
            if name not in _OF_STRATEGY and name not in _OF_SIDE
        }
        if "compile" in changes:
            compiles = records.convert(changes["compile"], bool, "compile")
            strategy["execution"] = "compiled" if compiles else "eager"
        framework, _, variant = changes.get("framework", self.framework).partition(":")
        if framework:
            frameworks.named(framework)
        return dataclasses.replace(
            self,
            strategy=Strategy.read({**records.plain(self.strategy), **strategy}),
            workload=_with_settings(self.workload, settings) if settings else self.workload,
            machine=Machine.find(changes["on"]) if "on" in changes else self.machine,
            framework=framework,
            variant=changes.get("variant", variant or (self.variant if framework == self.framework else "")),
        )

    def _side(self, name: str) -> Side:
        if self.workload is None:
            raise BadInput(
                f"{name!r} changes a job, and no job is given.",
                hint=f"Write: windtunnel compare JOB {DEFAULT} {name}",
            )
        if self.framework:
            return self._task_side(name, self.workload)
        measured = MeasuredJob(self.workload, self.machine, self.strategy, self.protocol)
        words = f"{self.workload.name}, batch {measured.batch}, {in_words(measured.choices())}"
        return Side(
            name=name,
            job=self.workload.name,
            words=words,
            batch=measured.batch,
            kind="job",
            plan=measured.plan(),
            start=measured.start,
        )

    def _task_side(self, name: str, workload: Workload) -> Side:
        task = self._task(workload)
        reason = frameworks.refusal(task)
        if reason:
            raise Unavailable(f"{name}: {task.label} cannot run this: {reason}.")
        launch, order = frameworks.prepare([task], self.protocol)
        order = dataclasses.replace(order, takes_turns=True)
        return Side(
            name=name,
            job=task.job,
            words=f"{task.job} by {task.label}, batch {task.batch}, threads {task.threads}",
            batch=task.batch,
            kind="task",
            plan=MeasurementPlan(
                task=records.plain(task),
                facts=environment.describe(),
                protocol=self.protocol,
                child=lambda number, timeline, on_message: children.spawn(launch, order, on_message),
            ),
            start=lambda number: children.start(launch, order),
        )

    def _task(self, workload: Workload) -> Task:
        origin, strategy = workload.origin, self.strategy
        if origin is None or origin.job not in frameworks.jobs():
            raise BadInput(
                f"Frameworks build {', '.join(frameworks.jobs())}; {workload.name} is PyTorch's alone.",
                hint="Compare strategies instead, for example threads=1 against threads=2.",
            )
        optimizer = strategy.optimizer or "sgd"
        if optimizer not in ("sgd", "momentum", "adam"):
            raise BadInput(f"Frameworks have no optimiser {optimizer!r}.", hint="Use sgd, momentum or adam.")
        variants = frameworks.named(self.framework).variants.get(origin.job, ())
        return Task(
            framework=self.framework,
            variant=self.variant or next(iter(variants), ""),
            job=origin.job,
            settings={
                key: units.literal(value) if isinstance(value, str) else value
                for key, value in origin.settings.items()
            },
            batch=strategy.batch or workload.default_batch,
            device="cpu" if self.machine.device.kind == "cpu" else "gpu",
            threads=strategy.threads or self.machine.host.cores or 1,
            data=strategy.in_memory(),
            optimizer=optimizer,
        )


def is_job(word: str) -> bool:
    """Whether a word names a whole job: a file, a library's network, or one of the catalogue."""
    from windtunnel import networks

    name = word.partition("=")[0]
    if ".py" in name or word.endswith((".toml", ".json")):
        return True
    return "=" not in word and (libraries.is_address(word) or word in networks.names())


def _with_settings(workload: Workload | None, settings: Mapping[str, str]) -> Workload | None:
    if workload is None:
        return None
    if workload.origin is None:
        raise BadInput(
            f"{workload.name} was made in Python: its settings ({', '.join(settings)}) cannot be changed.",
            hint="Give the two jobs themselves as sides, or put the job in a file: path/to/file.py:function.",
        )
    origin, values = workload.origin, dict[str, object](settings)
    if ".py" in origin.job:  # a user's function converts nothing, so it receives numbers as numbers
        values = {key: units.literal(value) for key, value in settings.items()}
    try:
        return Workload.named(origin.job, **{**origin.settings, **values})
    except BadRecord as error:
        known = [*_OF_STRATEGY, *_OF_SIDE]
        unknown = next((name for name in settings if repr(name) in error.message), "")
        hint = nearest(unknown, known) if unknown else ""
        raise BadRecord(error.message, hint=error.hint if error.hint.startswith("Did") else hint) from error


def _difference(chosen: Strategy, base: Strategy) -> str:
    """What a strategy changes, as a side's name: threads=2,precision=bf16."""
    changes = [
        f"{name}={getattr(chosen, name)}"
        for name in _OF_STRATEGY
        if getattr(chosen, name) != getattr(base, name)
    ]
    return ",".join(changes) or DEFAULT
