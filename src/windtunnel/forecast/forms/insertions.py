"""Add ops, waits and marks to a list of ops without changing the positions of the existing ops."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from windtunnel.families import COLLECTIVE
from windtunnel.trace import Axis, Collective, Op, Phase

JOIN = "windtunnel.join"  # the device goes on when what it waits for has ended


class Insertions:
    """New ops before and behind the ops of a list, by position."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._before: dict[int, list[Op]] = defaultdict(list)
        self._behind: dict[int, list[Op]] = defaultdict(list)
        self._waits: dict[int, list[str]] = defaultdict(list)
        self._marks: dict[int, str] = {}
        self._allocated: dict[int, list[int]] = defaultdict(list)
        self._freed: dict[int, list[int]] = defaultdict(list)

    def before(self, position: int, *ops: Op) -> None:
        self._before[position] += ops

    def behind(self, position: int, *ops: Op) -> None:
        self._behind[position] += ops

    def wait(self, position: int, *marks: str) -> None:
        """Let the op at this position wait for the ops with these marks."""
        self._waits[position] += marks

    def allocate(self, position: int, name: int) -> None:
        """Let the op at this position allocate more memory."""
        self._allocated[position].append(name)

    def free(self, position: int, name: int) -> None:
        """Let the op at this position free more memory."""
        self._freed[position].append(name)

    def mark(self, position: int, mark: str) -> str:
        """Let other ops wait for this one; an op that has a mark keeps it."""
        return self._marks.setdefault(position, self._ops[position].mark or mark)

    def build(self) -> tuple[Op, ...]:
        """The list with everything in its place."""
        result: list[Op] = []
        for position, op in enumerate(self._ops):
            result += self._before.get(position, ())
            result.append(self._changed(position, op))
            result += self._behind.get(position, ())
        result += self._before.get(len(self._ops), ())
        return tuple(result)

    def _changed(self, position: int, op: Op) -> Op:
        waits, mark = self._waits.get(position, ()), self._marks.get(position, op.mark)
        taken, freed = self._allocated.get(position, ()), self._freed.get(position, ())
        if not (waits or taken or freed or mark != op.mark):
            return op
        return dataclasses.replace(
            op,
            waits=(*op.waits, *waits),
            mark=mark,
            allocated=(*op.allocated, *taken),
            freed=(*op.freed, *freed),
        )


def collective(
    kind: str,
    size_bytes: float,
    mark: str,
    *,
    axis: Axis = "data",
    phase: Phase = "backward",
    follows: bool = True,
    waits: tuple[str, ...] = (),
    block: int | None = None,
) -> Op:
    """An exchange between the workers of a group."""
    return Op(
        name=f"windtunnel.{kind}",
        family=COLLECTIVE,
        phase=phase,
        dtype="fp32",
        flop=0.0,
        read_bytes=0.0,
        written_bytes=0.0,
        collective=Collective(kind, size_bytes, axis, follows=follows),
        mark=mark,
        waits=waits,
        block=block,
    )


def streaming(name: str, elements: float, read: float, written: float, phase: Phase = "backward") -> Op:
    """A pass over memory, such as a copy into a bucket."""
    return Op(
        name=name,
        family="streaming",
        phase=phase,
        dtype="fp32",
        flop=elements,
        read_bytes=read,
        written_bytes=written,
        shape=(max(1, int(elements)), 0, 1),
    )


def join(*waits: str, phase: Phase = "update") -> Op:
    """Let the device wait."""
    return Op(
        name=JOIN,
        family="view",
        phase=phase,
        dtype="fp32",
        flop=0.0,
        read_bytes=0.0,
        written_bytes=0.0,
        waits=waits,
    )
