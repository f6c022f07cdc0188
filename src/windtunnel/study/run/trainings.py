"""Runs the training cells of a study in child processes; each training is stored as it ends.

A child trains many cells, one after another, so that importing PyTorch is paid once. If a child crashes or
takes too long, its current cell fails, and a new child continues with the rest. What is in the store is not
trained again. The result of a training depends only on its seed, so neither the order nor an interrupt
changes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from windtunnel import child_lifetime, records
from windtunnel.errors import Interrupted, WindtunnelError
from windtunnel.measurement import children, environment
from windtunnel.measurement.children import Launch
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.store import DONE, WAITING, NewCell, Settled, Store, dump
from windtunnel.records import Plain
from windtunnel.study.run.progress import RunProgress
from windtunnel.study.run.run_environment import RunEnvironment
from windtunnel.study.run.runner import CellCounts, Order, is_failure
from windtunnel.study.run.train_cells import LABEL, TrainCell, cells_of
from windtunnel.study.run.train_child import RESULT
from windtunnel.study.study import Study

CODE = 1  # increase when a change of the training code makes old results incomparable with new ones
TIMEOUT_SECONDS = 120.0  # of one training; they take seconds
_CLUSTER_TIMEOUT_SECONDS = 900.0  # 64 workers compute their gradients one after another
_SHARE = 60  # trainings of one child
Tell = Callable[[RunProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOrder:
    """Trials for one child, as plain data."""

    trials: tuple[Plain, ...]
    timeout_seconds: float = TIMEOUT_SECONDS

    def plain(self) -> Plain:
        return {"trials": list(self.trials)}


@dataclass(slots=True, kw_only=True)
class _OpenCell:
    """A training of this run and its state."""

    id: int
    cell: TrainCell
    state: str
    error: str = ""


def choose(study: Study, order: Order) -> list[TrainCell]:
    """The trainings of an order."""
    corners = order.choice.corners or (order.level == "quick" and not order.whole)
    return cells_of(study, order.level, dataclasses.replace(order.choice, corners=corners))


def run(
    study: Study,
    store: Store,
    run_environment: RunEnvironment,
    order: Order | None = None,
    tell: Tell = lambda progress: None,
) -> CellCounts:
    """Run the trainings of the order that are not in the store. A study in a store has one run at a time."""
    order = order or Order()
    with store.held(study.name, take_over=order.take_over):
        cells = _register(study, store, run_environment, order)
        if order.rerun:
            _forget_failures(store, cells)
        try:
            _run(study, store, [cell for cell in cells if cell.state == WAITING], order, tell)
        except KeyboardInterrupt:
            done = sum(cell.state == DONE for cell in cells)
            raise Interrupted(
                f"{done} of {len(cells)} trainings are done and stored in {store.path}.",
                hint="The same command continues from there.",
            ) from None
    failures = tuple((_name(cell.cell), cell.state, cell.error) for cell in cells if is_failure(cell.state))
    return CellCounts(states=dict(Counter(cell.state for cell in cells)), failures=failures)


def _name(cell: TrainCell) -> str:
    at = " ".join(f"{axis}={value}" for axis, value in cell.point.at.items())
    return f"{cell.point.case.name} {at} seed {cell.seed}"


def _register(study: Study, store: Store, run_environment: RunEnvironment, order: Order) -> list[_OpenCell]:
    facts = facts_of(run_environment)
    by_key: dict[str, TrainCell] = {}
    new: list[NewCell] = []
    told = dump(facts)
    for cell in choose(study, order):
        text = cell.point.text(cell.seed)
        key = records.digest([text, CODE, told])
        by_key[key] = cell
        new.append(
            NewCell(
                key=key,
                figure=cell.point.figure,
                case=cell.point.case.name,
                task=text,
                level=order.level,
                facts=told,
            )
        )
    stored = store.register(study.name, new)
    return [
        _OpenCell(id=stored[key].id, cell=cell, state=stored[key].state, error=stored[key].error)
        for key, cell in by_key.items()
    ]


def facts_of(run_environment: RunEnvironment) -> Plain:
    """The facts that two trainings must share to count as one cell."""
    framework, variant = LABEL.split(":")
    return run_environment.facts(Task(framework=framework, variant=variant, job="ffn"))


def _forget_failures(store: Store, cells: Sequence[_OpenCell]) -> None:
    failed = [cell for cell in cells if is_failure(cell.state)]
    store.forget_failures([cell.id for cell in failed])
    for cell in failed:
        cell.state, cell.error = WAITING, ""


def _run(study: Study, store: Store, waiting: list[_OpenCell], order: Order, tell: Tell) -> None:
    """All first seeds in a shuffled order, then all second ones, so that an interrupt affects all cells
    equally."""
    fresh = random.SystemRandom().randrange(2**31) if order.seed is None else order.seed
    random.Random(store.seed(study.name, fresh)).shuffle(waiting)
    # Trainings with the same learning curve follow each other, so that a child computes the curve once.
    waiting.sort(key=lambda open_cell: (open_cell.cell.seed, _curve(open_cell.cell)))
    begin, failed = time.monotonic(), 0
    tell(RunProgress(done=0, wanted=len(waiting), failed=0, left_seconds=0.0, counted="trainings"))
    # Closing ends the child when an interrupt comes.
    with contextlib.closing(_settled(waiting)) as results:
        for done, (open_cell, settled) in enumerate(results, 1):
            store.settle([settled])
            open_cell.state, open_cell.error = settled.state, settled.error
            failed += is_failure(settled.state)
            left = (time.monotonic() - begin) / done * (len(waiting) - done)
            tell(
                RunProgress(
                    done=done, wanted=len(waiting), failed=failed, left_seconds=left, counted="trainings"
                )
            )


def _curve(cell: TrainCell) -> str:
    return getattr(cell.point.trial(cell.seed), "curve", "")


def _settled(waiting: Sequence[_OpenCell]) -> Generator[tuple[_OpenCell, Settled]]:
    left = list(waiting)
    while left:
        group = left[:_SHARE]
        count = 0
        trials = [records.plain(each.cell.point.trial(each.cell.seed)) for each in group]
        with contextlib.closing(_trained(trials)) as messages:
            for message in messages:
                yield group[count], _settle(group[count].id, message)
                count += 1
        left = left[max(count, 1) :]


def _settle(cell: int, message: Plain) -> Settled:
    if "error" in message:
        return Settled(cell=cell, state=message.get("state", "fault"), error=message["error"])
    names = ("result", "loop_seconds", "processor_share")
    return Settled(cell=cell, result={name: message[name] for name in names})


def _trained(trials: Sequence[Plain]) -> Generator[Plain]:
    """A message for each trial. If the child fails, its current trial gets a message with the failure."""
    heard: list[Plain] = []
    launch = Launch(
        command=child_lifetime.command("windtunnel.study.run.train_child"),
        environment=environment.for_child(1),
        threads=None,
    )
    seconds = _CLUSTER_TIMEOUT_SECONDS if any("workers" in trial for trial in trials) else TIMEOUT_SECONDS
    order = TrainOrder(trials=tuple(trials), timeout_seconds=seconds)
    conversation = children.start(
        launch, order, lambda message: heard.append(message) if message["kind"] == RESULT else None
    )
    given = 0
    try:
        while given < len(trials):
            if given == len(heard) and not conversation.listen(RESULT):
                break
            while given < len(heard):
                yield heard[given]
                given += 1
        ending = conversation.finish()
    except BaseException:
        conversation.abandon()
        raise
    if given < len(trials):
        failure: WindtunnelError = children.silent_failure(ending)
        yield {"error": failure.message, "state": getattr(failure, "state", "no result")}
