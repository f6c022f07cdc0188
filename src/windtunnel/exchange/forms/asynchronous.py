"""Asynchronous: each worker exchanges with a parameter server when its gradients are ready, and goes on.

Nobody waits for slow workers, but a gradient is that of weights which others have changed meanwhile.
"""

from __future__ import annotations

import heapq

import numpy as np

from windtunnel.exchange.run import ExchangeCosts, ExchangeRun, ExchangeSettings, Times


class _Asynchronous:
    name = "async"
    summary = "each worker by itself with a parameter server"

    def simulate(self, compute: Times, costs: ExchangeCosts, settings: ExchangeSettings) -> ExchangeRun:
        # Gradients arrive and weights leave at once (links carry both directions): one service an exchange.
        return _Server(compute, costs, settings.staleness).run()


class _Server:
    """Workers that come to one server, the first ready first. A worker that is too far ahead is held back."""

    def __init__(self, compute: Times, costs: ExchangeCosts, bound: int | None) -> None:
        self.compute: list[list[float]] = compute.tolist()
        self.costs, self.bound = costs, bound
        workers, self.steps = compute.shape
        self.done = [0] * workers  # steps of each worker
        self.slowest, self.at_slowest = 0, workers  # the fewest steps, and how many workers have made so few
        self.changes = 0  # of the weights so far
        self.read = [0] * workers  # after how many changes each worker read the weights
        self.waits = [0.0] * workers
        self.held: list[int] = []  # workers that wait until the slowest has caught up
        self.queue = [(times[0], worker) for worker, times in enumerate(self.compute)]
        heapq.heapify(self.queue)

    def run(self) -> ExchangeRun:
        path, serve = self.costs.path_seconds, self.costs.serve_seconds
        ends: list[float] = []
        workers: list[int] = []
        staleness: list[int] = []
        free = 0.0
        while self.queue:
            ready, worker = heapq.heappop(self.queue)
            arrived = ready + path
            end = (arrived if arrived > free else free) + serve
            free = end
            staleness.append(len(ends) - self.read[worker])
            ends.append(end)
            workers.append(worker)
            self.changes = len(ends)
            self.waits[worker] += end + path - ready
            self._go_on(worker, end + path)
        return ExchangeRun(
            ends=np.asarray(ends),
            workers=np.asarray(workers),
            staleness=np.asarray(staleness),
            steps=len(ends),
            waits=np.asarray(self.waits),
            served_bytes=2 * self.costs.sent_bytes * len(ends),
        )

    def _go_on(self, worker: int, now: float) -> None:
        """Starts the worker's next step, or holds it back; those that need not wait any more are let go."""
        before = self.done[worker]
        self.done[worker] += 1
        if self.bound is None:
            self._start(worker, now)
            return
        self.held.append(worker)
        self._held_since(worker, now)
        if before == self.slowest:
            self.at_slowest -= 1
            if not self.at_slowest:
                self.slowest = min(self.done)
                self.at_slowest = self.done.count(self.slowest)
        self._release(now)

    def _held_since(self, worker: int, now: float) -> None:
        self.waits[worker] -= now  # what is added again when it is let go

    def _release(self, now: float) -> None:
        assert self.bound is not None
        ahead = [worker for worker in self.held if self.done[worker] - self.slowest > self.bound]
        for worker in self.held:
            if self.done[worker] - self.slowest <= self.bound:
                self.waits[worker] += now
                self._start(worker, now)
        self.held = ahead

    def _start(self, worker: int, now: float) -> None:
        step = self.done[worker]
        self.read[worker] = self.changes
        if step < self.steps:
            heapq.heappush(self.queue, (now + self.compute[worker][step], worker))


ASYNCHRONOUS = _Asynchronous()
