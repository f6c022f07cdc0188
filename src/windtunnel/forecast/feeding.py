"""The cost of bringing a batch to each device: bytes and core seconds, before anything overlaps.

Contributors turn these figures into tasks on lanes. The schedule decides what overlaps and what limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.machine.machine import Machine, need
from windtunnel.strategy import Strategy
from windtunnel.trace import StoredExample, Trace

AS_TENSORS = "examples are assumed to be stored as the tensors of the batch, without decoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one core for each batch, and bytes a second beside that."""

    seconds: float
    rate: float

    def of(self, size: float, times: float = 1.0) -> float:
        return times * self.seconds + size / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCosts:
    """What loading costs one core in addition to decoding.

    file     open, read and close a file of the page cache
    loader   join decoded examples to a batch in shared memory and hand it over
    receive  what the training process does for a batch that it is handed
    alone    join decoded examples to a batch where the training process loads them itself
    """

    file: Cost
    loader: Cost
    receive: Cost
    alone: Cost


# PyTorch 2.13's DataLoader on a 2-core AMD EPYC (2.45 GHz), by processor time (benchmarks/loader_costs.py).
LOADER_COSTS = LoaderCosts(
    file=Cost(seconds=13e-6, rate=9e9),
    loader=Cost(seconds=0.7e-3, rate=0.85e9),
    receive=Cost(seconds=0.65e-3, rate=4.7e9),
    alone=Cost(seconds=40e-6, rate=7.6e9),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFeed:
    """One batch of one device, in seconds.

    storage_seconds   of the storage, if no other device reads from it
    wait_seconds      that a loader waits for the storage, request by request
    read_seconds      of one core, to get the bytes from the page cache
    decode_seconds    of one core, to turn them into the tensors of a batch
    receive_seconds   of the training process, to take a batch from a loader
    sharers           devices of a node, which share its cores
    storage_sharers   devices that read from this storage
    cores             of a node
    """

    storage_seconds: float
    wait_seconds: float
    read_seconds: float
    decode_seconds: float
    receive_seconds: float
    sharers: int
    storage_sharers: int
    cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FedBatch:
    """One batch of one device: its examples, the bytes of its tensors, and one example on storage."""

    examples: float
    bytes: float
    stored: StoredExample

    @staticmethod
    def of(trace: Trace, times: float = 1.0) -> FedBatch:
        """The batch of a trace, `times` as large: a step may have more micro-batches than were traced."""
        return FedBatch(
            examples=times * trace.batch, bytes=times * trace.batch_bytes, stored=stored_example(trace)
        )


def stored_example(trace: Trace) -> StoredExample:
    """One example on storage. Default: its tensors, as the batch holds them."""
    if trace.stored is not None:
        return trace.stored
    return StoredExample(bytes=trace.batch_bytes / trace.batch, origin=AS_TENSORS)


def feed_of(
    batch: FedBatch, machine: Machine, strategy: Strategy, costs: LoaderCosts = LOADER_COSTS
) -> BatchFeed:
    """The cost of loading one batch on this machine, equal for all of its devices."""
    stored = batch.stored
    files = batch.examples / stored.examples_per_file
    # Without the host nothing is decoded: the tensors themselves are read.
    size = batch.bytes if strategy.direct else batch.examples * stored.bytes
    is_read = strategy.data == "storage"
    joining = costs.loader if strategy.loaders else costs.alone
    is_network = machine.storage is not None and machine.storage.kind == "network"
    return BatchFeed(
        storage_seconds=_storage_seconds(machine, size, files) if is_read else 0.0,
        wait_seconds=_wait_seconds(machine, size, files) if is_read else 0.0,
        read_seconds=costs.file.of(size, times=files),
        decode_seconds=batch.examples * stored.decode_seconds + joining.of(batch.bytes),
        receive_seconds=costs.receive.of(batch.bytes) if strategy.loaders else 0.0,
        sharers=machine.devices,
        storage_sharers=machine.devices * (machine.nodes if is_network else 1),
        cores=need(machine, "host.cores") * machine.topology.sockets,
    )


def _storage_seconds(machine: Machine, size: float, files: float) -> float:
    """Seconds of the storage for `size` bytes. The arms of hard disks move once for each file."""
    storage = machine.storage
    seconds = size / need(machine, "storage.read_rate")
    if storage is not None and storage.kind == "hdd":
        seconds += files * storage.latency_seconds / storage.count
    return seconds


def _wait_seconds(machine: Machine, size: float, files: float) -> float:
    """Seconds that one loader waits for the storage if it reads file by file."""
    storage = machine.storage
    assert storage is not None
    return files * storage.latency_seconds + size / need(machine, "storage.read_rate")
