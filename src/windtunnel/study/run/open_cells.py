"""The cells of a run as they stand: registered in the store, with what is known of them already."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel import records
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.processes import CODE
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.store import NewCell, Store, dump
from windtunnel.measurement.summary import Summary
from windtunnel.study.run.cells import Cell
from windtunnel.study.run.run_environment import RunEnvironment


@dataclass(slots=True, kw_only=True)
class OpenCell:
    """A cell of this run, as it stands. `least` processes are wanted, `most` where they do not agree."""

    id: int
    key: str
    task: Task
    protocol: Protocol
    state: str
    error: str = ""
    numbers: set[int] = field(default_factory=set)
    whole: Summary | None = None

    @property
    def least(self) -> int:
        return self.protocol.processes

    @property
    def most(self) -> int:
        return self.protocol.most_processes

    @property
    def loop_seconds(self) -> tuple[float, ...]:
        return self.whole.loop_seconds if self.whole else ()

    @property
    def python(self) -> str | None:
        """Which Python ran the reference loop: frameworks may have environments of their own."""
        return self.whole.ready.versions.get("python") if self.whole else None

    @property
    def further(self) -> int:
        """Processes it got beyond the most, because too few were quiet."""
        return sum(number >= self.most for number in self.numbers)

    @property
    def wanted(self) -> int:
        """Processes it still needs as far as known; one that has enough and still waits needs another."""
        return max(1, self.least - len(self.numbers))


def open_cells(
    study: str,
    store: Store,
    run_environment: RunEnvironment,
    chosen: Sequence[Cell],
    level: str,
    usual: Protocol,
) -> list[OpenCell]:
    """The chosen cells, added to the store where they are new."""
    protocols = {longer: _protocol_of(longer, usual) for longer in {cell.longer for cell in chosen}}
    plans, cells = _plans(run_environment, chosen, level, protocols)
    stored = store.register(study, cells)
    numbers = store.numbers(one.id for one in stored.values())
    return [
        OpenCell(
            id=stored[key].id,
            key=key,
            task=cell.task,
            protocol=protocols[cell.longer],
            state=stored[key].state,
            error=stored[key].error,
            numbers=numbers.get(stored[key].id, set()),
            whole=stored[key].summary,
        )
        for key, cell in plans.items()
    ]


def _plans(
    run_environment: RunEnvironment,
    chosen: Sequence[Cell],
    level: str,
    protocols: Mapping[float | None, Protocol],
) -> tuple[dict[str, Cell], list[NewCell]]:
    """The chosen cells by their keys, and all places at which they are shown."""
    plans, cells = dict[str, Cell](), list[NewCell]()
    protocol_texts = {longer: repr(protocol) for longer, protocol in protocols.items()}
    known = dict[str, str]()  # facts as text, by framework
    for cell in chosen:
        if cell.task.framework not in known:
            known[cell.task.framework] = dump(run_environment.facts(cell.task))
        text, facts = dump(cell.task), known[cell.task.framework]
        key = records.digest([text, protocol_texts[cell.longer], level, CODE, facts])
        plans[key] = cell
        cells.append(
            NewCell(key=key, figure=cell.figure, case=cell.case, task=text, level=level, facts=facts)
        )
    return plans, cells


def _protocol_of(longer: float | None, usual: Protocol) -> Protocol:
    if longer is None:
        return usual
    # No median is so precise: all the time is used.
    return dataclasses.replace(usual, seconds=usual.seconds * longer, precision=1e-9)
