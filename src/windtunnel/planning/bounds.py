"""Lower bounds on the time of a step, from its micro-batches, its update and its exchange.

Links are priced as in the forecast. Work that may overlap counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from windtunnel.forecast.links import Links
from windtunnel.forecast.workers import Workers
from windtunnel.machine.machine import Machine
from windtunnel.planning.candidates import Candidate, WorkerKind
from windtunnel.planning.facts import JobFacts
from windtunnel.trace import Collective

_SIZES = tuple(10.0**power for power in range(3, 11))  # bytes of an exchange


class WorkerSeconds(NamedTuple):
    """One micro-batch of the whole network, and the update of all weights, on one kind of worker.

    `exchanging`: the seconds of the micro-batch in which the worker waits for other tensor-parallel workers.
    """

    micro_batch: float
    update: float
    exchanging: float = 0.0


class ExchangeSeconds(NamedTuple):
    """How long links are busy in a step, and how long all workers wait for them at its end."""

    busy: float
    exposed: float


class Exchanges:
    """What data-parallel workers exchange, by the links of a machine."""

    def __init__(self, machine: Machine, facts: Mapping[str, JobFacts]) -> None:
        self._machine, self._facts = machine, facts
        self._known: dict[object, ExchangeSeconds] = {}
        self._kept: dict[int, float] = {}

    def of(self, candidate: Candidate) -> ExchangeSeconds:
        if candidate.data == 1:
            return ExchangeSeconds(0.0, 0.0)
        key = (
            candidate.precision,
            candidate.degrees,
            candidate.expert,
            candidate.shard,
            candidate.exchange,
            candidate.accumulate,
        )
        if key not in self._known:
            self._known[key] = self._price(candidate)
        return self._known[key]

    def kept_of_two(self, tensor: int) -> float:
        """What this many workers take at least to exchange the activations of a layer, as a share of what two
        of them take: 1 behind a switch, less where two devices have fewer links than more of them."""
        if tensor not in self._kept:
            self._kept[tensor] = min(
                self._among(tensor, kind, size) / self._among(2, kind, size)
                for kind in ("all_reduce", "all_gather", "reduce_scatter")
                for size in _SIZES
            )
        return min(1.0, self._kept[tensor])

    def _among(self, tensor: int, kind: str, size: float) -> float:
        workers = Workers(tensor=tensor, devices_per_node=self._machine.devices)
        return Links(machine=self._machine, workers=workers).carry(Collective(kind, size, "tensor")).seconds

    def _price(self, candidate: Candidate) -> ExchangeSeconds:
        """Layers, stages and experts divide weights and gradients equally at best."""
        facts, parts = (
            self._facts[candidate.precision],
            candidate.tensor * candidate.pipeline * candidate.expert,
        )
        weights, gradients = facts.state_bytes["weights"] / parts, facts.gradient_bytes / parts
        workers = Workers(
            data=candidate.data,
            tensor=candidate.tensor,
            pipeline=candidate.pipeline,
            expert=candidate.expert,
            devices_per_node=self._machine.devices,
        )
        links = Links(machine=self._machine, workers=workers)

        def seconds(kind: str, size: float) -> float:
            return links.carry(Collective(kind, size, "data")).seconds

        whole = seconds("all_reduce", gradients)
        half = seconds("reduce_scatter", gradients)
        if candidate.pipeline > 1:  # stages exchange when all have ended
            both = half + seconds("all_gather", gradients)
            return ExchangeSeconds(0.0, whole if candidate.shard == "none" else both)
        if candidate.shard == "none":
            return (
                ExchangeSeconds(0.0, whole) if candidate.exchange == "after" else ExchangeSeconds(whole, 0.0)
            )
        gathered = seconds("all_gather", weights)
        if candidate.shard == "weights":
            return ExchangeSeconds(candidate.accumulate * (2 * gathered + half), 0.0)
        times = candidate.accumulate if candidate.shard == "gradients" else 1
        return ExchangeSeconds(times * half, gathered)


def step_bound(candidate: Candidate, seconds: WorkerSeconds, exchange: ExchangeSeconds) -> float:
    """A lower bound on the time of a step.

    Each stage does its part of all micro-batches. The last one waits until one micro-batch has passed the
    others; with several groups of blocks on a stage, one group of each.
    """
    turns = candidate.accumulate + (candidate.pipeline - 1) / candidate.groups
    computing = seconds.micro_batch * turns / candidate.pipeline
    owners = candidate.data if candidate.shard != "none" else 1
    update = seconds.update / (candidate.pipeline * owners)
    return max(computing, exchange.busy) + exchange.exposed + update


def bound_by_other(
    kind: WorkerKind, other: WorkerKind, seconds: WorkerSeconds, kept_of_two: float = 1.0
) -> float:
    """What the micro-batch of a kind of worker takes at least if that of another one takes `seconds`.

    Dividing by feature saves at most its share of the computing. Of the exchange of two workers, more of them
    take at least the share `kept_of_two`. A larger micro-batch is not slower for each example, and
    recomputing or adding up gradients saves nothing.
    """
    is_comparable = (
        kind.precision == other.precision
        and kind.expert == other.expert
        and kind.tensor >= other.tensor
        and kind.micro_batch <= other.micro_batch
        and other.recompute in ("none", kind.recompute)
        and kind.adds_up >= other.adds_up
    )
    if not is_comparable:
        return 0.0
    exchanging = seconds.exchanging if other.tensor == 2 else 0.0
    computing = (seconds.micro_batch - exchanging) * other.tensor / kind.tensor
    return (computing + exchanging * kept_of_two) * kind.micro_batch / other.micro_batch


_SHARD_ORDER = ("none", "optimizer", "gradients", "weights")


def needs_more(candidate: Candidate, other: Candidate) -> bool:
    """Whether a candidate needs at least the memory of another one.

    It has the same network in the same parts, at least as large micro-batches, as many of them in flight, and
    as much that every worker keeps whole.
    """
    same = ("precision", "data", "tensor", "pipeline", "recompute", "expert", "sequence")
    return (
        all(getattr(candidate, name) == getattr(other, name) for name in same)
        and candidate.micro_batch >= other.micro_batch
        and min(candidate.accumulate, candidate.pipeline) >= min(other.accumulate, other.pipeline)
        and candidate.groups >= other.groups
        and _SHARD_ORDER.index(candidate.shard) <= _SHARD_ORDER.index(other.shard)
        and (candidate.exchange == "buckets" or candidate.exchange == other.exchange)
    )
