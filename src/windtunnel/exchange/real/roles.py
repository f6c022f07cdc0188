"""What each process does in each form of exchange."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.exchange.learners import outer_step
from windtunnel.exchange.real.keeping import (
    Keeper,
    KeptState,
    divided_parts,
    setter,
    weights_and_optimizer,
)
from windtunnel.exchange.real.messages import flatten, unflatten
from windtunnel.exchange.real.served import train_with_server
from windtunnel.exchange.real.spec import LOCAL, WITH_SERVER
from windtunnel.exchange.splitting import only_optimizer
from windtunnel.job.trainer import blocks_of

if TYPE_CHECKING:
    from windtunnel.exchange.real.worker import Worker


def play(worker: Worker) -> None:
    """The whole training of this process."""
    form = worker.spec.exchange
    if form in WITH_SERVER:
        train_with_server(worker)
    elif form in LOCAL:
        _train_locally(worker, outer=form == "diloco")
    else:
        _train_together(worker)


def _train_together(worker: Worker) -> None:
    """PyTorch's DistributedDataParallel, or fully_shard, around the network."""
    model, spec = worker.model, worker.spec
    if spec.shard:
        _divide(model)
    elif spec.workers > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=spec.unused)
    optimizer = only_optimizer(worker.stage.optimizers(model), spec.network)
    parts = divided_parts(model, optimizer) if spec.shard else weights_and_optimizer(worker, optimizer)
    keeper = Keeper(worker, parts)
    keeper.resume()
    for number, batch in enumerate(worker.batches(spec.start), spec.start):
        began = time.perf_counter()
        model.train()
        loss = worker.stage.step(model, batch, optimizer)
        worker.dawdle(began)
        worker.log.step(number, loss=worker.checked(loss), busy=time.perf_counter() - began)
        worker.snapshot(number + 1)
        keeper.save(number + 1)


def _divide(model: torch.nn.Module) -> None:
    """FSDP2 on each block and on the whole, as forecasts take it: one block is gathered at a time."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks_of(model):
        fully_shard(block)
    fully_shard(model)


def _train_locally(worker: Worker, outer: bool) -> None:
    splitter, spec = worker.splitter, worker.spec
    momentum = [torch.zeros_like(p) for p in splitter.parameters]
    own = {**weights_and_optimizer(worker), "momentum": KeptState(get=lambda: momentum, put=setter(momentum))}
    keeper = Keeper(worker, {}, own)
    keeper.resume()
    shared = worker.shared = splitter.weights()
    done = spec.start * spec.every
    for number, batch in enumerate(worker.batches(done), done + 1):
        began = time.perf_counter()
        worker.model.train()
        loss = worker.stage.step(worker.model, batch, splitter.optimizer)
        worker.dawdle(began)
        value, busy = worker.checked(loss), time.perf_counter() - began
        if number % spec.every == 0:
            shared = _average(splitter.weights(), shared, momentum if outer else None)
            worker.shared = shared
            splitter.load(shared)
            worker.snapshot(number // spec.every)
        worker.log.step(number - 1, loss=value, busy=busy)
        if number % spec.every == 0:
            keeper.save(number // spec.every)


def _average(own: list[Tensor], shared: list[Tensor], momentum: list[Tensor] | None) -> list[Tensor]:
    """The mean of all workers' weights, or DiLoCo's step towards it."""
    flat = flatten(own)
    dist.all_reduce(flat)
    means = unflatten(flat / dist.get_world_size(), own)
    if momentum is None:
        return means
    return [outer_step(*each) for each in zip(shared, means, momentum, strict=True)]
