"""A pipeline: each stage computes its blocks for one micro-batch after another, and sends results to the next
stage.

Forward and backward of a stage are folded: scheduled once by themselves, then repeated for every micro-batch.
What happens between stages, the bubbles included, follows from the order of the schedule and from waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from windtunnel.forecast.contributors.workers import Segment
from windtunnel.forecast.links import LinkSeconds
from windtunnel.forecast.schedule import Lane, LaneTask, StepBuilder


class Turn(NamedTuple):
    """Forward or backward of one micro-batch through one group of blocks of a stage."""

    direction: Literal["forward", "backward"]
    micro_batch: int
    group: int = 0


class StageWork(NamedTuple):
    """The work of a stage: forward and backward of each of its groups of blocks, then exchange and update."""

    forward: Sequence[Segment]
    backward: Sequence[Segment]
    exchange: LinkSeconds | None
    update: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """All stages of a pipeline. `send` is the transfer of one micro-batch's activations or gradients."""

    stages: Sequence[StageWork]
    orders: Sequence[Sequence[Turn]]
    send: LinkSeconds

    def add_to(self, step: StepBuilder) -> None:
        _PipelineTasks(self, step).run()


class _PipelineTasks:
    """Adds the turns of all stages; each as soon as those that it waits for have been added."""

    def __init__(self, pipeline: Stages, step: StepBuilder) -> None:
        self._pipeline, self._step = pipeline, step
        self._last_stage = len(pipeline.stages) - 1
        self._last_group = len(pipeline.stages[0].forward) - 1
        self._arrived: dict[tuple[int, Turn], int] = {}  # what lets a turn of a stage begin

    def run(self) -> None:
        orders = self._pipeline.orders
        next_turn = [0] * len(orders)
        remaining = sum(map(len, orders))
        while remaining:
            before = remaining
            for stage, order in enumerate(orders):
                while next_turn[stage] < len(order) and self._is_ready(stage, order[next_turn[stage]]):
                    self._add(stage, order[next_turn[stage]])
                    next_turn[stage] += 1
                    remaining -= 1
            if remaining == before:
                raise ValueError("The stages of the pipeline wait for each other.")
        self._finish()

    def _is_ready(self, stage: int, turn: Turn) -> bool:
        return self._starts(stage, turn) or (stage, turn) in self._arrived

    def _starts(self, stage: int, turn: Turn) -> bool:
        """Whether the turn receives nothing from another stage: the first forward, and the last backward
        after its forward."""
        if turn.direction == "forward":
            return stage == 0 and turn.group == 0
        return stage == self._last_stage and turn.group == self._last_group

    def _add(self, stage: int, turn: Turn) -> None:
        work = self._pipeline.stages[stage]
        segment = (work.forward if turn.direction == "forward" else work.backward)[turn.group]
        after = [self._arrived[stage, turn]] if (stage, turn) in self._arrived else []
        last = self._run(stage, segment, after, f"{turn.direction} {turn.micro_batch}")
        receiver = self._receiver(stage, turn)
        if receiver is not None:
            lane, seconds = self._pipeline.send
            task = LaneTask(Lane(lane, stage), seconds, "communication", "send")
            self._arrived[receiver] = self._step.add(task, after=(last,))

    def _receiver(self, stage: int, turn: Turn) -> tuple[int, Turn] | None:
        """The stage and turn that receive the result: the next stage, or the first stage with its next group
        of blocks."""
        ahead = 1 if turn.direction == "forward" else -1
        other, group = stage + ahead, turn.group
        if not 0 <= other <= self._last_stage:
            other, group = (0, group + 1) if ahead == 1 else (self._last_stage, group - 1)
        if not 0 <= group <= self._last_group:
            return None
        return other, turn._replace(group=group)

    def _run(self, stage: int, segment: Segment, after: Sequence[int], label: str) -> int:
        lane, last = Lane("device", stage), -1
        for task in [*segment.tasks(lane, label)] or [LaneTask(lane, 0.0, "compute", label)]:
            last = self._step.add(task, after=after)
            after = ()
        return last

    def _finish(self) -> None:
        """Exchange gradients, then update when all have done so: the norm of all gradients is needed."""
        ends = []
        for stage, work in enumerate(self._pipeline.stages):
            last = self._step.add(LaneTask(Lane("device", stage), 0.0, "compute", "backward ended"))
            if work.exchange is not None:
                lane, seconds = work.exchange
                task = LaneTask(Lane(lane, stage), seconds, "communication", "gradients")
                last = self._step.add(task, after=(last,))
            ends.append(last)
        for stage, work in enumerate(self._pipeline.stages):
            last = self._run(stage, work.update, ends, "update")
            self._step.name(last, "kernels", stage)


def order_of(schedule: str, stage: int, stages: int, micro_batches: int, groups: int = 1) -> list[Turn]:
    """The turns of one stage in their order."""
    if schedule == "gpipe":
        first = [Turn("forward", micro) for micro in range(micro_batches)]
        return first + [Turn("backward", turn.micro_batch) for turn in reversed(first)]
    total = micro_batches * groups
    if groups == 1:
        warm_up = min(total, stages - stage - 1)
    else:
        warm_up = min(total, 2 * (stages - stage - 1) + (groups - 1) * stages)
    forwards = [_turn("forward", number, stages, groups) for number in range(total)]
    backwards = [_turn("backward", number, stages, groups) for number in range(total)]
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm_up :]


def most_in_flight(order: Sequence[Turn]) -> int:
    """The most micro-batches (times groups) whose activations a stage keeps at a time."""
    kept = most = 0
    for turn in order:
        kept += 1 if turn.direction == "forward" else -1
        most = max(most, kept)
    return most


def _turn(direction: Literal["forward", "backward"], number: int, stages: int, groups: int) -> Turn:
    """Groups of blocks take turns: `stages` micro-batches through one, then the same through the next."""
    round_, within = divmod(number, stages * groups)
    group = within // stages
    if direction == "backward":
        group = groups - 1 - group
    return Turn(direction, round_ * stages + within % stages, group)
