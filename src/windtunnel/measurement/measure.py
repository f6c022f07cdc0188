"""measure: real steps in fresh child processes, samples in the store, a Measurement out."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel import child_lifetime, records
from windtunnel.errors import BadJob, StoreError, Unavailable
from windtunnel.job.workload import Workload
from windtunnel.machine import here
from windtunnel.machine.machine import Machine
from windtunnel.measurement import breakdown, children, environment, frameworks
from windtunnel.measurement.children import Launch, OnMessage, RunningChild
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.order import ChildOrder, JobOrder
from windtunnel.measurement.processes import MeasurementPlan, MeasureOptions, Processes
from windtunnel.measurement.report import DISTURBED, ProcessReport
from windtunnel.measurement.steady import LEVELS, Protocol
from windtunnel.measurement.store import Store, now
from windtunnel.measurement.summary import Summary
from windtunnel.ownership import temporary_folder
from windtunnel.records import Plain
from windtunnel.results import INFERENCE_OF_LOSS, Result, Row
from windtunnel.strategy import Strategy

# With at least this many cores, the imports of one child hardly disturb the timing of another.
_CORES_TO_SPARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Result):
    """Steps that were really run.

    `families` are the device's seconds by family of op. `kernels` counts them in a step, where the device is
    a GPU. A measurement is `disturbed` where other programs slowed every process of it.
    """

    families: Mapping[str, float] = field(default_factory=dict)
    kernels: float | None = None
    processes: int = 0
    samples: int = 0
    first_seconds: float = 0.0
    stopped_by: str = ""
    disturbed: bool = False
    measured_at: str = ""
    environment: Plain = field(default_factory=dict)

    def headline(self) -> str:
        return f"measured: {Result.headline(self)}"

    def _own_rows(self) -> list[Row]:
        first = f"first step {self.first_seconds / self.step_seconds:,.1f} times a steady one"
        count = f"{self.samples:,} in {self.processes} fresh processes"
        return [("samples", f"{count}, stopped by {self.stopped_by}; {first}")]


def measure(
    workload: Workload,
    machine: Machine,
    strategy: Strategy | None = None,
    *,
    protocol: Protocol | None = None,
    store: Store | None = None,
    options: MeasureOptions | None = None,
) -> Measurement:
    """Run the job's steps on this machine in fresh processes, and say how long one takes.

    `machine` is this one: `Machine.here()`, or `Machine.find("cpu")`. `protocol` says how long to measure. A
    measurement that is already in the `store` is not repeated; an interrupted one is continued. Raises
    MeasurementFailed if no process gives a result.
    """
    opened = store or Store()
    try:
        strategy = strategy or Strategy()
        strategy.in_memory()
        job = MeasuredJob(workload, machine, strategy, protocol or LEVELS["default"])
        return job.measure(opened, options or MeasureOptions())
    finally:
        if store is None:
            opened.close()


def measure_task(
    task: Task, protocol: Protocol, store: Store, options: MeasureOptions | None = None
) -> Summary:
    """Run a framework's task on this machine, as a job is run."""

    def child(number: int, timeline: bool, on_message: OnMessage) -> ProcessReport:
        return frameworks.run_task(task, protocol, number=number)

    plan = MeasurementPlan(
        task=records.plain(task), facts=environment.describe(), protocol=protocol, child=child
    )
    processes = Processes(plan, store, options or MeasureOptions())
    whole = processes.run()
    processes.finish(whole.stopped_by)
    return whole


class MeasuredJob:
    """A job on this machine: the orders for its children, and the Measurement from their reports."""

    def __init__(self, workload: Workload, machine: Machine, strategy: Strategy, protocol: Protocol) -> None:
        self.workload, self.machine, self.strategy, self.protocol = workload, machine, strategy, protocol
        self.device = _device_of(machine, strategy)
        self.threads = strategy.threads or (machine.host.cores or 1)
        self.batch = strategy.batch or workload.default_batch
        self.facts = environment.describe()
        self.starts_together = workload.origin is not None and has_spare_cores(self.device)
        self.lock = ""

    def measure(self, store: Store, options: MeasureOptions) -> Measurement:
        processes = Processes(self.plan(), store, options)
        with temporary_folder() as folder:
            self.lock = str(folder / "lock") if self.starts_together else ""
            whole = processes.run()
        result = self._result(processes.reports, whole, processes.resumed)
        try:
            processes.finish(whole.stopped_by, result.plain())
        except StoreError as error:
            raise StoreError(f"{error.message}\n{result}", hint=error.hint) from error
        return result

    def plan(self) -> MeasurementPlan:
        origin, code = self.workload.origin, ""
        if origin is not None and ".py:" in origin.job:
            code = _digest_of_file(Path(origin.job.rpartition(":")[0]))
        name = records.plain(origin) if origin else {"job": f"{self.workload.name} (made in Python)"}
        task = {
            "job": name,
            "strategy": records.plain(self.choices()),
            "batch": self.batch,
            "device": self.device,
            "threads": self.threads,
            "device_name": self.machine.device.model,
        }
        return MeasurementPlan(
            task=task,
            facts=self.facts,
            protocol=self.protocol,
            child=self._child,
            code=code,
            resumes=origin is not None,
            starts_together=self.starts_together,
        )

    def choices(self) -> Plain:
        """The strategy as results show it: without fields that have no effect here."""
        choices = self.strategy.fields()
        choices.pop("batch", None)
        if not choices.get("prefetch"):
            choices.pop("prefetch", None)
        if self.device == "cpu":
            choices["threads"] = self.threads
            choices.pop("data")
            if self.strategy.precision == "pytorch":  # the same on a CPU
                choices["precision"] = "fp32"
        return choices

    def start(self, number: int) -> RunningChild:
        """A child that takes turns with another one."""
        self.strategy.in_memory()
        order = dataclasses.replace(self._order(number, timeline=False), takes_turns=True)
        if self.workload.origin is None:
            run = forked(order, self.workload)
            return children.start_fork(run, self._pinned, order.protocol.timeout_seconds)
        return children.start(launch_for(order, self._pinned), order)

    def _child(self, number: int, timeline: bool, on_message: OnMessage) -> ProcessReport:
        order = self._order(number, timeline)
        if self.workload.origin is None:
            return fork(order, self.workload, self._pinned, on_message)
        return spawn(order, self._pinned, on_message)

    @property
    def _pinned(self) -> int | None:
        return self.threads if self.device == "cpu" else None

    def _order(self, number: int, timeline: bool) -> ChildOrder:
        origin = self.workload.origin
        job = JobOrder(
            job=origin.job if origin else "",
            settings=dict(origin.settings) if origin else {},
            strategy=records.plain(dataclasses.replace(self.strategy, batch=self.batch)),
            device=self.device,
            threads=self.threads,
            seed=self.protocol.seed + number,
            timeline=timeline,
        )
        return ChildOrder(protocol=self.protocol, job=job, lock=self.lock, locks_first=bool(self.lock))

    def _result(self, reports: Sequence[ProcessReport], whole: Summary, resumed: int) -> Measurement:
        profiles, gpu = breakdown.profiles_of(reports), self.device != "cpu"
        parts = breakdown.parts(profiles, whole.median, self.device)
        families = breakdown.families(profiles, whole.median, self.device)
        return Measurement(
            job=self.workload.name,
            machine=self.machine.name,
            strategy=self.choices(),
            batch=self.batch,
            step_seconds=whole.median,
            low_seconds=whole.low,
            high_seconds=whole.high,
            parts=parts,
            memory=breakdown.memory(reports, self.machine),
            bound_by=max(parts, key=lambda part: parts[part]),
            device_seconds=sum(families.values()),
            host_seconds=breakdown.middle(profiles, "host") if gpu else parts.get("launch", 0.0),
            families=families,
            kernels=breakdown.middle(profiles, "kernels") if gpu else None,
            examples=self.workload.examples,
            inputs=str(reports[0].ready.facts.get("inputs", "")),
            cautions=(*self._machine_cautions(reports, whole), *self._job_cautions(reports, resumed)),
            processes=len(reports),
            samples=whole.samples,
            first_seconds=whole.first_seconds or 0.0,
            stopped_by=whole.stopped_by,
            disturbed=whole.disturbed,
            measured_at=now(),
            environment={**self.facts, **reports[0].ready.plain()},
        )

    def _machine_cautions(self, reports: Sequence[ProcessReport], whole: Summary) -> list[str]:
        """Cautions about the effect of other programs on the times."""
        cautions = []
        others = max(report.others for report in reports)
        if others > environment.BUSY:
            cautions.append(
                f"other processes kept {others:.1f} cores busy just before a process began: "
                "times may be too long"
            )
        dropped = sum(len(r.samples[DISTURBED].seconds) for r in reports if DISTURBED in r.samples)
        if dropped:
            cautions.append(
                f"{dropped:,} of {dropped + whole.samples:,} samples are left out: "
                "the reference loop shows that other programs slowed the machine then"
            )
        if whole.chosen is not None and len(whole.chosen) < len(reports):
            left = len(reports) - len(whole.chosen)
            cautions.append(f"{left} of {len(reports)} processes are left out, which were slowed throughout")
        if whole.disturbed:
            cautions.append(
                f"no process met a quiet moment: the reference loop ran {whole.slowdown:.2f} times as slow "
                "as on the quiet machine, so the step may be faster than measured"
            )
        return cautions

    def _job_cautions(self, reports: Sequence[ProcessReport], resumed: int) -> list[str]:
        """Cautions about the job, the device and the framework."""
        cautions, cpu = [], self.device == "cpu"
        used = {report.ready.threads for report in reports} - {self.threads}
        if cpu and used:
            cautions.append(f"{self.threads} threads were set but the framework used {used.pop()}")
        if not cpu and min(report.linear or 0.0 for report in reports) < 1.5:
            cautions.append(
                "twice the steps did not take twice the time: the clock may not have waited for the device"
            )
        if not cpu and not breakdown.middle(breakdown.profiles_of(reports), "kernels"):
            cautions.append("the profiler saw nothing on the device, so its parts and families are not known")
        if self.workload.origin is None:
            cautions.append(
                "measured in forked processes, since a job made in Python cannot be built in a fresh one; "
                "path/to/file.py:function can"
            )
        if not all(report.has_finite_losses for report in reports):
            cautions.append("the loss was no finite number: the steps may have done other work than usual")
        if resumed:
            cautions.append(f"{resumed} of the processes were measured before an interruption")
        if cpu:
            cautions.append(
                "parts are from a profiler pass; on a CPU the cost of launching an op inside the framework "
                "counts as compute"
            )
        if self.strategy.inference and self.workload.forward is None:
            cautions.append(INFERENCE_OF_LOSS)
        if self.strategy.compiles:
            cautions += _compiler_cautions(reports, self.device, self.workload.step is not None)
        return cautions


def _compiler_cautions(reports: Sequence[ProcessReport], device: str, own_step: bool) -> list[str]:
    cautions = []
    if own_step:
        cautions.append("the job has a step of its own, of which only the network's parts are compiled")
    compiled = reports[0].compiled
    if compiled is not None and compiled.breaks:
        cautions.append(
            f"the compiler could not trace all of the step and left it in {compiled.breaks} places: "
            "part of it ran eagerly"
        )
    if device == "cpu":
        cautions.append("memory includes what the compiler holds beside the job")
    return cautions


def _device_of(machine: Machine, strategy: Strategy) -> str:
    """The device to run on. Raises an error if the job cannot run here."""
    if machine.name != "here":
        raise Unavailable(
            f"measure runs on this machine only, not on {machine.name}.",
            hint="Use predict for a machine that is not here, or --on here.",
        )
    if strategy.execution == "graph" and strategy.data == "streamed":
        raise Unavailable(
            "execution=graph reads its batch from one fixed place, so data=streamed cannot go with it.",
            hint="Use --data resident or --execution eager.",
        )
    if machine.device.kind == "cpu" and strategy.execution == "graph":
        raise Unavailable(
            "execution=graph needs a GPU, and this measurement is on a CPU.", hint="Use --execution eager."
        )
    for name in ("cudnn_benchmark", "expandable_segments"):
        if machine.device.kind == "cpu" and getattr(strategy, name):
            raise Unavailable(
                f"{name} needs a GPU, and this measurement is on a CPU.",
                hint=f"Leave --{name.replace('_', '-')} out.",
            )
    return str(machine.device.kind)


def has_spare_cores(device: str) -> bool:
    """Whether children may import while another one is timed: the device is a GPU and cores are left."""
    return device != "cpu" and len(here.available_cpus()) >= _CORES_TO_SPARE


def spawn(order: ChildOrder, pinned: int | None, on_message: OnMessage) -> ProcessReport:
    """One order in a fresh interpreter."""
    return children.spawn(launch_for(order, pinned), order, on_message)


def launch_for(order: ChildOrder, pinned: int | None) -> Launch:
    """How a child that runs a job in a fresh interpreter is started."""
    assert order.job is not None
    return Launch(
        command=child_lifetime.command("windtunnel.measurement.child"),
        environment=environment.for_child(
            order.job.threads, expandable=order.job.strategy.get("expandable_segments") is True
        ),
        threads=pinned,
    )


def fork(order: ChildOrder, workload: Workload, pinned: int | None, on_message: OnMessage) -> ProcessReport:
    """One order in a copy of this process, for a job that exists only here."""
    return children.fork(forked(order, workload), pinned, order.protocol.timeout_seconds, on_message)


def forked(order: ChildOrder, workload: Workload) -> Callable[[int], None]:
    """What a copy of this process does with the number of its pipe."""
    import torch

    from windtunnel.measurement.child import run_in_fork

    assert order.job is not None
    if order.job.device != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise Unavailable(
            "This process has used CUDA already, and a copy of it cannot.",
            hint="Put the job in a file and name it path/to/file.py:function.",
        )
    return functools.partial(run_in_fork, order, workload)


def _digest_of_file(path: Path) -> str:
    """A hash of the user's file, by which an interrupted measurement is recognised."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadJob(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Each measured process builds the job from its file: let the file stay until the end.",
        ) from error
