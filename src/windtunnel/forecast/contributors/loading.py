"""Reading and decoding a batch: by loader processes beside the training process, or by that process itself.

A batch is loaded when three resources have finished: the storage (its bytes), the loader (its waits and its
decoding), and the cores of the host (the work of all processes). Each is a lane. With several lanes at once,
the slowest one limits the step: more loaders help until the cores or the storage are busy all the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.forecast.feeding import BatchFeed
from windtunnel.forecast.schedule import Lane, LaneTask, StepBuilder, Wait

STORAGE, CORES = Lane("storage"), Lane("cores")
# Loading is three lanes long (storage, loader, cores), then the host takes the batch. A queue of more batches
# than that does not make a steady step shorter.
_DEEPEST_QUEUE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoading:
    """Loads one batch in a step, for the first of equal devices. Adds `loaded`, and `taken` when the host has
    it.

    training_seconds  core seconds of the training process in a step
    waits             whether the host waits for the batch; with prefetch the copy does
    """

    feed: BatchFeed
    loaders: int
    load_ahead: int
    training_seconds: float
    waits: bool = True

    def add_to(self, step: StepBuilder) -> None:
        if not self.loaders:
            self._add_between_steps(step)
            return
        free = (Wait("taken", steps_ago=min(self.loaders * self.load_ahead, _DEEPEST_QUEUE)),)
        stored = self._add_reads(step, free)
        loader, feed = Lane("loader"), self.feed
        wait = (feed.wait_seconds + feed.read_seconds) / self.loaders
        read = step.add(LaneTask(loader, wait, "feed", "read"), after=free)
        arrived = (*stored, read)
        decoded = step.add(
            LaneTask(loader, feed.decode_seconds / self.loaders, "feed", "decode"), after=arrived
        )
        crowd = self._add_core_work(step, arrived)
        receive = LaneTask(Lane("host"), feed.receive_seconds, "feed", "decode: take the batch")
        if self.waits:
            taken = step.add(receive, after=(Wait("begin"), decoded, crowd), name="loaded")
        else:
            step.add(receive, after=(Wait("begin"),))
            taken = step.add(LaneTask(CORES, 0.0, "feed", "decode"), after=(decoded,), name="loaded")
        step.name(taken, "taken")

    def _add_reads(self, step: StepBuilder, after: tuple[int | Wait, ...]) -> tuple[int, ...]:
        """The storage also serves the other devices. Equal devices read at the same time, and all of them
        continue when the last one is served."""
        feed = self.feed
        if not feed.storage_seconds:
            return ()
        others = feed.storage_seconds * (feed.storage_sharers - 1)
        if others:
            step.add(LaneTask(STORAGE, others, "feed", f"read for {feed.storage_sharers - 1} others"), after)
        return (step.add(LaneTask(STORAGE, feed.storage_seconds, "feed", "read"), after),)

    def _add_core_work(self, step: StepBuilder, after: tuple[int, ...]) -> int:
        """What all processes of the node take from its cores. The lane is all cores together, so that a task
        takes its core seconds over their number."""
        feed = self.feed
        training = feed.sharers * self.training_seconds / feed.cores
        step.add(LaneTask(CORES, training, "compute", "training"))
        reading = feed.sharers * feed.read_seconds / feed.cores
        step.add(LaneTask(CORES, reading, "feed", "read"), after)
        decoding = feed.sharers * feed.decode_seconds / feed.cores
        return step.add(LaneTask(CORES, decoding, "feed", "decode"), after)

    def _add_between_steps(self, step: StepBuilder) -> None:
        """The training process loads each batch when the step before is launched."""
        host, feed, begin = Lane("host"), self.feed, (Wait("begin"),)
        stored = self._add_reads(step, begin)
        read = LaneTask(host, feed.wait_seconds + feed.read_seconds, "feed", "read")
        step.add(read, after=begin)
        crowd = (self._add_core_work(step, stored),) if feed.sharers > 1 else ()
        loaded = step.add(
            LaneTask(host, feed.decode_seconds, "feed", "decode"), after=(*stored, *crowd), name="loaded"
        )
        step.name(loaded, "taken")
