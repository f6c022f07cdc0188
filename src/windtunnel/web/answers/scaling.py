"""Throughput over the number of devices, for the first machine."""

from __future__ import annotations

from windtunnel.influence.scaling import scaling_curve
from windtunnel.records import Plain
from windtunnel.reports.forecast import scaling_chart
from windtunnel.web.worker import WorkerContext


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    state = worker.state(request["query"])
    job, machine = worker.cache.job(state), state.machines()[0]
    return scaling_chart(scaling_curve(job, machine, state.strategy, progress=worker.tell)), {}
