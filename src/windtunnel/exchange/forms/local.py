"""Local: each worker makes some steps with weights of its own; then all workers average them.

Local SGD takes the mean, DiLoCo takes a step of an outer optimizer towards it. Both take the same time.
"""

from __future__ import annotations

import numpy as np

from windtunnel.exchange.forms.synchronous import together
from windtunnel.exchange.run import ExchangeCosts, ExchangeRun, ExchangeSettings, Times


class _Local:
    def __init__(self, name: str, summary: str) -> None:
        self.name, self.summary = name, summary

    def simulate(self, compute: Times, costs: ExchangeCosts, settings: ExchangeSettings) -> ExchangeRun:
        starts = np.arange(0, compute.shape[1], settings.every)
        periods = np.add.reduceat(compute, starts, axis=1)
        slowest = periods.max(axis=0)
        return together(slowest + costs.reduce_seconds, (slowest - periods).sum(axis=1), compute.size)


LOCAL = _Local("local", "an average of all weights after every H steps")
DILOCO = _Local("diloco", "a step of an outer optimizer towards that average")
