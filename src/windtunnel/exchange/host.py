"""Workers that are processes of one host: they share its cores, and each exchange costs processor time.

Nothing waits there for a network. A message is work of both processes that exchange it, and packing,
DistributedDataParallel and the parameter server are work as well. So the time of a step is the work on the
core that has most of it. With more workers than cores, some share a core (`shares_of`): each waits for its
turn while another computes or sends.

Other programs take part in that: `load` counts them in processes of the same weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.exchange.run import ExchangeCosts
from windtunnel.forecast import gloo
from windtunnel.machine.machine import Machine

MOST_PROCESSES = 64  # of one host
MEASURED_ON = "the processor time of messages is that of an AMD EPYC (Turin): a slower CPU takes longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeWork:
    """Processor seconds of one part of an exchange: fixed ones, and more for each tensor and each byte."""

    fixed: float = 0.0
    tensor: float = 0.0
    byte: float = 0.0

    def seconds(self, tensors: float, size: float) -> float:
        return self.fixed + self.tensor * tensors + self.byte * size


# Measured by benchmarks/exchange_constants.py on synthetic networks (docs/results/exchange-constants-*.json):
# 2 cores of an AMD EPYC (Turin), 2026-11-19, PyTorch 2.13, scheduled before all other programs.
# DistributedDataParallel around a network: hooks, buckets, flags. Its all-reduce comes on top.
WRAPPER = ExchangeWork(fixed=111e-6, tensor=2.7e-6)
# An average of weights: copied, packed, divided, unpacked and loaded. Its all-reduce comes on top.
AVERAGE = ExchangeWork(fixed=144e-6, tensor=2.5e-6, byte=0.34e-9)
# A worker with a parameter server: gradients copied, packed and sent; weights received and loaded.
WORKER_END = ExchangeWork(fixed=245e-6, tensor=4.7e-6, byte=0.79e-9)
# The server: what each message costs it, and what each change of the weights does, without the update itself.
SERVER_MESSAGES = ExchangeWork(fixed=126e-6, byte=0.72e-9)
SERVER_CHANGE = ExchangeWork(fixed=120e-6, tensor=8.4e-6)
# How much longer a step of a worker takes if the other cores compute too (caches and memory that they share),
# and if another worker has used its core since (its caches are filled again).
BESIDE = 0.066
TURN = 0.081


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep:
    """What the exchange depends on.

    cpu_seconds     processor time of a step of one worker by itself, with its update, wherever that happens
    tensors         of the gradients
    gradient_bytes  of them together
    buffers         further tensors of the network: running means of normalisations
    """

    cpu_seconds: float
    tensors: int
    gradient_bytes: float
    buffers: int = 0

    @property
    def all_tensors(self) -> int:
        return self.tensors + self.buffers


def on_core_of(workers: int, cores: int) -> list[int]:
    """The workers on the core of each worker: they are bound to cores in turn (`real/launch.py`).

    >>> on_core_of(2, 2)
    [1, 1]
    >>> on_core_of(3, 2)  # the first and the third share a core
    [2, 1, 2]
    """
    return [len(range(worker % cores, workers, cores)) for worker in range(workers)]


def shares_of(workers: int, cores: int, load: float = 0.0) -> list[float]:
    """How many times as long work of each worker takes, because others compute on its core. Other programs
    go where there is room.

    >>> shares_of(2, 2, load=2)
    [2.0, 2.0]
    """
    even = (workers + load) / cores if load else 1.0
    return [max(1.0, even, float(count)) for count in on_core_of(workers, cores)]


def cold_factors(workers: int, cores: int) -> list[float]:
    """How many times as long a step of each worker takes, because others use its caches."""
    busy = min(1.0, (workers - 1) / (cores - 1)) if cores > 1 else 0.0
    return [(1 + BESIDE * busy) * (1 + TURN * (count > 1)) for count in on_core_of(workers, cores)]


def shared_host_costs(
    step: WorkerStep, workers: int, group: int, machine: Machine, load: float = 0.0
) -> ExchangeCosts:
    """The costs of worker processes of one thread each, `group` of them synchronous with each other."""
    cores = machine.device.cores or 1
    shares = shares_of(workers, cores, load)
    most, even = max(shares), sum(shares) / workers
    # While the server works at least one client waits for it, so it competes with the others only.
    serving = max(1.0, (workers // group + load) / cores)
    message = SERVER_MESSAGES.seconds(step.all_tensors, step.gradient_bytes) * serving
    change = SERVER_CHANGE.seconds(step.all_tensors, step.gradient_bytes) * serving
    return ExchangeCosts(
        compute_seconds=step.cpu_seconds,
        shares=tuple(share * cold for share, cold in zip(shares, cold_factors(workers, cores), strict=True)),
        exposed_seconds=_wrapped_seconds(step, workers, machine) * most,
        reduce_seconds=_average_seconds(step, workers, machine) * most,
        group_seconds=_group_seconds(step, group, machine) * most,
        serve_seconds=message + change,
        message_seconds=message / 2,
        update_seconds=change,
        path_seconds=WORKER_END.seconds(step.all_tensors, step.gradient_bytes) * even / 2,
        sent_bytes=step.gradient_bytes,
    )


def _wrapped_seconds(step: WorkerStep, workers: int, machine: Machine) -> float:
    """What DistributedDataParallel adds. It sends buffers from the first worker to the others before each
    step: those of floats and the counters of normalisations, which are whole numbers."""
    if workers == 1:
        return 0.0
    wrapper = WRAPPER.seconds(step.tensors, step.gradient_bytes)
    buffers = 2 * gloo.seconds("broadcast", 0.0, workers, 1, machine) if step.buffers else 0.0
    return wrapper + buffers + gloo.seconds("all_reduce", step.gradient_bytes, workers, 1, machine)


def _average_seconds(step: WorkerStep, workers: int, machine: Machine) -> float:
    packed = AVERAGE.seconds(step.tensors, step.gradient_bytes)
    if workers == 1:
        return packed
    return packed + gloo.seconds("all_reduce", step.gradient_bytes, workers, 1, machine)


def _group_seconds(step: WorkerStep, group: int, machine: Machine) -> float:
    """A group sums the gradients of its workers, and later sends the weights of its first to the others."""
    if group == 1:
        return 0.0
    kinds = ("all_reduce", "broadcast")
    return math.fsum(gloo.seconds(kind, step.gradient_bytes, group, 1, machine) for kind in kinds)
