"""A job that is fed from files, as the measuring child builds and steps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils import _pytree as pytree

from windtunnel.job.trainer import arrange
from windtunnel.job.workload import Batch, Workload
from windtunnel.machine.machine import torch_device
from windtunnel.measurement import job
from windtunnel.measurement.feed.decoding import BatchShape, Decoder
from windtunnel.measurement.feed.files import cached_share, drop_from_cache, find_files
from windtunnel.measurement.feed.loading import FileExamples, load_batches
from windtunnel.measurement.frameworks.base import Built
from windtunnel.measurement.job import JobSubject
from windtunnel.measurement.order import JobOrder
from windtunnel.measurement.process import Emit
from windtunnel.measurement.sampler import Sampler


class FedJobSubject(JobSubject):
    """A job whose batches come from files. Nothing is profiled: a profiler would slow the loaders' reader."""

    def __init__(self, order: JobOrder, workload: Workload | None = None) -> None:
        super().__init__(order, workload)
        self.checks_clock = False

    def build(self) -> Built:
        torch, strategy = self.torch, self.strategy
        torch.manual_seed(self.order.seed)
        model = self.workload.model().to(torch_device(self.device))
        template = job.make_batch(self.workload, strategy)
        if strategy.copies_pinned and self.device != "cpu":
            template = pytree.tree_map_only(torch.Tensor, lambda t: t.pin_memory(), template)
        assert strategy.batch is not None
        shape = BatchShape.of(template, strategy.batch)
        cold = strategy.data == "storage"
        files = find_files(Path(self.order.folder))
        own = self.workload.data.decode if self.workload.data is not None else None
        examples = FileExamples(
            files=files.files,
            decode=Decoder(kind=files.kind, one=shape.one, own=own),
            cold=cold,
        )
        cached = _prepare(examples.files, cold)
        loaded = load_batches(examples, strategy.batch, strategy, self.order.seed)
        batches = (arrange(shape.filled(each), strategy) for each in loaded)
        built = self.built(model, template, *self._step(model, batches))
        many = max(1, strategy.loaders)
        return dataclasses.replace(
            built,
            first=built.step,
            step=_repeat(built.step, many),
            settle=lambda: many,
            facts={**built.facts, "cached": cached},
        )

    def _step(self, model: Any, batches: Iterator[Batch]) -> tuple[Callable[[], object], Callable[[], None]]:
        step, sync = job.make_stepper(self.torch, self.workload, self.strategy, self.device, model)
        place, strategy = torch_device(self.device), self.strategy
        if place == "cpu":
            return (lambda: step(next(batches))), sync

        def move(tree: Batch, **options: bool) -> Batch:
            return pytree.tree_map_only(self.torch.Tensor, lambda t: t.to(place, **options), tree)

        if strategy.prefetch:
            depth = strategy.prefetch
            return job.prefetched(self.torch, step, lambda: next(batches), move, depth, waits=True), sync
        pinned = strategy.copies_pinned
        return (lambda: step(move(next(batches), non_blocking=pinned))), sync

    def inspect(self, sampler: Sampler, emit: Emit) -> None:
        """Parts are found by comparison with other passes."""


def _prepare(files: tuple[Path, ...], cold: bool) -> float | None:
    """Bring the files into the page cache or out of it; the share that it holds then, if that is known."""
    if cold:
        drop_from_cache(files)
    else:
        for path in files:
            path.read_bytes()
    return cached_share(files)


def _repeat(step: Callable[[], object], many: int) -> Callable[[], object]:
    """So many steps in a call: loaders deliver in bursts of their number, which one sample must cover."""

    def run() -> object:
        for _ in range(many - 1):
            step()
        return step()

    return run
