"""One worker process: `python -m windtunnel.exchange.real.worker FOLDER`, started with torchrun's variables.

`torchrun --nproc-per-node N -m windtunnel.exchange.real.worker FOLDER` starts the same workers; forms with a
parameter server need one process more than workers.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from windtunnel import records
from windtunnel.errors import StoreError
from windtunnel.exchange.real import endings, roles
from windtunnel.exchange.real.log import WorkerLog
from windtunnel.exchange.real.messages import kind_of, unflatten
from windtunnel.exchange.real.spec import GOES_ON, LOCAL, NAME, WITH_SERVER, RealTraining
from windtunnel.exchange.splitting import StepSplitter, only_stage
from windtunnel.exchange.stream import BatchStream
from windtunnel.learning import randomness
from windtunnel.learning.own_job import prepare


def main() -> None:
    folder = Path(sys.argv[1])
    spec = RealTraining.load(folder / NAME)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if processes != spec.processes:
        sys.exit(f"{spec.exchange} with {spec.workers} workers needs {spec.processes} processes.")
    dist.init_process_group(spec.backend, rank=rank, world_size=processes)
    worker = Worker(spec, rank, folder)
    try:
        dist.barrier()
        worker.log.start()
        roles.play(worker)
        worker.log.end("done")
        worker.keep_result()
    except Exception as error:
        worker.stop(error)
    endings.leave(0)


class Worker:
    """The network of one process, its share of the batches and its log."""

    def __init__(self, spec: RealTraining, rank: int, folder: Path) -> None:
        self.spec, self.rank, self.folder = spec, rank, folder
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if spec.backend == "nccl" else None
        self.lesson, _ = prepare(spec.network, spec.settings, spec.data)
        self.stage = only_stage(self.lesson, spec.network)
        randomness.seed_all(spec.seed)
        self.model = self.lesson.model()
        if self.device:
            self.model = self.model.to(self.device)
        self.splitter = StepSplitter(self.model, self.stage, spec.network)
        self.epochs = spec.epochs or self.stage.epochs
        # Asynchronous workers that go on take the data in another order: none knows what the others took.
        again = spec.start if spec.exchange in GOES_ON else 0
        self.stream = BatchStream(self.stage, torch.Generator().manual_seed(spec.seed + again))
        self.is_server = spec.exchange in WITH_SERVER and rank == spec.workers
        self.log = WorkerLog(folder, rank, is_server=self.is_server)
        self.shared: list[Tensor] | None = None  # weights after the last average; None: the model's
        self.snapshots: list[tuple[float, int, list[Tensor]]] = []  # seconds, changes, weights and buffers
        self.kept_at = spec.start or None  # the change after which the last of them was due

    @property
    def holds_weights(self) -> bool:
        """Whether this process tells the result: the server, or the first worker where there is none."""
        return self.rank == self.spec.holder

    def buffers(self) -> list[Tensor]:
        """Running means and the like, which belong to the network and have no gradients."""
        return list(self.model.buffers())

    @property
    def message_kind(self) -> torch.dtype:
        return kind_of([*self.splitter.parameters, *self.buffers()])

    def blank_message(self) -> Tensor:
        """Room for all weights or gradients, the buffers, and one figure more."""
        size = sum(p.numel() for p in (*self.splitter.parameters, *self.buffers())) + 1
        return torch.zeros(size, device=self.device, dtype=self.message_kind)

    def take_gradients(self, message: Tensor) -> list[Tensor | None]:
        """The gradients of a worker's message; the server keeps the worker's buffers."""
        parts = unflatten(message[:-1], [*self.splitter.parameters, *self.buffers()])
        count = len(self.splitter.parameters)
        for buffer, value in zip(self.buffers(), parts[count:], strict=True):
            buffer.copy_(value)
        if isinstance(self.splitter.optimizer, torch.optim.SparseAdam):  # it takes no other gradients
            return [part.to_sparse(1) for part in parts[:count]]
        return [part.clone() for part in parts[:count]]

    def load_answer(self, message: Tensor) -> None:
        """The server's weights; the worker goes on with buffers of its own."""
        size = sum(p.numel() for p in self.splitter.parameters)
        self.splitter.load(unflatten(message[:size], self.splitter.parameters))

    @property
    def steps(self) -> int:
        """Steps of one worker: all of them together pass over the data so often."""
        needed = -(-self.epochs * self.stage.steps // self.spec.workers)
        every = self.spec.every if self.spec.exchange in LOCAL else 1
        return -(-needed // every) * every

    @property
    def changes(self) -> int:
        """Changes of the weights in the whole training."""
        return self.steps * self.spec.workers // self.spec.per_change

    def batches(self, done: int) -> Iterator[Any]:
        """This worker's mini-batches after those that are done: each N-th of those that one worker would
        train on."""
        for _ in range(done, self.steps):
            for turn in range(self.spec.workers):
                batch = self.stream.take()
                if turn == self.rank:
                    own = batch
            yield self._on_device(own)

    def _on_device(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), batch)

    def checked(self, loss: Tensor) -> float:
        """The loss as a number, which must be finite."""
        value = float(loss.detach())
        if not math.isfinite(value):
            raise endings.NotFinite(f"the loss of worker {self.rank} is {value}")
        return value

    def snapshot(self, changes: int) -> None:
        """Keeps the weights when a further pass over the data is complete. They are examined at the end, so
        that the clock of the training does not count it."""
        if not self._is_due(changes):
            return
        self.kept_at = changes
        if self.spec.shard:
            self._gather(changes)
        elif self.holds_weights:
            self.snapshots.append((self.log.now(), changes, self._state(self.splitter.weights())))

    def _state(self, weights: list[Tensor]) -> list[Tensor]:
        return [*weights, *(buffer.clone() for buffer in self.buffers())]

    def _is_due(self, changes: int) -> bool:
        group, steps, before = self.spec.per_change, self.stage.steps, self.kept_at
        return before is None or changes * group // steps > before * group // steps

    def _gather(self, changes: int) -> None:
        """Divided weights are gathered from all workers. Each keeps the last ones: any worker may be lost."""
        full = [p.full_tensor().detach().clone() for p in self.model.parameters()]  # type: ignore[attr-defined]
        if not self.holds_weights:
            self.snapshots.clear()
        self.snapshots.append((self.log.now(), changes, self._state(full)))

    def _plain_model(self) -> torch.nn.Module:
        """The network with whole weights: the last ones that all workers shared."""
        if not self.spec.shard:
            if self.shared is not None:
                self.splitter.load(self.shared)
            return self.model
        model = self.lesson.model().to(self.device or "cpu")
        if self.snapshots:
            _load(list(model.parameters()), model, self.snapshots[-1][2])
        return model

    def keep_result(self) -> None:
        if self.holds_weights:
            self.keep_weights()
            self.keep_curve()

    def keep_weights(self) -> None:
        """Writes the weights. After a loss every process that is left does so: theirs are equal."""
        from windtunnel.learning.checkpoint import save_weights

        if not (self.is_server or self.spec.exchange not in WITH_SERVER):
            return
        model = self._plain_model()
        if all(bool(p.isfinite().all()) for p in model.parameters()):
            save_weights(self.folder / "weights.safetensors", model)

    def keep_curve(self) -> None:
        """Writes the rows of the learning curve; only one process of a training does."""
        if not (self.holds_weights and self.snapshots):
            return
        model, rows = self._plain_model(), []
        own = list(model.parameters()) if self.spec.shard else self.splitter.parameters
        model.eval()
        for seconds, changes, tensors in self.snapshots:
            _load(own, model, tensors)
            figures = {name: float(value) for name, value in self.lesson.examine(model).items()}
            rows.append({"seconds": seconds, "changes": changes, "figures": figures})
        records.save(self.folder / "curve.json", {"metric": self.lesson.metric, "rows": rows})

    def dawdle(self, began: float) -> None:
        """Sleeps as long as a straggler would still compute."""
        if self.rank == self.spec.slow_rank:
            time.sleep((time.perf_counter() - began) * (self.spec.slow_factor - 1))

    def stop(self, error: Exception) -> NoReturn:
        """Ends this process after an error, with the code that says which. What it has is kept."""
        if endings.is_lost_peer(error):
            with contextlib.suppress(StoreError):
                self.log.end(f"another worker was lost: {endings.first_line(error)}")
                self.keep_weights()
                self.keep_curve()
            endings.leave(endings.LOST_PEER)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        with contextlib.suppress(StoreError):
            self.log.end(endings.first_line(error))
        if isinstance(error, endings.NotFinite):
            endings.leave(endings.NOT_FINITE)
        endings.leave(endings.CANNOT_WRITE if isinstance(error, StoreError) else 1)


@torch.no_grad()
def _load(parameters: list[Tensor], model: torch.nn.Module, tensors: list[Tensor]) -> None:
    """Sets weights and buffers of a snapshot."""
    for own, value in zip([*parameters, *model.buffers()], tensors, strict=True):
        own.copy_(value)


if __name__ == "__main__":
    main()
