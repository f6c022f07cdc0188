"""A step of several workers: its contributors to the schedule, and the memory of the worker that needs most.

Equal workers are folded: one worker of each kind stands for all. Without a pipeline there is one kind; with
one, each stage is a kind. Equal micro-batches are folded too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.errors import BadInput
from windtunnel.forecast import forms
from windtunnel.forecast.contributors import Contributor, call_seconds, feeders_of
from windtunnel.forecast.contributors.ops import StepCalls
from windtunnel.forecast.contributors.stages import Stages, StageWork, Turn, most_in_flight, order_of
from windtunnel.forecast.contributors.workers import RepeatedOps, Segment, WorkerOps, segment_of
from windtunnel.forecast.feeding import FedBatch
from windtunnel.forecast.links import Links, LinkSeconds
from windtunnel.forecast.price import Pricer, threads_of
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.workers import Workers, share_of_batch, workers_of
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import BEFORE, Allocation, Collective, Op, Trace

MOST_TRACED = 2  # micro-batches that are traced: the first, and one that adds to its gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelStep:
    """A traced worker with what its form of parallelism adds, its prices, and its links.

    `plain` are the ops of the trace without data-parallel exchange.
    """

    trace: Trace
    plain: Trace
    machine: Machine
    strategy: Strategy
    profile: Profile
    pricer: Pricer

    @property
    def workers(self) -> Workers:
        return workers_of(self.strategy, self.machine)

    @property
    def links(self) -> Links:
        return Links(machine=self.machine, workers=self.workers)

    @property
    def flop(self) -> float:
        """The arithmetic of all workers in one step."""
        batches, update = micro_batches(self.plain.ops)
        one = sum(op.flop for op in batches[-1]) * self.strategy.accumulate + sum(op.flop for op in update)
        return one * self.workers.data * self.workers.tensor

    def contributors(self) -> list[Contributor]:
        """The contributors of the step, in order."""
        if self.strategy.pipeline_parallel > 1:
            self._refuse_feed()
            return [self._pipeline()]
        costs = self.machine.launch_costs
        assert costs is not None
        is_cpu = self.machine.device.kind == "cpu"
        captured = self.strategy.execution == "graph"
        seconds = 0.0 if captured else call_seconds(self.trace, costs) * self._repetition
        if captured:
            seconds = costs.graph_seconds
        calls = StepCalls(seconds=seconds, is_device=is_cpu)
        return [calls, *self._feeders(seconds), *self._ops(captured)]

    def _refuse_feed(self) -> None:
        if self.strategy.data != "resident":
            raise BadInput(
                f"A pipeline that is fed by data={self.strategy.data} is not modelled.",
                hint="Use --data resident, or divide the model in another way.",
            )

    def micro_batch(self) -> Segment:
        """One micro-batch of the whole network in a sequence of equal ones, without data-parallel
        exchange."""
        return segment_of(self._worker_ops(micro_batches(self.plain.ops)[0][-1]))

    def update_seconds(self) -> float:
        """Seconds of the kernels that update all weights, for a worker that holds all of them."""
        return sum(price.device_seconds for price in self.pricer.price(micro_batches(self.plain.ops)[1]))

    def _feeders(self, call_seconds: float) -> list[Contributor]:
        """The contributors that bring a worker its share of the batch. All workers of a node share its cores
        and links."""
        if self.strategy.data == "resident":
            return []
        prices = self.pricer.price(self.trace.ops)
        training = sum(price.host_seconds for price in prices)
        if self.machine.device.kind == "cpu":
            threads = min(threads_of(self.machine, self.strategy), self.machine.device.cores or 1)
            training += threads * sum(price.device_seconds for price in prices)
        traced = share_of_batch(self.strategy, self.trace.batch) / self._repetition
        own = dataclasses.replace(self.trace, batch=round(traced))
        batch = FedBatch.of(own, self._repetition)
        seconds = call_seconds + training * self._repetition
        return feeders_of(batch, self.machine, self.strategy, self.profile, seconds)

    @property
    def _repetition(self) -> float:
        """Micro-batches of a step for each that was traced."""
        traced = len(micro_batches(self.plain.ops)[0])
        return self.strategy.accumulate / traced

    def _ops(self, captured: bool) -> list[Contributor]:
        batches, update = micro_batches(self.trace.ops)
        times = self.strategy.accumulate - MOST_TRACED
        if times <= 0:
            return [self._worker_ops(self.trace.ops, captured)]
        # Only the last micro-batch exchanges gradients, unless each worker keeps only a share of them.
        exchanges = self.strategy.shard in ("gradients", "weights")
        middle = batches[-1] if exchanges else micro_batches(self.plain.ops)[0][-1]
        segment = segment_of(self._worker_ops(middle, captured))
        return [
            self._worker_ops(batches[0], captured),
            RepeatedOps(segment=segment, times=times),
            self._worker_ops((*batches[-1], *update), captured),
        ]

    def _worker_ops(self, ops: Sequence[Op], captured: bool = False) -> WorkerOps:
        return WorkerOps(
            ops=ops,
            prices=self.pricer.price(ops),
            links=self.links,
            is_device=self.machine.device.kind == "cpu",
            is_captured=captured,
        )

    def _pipeline(self) -> Stages:
        strategy = self.strategy
        batches, update = micro_batches(self.plain.ops)
        by_block = _by_block(batches[-1])
        known: dict[tuple[tuple[object, ...], ...], Segment] = {}

        def fold(ops: Sequence[Op]) -> Segment:
            key = tuple((op.name, op.shape, op.read_bytes, op.written_bytes, op.collective) for op in ops)
            if key not in known:
                known[key] = segment_of(self._worker_ops(ops))
            return known[key]

        stages = []
        for stage in range(strategy.pipeline_parallel):
            groups = block_ranges(self.plain.blocks, strategy)[stage]
            forward = [fold([op for b in group for op in by_block["forward", b]]) for group in groups]
            backward = [
                fold([op for b in reversed(group) for op in by_block["backward", b]]) for group in groups
            ]
            share = _share_of_parameters(self.plain, groups)
            own = self._update(update, share)
            stages.append(StageWork(forward, backward, self._exchange(groups), fold(own)))
        return Stages(stages=stages, orders=orders_of(strategy), send=self._send())

    def _send(self) -> LinkSeconds:
        """The transfer from one stage to the next.

        All tensor-parallel workers hold the whole tensor. Each sends its part to its counterpart in the next
        stage, and the receivers gather the parts (Narayanan et al. 2021, 4.1; the default of Megatron-LM).
        With sequence parallelism each worker holds only its part, so nothing is gathered.
        """
        size, tensor = self.plain.boundary_bytes, self.strategy.tensor_parallel
        if tensor == 1 or self.strategy.sequence_parallel:
            return self.links.carry(Collective("send", size, "pipeline"))
        lane, seconds = self.links.carry(Collective("send", size / tensor, "pipeline"))
        return LinkSeconds(lane, seconds + self.links.carry(Collective("all_gather", size, "tensor")).seconds)

    def _update(self, update: Sequence[Op], share: float) -> list[Op]:
        """The update of a stage's share of the weights."""
        parts = share / ((self.strategy.data_parallel or 1) if self.strategy.shard != "none" else 1)
        return [_scaled(op, parts) for op in update]

    def _exchange(self, groups: Sequence[range]) -> LinkSeconds | None:
        """The exchange of a stage's gradients: an all-reduce; with sharded state, a reduce-scatter and an
        all-gather."""
        if (self.strategy.data_parallel or 1) == 1:
            return None
        blocks = {block for group in groups for block in group}
        size = sum(gradient.bytes for gradient in self.plain.gradients if gradient.block in blocks)
        if self.strategy.shard == "none":
            return self.links.carry(Collective("all_reduce", size, "data"))
        halves = [
            self.links.carry(Collective(kind, size, "data")) for kind in ("reduce_scatter", "all_gather")
        ]
        return LinkSeconds(halves[0].lane, sum(half.seconds for half in halves))

    def memory_traces(self) -> list[tuple[Trace, list[float]]]:
        """For each worker that may need the most memory: its step, and the workspace of each op."""
        if self.strategy.pipeline_parallel == 1:
            return [self._with_workspaces(self.trace)]
        ranges, orders = block_ranges(self.plain.blocks, self.strategy), orders_of(self.strategy)
        ends = {0, self.strategy.pipeline_parallel - 1}
        return [
            self._with_workspaces(
                _stage_trace(forms.divided(self.trace, self.strategy), ranges[stage], orders[stage])
            )
            for stage in ends
        ]

    def _with_workspaces(self, trace: Trace) -> tuple[Trace, list[float]]:
        return trace, [price.workspace_bytes for price in self.pricer.price(trace.ops)]


def parallel_step(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> ParallelStep:
    """The step of a strategy whose degrees are known, from the trace of one worker."""
    _refuse_stages(trace, strategy)
    whole = forms.applied(trace, strategy) if strategy.pipeline_parallel == 1 else trace
    return ParallelStep(
        trace=whole,
        plain=trace,
        machine=machine,
        strategy=strategy,
        profile=profile,
        pricer=Pricer(machine, strategy, whole, profile),
    )


def micro_batches(ops: Sequence[Op]) -> tuple[list[tuple[Op, ...]], tuple[Op, ...]]:
    """The ops of each micro-batch, and those of the update."""
    update = next((i for i, op in enumerate(ops) if op.phase == "update"), len(ops))
    starts = [0] + [
        i for i in range(1, update) if ops[i].phase == "forward" and ops[i - 1].phase == "backward"
    ]
    ends = [*starts[1:], update]
    return [tuple(ops[a:b]) for a, b in zip(starts, ends, strict=True)], tuple(ops[update:])


def block_ranges(blocks: int, strategy: Strategy) -> list[list[range]]:
    """For each stage, the blocks of each of its groups. The first and the last group include the ops outside
    of blocks."""
    stages, groups = strategy.pipeline_parallel, strategy.virtual_stages
    parts = stages * groups
    edges = [blocks * part // parts for part in range(parts + 1)]
    pieces = [range(a, b) for a, b in itertools.pairwise(edges)]
    pieces[0] = range(-1, pieces[0].stop)
    pieces[-1] = range(pieces[-1].start, blocks + 1)
    return [[pieces[group * stages + stage] for group in range(groups)] for stage in range(stages)]


def orders_of(strategy: Strategy) -> list[list[Turn]]:
    stages, groups = strategy.pipeline_parallel, strategy.virtual_stages
    return [
        order_of(strategy.pipeline_schedule, stage, stages, strategy.accumulate, groups)
        for stage in range(stages)
    ]


def _refuse_stages(trace: Trace, strategy: Strategy) -> None:
    parts = strategy.pipeline_parallel * strategy.virtual_stages
    if strategy.pipeline_parallel == 1:
        return
    if not trace.blocks:
        raise BadInput(
            f"{trace.job} has no repeated blocks that a pipeline could divide.",
            hint="Blocks are the members of nn.ModuleList or nn.Sequential; at least two need parameters.",
        )
    if parts > trace.blocks:
        raise BadInput(
            f"{parts} stages of a pipeline are more than the {trace.blocks} blocks of {trace.job}.",
            hint=f"Use pipeline_parallel x virtual_stages of at most {trace.blocks}.",
        )
    if strategy.pipeline_schedule == "interleaved" and strategy.accumulate % strategy.pipeline_parallel:
        raise BadInput(
            f"An interleaved pipeline of {strategy.pipeline_parallel} stages cannot take turns with "
            f"{strategy.accumulate} micro-batches.",
            hint=f"Use a multiple of {strategy.pipeline_parallel} micro-batches (--accumulate).",
        )


def _by_block(ops: Sequence[Op]) -> dict[tuple[str, int], list[Op]]:
    """The ops of one micro-batch by phase and block."""
    found: dict[tuple[str, int], list[Op]] = defaultdict(list)
    for op in ops:
        found[op.phase, _block(op)].append(op)
    return found


def _block(op: Op) -> int:
    return BEFORE if op.block is None else op.block


def _share_of_parameters(trace: Trace, groups: Sequence[range]) -> float:
    whole = sum(gradient.elements for gradient in trace.gradients) or 1
    own = sum(g.elements for g in trace.gradients if any(g.block in group for group in groups))
    return own / whole


def _scaled(op: Op, share: float) -> Op:
    """An op of the update over a share of the tensors."""
    if not op.shape or op.collective is not None:
        return op
    return dataclasses.replace(
        op,
        flop=op.flop * share,
        read_bytes=op.read_bytes * share,
        written_bytes=op.written_bytes * share,
        shape=(max(1, int(op.shape[0] * share)), *op.shape[1:]),
        calls=max(1, round(op.calls * share)),
    )


def _stage_trace(trace: Trace, groups: Sequence[range], order: Sequence[Turn]) -> Trace:
    """The step of one stage. The activations of its other micro-batches in flight are held memory."""
    blocks = {block for group in groups for block in group}
    ops = tuple(op for op in trace.ops if op.phase == "update" or _block(op) in blocks)
    share = _share_of_parameters(trace, groups)
    in_update = {name for op in ops if op.phase == "update" for name in op.allocated}
    held = [name for name in trace.held if trace.owners.get(name, -1) in blocks or name not in trace.owners]
    stash = stash_bytes(trace, ops) / len(groups)
    extra = max(trace.allocations) + 1
    waiting = max(0, most_in_flight(order) - len(groups)) * stash
    allocations = {
        name: Allocation(bytes=each.bytes * share, part=each.part)
        if name in in_update or each.part == "buckets"
        else each
        for name, each in trace.allocations.items()
    }
    allocations[extra] = Allocation(bytes=waiting, part="activations")
    return dataclasses.replace(trace, ops=ops, held=(*held, extra), allocations=allocations)


def stash_bytes(trace: Trace, ops: Sequence[Op]) -> float:
    """Bytes that the forward pass of a micro-batch keeps for its backward pass."""
    forward = [op for op in micro_batches(ops)[0][-1] if op.phase == "forward"]
    alive = {name for op in forward for name in op.allocated} - {name for op in forward for name in op.freed}
    return sum(trace.allocations[name].bytes for name in alive)
