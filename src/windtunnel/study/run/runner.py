"""Runs a study: cells interleaved in a shuffled order, each process stored as it ends, failures stored by
name.

Process 0 of all cells comes first, then process 1 of all, and so on, so that a slow hour of the machine does
not affect only one cell. At the end, cells with too few quiet processes get further ones. What is in the
store is not run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from windtunnel.errors import Interrupted, WindtunnelError
from windtunnel.measurement import summary
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport
from windtunnel.measurement.steady import LEVELS, Level, Protocol, interval
from windtunnel.measurement.store import DONE, WAITING, Settled, Store
from windtunnel.measurement.summary import Summary
from windtunnel.measurement.windows import keep_quiet
from windtunnel.study.run.cells import Cell, Choice, cells_of
from windtunnel.study.run.engine import Outcome, StudyEngine, Work
from windtunnel.study.run.open_cells import OpenCell, open_cells
from windtunnel.study.run.progress import Pace, RunProgress
from windtunnel.study.run.run_environment import NOT_MEASURABLE, RunEnvironment
from windtunnel.study.study import Study

_NO_RESULT, _FAULT = "no result", "fault"
Watch = Callable[[Outcome | None, RunProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a study is run. `seconds` replaces the level's own. A quick run has the corners of each grid, or
    with `whole` all of it."""

    level: Level = "default"
    whole: bool = False
    choice: Choice = field(default_factory=Choice)
    seconds: float | None = None
    rerun: bool = False
    take_over: bool = False
    seed: int | None = None

    def protocol(self) -> Protocol:
        usual = LEVELS[self.level]
        if self.seconds is None:
            return usual
        warm = min(usual.warm_seconds, self.seconds)
        return dataclasses.replace(usual, seconds=self.seconds, warm_seconds=warm)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCounts:
    """The states of the cells at the end of a run."""

    states: dict[str, int]
    failures: tuple[tuple[str, str, str], ...] = ()

    @property
    def failed(self) -> int:
        return sum(count for state, count in self.states.items() if is_failure(state))

    def __add__(self, other: CellCounts) -> CellCounts:
        states = Counter(self.states) + Counter(other.states)
        return CellCounts(states=dict(states), failures=(*self.failures, *other.failures))


def is_failure(state: str) -> bool:
    return state not in (DONE, WAITING, *NOT_MEASURABLE)


def choose(study: Study, order: Order, run_environment: RunEnvironment) -> list[Cell]:
    """The cells of an order."""
    corners = order.choice.corners or (order.level == "quick" and not order.whole)
    return cells_of(study, run_environment.cores, dataclasses.replace(order.choice, corners=corners))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCallbacks:
    """Callbacks of a run: `step_seconds` gives the expected time of a step, `watch` is called with every
    outcome."""

    step_seconds: Callable[[Task], float | None] = lambda task: None
    watch: Watch = lambda outcome, progress: None


def run(
    study: Study,
    store: Store,
    engine: StudyEngine,
    run_environment: RunEnvironment,
    order: Order | None = None,
    callbacks: RunCallbacks | None = None,
) -> CellCounts:
    """Measure the cells of the order that are not in the store. A study in a store has one run at a time."""
    order = order or Order()
    with store.held(study.name, take_over=order.take_over):
        running = _Run(study, store, run_environment, order, callbacks or RunCallbacks())
        try:
            return running.measure(engine)
        except KeyboardInterrupt:
            counts = running.cell_counts().states
            raise Interrupted(
                f"{counts.get(DONE, 0)} of {sum(counts.values())} cells are done and stored in {store.path}.",
                hint="The same command continues from there.",
            ) from None


class _Run:
    """One run of a study in progress."""

    def __init__(
        self,
        study: Study,
        store: Store,
        run_environment: RunEnvironment,
        order: Order,
        callbacks: RunCallbacks,
    ) -> None:
        self.study, self.store, self.run_environment, self.order = study, store, run_environment, order
        self.pace, self.watch = Pace(order.protocol(), callbacks.step_seconds), callbacks.watch
        chosen, usual = choose(study, order, run_environment), order.protocol()
        self.cells = open_cells(study.name, store, run_environment, chosen, order.level, usual)
        self.by_key = {cell.key: cell for cell in self.cells}
        self.ran = self.failed = 0

    def measure(self, engine: StudyEngine) -> CellCounts:
        if self.order.rerun:
            self._forget_failures()
        self._mark_not_measurable()
        self._settle_complete()
        fresh = random.SystemRandom().randrange(2**31) if self.order.seed is None else self.order.seed
        seed = self.store.seed(self.study.name, fresh)
        for cell in (cell for cell in self.cells if cell.state == WAITING):
            self.pace.add(cell.task, cell.wanted)
        self.failed = sum(is_failure(cell.state) for cell in self.cells)
        self.pace.start()
        self.watch(None, self.progress())
        for number in range(max((cell.most for cell in self.cells), default=0)):
            waiting = [
                cell
                for cell in self.cells
                if cell.state == WAITING and number not in cell.numbers and number < cell.most
            ]
            random.Random(f"{seed} {number}").shuffle(waiting)
            self._take(engine, waiting, number, self._add)
        for _ in range(summary.MOST_FURTHER):
            self._measure_again(engine, seed)
        return self.cell_counts()

    def _measure_again(self, engine: StudyEngine, seed: int) -> None:
        """Give cells with too few quiet processes another one, at another moment."""
        by_number = defaultdict[int, list[OpenCell]](list)
        for cell in self._disturbed():
            by_number[max(cell.most, *(number + 1 for number in cell.numbers))].append(cell)
            self.pace.add(cell.task, 1)
        if by_number:
            self.watch(None, self.progress())
        for number, cells in sorted(by_number.items()):
            random.Random(f"{seed} {number} again").shuffle(cells)
            self._take(engine, cells, number, self._add_further)

    def _take(
        self, engine: StudyEngine, cells: Sequence[OpenCell], number: int, add: Callable[[Outcome], None]
    ) -> None:
        # Closing ends what the engine has under way when an interrupt comes.
        with contextlib.closing(self._outcomes(engine, cells, number)) as outcomes:
            for outcome in outcomes:
                add(outcome)

    def _disturbed(self) -> list[OpenCell]:
        """Cells with too few quiet processes, by one quiet value for the machine and its Python."""
        loops = defaultdict[str | None, list[float]](list)
        for cell in self.cells:
            loops[cell.python] += cell.loop_seconds
        quiet = {python: summary.quiet_loop(seconds) for python, seconds in loops.items() if seconds}
        return [
            cell
            for cell in self.cells
            if cell.state == DONE
            and cell.further < summary.MOST_FURTHER
            and summary.needs_another(cell.loop_seconds, quiet.get(cell.python, 0.0))
        ]

    def progress(self) -> RunProgress:
        return RunProgress(
            done=self.ran,
            wanted=self.ran + self.pace.pieces,
            failed=self.failed,
            left_seconds=self.pace.left_seconds(),
        )

    def cell_counts(self) -> CellCounts:
        failures = tuple(
            (cell.task.label, cell.state, cell.error) for cell in self.cells if is_failure(cell.state)
        )
        return CellCounts(states=dict(Counter(cell.state for cell in self.cells)), failures=failures)

    def _forget_failures(self) -> None:
        failed = [cell for cell in self.cells if is_failure(cell.state)]
        self.store.forget_failures([cell.id for cell in failed])
        numbers = self.store.numbers(cell.id for cell in failed)
        for cell in failed:
            cell.state, cell.error, cell.numbers = WAITING, "", numbers.get(cell.id, set())

    def _mark_not_measurable(self) -> None:
        """Mark cells that cannot be measured here, and reset to waiting those that now can."""
        changed = []
        for cell in (cell for cell in self.cells if cell.state in (WAITING, *NOT_MEASURABLE)):
            state, error = self.run_environment.obstacle(cell.task) or (WAITING, "")
            if (state, error) != (cell.state, cell.error):
                cell.state, cell.error = state, error
                changed.append(Settled(cell=cell.id, state=state, error=error))
        if changed:
            self.store.settle(changed)

    def _settle_complete(self) -> None:
        """Complete cells whose last process was stored just before the run was killed."""
        for cell in self.cells:
            if cell.state == WAITING and len(cell.numbers) >= cell.least:
                whole = _summary(cell, self.store.reports(cell.id))
                if whole:
                    cell.state, cell.whole = DONE, whole
                    self.store.settle([Settled(cell=cell.id, summary=whole)])

    def _outcomes(self, engine: StudyEngine, cells: Sequence[OpenCell], number: int) -> Generator[Outcome]:
        """The outcomes of the engine. A piece that makes it raise becomes a failure; the others are run."""
        left = [Work(key=cell.key, number=number, task=cell.task, protocol=cell.protocol) for cell in cells]
        while left:
            handed, back = list[Work](), set[str]()
            coming = engine.measure(self._hand_out(left, handed, back))
            try:
                for outcome in coming:
                    back.add(outcome.work.key)
                    yield outcome
                return
            except WindtunnelError:
                raise
            except Exception as error:
                lost = [work for work in handed if work.key not in back]
                if len(lost) != 1:  # it is not known which piece it was
                    raise
                words = f"The engine failed on it: {type(error).__name__}: {error}"
                yield Outcome(work=lost[0], state=_FAULT, error=words)
                left = left[len(handed) :]
            finally:
                if isinstance(coming, Generator):
                    coming.close()

    def _hand_out(self, left: Sequence[Work], handed: list[Work], back: set[str]) -> Iterator[Work]:
        """The remaining work: another study may have measured the same cell meanwhile."""
        for work in left:
            handed.append(work)
            cell, before = self.by_key[work.key], self.by_key[work.key].wanted
            if work.number in self.store.numbers([cell.id]).get(cell.id, ()):
                back.add(work.key)
                self._follow(cell)
                self.pace.add(cell.task, (cell.wanted if cell.state == WAITING else 0) - before)
            else:
                yield work

    def _follow(self, cell: OpenCell) -> None:
        """Take over how a cell stands in the store: another study measures it, too."""
        stored = self.store.cell(cell.id)
        cell.numbers = self.store.numbers([cell.id]).get(cell.id, set())
        cell.state, cell.error, cell.whole = stored.state, stored.error, stored.summary

    def _add(self, outcome: Outcome) -> None:
        """Store an outcome at once, as a result or as a named failure."""
        cell, number = self.by_key[outcome.work.key], outcome.work.number
        outcome, before = _checked(outcome), cell.wanted
        while number not in cell.numbers:  # an engine that retries may return the same outcome twice
            if self._store(cell, outcome):
                cell.numbers.add(number)
                self.failed += is_failure(cell.state)
                self._count(cell, outcome, (cell.wanted if cell.state == WAITING else 0) - before)
            else:
                self._follow(cell)

    def _store(self, cell: OpenCell, outcome: Outcome) -> bool:
        """Whether an outcome was stored; not if another study stored a process of this cell meanwhile."""
        number, whole = outcome.work.number, None
        if outcome.report is None:
            failed = Settled(cell=cell.id, state=outcome.state, error=outcome.error)
            stored, state = self.store.add_failure(number, failed, known=cell.numbers), outcome.state
        else:
            if len(cell.numbers) + 1 >= cell.least:
                whole = _summary(cell, [*self.store.reports(cell.id), outcome.report])
            settled = None if whole is None else Settled(cell=cell.id, summary=whole)
            stored = self.store.add(cell.id, outcome.report, settled, known=cell.numbers)
            state = WAITING if whole is None else DONE
        if stored:
            cell.state, cell.whole, cell.error = state, whole, outcome.error
        return stored

    def _add_further(self, outcome: Outcome) -> None:
        """Store one more process of a cell that is done. If it failed, the cell keeps the others."""
        cell, number = self.by_key[outcome.work.key], outcome.work.number
        outcome = _checked(outcome)
        while number not in cell.numbers:
            if self._store_further(cell, outcome):
                cell.numbers.add(number)
                self._count(cell, outcome, -1)
            else:
                self._follow(cell)

    def _store_further(self, cell: OpenCell, outcome: Outcome) -> bool:
        if outcome.report is not None and outcome.report.loop_seconds:
            whole = _summary(cell, [*self.store.reports(cell.id), outcome.report], enough=True)
            assert whole is not None
            settled = Settled(cell=cell.id, summary=whole)
            stored = self.store.add(cell.id, outcome.report, settled, known=cell.numbers)
            cell.whole = whole if stored else cell.whole
            return stored
        state = _NO_RESULT if outcome.state == DONE else outcome.state
        failed = Settled(cell=cell.id, state=state, error=outcome.error)
        return self.store.add_failure(outcome.work.number, failed, settles=False, known=cell.numbers)

    def _count(self, cell: OpenCell, outcome: Outcome, pieces: int) -> None:
        self.ran += 1
        self.pace.add(cell.task, pieces)
        self.pace.see(cell.task)
        self.watch(outcome, self.progress())


def _checked(outcome: Outcome) -> Outcome:
    """An outcome without the samples of disturbed windows; an outcome without samples becomes a failure."""
    if outcome.state != DONE:
        return dataclasses.replace(outcome, report=None)
    if outcome.report is None or not outcome.report.steady:
        error = "The process ended without steady samples."
        return dataclasses.replace(outcome, state=_NO_RESULT, error=error, report=None)
    report = dataclasses.replace(keep_quiet(outcome.report), number=outcome.work.number)
    return dataclasses.replace(outcome, report=report)


def _summary(cell: OpenCell, reports: Sequence[ProcessReport], *, enough: bool = False) -> Summary | None:
    """The cell in few numbers, where its processes agree or are enough."""
    over = interval([report.steady for report in reports])
    precise = over.spread <= cell.protocol.precision
    if not precise and not enough and len(reports) < cell.most:
        return None
    return summary.summarise(reports, over, "precision" if precise else "the cap on processes")
