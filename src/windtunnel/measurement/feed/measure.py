"""measure --data: the same job without data, from memory, from the page cache and from storage.

Each pass is a measurement of its own in fresh processes, with its samples in the store. What a pass takes
longer than the one before is what its data cost: copying, decoding, reading.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from windtunnel import records
from windtunnel.errors import Unavailable
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.measurement import environment
from windtunnel.measurement.children import OnMessage
from windtunnel.measurement.feed.files import DataFiles
from windtunnel.measurement.measure import MeasuredJob, fork, spawn
from windtunnel.measurement.processes import MeasurementPlan, MeasurementStage, MeasureOptions, Processes
from windtunnel.measurement.report import DISTURBED, ProcessReport
from windtunnel.measurement.steady import Protocol, interval
from windtunnel.measurement.store import Store
from windtunnel.records import Plain
from windtunnel.strategy import Strategy

PassName = Literal["none", "memory", "page-cache", "storage"]
# What each pass adds to the one before.
ADDS: dict[PassName, str] = {
    "none": "compute",
    "memory": "copy",
    "page-cache": "decode",
    "storage": "read",
}
_STILL_CACHED = 0.05  # a share of pages above this means that the page cache was not emptied
_FULLY_CACHED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPass:
    """One pass: where its data lay, and the steady step with its interval.

    `cached`: the share of the files that the page cache held when it began, where the system tells.
    """

    name: PassName
    step_seconds: float
    low_seconds: float
    high_seconds: float
    processes: int
    samples: int
    cached: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMeasurement:
    """All passes of one job on one data set, in the order in which data come nearer to storage."""

    job: str
    machine: str
    data: str
    example_bytes: float
    examples: int
    strategy: Plain
    batch: int
    passes: tuple[FeedPass, ...]
    cautions: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """The step from storage, or from where the last pass took its data."""
        return self.passes[-1].step_seconds

    @property
    def increments(self) -> dict[str, float]:
        """What each pass adds to the step of the one before, as the clock said it: one may be below 0."""
        first = self.passes[0]
        steps = {ADDS[first.name]: first.step_seconds}
        for before, after in itertools.pairwise(self.passes):
            steps[ADDS[after.name]] = after.step_seconds - before.step_seconds
        return steps

    @property
    def unclear(self) -> tuple[str, ...]:
        """Parts that noise may have made: the intervals of the two passes overlap."""
        return tuple(
            ADDS[after.name]
            for before, after in itertools.pairwise(self.passes)
            if after.low_seconds <= before.high_seconds and before.low_seconds <= after.high_seconds
        )

    @property
    def parts(self) -> dict[str, float]:
        """The step in parts that sum to it. An increment below 0 is noise: it counts as 0, and the part
        before it is shorter by as much."""
        parts: dict[str, float] = {}
        longest = 0.0
        bounds = [each.step_seconds for each in self.passes]
        for each, bound in zip(self.passes, _at_most_later(bounds), strict=True):
            parts[ADDS[each.name]] = bound - longest
            longest = bound
        return parts

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        data: Plain = records.plain(self)
        return {
            **data,
            "step_seconds": self.step_seconds,
            "parts": self.parts,
            "increments": self.increments,
            "unclear": list(self.unclear),
        }


def _at_most_later(steps: Sequence[float]) -> list[float]:
    """Each step, at most as long as every later one: a pass with less to do cannot really take longer."""
    return list(itertools.accumulate(reversed(steps), min))[::-1]


def measure_feed(
    workload: Workload,
    machine: Machine,
    strategy: Strategy,
    files: DataFiles,
    *,
    protocol: Protocol,
    store: Store,
    options: MeasureOptions | None = None,
) -> FeedMeasurement:
    """Run all passes on this machine. An interrupted measurement of the same is continued."""
    options = options or MeasureOptions()
    _refuse_impossible(machine, strategy)
    running = [
        _RunningPass(name, job, Processes(job.plan(), store, _naming(options, name)))
        for name, job in _jobs(workload, machine, strategy, files, protocol)
    ]
    _take_turns(running)
    passes = [_feed_pass(each.name, each.processes.reports) for each in running]
    cautions = [text for each in passes for text in _cache_cautions(each)]
    others = max(report.others for each in running for report in each.processes.reports)
    return FeedMeasurement(
        job=workload.name,
        machine=machine.name,
        data=str(files),
        example_bytes=files.example_bytes,
        examples=len(files.files),
        strategy=running[-1].job.choices(),
        batch=strategy.batch or workload.default_batch,
        passes=tuple(passes),
        cautions=tuple(dict.fromkeys([*cautions, *_other_cautions(files, running[-1].job.batch, others)])),
    )


class _RunningPass(NamedTuple):
    name: PassName
    job: MeasuredJob
    processes: Processes


def _jobs(
    workload: Workload, machine: Machine, strategy: Strategy, files: DataFiles, protocol: Protocol
) -> Iterator[tuple[PassName, MeasuredJob]]:
    for name, changed in passes_of(strategy, machine):
        if name in ("none", "memory"):
            yield name, MeasuredJob(workload, machine, changed, protocol)
        else:
            yield name, _FedJob(workload, machine, changed, protocol, files)


def _take_turns(running: Sequence[_RunningPass]) -> None:
    """One process of each pass, then the next of each: what slows the machine for a while meets all."""
    stopped = dict.fromkeys((each.name for each in running), "")
    while not all(stopped.values()):
        for each in running:
            if not stopped[each.name]:
                stopped[each.name] = each.processes.run_next()
    for each in running:
        each.processes.finish(stopped[each.name])


def _naming(options: MeasureOptions, name: PassName) -> MeasureOptions:
    """Options whose progress says which pass is measured."""

    def tell(stage: MeasurementStage) -> None:
        options.progress(dataclasses.replace(stage, phase=f"{stage.phase} (data: {name})"))

    return dataclasses.replace(options, progress=tell)


def _refuse_impossible(machine: Machine, strategy: Strategy) -> None:
    if strategy.direct:
        raise Unavailable("GPUDirect Storage is forecast but cannot be measured.", hint="Leave --direct out.")
    if machine.device.kind == "cpu" and (strategy.prefetch or strategy.pinned is not None):
        raise Unavailable(
            "prefetch and pinned are about copies to a GPU, and this measurement is on a CPU.",
            hint="Leave --prefetch, --pinned and --pageable out.",
        )
    if strategy.execution == "graph":
        raise Unavailable(
            "execution=graph reads its batch from one fixed place, so it cannot be fed from files.",
            hint="Use --execution eager.",
        )


def passes_of(strategy: Strategy, machine: Machine) -> Iterator[tuple[PassName, Strategy]]:
    """The passes of a strategy. On a CPU nothing is copied, so that there is no pass from memory."""
    unfed = dataclasses.replace(strategy, data="resident", loaders=0, load_ahead=2, pinned=None, prefetch=0)
    yield "none", unfed
    if machine.device.kind == "gpu":
        yield (
            "memory",
            dataclasses.replace(unfed, data="streamed", pinned=strategy.pinned, prefetch=strategy.prefetch),
        )
    yield "page-cache", dataclasses.replace(strategy, data="page-cache")
    yield "storage", dataclasses.replace(strategy, data="storage")


class _FedJob(MeasuredJob):
    """A job on this machine whose batches come from files."""

    def __init__(
        self, workload: Workload, machine: Machine, strategy: Strategy, protocol: Protocol, files: DataFiles
    ) -> None:
        super().__init__(workload, machine, strategy, protocol)
        self.files = files
        self.starts_together = False

    def plan(self) -> MeasurementPlan:
        plan = super().plan()
        files = {
            "name": self.files.name,
            "count": len(self.files.files),
            "bytes": self.files.total_bytes,
            "kind": self.files.kind,
        }
        return dataclasses.replace(plan, task={**plan.task, "files": files}, starts_together=False)

    def choices(self) -> Plain:
        choices = super().choices()
        return {**choices, "data": self.strategy.data}

    def _child(self, number: int, timeline: bool, on_message: OnMessage) -> ProcessReport:
        """Loaders need cores of their own, so the child is not pinned to those that compute."""
        order = self._order(number, timeline=False)
        assert order.job is not None
        order = dataclasses.replace(order, job=dataclasses.replace(order.job, folder=str(self.files.folder)))
        if self.workload.origin is None:
            return fork(order, self.workload, None, on_message)
        return spawn(order, None, on_message)


def _feed_pass(name: PassName, reports: Sequence[ProcessReport]) -> FeedPass:
    """The step over all samples. Only a pass without loaders knows which of its samples were disturbed, so
    that leaving these out would make it seem faster than the others."""
    shares = [report.ready.facts.get("cached") for report in reports]
    known = [share for share in shares if isinstance(share, float)]
    groups = [_all_samples(report) for report in reports]
    over = interval(groups)
    return FeedPass(
        name=name,
        step_seconds=over.median,
        low_seconds=over.low,
        high_seconds=over.high,
        processes=len(reports),
        samples=sum(map(len, groups)),
        cached=(max(known) if name == "storage" else min(known)) if known else None,
    )


def _all_samples(report: ProcessReport) -> tuple[float, ...]:
    disturbed = report.samples.get(DISTURBED)
    return (*report.steady, *(disturbed.seconds if disturbed is not None else ()))


def _cache_cautions(done: FeedPass) -> Iterator[str]:
    if done.name in ("none", "memory"):
        return
    if done.cached is None:
        yield "this system does not say what its page cache holds: cold and warm cannot be told apart"
    elif done.name == "storage" and done.cached > _STILL_CACHED:
        yield (
            f"the page cache could not be emptied: it still held {done.cached:.0%} of the files, so the pass "
            "from storage is not cold"
        )
    elif done.name == "page-cache" and done.cached < _FULLY_CACHED:
        yield f"the page cache held only {done.cached:.0%} of the files, so part of them came from storage"


def _other_cautions(files: DataFiles, batch: int, others: float) -> Iterator[str]:
    if len(files.files) < batch:
        yield f"a batch of {batch} reads some of the {len(files.files)} files more than once"
    if others > environment.BUSY:
        yield f"other processes kept {others:.1f} cores busy: times may be too long, and parts may be wrong"
