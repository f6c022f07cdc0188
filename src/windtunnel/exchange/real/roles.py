"""What each process does in each form of exchange."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.exchange.learners import outer_step
from windtunnel.exchange.real.messages import flatten, unflatten
from windtunnel.exchange.real.served import train_with_server
from windtunnel.exchange.real.spec import WITH_SERVER
from windtunnel.exchange.splitting import only_optimizer

if TYPE_CHECKING:
    from windtunnel.exchange.real.worker import Worker


def play(worker: Worker) -> None:
    """The whole training of this process."""
    form = worker.spec.exchange
    if form in WITH_SERVER:
        train_with_server(worker)
    elif form in ("local", "diloco"):
        _train_locally(worker, outer=form == "diloco")
    else:
        _train_together(worker)


def _train_together(worker: Worker) -> None:
    """PyTorch's DistributedDataParallel, or fully_shard, around the network."""
    model = worker.model
    if worker.spec.shard:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    elif worker.spec.workers > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = only_optimizer(worker.stage.optimizers(model), worker.spec.network)
    for number, batch in enumerate(worker.batches()):
        began = time.perf_counter()
        model.train()
        loss = worker.stage.step(model, batch, optimizer)
        worker.dawdle(began)
        worker.log.step(number, loss=float(loss.detach()), busy=time.perf_counter() - began)
        worker.snapshot(number + 1, worker.spec.workers)


def _train_locally(worker: Worker, outer: bool) -> None:
    splitter, spec = worker.splitter, worker.spec
    shared = worker.shared = splitter.weights()
    momentum = [torch.zeros_like(p) for p in shared]
    for number, batch in enumerate(worker.batches()):
        began = time.perf_counter()
        worker.model.train()
        loss = worker.stage.step(worker.model, batch, splitter.optimizer)
        worker.dawdle(began)
        busy = time.perf_counter() - began
        if (number + 1) % spec.every == 0:
            shared = _average(splitter.weights(), shared, momentum if outer else None)
            worker.shared = shared
            splitter.load(shared)
            worker.snapshot((number + 1) // spec.every, spec.workers * spec.every)
        worker.log.step(number, loss=float(loss.detach()), busy=busy)


def _average(own: list[Tensor], shared: list[Tensor], momentum: list[Tensor] | None) -> list[Tensor]:
    """The mean of all workers' weights, or DiLoCo's step towards it."""
    flat = flatten(own)
    dist.all_reduce(flat)
    means = unflatten(flat / dist.get_world_size(), own)
    if momentum is None:
        return means
    return [outer_step(*each) for each in zip(shared, means, momentum, strict=True)]
