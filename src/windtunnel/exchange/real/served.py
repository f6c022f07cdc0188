"""Workers with a parameter server, which is the last process: synchronous, asynchronous and mixed.

Each worker, or the first of each group, has a process group of its own with the server. So a lost worker
breaks only its own.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.exchange.real import endings
from windtunnel.exchange.real.keeping import Keeper, KeptState, weights_and_optimizer
from windtunnel.exchange.real.messages import flatten, whole

if TYPE_CHECKING:
    from windtunnel.exchange.real.worker import Worker

_Pairs = dict[int, dist.ProcessGroup]


def train_with_server(worker: Worker) -> None:
    """The whole training of a worker or of the server."""
    spec, server = worker.spec, worker.spec.workers
    leaders = range(0, spec.workers, spec.group)
    pairs = {leader: dist.new_group([leader, server]) for leader in leaders}
    inside = {
        leader: dist.new_group(list(range(leader, leader + spec.group)))
        for leader in leaders
        if spec.group > 1
    }
    if worker.rank == server:
        _serve_together(worker, pairs) if spec.exchange == "server" else _Server(worker, pairs).run()
        return
    leader = worker.rank - worker.rank % spec.group
    _exchange(worker, leader, pairs[leader], inside.get(leader))


def _exchange(worker: Worker, leader: int, pair: dist.ProcessGroup, group: dist.ProcessGroup | None) -> None:
    """Gradients to the server and weights back, in every step, each with the buffers of the network (running
    means of normalisations, which only workers compute). The last figure of a message is the loss on the way
    to the server; on the way back it says whether the training ends."""
    splitter, spec, server = worker.splitter, worker.spec, worker.spec.workers
    keeper, done = _begun(worker, leader)
    for number, batch in enumerate(worker.batches(done), done):
        began = time.perf_counter()
        worker.model.train()
        gradients, loss = splitter.gradients(batch)
        worker.dawdle(began)
        value, busy = worker.checked(loss), time.perf_counter() - began
        own = [*whole(gradients, splitter.parameters), *worker.buffers(), loss.reshape(1)]
        message = flatten(own, worker.message_kind)
        if group is not None:
            dist.all_reduce(message, group=group)
            message /= spec.group
        if worker.rank == leader:
            dist.send(message, server, group=pair)
            dist.recv(message, server, group=pair)
        if group is not None:
            dist.broadcast(message, leader, group=group)
        worker.load_answer(message)
        worker.log.step(number, loss=value, busy=busy)
        if spec.exchange == "server":
            keeper.save(number + 1)
        if message[-1] > 0:  # enough changes were made
            return


def _begun(worker: Worker, leader: int) -> tuple[Keeper, int]:
    """A worker where it goes on, and the steps that it has made. The server keeps the weights."""
    spec, made = worker.spec, dict[str, int]()
    parts = {"weights": weights_and_optimizer(worker)["weights"]}
    if spec.exchange != "server":
        parts["made"] = KeptState(get=lambda: made, put=made.update)
    keeper = Keeper(worker, parts)
    keeper.resume()
    return keeper, made.get(str(leader), spec.start if spec.exchange == "server" else 0)


def _serve_together(worker: Worker, pairs: _Pairs) -> None:
    """A synchronous server: the mean gradient of all workers is one update; then all get the new weights."""
    splitter, start = worker.splitter, worker.spec.start
    keeper = Keeper(worker, weights_and_optimizer(worker))
    keeper.resume()
    for number in range(start + 1, worker.steps + 1):
        total = worker.blank_message()
        message = torch.zeros_like(total)
        for leader, pair in pairs.items():
            dist.recv(message, leader, group=pair)
            total += message
        total /= len(pairs)
        splitter.update(worker.take_gradients(total))
        worker.log.step(number, loss=float(total[-1]))
        worker.snapshot(number)
        answer = _answer(worker, is_last=number == worker.steps)
        for leader, pair in pairs.items():
            dist.send(answer, leader, group=pair)
        keeper.save(number)


def _answer(worker: Worker, is_last: bool) -> Tensor:
    last = torch.tensor([float(is_last)], device=worker.device)
    return flatten([*worker.splitter.weights(), *worker.buffers(), last], worker.message_kind)


class _Server:
    """Holds the weights. A thread for each worker receives its gradients and answers with the weights."""

    def __init__(self, worker: Worker, pairs: _Pairs) -> None:
        self.worker, self.pairs, self.splitter = worker, pairs, worker.splitter
        self.most = worker.changes
        self.made = dict.fromkeys(map(str, pairs), 0)  # changes by each one
        made = KeptState(get=lambda: dict(self.made), put=self.made.update)
        self.keeper = Keeper(worker, {**weights_and_optimizer(worker), "made": made})
        self.keeper.resume()
        self.changes = worker.spec.start
        self.done = {leader: self.made[str(leader)] for leader in pairs}  # of those that are still there
        self.read = dict.fromkeys(pairs, self.changes)
        self.turn = threading.Condition()

    def run(self) -> None:
        threads = [threading.Thread(target=self._serve, args=(leader,)) for leader in self.pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.changes < self.most:
            self.worker.log.end(f"stopped after {self.changes} of {self.most} changes: no worker is left")
            self.keeper.save(self.changes, at_end=True)

    def _serve(self, leader: int) -> None:
        pair, message = self.pairs[leader], self.worker.blank_message()
        try:
            while True:
                dist.recv(message, leader, group=pair)
                is_last = self._change(leader, message)
                dist.send(message, leader, group=pair)
                if is_last:
                    return
        except Exception as error:
            if not endings.is_lost_peer(error):
                self.worker.stop(error)  # a thread that only ended would leave all others waiting
        finally:
            with self.turn:
                self.done.pop(leader, None)
                self.turn.notify_all()

    def _change(self, leader: int, message: Tensor) -> bool:
        """Applies gradients, waits if the worker is too far ahead, and writes the weights into `message`."""
        with self.turn:
            stale = self.changes - self.read[leader]
            if self.changes < self.most:
                self.splitter.update(self.worker.take_gradients(message))
                self.changes += 1
                self.done[leader] += 1
                self.made[str(leader)] += 1
                self.worker.log.step(self.changes, worker=leader, staleness=stale, loss=float(message[-1]))
                self.worker.snapshot(self.changes)
                self.keeper.save(self.changes)
            self.turn.notify_all()
            bound = self.worker.spec.staleness
            if bound is not None:
                self.turn.wait_for(lambda: self.done[leader] - min(self.done.values()) <= bound)
            self.read[leader] = self.changes
            is_last = self.changes >= self.most
            message.copy_(_answer(self.worker, is_last))
            return is_last
