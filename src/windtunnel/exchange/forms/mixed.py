"""Mixed: synchronous inside of groups, asynchronous between them.

A group is as fast as its slowest worker; the groups share a parameter server and do not wait for each other.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from windtunnel.errors import BadInput
from windtunnel.exchange.forms.asynchronous import ASYNCHRONOUS
from windtunnel.exchange.run import ExchangeCosts, ExchangeRun, ExchangeSettings, Times


class _Mixed:
    name = "mixed"
    summary = "all-reduce inside of groups, each group by itself with a parameter server"

    def simulate(self, compute: Times, costs: ExchangeCosts, settings: ExchangeSettings) -> ExchangeRun:
        workers, steps = compute.shape
        groups = settings.groups
        if workers % groups:
            raise BadInput(
                f"exchange: {workers} workers cannot be divided into {groups} equal groups.",
                hint="Choose a number of groups that divides the workers.",
            )
        in_groups = compute.reshape(groups, workers // groups, steps)
        slowest = in_groups.max(axis=1)
        run = ASYNCHRONOUS.simulate(slowest + costs.group_seconds, costs, settings)
        inside = (slowest[:, None] - in_groups).sum(axis=2).reshape(workers)
        return dataclasses.replace(
            run, steps=compute.size, waits=inside + np.repeat(run.waits, workers // groups)
        )


MIXED = _Mixed()
