"""Ways to run a job on a number of devices: all combinations of degrees that divide."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.strategy import Exchange, Precision, Recompute, Shard, Strategy

# A step of one worker is traced with all its micro-batches, which takes as long as this many steps.
MOST_MICRO_BATCHES_ALONE = 32
# Stages times micro-batches whose turns are scheduled one by one: about two seconds for a forecast.
MOST_TURNS = 8192
_MOST_GROUPS = 8  # virtual stages; more only add transfers
_EXCHANGES: tuple[Exchange, ...] = ("buckets", "tensors", "after")


class WorkerKind(NamedTuple):
    """What decides which ops a worker runs for one micro-batch; workers of one kind share a trace."""

    precision: Precision
    tensor: int
    sequence: bool
    expert: int
    recompute: Recompute
    micro_batch: int
    adds_up: bool  # a micro-batch adds to the gradients of another one


class Candidate(NamedTuple):
    """One way to run the job."""

    batch: int
    precision: Precision
    data: int
    tensor: int
    pipeline: int
    accumulate: int
    groups: int = 1
    shard: Shard = "none"
    exchange: Exchange = "buckets"
    recompute: Recompute = "none"
    expert: int = 1
    sequence: bool = False

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def micro_batch(self) -> int:
        return self.batch // (self.data * self.accumulate)

    @property
    def kind(self) -> WorkerKind:
        return WorkerKind(
            self.precision,
            self.tensor,
            self.sequence,
            self.expert,
            self.recompute,
            self.micro_batch,
            self.accumulate > 1,
        )

    @property
    def degrees(self) -> tuple[int, int, int]:
        return self.data, self.tensor, self.pipeline

    def strategy(self, base: Strategy) -> Strategy:
        return dataclasses.replace(
            base,
            batch=self.batch,
            precision=self.precision,
            data_parallel=self.data,
            tensor_parallel=self.tensor,
            pipeline_parallel=self.pipeline,
            accumulate=self.accumulate,
            virtual_stages=self.groups,
            pipeline_schedule="interleaved" if self.groups > 1 else "1f1b",
            shard=self.shard,
            exchange=self.exchange,
            recompute=self.recompute,
            expert_parallel=self.expert,
            sequence_parallel=self.sequence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All candidates that are searched.

    blocks            repeated blocks of the network, which stages of a pipeline divide
    experts           experts of each mixture layer; 0: the network has none
    devices_per_node  the most tensor-parallel workers: their links must be fast
    refused           how many candidates do not divide, by reason
    """

    batches: tuple[int, ...]
    precisions: tuple[Precision, ...]
    blocks: int
    experts: int
    devices_per_node: int
    refused: Counter[str] = field(default_factory=Counter)

    def candidates(self, count: int) -> Iterator[Candidate]:
        """All that divide, without recomputation: that is tried where memory is short."""
        for batch in self.batches:
            for tensor in _divisors(count, self.devices_per_node):
                for pipeline in _divisors(count // tensor, max(1, self.blocks)):
                    data = count // (tensor * pipeline)
                    if batch % data:
                        self.refused[f"a batch of {batch} does not divide among their workers"] += 1
                        continue
                    for precision in self.precisions:
                        candidate = Candidate(
                            batch, precision, data, tensor, pipeline, 1, sequence=tensor > 1
                        )
                        yield from self._of_degrees(candidate)

    def _of_degrees(self, candidate: Candidate) -> Iterator[Candidate]:
        share = candidate.batch // candidate.data
        for micro_batch in micro_batches(share):
            accumulate = share // micro_batch
            if candidate.devices == 1 and accumulate > MOST_MICRO_BATCHES_ALONE:
                self.refused[
                    f"more than {MOST_MICRO_BATCHES_ALONE} micro-batches on one device are not forecast"
                ] += 1
                continue
            if candidate.pipeline > 1 and candidate.pipeline * accumulate > MOST_TURNS:
                self.refused[f"more than {MOST_TURNS:,} turns of a pipeline are not forecast"] += 1
                continue
            for expert in self._expert_degrees(candidate.data):
                one = candidate._replace(accumulate=accumulate, expert=expert)
                yield from self._exchanges(one) if candidate.pipeline == 1 else self._schedules(one)

    def _expert_degrees(self, data: int) -> list[int]:
        if not self.experts:
            return [1]
        return [degree for degree in _divisors(data, self.experts) if self.experts % degree == 0]

    def _exchanges(self, candidate: Candidate) -> Iterator[Candidate]:
        if candidate.data == 1:
            yield candidate
            return
        for exchange in _EXCHANGES:
            yield candidate._replace(exchange=exchange)
        yield candidate._replace(shard="optimizer")
        yield candidate._replace(shard="weights")

    def _schedules(self, candidate: Candidate) -> Iterator[Candidate]:
        """Stages exchange gradients when all have ended, whole or with the optimizer's state divided."""
        for groups in _divisors(self.blocks // candidate.pipeline, _MOST_GROUPS):
            if groups > 1 and (
                candidate.accumulate % candidate.pipeline or self.blocks % (candidate.pipeline * groups)
            ):
                continue
            yield candidate._replace(groups=groups)
            if candidate.data > 1:
                yield candidate._replace(groups=groups, shard="optimizer")

    def with_less_memory(self, candidate: Candidate) -> Iterator[Candidate]:
        """What to try where a candidate needs too much memory, and takes at least as long."""
        if candidate.recompute == "none" and self.blocks:
            yield candidate._replace(recompute="blocks")
        if candidate.shard == "optimizer" and candidate.pipeline == 1:
            yield candidate._replace(shard="gradients")


def micro_batches(share: int) -> list[int]:
    """Examples of a micro-batch: powers of two, and the share of a worker halved again and again."""
    powers = {2**power for power in range(share.bit_length()) if share % 2**power == 0}
    return sorted(powers | {share // power for power in powers}, reverse=True)


def counts_of(devices: int, *, finely: bool = False) -> list[int]:
    """Numbers of devices that are tried: powers of two, all, and all halved; `finely` also between powers."""
    powers = [2**power for power in range(devices.bit_length())]
    halved = [devices // power for power in powers if devices % power == 0]
    between = [3 * power for power in powers if finely and 3 * power <= devices]
    return sorted({*powers, *between, *halved})


def _divisors(number: int, most: int) -> list[int]:
    return [part for part in range(1, min(number, most) + 1) if number % part == 0]
