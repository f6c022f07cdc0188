"""Runs a study: cells interleaved in a shuffled order, each process stored as it comes back, a failure a result with a name.

Process 0 of all cells comes first, then process 1 of all, and so on, so that a slow hour of the machine does not fall on one cell
alone; at the end those with too few calm processes are given others. What is in the store already is not run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from windtunnel import records
from windtunnel.errors import Interrupted, WindtunnelError
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.study.run.cells import Cell, Choice, cells_of
from windtunnel.study.run.engine import Engine, Outcome, Work
from windtunnel.study.run.progress import Pace, Standing
from windtunnel.study.run.store import DONE, WAITING, Entry, StudyStore, dump
from windtunnel.study.run.surroundings import APART, Surroundings
from windtunnel.study.statistics import summary
from windtunnel.study.statistics import windows as stretches
from windtunnel.study.study import Study

Level = Literal["quick", "default", "rigorous"]
LEVELS: dict[str, Protocol] = {
    "quick": Protocol(processes=2, most_processes=2, seconds=0.3, warm_seconds=0.1, precision=0.05),
    "default": Protocol(processes=2, most_processes=3, seconds=1.0, warm_seconds=0.3, precision=0.03),
    "rigorous": Protocol(
        processes=5, most_processes=8, seconds=2.0, warm_seconds=0.5, precision=0.01, timeout_seconds=1200
    ),
}
_CODE = 3  # raise when a change of this code makes old samples incomparable with new ones
_CALM, _AGAIN = 2, 2  # a cell with fewer calm processes is given further ones, so many at most
_BAD_REPORT, _FAULT = "no result", "fault"
Watch = Callable[[Outcome | None, Standing], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a study is to be run. `seconds` takes the place of the level's own; a quick run has the corners of each grid, or the `whole`."""

    level: Level = "default"
    whole: bool = False
    choice: Choice = field(default_factory=Choice)
    seconds: float | None = None
    rerun: bool = False
    take_over: bool = False
    seed: int | None = None

    def protocol(self) -> Protocol:
        found = LEVELS[self.level]
        return (
            found
            if self.seconds is None
            else dataclasses.replace(
                found, seconds=self.seconds, warm_seconds=min(found.warm_seconds, self.seconds)
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How the cells of a run stand at its end."""

    states: dict[str, int]
    failures: tuple[tuple[str, str, str], ...] = ()

    @property
    def failed(self) -> int:
        return sum(count for state, count in self.states.items() if is_failure(state))


def is_failure(state: str) -> bool:
    return state not in (DONE, WAITING, *APART)


def choose(study: Study, order: Order, surroundings: Surroundings) -> list[Cell]:
    """The cells an order asks for."""
    return cells_of(
        study,
        surroundings.cores,
        dataclasses.replace(
            order.choice, corners=order.choice.corners or (order.level == "quick" and not order.whole)
        ),
    )


def run(
    study: Study,
    store: StudyStore,
    engine: Engine,
    surroundings: Surroundings,
    order: Order | None = None,
    *,
    step_seconds: Callable[[Task], float | None] = lambda task: None,
    watch: Watch = lambda outcome, standing: None,
) -> Tally:
    """Measure what the order asks for and the store lacks. One coordinator at a time may do so for a study in a store."""
    order = order or Order()
    with store.held(study.name, take_over=order.take_over):
        running = _Run(study, store, surroundings, order, Pace(order.protocol(), step_seconds), watch)
        try:
            return running.measure(engine)
        except KeyboardInterrupt:
            counts = running.tally().states
            raise Interrupted(
                f"{counts.get(DONE, 0)} of {sum(counts.values())} cells are done and kept in {store.path}.",
                hint="The same command goes on from there.",
            ) from None


@dataclass(slots=True, kw_only=True)
class _Open:
    """A cell of this run, as it stands. `least` processes are wanted, `most` where they do not agree."""

    id: int
    key: str
    task: Task
    protocol: Protocol
    state: str
    error: str = ""
    numbers: set[int] = field(default_factory=set)
    pulses: list[float] = field(default_factory=list)

    @property
    def least(self) -> int:
        return self.protocol.processes

    @property
    def most(self) -> int:
        return self.protocol.most_processes

    @property
    def pulse_kind(self) -> Hashable:
        return self.task.framework, self.task.threads

    @property
    def wanted(self) -> int:
        """Processes it still needs, as far as can be told; one that has enough and still waits needs another."""
        return max(1, self.least - len(self.numbers))


class _Run:
    def __init__(
        self,
        study: Study,
        store: StudyStore,
        surroundings: Surroundings,
        order: Order,
        pace: Pace,
        watch: Watch,
    ) -> None:
        self.study, self.store, self.surroundings, self.order, self.pace, self.watch = (
            study,
            store,
            surroundings,
            order,
            pace,
            watch,
        )
        self.cells = self._register(choose(study, order, surroundings))
        self.by_key = {cell.key: cell for cell in self.cells}
        self.ran = self.failed = 0

    def measure(self, engine: Engine) -> Tally:
        if self.order.rerun:
            self._forget_failures()
        self._set_apart()
        self._settle_complete()
        seed = self.store.seed(
            self.study.name,
            random.SystemRandom().randrange(2**31) if self.order.seed is None else self.order.seed,
        )
        for cell in (cell for cell in self.cells if cell.state == WAITING):
            self.pace.add(cell.task, cell.wanted)
        self.failed = sum(is_failure(cell.state) for cell in self.cells)
        self.pace.start()
        self.watch(None, self.standing())
        for number in range(max((cell.most for cell in self.cells), default=0)):
            waiting = [
                cell
                for cell in self.cells
                if cell.state == WAITING and number not in cell.numbers and number < cell.most
            ]
            random.Random(f"{seed} {number}").shuffle(waiting)
            self._take(engine, waiting, number, self._keep)
        for _ in range(_AGAIN):
            self._measure_again(engine, seed)
        return self.tally()

    def _measure_again(self, engine: Engine, seed: int) -> None:
        """What has met too few calm moments is given another process, at another one."""
        by_number = defaultdict[int, list[_Open]](list)
        for cell in self._disturbed():
            by_number[max(cell.most, *(number + 1 for number in cell.numbers))].append(cell)
            self.pace.add(cell.task, 1)
        if by_number:
            self.watch(None, self.standing())
        for number, cells in sorted(by_number.items()):
            random.Random(f"{seed} {number} again").shuffle(cells)
            self._take(engine, cells, number, self._keep_further)

    def _take(
        self, engine: Engine, cells: Sequence[_Open], number: int, keep: Callable[[Outcome], None]
    ) -> None:
        with contextlib.closing(
            self._outcomes(engine, cells, number)
        ) as outcomes:  # an interrupt ends what the engine has under way
            for outcome in outcomes:
                keep(outcome)

    def _disturbed(self) -> list[_Open]:
        felt = defaultdict[Hashable, list[float]](list)
        for cell in self.cells:
            felt[cell.pulse_kind] += cell.pulses
        calm = {kind: summary.calm(pulses) for kind, pulses in felt.items() if pulses}

        def is_disturbed(cell: _Open) -> bool:
            held = sum(summary.is_calm(pulse, calm[cell.pulse_kind]) for pulse in cell.pulses)
            return cell.state == DONE and bool(cell.pulses) and held < _CALM

        return [
            cell
            for cell in self.cells
            if is_disturbed(cell) and sum(number >= cell.most for number in cell.numbers) < _AGAIN
        ]

    def standing(self) -> Standing:
        return Standing(
            done=self.ran,
            wanted=self.ran + self.pace.pieces,
            failed=self.failed,
            left_seconds=self.pace.left_seconds(),
        )

    def tally(self) -> Tally:
        failures = tuple(
            (cell.task.label, cell.state, cell.error) for cell in self.cells if is_failure(cell.state)
        )
        return Tally(states=dict(Counter(cell.state for cell in self.cells)), failures=failures)

    def _register(self, chosen: Sequence[Cell]) -> list[_Open]:
        plans = {}
        entries = []
        for cell in chosen:
            protocol = _protocol_of(cell, self.order.protocol())
            text, facts = dump(cell.task), dump(self.surroundings.facts(cell.task))
            key = records.digest([text, repr(protocol), self.order.level, _CODE, facts])
            plans[key] = (cell.task, protocol)
            entries.append(
                Entry(
                    key=key,
                    figure=cell.figure,
                    case=cell.case,
                    task=text,
                    level=self.order.level,
                    facts=facts,
                )
            )
        kept = self.store.register(self.study.name, entries)
        numbers = self.store.numbers(one.id for one in kept.values())
        found = []
        for key, (task, protocol) in plans.items():
            one = kept[key]
            found.append(
                _Open(
                    id=one.id,
                    key=key,
                    task=task,
                    protocol=protocol,
                    state=one.state,
                    error=one.error,
                    numbers=numbers.get(one.id, set()),
                    pulses=(one.summary or {}).get("felt", []),
                )
            )
        return found

    def _forget_failures(self) -> None:
        failed = [cell for cell in self.cells if is_failure(cell.state)]
        self.store.forget_failures([cell.id for cell in failed])
        numbers = self.store.numbers(cell.id for cell in failed)
        for cell in failed:
            cell.state, cell.error, cell.numbers = WAITING, "", numbers.get(cell.id, set())

    def _set_apart(self) -> None:
        """Name what cannot be measured here, and let wait again what now can."""
        changed = []
        for cell in (cell for cell in self.cells if cell.state in (WAITING, *APART)):
            state, error = self.surroundings.obstacle(cell.task) or (WAITING, "")
            if (state, error) != (cell.state, cell.error):
                cell.state, cell.error = state, error
                changed.append((cell.id, state, error, None))
        if changed:
            self.store.settle(changed)

    def _settle_complete(self) -> None:
        """Cells whose last process was stored just before a kill."""
        for cell in (
            cell for cell in self.cells if cell.state == WAITING and len(cell.numbers) >= cell.least
        ):
            found = _summary(cell, self.store.reports(cell.id))
            if found:
                cell.state, cell.pulses = DONE, found["felt"]
                self.store.settle([(cell.id, DONE, "", found)])

    def _outcomes(self, engine: Engine, cells: Sequence[_Open], number: int) -> Generator[Outcome]:
        """What the engine brings. One that breaks over a piece has that piece named and is given the others."""
        left = [Work(key=cell.key, number=number, task=cell.task, protocol=cell.protocol) for cell in cells]
        while left:
            handed, back = list[Work](), set[str]()
            coming = engine.measure(_noting(left, handed))
            try:
                for outcome in coming:
                    back.add(outcome.work.key)
                    yield outcome
                return
            except WindtunnelError:
                raise
            except Exception as error:
                lost = [work for work in handed if work.key not in back]
                if len(lost) != 1:  # it cannot be told over which
                    raise
                yield Outcome(
                    work=lost[0],
                    state=_FAULT,
                    error=f"The engine broke over it: {type(error).__name__}: {error}",
                )
                left = left[len(handed) :]
            finally:
                if isinstance(coming, Generator):
                    coming.close()

    def _keep(self, outcome: Outcome) -> None:
        """Store what came back at once; what is no result is named so."""
        cell, number = self.by_key[outcome.work.key], outcome.work.number
        if number in cell.numbers:  # an engine that tries again may bring the same twice
            return
        outcome = _checked(outcome)
        found = None
        if outcome.state == DONE and len(cell.numbers) + 1 >= cell.least:
            found = _summary(cell, [*self.store.reports(cell.id), outcome.report])
        self.store.add(
            cell.id, number, outcome.report, state=outcome.state, error=outcome.error, summary=found
        )
        cell.pulses = found["felt"] if found else []
        before = cell.wanted
        cell.numbers.add(number)
        cell.error = outcome.error
        cell.state = outcome.state if outcome.state != DONE or found else WAITING
        self.ran += 1
        self.failed += is_failure(cell.state)
        self.pace.add(cell.task, (cell.wanted if cell.state == WAITING else 0) - before)
        self.pace.see(cell.task)
        self.watch(outcome, self.standing())

    def _keep_further(self, outcome: Outcome) -> None:
        """One process more of a cell that is done. If it fails, that is noted, and the cell stands by those it has."""
        cell, number = self.by_key[outcome.work.key], outcome.work.number
        if number in cell.numbers:
            return
        outcome = _checked(outcome)
        if outcome.state == DONE and summary.pulse_of(outcome.report):
            found = _summary(cell, [*self.store.reports(cell.id), outcome.report], enough=True)
            assert found is not None
            self.store.add(cell.id, number, outcome.report, summary=found)
            cell.pulses = found["felt"]
        else:
            state = _BAD_REPORT if outcome.state == DONE else outcome.state
            self.store.add(cell.id, number, {}, state=state, error=outcome.error, settles=False)
        cell.numbers.add(number)
        self.ran += 1
        self.pace.add(cell.task, -1)
        self.pace.see(cell.task)
        self.watch(outcome, self.standing())


def _checked(outcome: Outcome) -> Outcome:
    """What was done, with the samples that count told apart; what has none is named so."""
    if outcome.state != DONE:
        return outcome
    if not summary.steady(outcome.report):
        return dataclasses.replace(
            outcome, state=_BAD_REPORT, error="The process ended without steady samples.", report={}
        )
    return dataclasses.replace(outcome, report=stretches.part(outcome.report))


def _noting(left: Sequence[Work], handed: list[Work]) -> Iterator[Work]:
    for work in left:
        handed.append(work)
        yield work


def _protocol_of(cell: Cell, usual: Protocol) -> Protocol:
    if cell.longer is None:
        return usual
    return dataclasses.replace(
        usual, seconds=usual.seconds * cell.longer, precision=1e-9
    )  # no median is so precise: all the time is used


def _summary(cell: _Open, reports: Sequence[Any], *, enough: bool = False) -> dict[str, Any] | None:
    """The cell in few numbers, where its processes agree or are enough."""
    found = summary.interval([summary.steady(report) for report in reports])
    precise = found.spread <= cell.protocol.precision
    if not precise and not enough and len(reports) < cell.most:
        return None
    return summary.summarise(reports, found, "precision" if precise else "the cap on processes")
