"""A synchronous parameter server: it sums the gradients of all workers, then sends new weights to all."""

from __future__ import annotations

import dataclasses

import numpy as np

from windtunnel.exchange.forms.synchronous import together
from windtunnel.exchange.run import ExchangeCosts, ExchangeRun, ExchangeSettings, Times


class _Served:
    name = "server"
    summary = "gradients to a parameter server in every step, then weights back"

    def simulate(self, compute: Times, costs: ExchangeCosts, settings: ExchangeSettings) -> ExchangeRun:
        workers = len(compute)
        # The server receives one after another, in the order in which workers are ready. Of the ones from
        # place j on, none can be received before the j-th is ready: the last ends at the largest such bound.
        message = costs.serve_seconds if costs.message_seconds is None else costs.message_seconds
        left = np.arange(workers, 0, -1)[:, None] * message
        received = (np.sort(compute, axis=0) + left).max(axis=0)
        lengths = received + costs.update_seconds + workers * message + 2 * costs.path_seconds
        run = together(lengths, (lengths - compute).sum(axis=1), compute.size)
        return dataclasses.replace(run, served_bytes=2 * costs.sent_bytes * compute.size)


SERVED = _Served()
