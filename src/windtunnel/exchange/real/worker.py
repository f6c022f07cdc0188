"""One worker process: `python -m windtunnel.exchange.real.worker FOLDER`, started with torchrun's variables.

`torchrun --nproc-per-node N -m windtunnel.exchange.real.worker FOLDER` starts the same workers; forms with a
parameter server need one process more than workers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from windtunnel import records
from windtunnel.exchange.real import roles
from windtunnel.exchange.real.gathering import LOST_PEER
from windtunnel.exchange.real.log import WorkerLog
from windtunnel.exchange.real.messages import unflatten
from windtunnel.exchange.real.spec import NAME, WITH_SERVER, RealTraining
from windtunnel.exchange.splitting import StepSplitter, only_stage
from windtunnel.exchange.stream import BatchStream
from windtunnel.learning.own_job import prepare


def main() -> None:
    folder = Path(sys.argv[1])
    spec = RealTraining.load(folder / NAME)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if processes != spec.processes:
        sys.exit(f"{spec.exchange} with {spec.workers} workers needs {spec.processes} processes.")
    dist.init_process_group(spec.backend, rank=rank, world_size=processes)
    worker = Worker(spec, rank, folder)
    dist.barrier()
    worker.log.start()
    try:
        roles.play(worker)
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        worker.log.end(f"another worker was lost: {first_line(error)}")
        worker.keep_weights()
        worker.keep_curve()
        leave(LOST_PEER)
    worker.log.end("done")
    if worker.holds_weights:
        worker.keep_weights()
        worker.keep_curve()
    leave(0)


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether a collective failed because a process on its other side is gone."""
    text = str(error).lower()
    marks = ("connection closed", "connection reset", "broken pipe", "socket", "nccl", "gloo", "timed out")
    return any(mark in text for mark in marks)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no reason given"])[0][:200]


def leave(code: int) -> None:
    """Ends this process at once: with sub-groups, gloo sometimes aborts while it is taken down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Worker:
    """The network of one process, its share of the batches and its log."""

    def __init__(self, spec: RealTraining, rank: int, folder: Path) -> None:
        self.spec, self.rank, self.folder = spec, rank, folder
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if spec.backend == "nccl" else None
        self.lesson, _ = prepare(spec.network, spec.settings, spec.data)
        self.stage = only_stage(self.lesson, spec.network)
        torch.manual_seed(spec.seed)
        self.model = self.lesson.model()
        if self.device:
            self.model = self.model.to(self.device)
        self.splitter = StepSplitter(self.model, self.stage, spec.network)
        self.epochs = spec.epochs or self.stage.epochs
        self.is_server = spec.exchange in WITH_SERVER and rank == spec.workers
        self.log = WorkerLog(folder, rank, is_server=self.is_server)
        self.shared: list[torch.Tensor] | None = None  # weights after the last average; None: the model's
        self.snapshots: list[tuple[float, int, list[torch.Tensor]]] = []  # seconds, changes, weights

    @property
    def holds_weights(self) -> bool:
        """Whether this process tells the result: the server, or the first worker where there is none."""
        return self.is_server or (self.rank == 0 and self.spec.exchange not in WITH_SERVER)

    def buffers(self) -> list[torch.Tensor]:
        """Running means and the like, which belong to the network and have no gradients."""
        return list(self.model.buffers())

    def blank_message(self) -> torch.Tensor:
        """Room for all weights or gradients, the buffers, and one figure more."""
        size = sum(p.numel() for p in (*self.splitter.parameters, *self.buffers())) + 1
        return torch.zeros(size, device=self.device)

    def take_gradients(self, message: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradients of a worker's message; the server keeps the worker's buffers."""
        parts = unflatten(message[:-1], [*self.splitter.parameters, *self.buffers()])
        count = len(self.splitter.parameters)
        for buffer, value in zip(self.buffers(), parts[count:], strict=True):
            buffer.copy_(value)
        return [part.clone() for part in parts[:count]]

    def load_answer(self, message: torch.Tensor) -> None:
        """The server's weights; the worker goes on with buffers of its own."""
        size = sum(p.numel() for p in self.splitter.parameters)
        self.splitter.load(unflatten(message[:size], self.splitter.parameters))

    @property
    def steps(self) -> int:
        """Steps of one worker: all of them together pass over the data so often."""
        needed = -(-self.epochs * self.stage.steps // self.spec.workers)
        every = self.spec.every if self.spec.exchange in ("local", "diloco") else 1
        return -(-needed // every) * every

    def batches(self) -> Iterator[Any]:
        """This worker's mini-batches: each N-th of those that one worker would train on."""
        stream = BatchStream(self.stage, torch.Generator().manual_seed(self.spec.seed))
        for _ in range(self.steps):
            for turn in range(self.spec.workers):
                batch = stream.take()
                if turn == self.rank:
                    own = batch
            yield self._on_device(own)

    def _on_device(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), batch)

    def snapshot(self, changes: int, per_change: int) -> None:
        """Keeps the weights when a further pass over the data is complete. They are examined at the end, so
        that the clock of the training does not count it."""
        if self.spec.shard:
            self._gather(changes, per_change)
        elif self.holds_weights and self._is_due(changes, per_change):
            self.snapshots.append((self.log.now(), changes, self.splitter.weights()))

    def _is_due(self, changes: int, per_change: int) -> bool:
        passed = changes * per_change // self.stage.steps
        return not self.snapshots or passed > self.snapshots[-1][1] * per_change // self.stage.steps

    def _gather(self, changes: int, per_change: int) -> None:
        """Divided weights are gathered from all workers. Each keeps the last ones: any worker may be lost."""
        if not self._is_due(changes, per_change):
            return
        full = [p.full_tensor().detach().clone() for p in self.model.parameters()]  # type: ignore[attr-defined]
        if not self.holds_weights:
            self.snapshots.clear()
        self.snapshots.append((self.log.now(), changes, full))

    def _plain_model(self) -> torch.nn.Module:
        """The network with whole weights: the last ones that all workers shared."""
        if not self.spec.shard:
            if self.shared is not None:
                self.splitter.load(self.shared)
            return self.model
        model = self.lesson.model().to(self.device or "cpu")
        if self.snapshots:
            _load(model, self.snapshots[-1][2])
        return model

    def keep_weights(self) -> None:
        """Writes the weights. After a loss every process that is left does so: theirs are equal."""
        from windtunnel.learning.checkpoint import save_weights

        if self.is_server or self.spec.exchange not in WITH_SERVER:
            save_weights(self.folder / "weights.safetensors", self._plain_model())

    def keep_curve(self) -> None:
        """Writes the rows of the learning curve; only one process of a training does."""
        if not (self.holds_weights and self.snapshots):
            return
        model, rows = self._plain_model(), []
        model.eval()
        for seconds, changes, weights in self.snapshots:
            _load(model, weights) if self.spec.shard else self.splitter.load(weights)
            figures = {name: float(value) for name, value in self.lesson.examine(model).items()}
            rows.append({"seconds": seconds, "changes": changes, "figures": figures})
        records.save(self.folder / "curve.json", {"metric": self.lesson.metric, "rows": rows})

    def dawdle(self, began: float) -> None:
        """Sleeps as long as a straggler would still compute."""
        if self.rank == self.spec.slow_rank:
            time.sleep((time.perf_counter() - began) * (self.spec.slow_factor - 1))


@torch.no_grad()
def _load(model: torch.nn.Module, weights: list[torch.Tensor]) -> None:
    for parameter, value in zip(model.parameters(), weights, strict=True):
        parameter.copy_(value)


if __name__ == "__main__":
    main()
