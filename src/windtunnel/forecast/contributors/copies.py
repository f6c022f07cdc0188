"""A streamed batch: its copy from the host to the device."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.forecast.profile import Profile
from windtunnel.forecast.schedule import Lane, LaneTask, StepBuilder, Wait
from windtunnel.machine.machine import Machine, need
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

_CORE_MEMORY_RATE = 12e9  # of one core of a host whose description does not say it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopy:
    """The copy of one batch. Without `prefetch` the host waits for it; with it, the copy runs that many
    batches ahead."""

    seconds: float
    prefetch: int = 0
    worker: int = 0

    def add_to(self, step: StepBuilder) -> None:
        copy = LaneTask(Lane("copy", self.worker), self.seconds, "copy", "batch")
        if self.prefetch:
            # The step that used this buffer last must have ended before the buffer is filled again.
            free = Wait("kernels", steps_ago=1 + self.prefetch, worker=self.worker)
            step.add(copy, after=(free,), name="batch")
            return
        # The copy is in one stream with the kernels, so it starts after those of the step before.
        begin, kernels = Wait("begin", worker=self.worker), Wait("kernels", steps_ago=1, worker=self.worker)
        batch = step.add(copy, after=(begin, kernels), name="batch")
        step.add(LaneTask(Lane("host", self.worker), 0.0, "copy", "batch arrived"), after=(batch,))


def copy_seconds(trace: Trace, machine: Machine, strategy: Strategy, profile: Profile) -> float:
    """Seconds of one batch's copy: as a probe of this machine timed it. Without a probe: bytes over the
    link's rate."""
    memory = "pinned" if strategy.prefetch else "pageable"
    timed = profile.copy_seconds(trace.batch_bytes, memory) if machine.profile else None
    if timed is not None:
        return timed
    link_rate = need(machine, "link.rate")
    if strategy.prefetch:
        return trace.batch_bytes / link_rate
    # From pageable memory one core of the host first copies the batch to a pinned buffer: it reads and writes
    # each byte.
    staging_rate = (machine.host.core_memory_rate or _CORE_MEMORY_RATE) / 2
    return trace.batch_bytes / min(link_rate, staging_rate)
