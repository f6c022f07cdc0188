"""The processes of one measurement: they run until their medians agree and some were quiet, and are stored as
they end."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from windtunnel import records
from windtunnel.errors import Interrupted, MeasurementFailed, StoreError
from windtunnel.measurement import children, environment, summary
from windtunnel.measurement.children import OnMessage
from windtunnel.measurement.report import STEADY, ProcessReport
from windtunnel.measurement.steady import LEVELS, Interval, Protocol, interval
from windtunnel.measurement.store import Settled, Store
from windtunnel.measurement.summary import Summary
from windtunnel.measurement.windows import keep_quiet
from windtunnel.records import Plain

CODE = 4  # increase when a change of the measuring code makes old samples incomparable with new ones
_PHASES = {"first": "warming up", "warm": "timing", "steady": "timing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementStage:
    """The progress of a measurement: process `number` of `wanted` is in a `phase`; `samples` are of all
    processes.

    `spread` is half the width of the interval relative to the median, once a process is done.
    """

    number: int
    wanted: int
    phase: str
    samples: int
    spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """`fresh` starts again instead of continuing an interrupted measurement. `progress` is called with every
    stage.

    `timeline` is called with the events of one profiled step: lane, name, start and seconds of each.
    """

    fresh: bool = False
    progress: Callable[[MeasurementStage], None] = lambda stage: None
    timeline: Callable[[Plain], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """What is measured: `task` as plain data under the `facts` of the machine, by a `child` for each process.

    The child gets its number, whether to send a timeline, and the function that receives its messages. `code`
    is the digest of a user's own file. Without `resumes`, an interrupted measurement cannot be recognised, so
    it starts again. With `starts_together` the wanted processes start at once: they import in parallel, and a
    lock lets one at a time build and time.
    """

    task: Mapping[str, object]
    facts: Mapping[str, object]
    protocol: Protocol
    child: Callable[[int, bool, OnMessage], ProcessReport]
    code: str = ""
    resumes: bool = True
    starts_together: bool = False

    @property
    def key(self) -> str:
        protocol = records.plain(self.protocol)
        return records.digest([self.task, self.facts, protocol, [CODE, self.code]])


class Processes:
    """One measurement from its first process to its last, in a store."""

    def __init__(self, plan: MeasurementPlan, store: Store, options: MeasureOptions) -> None:
        self.plan, self.protocol, self.store, self.options = plan, plan.protocol, store, options
        self.cell = self._begin()
        self.reports = store.reports(self.cell)
        self.resumed = len(self.reports)

    def run(self) -> Summary:
        """Run the missing processes, then summarise all by the quiet ones."""
        with self._named_failures():
            stopped = self._run()
        whole = self._together(stopped)
        return summary.choose_quiet(whole, self._quiet_seconds()) if whole.loop_seconds else whole

    def run_next(self) -> str:
        """Run one more process. Returns why no further one is needed, or an empty text if one is."""
        stopped = self._stop() if len(self.reports) >= self.protocol.processes else ""
        if stopped:
            return stopped
        number = max((report.number for report in self.reports), default=-1) + 1
        with self._named_failures():
            with contextlib.closing(self._reports_of(range(number, number + 1), False)) as reports:
                for report in reports:
                    self._add(report)
            return self._stop()

    @contextlib.contextmanager
    def _named_failures(self) -> Iterator[None]:
        """Report what is kept after an interrupt; store a failure by its name."""
        try:
            yield
        except KeyboardInterrupt:
            done = len(self.store.reports(self.cell))
            again = "continues from there; --fresh starts again" if done else "starts again"
            raise Interrupted(
                f"{done} of {self.protocol.processes} processes are measured and stored in "
                f"{self.store.path}.",
                hint=f"The same command {again}.",
            ) from None
        except MeasurementFailed as error:
            self.store.finish(Settled(cell=self.cell, state=error.state, error=error.message))
            raise

    def finish(self, stopped: str, result: Plain | None = None) -> None:
        """Store the result of the measurement with all its processes, including the disturbed ones."""
        self.store.finish(Settled(cell=self.cell, summary=self._together(stopped), result=result))

    def _begin(self) -> int:
        key = self.plan.key
        known = self.plan.resumes and not self.options.fresh
        cell = self.store.take_over(key) if known else None
        if cell is not None:
            return cell
        level = next((name for name, known in LEVELS.items() if known == self.protocol), "")
        task = {**self.plan.task, "protocol": records.plain(self.protocol)}
        return self.store.begin(key, task, self.plan.facts, level)

    def _run(self) -> str:
        number = max((report.number for report in self.reports), default=-1) + 1
        together = self.protocol.processes - len(self.reports) if self.plan.starts_together else 1
        stopped, wants_timeline = "", self.options.timeline is not None
        while not stopped:
            numbers = range(number, number + max(1, together))
            with contextlib.closing(self._reports_of(numbers, wants_timeline)) as reports:
                for report in reports:
                    self._add(report)
            number, together, wants_timeline = numbers.stop, 1, False  # the timeline of one process is enough
            stopped = self._stop()
        return stopped

    def _reports_of(self, numbers: range, wants_timeline: bool) -> Generator[ProcessReport]:
        """The reports of these processes in order."""
        followers = [
            _Follower(
                self.reports,
                self.protocol.processes,
                self.options.progress,
                self.options.timeline if wants_timeline and number == numbers[0] else None,
            )
            for number in numbers
        ]
        others = environment.busy_cores()
        reports = self._run_one if len(numbers) == 1 else self._run_together
        for number, follower, report in zip(numbers, followers, reports(numbers, followers), strict=True):
            yield dataclasses.replace(keep_quiet(report), number=number, others=others)
            follower.finish(self._interval().spread)

    def _run_one(self, numbers: range, followers: Sequence[_Follower]) -> Iterator[ProcessReport]:
        yield self.plan.child(numbers[0], followers[0].timeline is not None, followers[0].on_message)

    def _run_together(self, numbers: range, followers: Sequence[_Follower]) -> Iterator[ProcessReport]:
        """Each child has a thread of its own; an error or interrupt in one of them ends all."""
        with ThreadPoolExecutor(len(numbers)) as pool:
            try:
                started = [
                    pool.submit(self.plan.child, number, follower.timeline is not None, follower.on_message)
                    for number, follower in zip(numbers, followers, strict=True)
                ]
                for child in started:
                    yield child.result()
            except BaseException:
                children.end_all()
                raise

    def _add(self, report: ProcessReport) -> None:
        self.reports.append(report)
        try:
            self.store.add(self.cell, report)
        except StoreError as error:
            raise StoreError(
                f"{error.message} The last process measured {self._interval().median:.6g} s a step.",
                hint=error.hint,
            ) from error

    def _stop(self) -> str:
        """Why no further process is needed; empty if one is."""
        protocol, count = self.protocol, len(self.reports)
        precise = self._interval().spread <= protocol.precision
        if count < protocol.processes or (not precise and count < protocol.most_processes):
            return ""
        stopped = "precision" if precise else "the cap on processes"
        # A protocol that allows no more processes than it wants gets no further ones either.
        most = protocol.most_processes + summary.MOST_FURTHER
        loops = self._together("").loop_seconds
        if protocol.most_processes == protocol.processes or count >= most or not loops:
            return stopped
        return "" if summary.needs_another(loops, self._quiet_seconds(), protocol.processes) else stopped

    def _quiet_seconds(self) -> float:
        """The reference loop on the quiet machine: by this measurement and by those in the store."""
        python = self.reports[0].ready.versions.get("python")
        kind = (self.plan.facts["cpu"], python)
        own = [report.loop_seconds for report in self.reports if report.loop_seconds is not None]
        return summary.quiet_loop([*own, *self.store.loop_seconds(kind)])

    def _together(self, stopped: str) -> Summary:
        return summary.summarise(self.reports, self._interval(), stopped)

    def _interval(self) -> Interval:
        return interval([report.steady for report in self.reports])


class _Follower:
    """Turns the messages of one child into stages of the whole measurement."""

    def __init__(
        self,
        reports: Sequence[ProcessReport],
        wanted: int,
        progress: Callable[[MeasurementStage], None],
        timeline: Callable[[Plain], None] | None,
    ) -> None:
        self.reports, self.least = reports, wanted
        self.progress, self.timeline = progress, timeline
        self.samples = 0
        self._show("starting")

    def on_message(self, message: Plain) -> None:
        kind = message["kind"]
        if kind == "samples":
            self.samples += len(message["seconds"]) if message["phase"] == STEADY else 0
            self._show(_PHASES.get(message["phase"], "timing"))
        elif kind == "memory":
            self._show("profiling")
        elif kind == "timeline" and self.timeline is not None:
            self.timeline({key: value for key, value in message.items() if key != "kind"})

    def finish(self, spread: float) -> None:
        """Show the samples that count, without those of disturbed windows."""
        self.samples = 0
        self._show("done", spread)

    def _show(self, phase: str, spread: float | None = None) -> None:
        done = len(self.reports)
        number = done if phase == "done" else done + 1
        self.progress(
            MeasurementStage(
                number=number,
                wanted=max(self.least, number),
                phase=phase,
                samples=self.samples + sum(len(report.steady) for report in self.reports),
                spread=spread,
            )
        )
