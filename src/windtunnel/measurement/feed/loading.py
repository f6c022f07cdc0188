"""PyTorch's DataLoader over files, without end, and the step that trains on what it delivers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from windtunnel import child_lifetime
from windtunnel.measurement.feed.decoding import Decoder
from windtunnel.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class FileExamples(Dataset[Tensor]):
    """One file, one example. With `cold`, the page cache forgets a file as soon as it is read, so that its
    next read comes from storage again."""

    files: tuple[Path, ...]
    decode: Decoder
    cold: bool

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Tensor:
        return self.decode(read(self.files[number], self.cold))


def read(path: Path, cold: bool) -> bytes:
    with path.open("rb", buffering=0) as file:
        stored = file.readall()
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return stored


class EndlessBatches(Sampler[list[int]]):
    """Batches of file numbers in random order, epoch after epoch without a pause between."""

    def __init__(self, files: int, batch: int, seed: int) -> None:
        self.files, self.batch, self.seed = files, batch, seed

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed)
        waiting: list[int] = []
        while True:
            while len(waiting) < self.batch:
                waiting += torch.randperm(self.files, generator=generator).tolist()
            yield waiting[: self.batch]
            waiting = waiting[self.batch :]


def load_batches(examples: FileExamples, batch: int, strategy: Strategy, seed: int) -> Iterator[Tensor]:
    """What the strategy's loaders deliver."""
    workers: dict[str, Any] = {}
    if strategy.loaders:
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else None)
        workers = {
            "prefetch_factor": strategy.load_ahead,
            "worker_init_fn": _begin_loader,
            "multiprocessing_context": context,
        }
    return iter(
        DataLoader(
            examples,
            batch_sampler=EndlessBatches(len(examples), batch, seed),
            num_workers=strategy.loaders,
            pin_memory=strategy.copies_pinned and torch.cuda.is_available(),
            **workers,
        )
    )


def _begin_loader(number: int) -> None:
    """A loader ends with the process that trains, also if that is killed."""
    child_lifetime.die_with_parent()


def probe_files(files: Sequence[Path], count: int) -> list[Path]:
    """Some of the files, evenly taken."""
    return list(files[:: max(1, len(files) // count)][:count])
