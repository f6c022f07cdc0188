"""A streamed batch: its copy to the device, from the host or directly from storage."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.forecast.feeding import BatchFeed
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.schedule import Lane, LaneTask, StepBuilder, Wait
from windtunnel.machine.machine import Machine, need
from windtunnel.strategy import Strategy

_CORE_MEMORY_RATE = 12e9  # bytes a second of one core, if the host's description does not state it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopy:
    """The copy of one batch. Without `prefetch` it starts after the kernels of the step before; with it, the
    copy runs that many batches ahead.

    others_seconds  the link's work for other devices that share it, before this device's turn
    memory_seconds  the host memory's work for all devices of the node
    host_waits      whether the host waits until a copy has ended, as it does from pageable memory
    """

    seconds: float
    prefetch: int = 0
    worker: int = 0
    others_seconds: float = 0.0
    memory_seconds: float = 0.0
    host_waits: bool = True

    def add_to(self, step: StepBuilder) -> None:
        lane, after = Lane("copy", self.worker), self._waits(step)
        if self.others_seconds:
            step.add(LaneTask(lane, self.others_seconds, "copy", "batches of other devices"), after=after)
        batch = step.add(LaneTask(lane, self.seconds, "copy", "batch"), after=after, name="batch")
        if self.memory_seconds:
            memory = LaneTask(Lane("memory"), self.memory_seconds, "copy", "batches of all devices")
            read = step.add(memory, after=after)
            batch = step.add(LaneTask(lane, 0.0, "copy", "batch"), after=(read, batch), name="batch")
        if self.host_waits and not self.prefetch:
            step.add(LaneTask(Lane("host", self.worker), 0.0, "copy", "batch arrived"), after=(batch,))

    def _waits(self, step: StepBuilder) -> tuple[Wait, ...]:
        loaded = (Wait("loaded", worker=self.worker),) if step.has("loaded", self.worker) else ()
        if self.prefetch:
            # The step that used this buffer last must have ended before the buffer is filled again.
            return (Wait("kernels", steps_ago=1 + self.prefetch, worker=self.worker), *loaded)
        # The copy is in one stream with the kernels, so it starts after those of the step before.
        begin, kernels = Wait("begin", worker=self.worker), Wait("kernels", steps_ago=1, worker=self.worker)
        return (begin, kernels, *loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectReads:
    """The storage's work where devices read from it without the host (GPUDirect Storage). Adds `loaded`, for
    which the copy waits; storage and link work on different batches at once with prefetch."""

    feed: BatchFeed
    prefetch: int = 0

    def add_to(self, step: StepBuilder) -> None:
        feed = self.feed
        free = Wait("kernels", steps_ago=1 + self.prefetch)
        others = feed.storage_seconds * (feed.storage_sharers - 1)
        if others:
            step.add(LaneTask(Lane("storage"), others, "feed", "read for other devices"), after=(free,))
        read = LaneTask(Lane("storage"), feed.storage_seconds, "feed", "read")
        step.add(read, after=(free,), name="loaded")


def batch_copy(size: float, machine: Machine, strategy: Strategy, profile: Profile) -> BatchCopy:
    """The copy of `size` bytes on this machine, whose devices may share a PCIe uplink and the host's memory.

    The hypothetical transfer unit copies to all devices at once, without the CPU.
    """
    devices = machine.devices
    unit, direct = machine.transfer_unit, strategy.direct
    sharers = min(devices, machine.topology.devices_per_uplink)
    waits_turn = sharers > 1 and not unit and not direct
    memory_rate = machine.host.memory_rate
    shares_memory = devices > 1 and memory_rate is not None and not direct
    return BatchCopy(
        seconds=copy_seconds(size, machine, strategy, profile),
        prefetch=strategy.prefetch,
        others_seconds=(sharers - 1) * size / need(machine, "link.rate") if waits_turn else 0.0,
        memory_seconds=devices * size / (memory_rate * machine.topology.sockets)
        if shares_memory and memory_rate is not None
        else 0.0,
        host_waits=not (strategy.copies_pinned or unit or direct),
    )


def copy_seconds(size: float, machine: Machine, strategy: Strategy, profile: Profile) -> float:
    """Seconds of one batch's copy: as a probe of this machine timed it. Without a probe: bytes over the
    link's rate."""
    asynchronous = strategy.copies_pinned or machine.transfer_unit or strategy.direct
    memory = "pinned" if asynchronous else "pageable"
    timed = profile.copy_seconds(size, memory) if machine.profile else None
    if timed is not None:
        return timed
    link_rate = need(machine, "link.rate")
    if asynchronous:
        return size / link_rate
    # From pageable memory one core of the host first copies the batch to a pinned buffer: it reads and writes
    # each byte.
    staging_rate = (machine.host.core_memory_rate or _CORE_MEMORY_RATE) / 2
    return size / min(link_rate, staging_rate)
