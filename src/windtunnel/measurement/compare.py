"""compare: two sides step in turn in pairs of fresh processes, until it is clear whether they differ."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from windtunnel import records, units
from windtunnel.errors import BadInput, Interrupted, MeasurementFailed, StoreError
from windtunnel.job.workload import Workload
from windtunnel.machine import here
from windtunnel.machine.machine import Machine
from windtunnel.measurement import environment, looks, summary
from windtunnel.measurement.equivalence import WITHIN, Verdict, percent
from windtunnel.measurement.looks import RatioAnswer
from windtunnel.measurement.pairs import PairReport, run_pair
from windtunnel.measurement.report import ProcessReport
from windtunnel.measurement.sides import ComparisonBase, Side, SideWords
from windtunnel.measurement.steady import Protocol, interval
from windtunnel.measurement.store import Settled, Store, now
from windtunnel.records import Plain
from windtunnel.results import Printed, Row
from windtunnel.strategy import Strategy

SECONDS = 60.0
_PAIR_SECONDS = 2.0  # of rounds in each pair
_WARM_SECONDS = 0.3
_SHOWN_PAIRS = 12
_USER = "the user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonStage:
    """The progress of a comparison: `pairs` of processes are done after `seconds` of at most
    `most_seconds`."""

    pairs: int
    rounds: int
    seconds: float
    most_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """`within` is the margin within which two sides count as the same. A pair that would probably end after
    `seconds` is not started. A process that sends nothing for `timeout_seconds` is ended."""

    within: float = WITHIN
    seconds: float = SECONDS
    timeout_seconds: float = 600.0
    progress: Callable[[ComparisonStage], None] = lambda stage: None

    def __post_init__(self) -> None:
        for name in ("within", "seconds", "timeout_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"compare: {name} must be above 0, not {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One side as measured: the median of its processes' medians."""

    name: str
    words: str
    batch: int
    step_seconds: float
    first_seconds: float | None
    samples: int

    def in_words(self) -> str:
        step = units.show(self.step_seconds, "s")
        return f"{self.name}: {step} a step, {self.samples:,} samples; {self.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison(Printed):
    """Seconds of B over seconds of A: of a step, or of an example where the batches differ (`per`).

    The interval has a confidence `level` that accounts for all interim looks; one pair of processes has no
    interval. `pairs` are the ratios of the single pairs.
    """

    job: str
    machine: str
    a: ComparedSide
    b: ComparedSide
    verdict: Verdict
    ratio: float
    low: float | None
    high: float | None
    level: float
    within: float
    per: Literal["step", "example"]
    pairs: tuple[float, ...]
    rounds: int
    seconds: float
    stopped_by: str
    cautions: tuple[str, ...] = ()
    measured_at: str = ""
    environment: Plain = field(default_factory=dict)

    def plain(self) -> Plain:
        """Plain data in seconds, for JSON."""
        data: Plain = records.plain(self)
        return {**data, "sentence": self.sentence()}

    def headline(self) -> str:
        return f"compared: {self.job} on {self.machine}: {self.b.name} against {self.a.name}"

    def sentence(self) -> str:
        """The answer in one sentence."""
        unit = "an example" if self.per == "example" else "a step"
        ratio = f"{unit} takes {units.digits(self.ratio)} times as long"
        ratio += f" with {self.b.name} as with {self.a.name}"
        if self.low is None or self.high is None:
            return f"{self.verdict}: {ratio}; one pair of processes does not show how much pairs differ"
        within = f" within {percent(self.within)}" if self.verdict == "same" else ""
        return f"{self.verdict}{within}: {ratio} ({units.digits(self.low)} to {units.digits(self.high)})"

    def _rows(self) -> list[Row]:
        shown = ", ".join(units.digits(ratio) for ratio in self.pairs[:_SHOWN_PAIRS])
        more = ", ..." if len(self.pairs) > _SHOWN_PAIRS else ""
        return [
            ("verdict", self.sentence()),
            ("A", self.a.in_words()),
            ("B", self.b.in_words()),
            ("pairs", f"{len(self.pairs)} of fresh processes, {self.rounds:,} rounds; ratios {shown}{more}"),
            ("stopped", f"by {self.stopped_by} after {units.show(self.seconds, 's')}"),
            *(("caution", caution) for caution in self.cautions),
        ]


def compare(
    workload: Workload | None,
    a: SideWords,
    b: SideWords,
    machine: Machine | None = None,
    *,
    strategy: Strategy | None = None,
    store: Store | None = None,
    options: CompareOptions | None = None,
) -> PairedComparison:
    """Run two sides in turn on this machine, and say whether they differ.

    A side is a Strategy, a Workload, or words: changes to the job and `strategy` ("threads=2",
    "precision=bf16,batch=64", "n_rec=100", "compile=true"), a framework ("jax", "jax:scan"), a job
    ("path/to/file.py:function"), or "default" for the job as it is. `workload` is None where both are jobs.
    """
    options = options or CompareOptions()
    base = ComparisonBase(
        workload=workload,
        strategy=strategy or Strategy(),
        machine=machine or Machine.here(),
        protocol=Protocol(
            processes=1,
            most_processes=1,
            seconds=_PAIR_SECONDS,
            warm_seconds=_WARM_SECONDS,
            timeout_seconds=options.timeout_seconds,
        ),
    )
    sides = base.side(a), base.side(b)
    opened = store or Store()
    try:
        return _Comparison(sides, base.machine.name, opened, options).run()
    finally:
        if store is None:
            opened.close()


class _Comparison:
    """One comparison from its first pair of processes to its last. Each side is a measurement of its own in
    the store."""

    def __init__(self, sides: tuple[Side, Side], machine: str, store: Store, options: CompareOptions) -> None:
        self.sides, self.machine, self.store, self.options = sides, machine, store, options
        self.begin, self.longest, self.stopped = time.monotonic(), 0.0, ""
        self.pairs, self.others = list[PairReport](), 0.0
        names = [side.name for side in sides]
        self.cells = [
            store.begin(side.plan.key, {**side.plan.task, "compared": names, "side": place}, side.plan.facts)
            for place, side in enumerate(sides)
        ]

    def run(self) -> PairedComparison:
        answer = None
        try:
            while answer is None:
                self._run_pair()
                answer = self._answer()
        except KeyboardInterrupt:
            self.stopped = _USER
        except MeasurementFailed as error:
            for cell in self.cells:
                self.store.finish(Settled(cell=cell, state=error.state, error=error.message))
            raise
        if not self.pairs:
            raise Interrupted("No pair of processes was measured yet.", hint="The same command starts again.")
        result = self._result(answer or looks.interval_of(self._logs(), self.options.within, is_last=True))
        self._finish(result)
        if self.stopped == _USER:
            raise Interrupted(
                f"{len(self.pairs)} pairs of processes are stored in {self.store.path}.\n{result}"
            )
        return result

    def _run_pair(self) -> None:
        """Run one pair and store it."""
        begin, others = time.monotonic(), environment.busy_cores(0.1)
        self.others = max(self.others, others)
        pair = run_pair(
            [side.start for side in self.sides],
            [side.name for side in self.sides],
            len(self.pairs),
            min(_PAIR_SECONDS, self.options.seconds),
        )
        for cell, report in zip(self.cells, (pair.a, pair.b), strict=True):
            self.store.add(cell, dataclasses.replace(report, number=len(self.pairs), others=others))
        self.pairs.append(pair)
        self.longest = max(self.longest, time.monotonic() - begin)
        self.options.progress(
            ComparisonStage(
                pairs=len(self.pairs),
                rounds=self._rounds(),
                seconds=time.monotonic() - self.begin,
                most_seconds=self.options.seconds,
            )
        )

    def _answer(self) -> RatioAnswer | None:
        """The answer if the comparison ends now, otherwise None. Also notes what ended it."""
        if self.pairs[-1].interrupted:
            self.stopped = _USER
        elif self._is_last():
            self.stopped = "time"
        answer = looks.answer(self._logs(), self.options.within, is_last=bool(self.stopped))
        self.stopped = self.stopped or ("a clear answer" if answer else "")
        return answer

    def _is_last(self) -> bool:
        """Whether another pair would probably end too late: this depends on the clock, not on the ratios."""
        return time.monotonic() - self.begin + self.longest > self.options.seconds

    def _per_example(self) -> bool:
        return self.sides[0].batch != self.sides[1].batch

    def _logs(self) -> list[float]:
        a, b = self.sides
        shift = math.log(a.batch / b.batch) if self._per_example() else 0.0
        return [pair.log + shift for pair in self.pairs]

    def _rounds(self) -> int:
        return sum(pair.rounds for pair in self.pairs)

    def _result(self, answer: RatioAnswer) -> PairedComparison:
        known = answer.high < math.inf
        return PairedComparison(
            job=" and ".join(dict.fromkeys(side.job for side in self.sides)),
            machine=self.machine,
            a=self._side(0),
            b=self._side(1),
            verdict=answer.verdict,
            ratio=answer.ratio,
            low=answer.low if known else None,
            high=answer.high if known else None,
            level=answer.level,
            within=self.options.within,
            per="example" if self._per_example() else "step",
            pairs=tuple(map(math.exp, self._logs())),
            rounds=self._rounds(),
            seconds=time.monotonic() - self.begin,
            stopped_by=self.stopped,
            cautions=tuple(self._cautions()),
            measured_at=now(),
            environment=dict(self.sides[0].plan.facts),
        )

    def _reports(self, place: int) -> list[ProcessReport]:
        return [(pair.a, pair.b)[place] for pair in self.pairs]

    def _side(self, place: int) -> ComparedSide:
        side, reports = self.sides[place], self._reports(place)
        firsts = [report.first_seconds for report in reports if report.first_seconds is not None]
        return ComparedSide(
            name=side.name,
            words=side.words,
            batch=side.batch,
            step_seconds=statistics.median(statistics.median(report.steady) for report in reports),
            first_seconds=statistics.median(firsts) if firsts else None,
            samples=sum(len(report.steady) for report in reports),
        )

    def _cautions(self) -> list[str]:
        a, b = self.sides
        cautions = []
        if a.kind != b.kind:
            cautions.append(
                "one side is the job of the catalogue in PyTorch, the other a framework's own variant: "
                "they may not do the same work; name a framework on both sides, for example torch:loop"
            )
        if self._per_example():
            cautions.append(
                f"the batches differ ({a.batch} and {b.batch}): compared by the time of an example"
            )
        if self.others > environment.BUSY:
            cautions.append(self._others_in_words())
        return cautions

    def _others_in_words(self) -> str:
        """The effect of other processes on both times, and on the ratio if they left too few cores."""
        cores = len(here.available_cpus())
        threads = [side.plan.task.get("threads") for side in self.sides]
        used = max((each for each in threads if isinstance(each, int)), default=1)
        words = f"other processes kept {self.others:.1f} of {cores} cores busy just before a pair began: "
        if self.others + used <= cores:
            return words + "both times may be too long, their ratio hardly"
        return words + (
            "steps were interrupted, and long ones more often, so the ratio may be some percent too far from "
            "1; compare again when fewer programs run"
        )

    def _finish(self, result: PairedComparison) -> None:
        """Settle both measurements with all their samples."""
        for place, cell in enumerate(self.cells):
            reports = self._reports(place)
            whole = summary.summarise(
                reports, interval([report.steady for report in reports]), result.stopped_by
            )
            try:
                self.store.finish(Settled(cell=cell, summary=whole, result=result.plain()))
            except StoreError as error:
                raise StoreError(f"{error.message}\n{result}", hint=error.hint) from error
