"""What all worker processes of one training are told, as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from windtunnel import records
from windtunnel.errors import BadInput
from windtunnel.exchange import forms
from windtunnel.exchange.run import refuse_settings
from windtunnel.records import Plain

WITH_SERVER = ("server", "async", "mixed")
GOES_ON = ("async", "mixed")  # without a lost worker
LOCAL = ("local", "diloco")
NAME = "training.json"
_NOT_IDENTITY = ("epochs", "slow_rank", "slow_factor", "backend", "unused", "keep", "start")
Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTraining:
    """One training by several processes.

    epochs       passes over the data by all workers together; None: those of the network
    shard        divide the weights among the workers (FSDP2); only with sync
    slow_rank    this worker sleeps after each step, as a straggler does; -1: none
    slow_factor  its steps take so many times as long
    backend      gloo for CPUs, nccl for GPUs
    unused       some parameters take no part in a step, which DistributedDataParallel must know
    keep         write checkpoints, so that the same training can go on after a loss
    start        changes of the weights after which it goes on; 0: from the beginning
    """

    network: str
    workers: int
    exchange: str = "sync"
    settings: Mapping[str, object] = field(default_factory=dict)
    data: str | None = None
    groups: int = 1
    every: int = 10
    staleness: int | None = None
    epochs: int | None = None
    seed: int = 0
    shard: bool = False
    slow_rank: int = -1
    slow_factor: float = 1.0
    backend: Backend = "gloo"
    unused: bool = False
    keep: bool = False
    start: int = 0

    def __post_init__(self) -> None:
        forms.named(self.exchange)
        if self.workers < 1:
            raise BadInput(f"--workers {self.workers}: there is nobody to train.", hint="Use --workers 2.")
        if self.workers < 2 and self.exchange not in ("sync", "server"):
            raise BadInput(
                f"One worker has nobody to exchange with: {self.exchange} needs at least two.",
                hint="Use --workers 2 or more, or --exchange sync.",
            )
        if self.exchange == "mixed" and (self.groups < 2 or self.workers % self.groups):
            raise BadInput(
                f"{self.workers} workers cannot be divided into {self.groups} equal groups of mixed.",
                hint="Choose at least two groups, and a number that divides the workers.",
            )
        refuse_settings(self.groups, self.every, self.staleness)
        if self.shard and self.exchange != "sync":
            raise BadInput(
                "Weights can be divided only among synchronous workers.", hint="Leave --shard out."
            )
        if self.slow_factor < 1:
            raise BadInput(f"--slow-factor must be at least 1, not {self.slow_factor}.")

    @property
    def processes(self) -> int:
        """The workers, and a parameter server where the form has one."""
        return self.workers + (self.exchange in WITH_SERVER)

    @property
    def group(self) -> int:
        """Workers that are synchronous with each other."""
        return self.workers // self.groups if self.exchange == "mixed" else 1

    @property
    def holder(self) -> int:
        """The process that holds the weights: the server, or the first worker where there is none."""
        return self.workers if self.exchange in WITH_SERVER else 0

    @property
    def keepers(self) -> tuple[int, ...]:
        """The processes whose parts make up a checkpoint."""
        return (self.holder,) if self.exchange in GOES_ON else tuple(range(self.processes))

    @property
    def per_change(self) -> int:
        """Mini-batches of all workers together that one change of the weights takes."""
        if self.exchange in GOES_ON:
            return self.group
        return self.workers * (self.every if self.exchange in LOCAL else 1)

    def identity(self) -> Plain:
        """What a checkpoint belongs to. An edited file of a job is another job."""
        from windtunnel.learning.own_job import file_mark

        plain = records.plain(self)
        return {name: plain[name] for name in plain if name not in _NOT_IDENTITY} | {
            "file": file_mark(self.network)
        }

    def save(self, folder: Path) -> Path:
        records.save(folder / NAME, self)
        return folder / NAME

    @staticmethod
    def load(path: Path) -> RealTraining:
        return records.read(RealTraining, records.load(path), str(path))
