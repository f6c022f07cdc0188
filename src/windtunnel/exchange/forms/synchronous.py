"""Synchronous: all workers sum their gradients in each step, which lasts as long as its slowest worker."""

from __future__ import annotations

import numpy as np

from windtunnel.exchange.run import ExchangeCosts, ExchangeRun, ExchangeSettings, Times


class _Synchronous:
    name = "sync"
    summary = "all-reduce of gradients in every step"

    def simulate(self, compute: Times, costs: ExchangeCosts, settings: ExchangeSettings) -> ExchangeRun:
        slowest = compute.max(axis=0)
        return together(slowest + costs.exposed_seconds, (slowest - compute).sum(axis=1), compute.size)


def together(lengths: Times, waits: Times, steps: int) -> ExchangeRun:
    """The run in which all workers change the weights at once, after periods of these lengths."""
    return ExchangeRun(
        ends=np.cumsum(lengths),
        workers=np.full(len(lengths), -1),
        staleness=np.zeros(len(lengths), dtype=np.int64),
        steps=steps,
        waits=waits,
    )


SYNCHRONOUS = _Synchronous()
