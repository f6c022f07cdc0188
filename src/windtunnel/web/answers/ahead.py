"""Traces that a slider may ask for next, recorded while nobody waits. They are kept on disk."""

from __future__ import annotations

from windtunnel.forecast.workers import spread_over
from windtunnel.influence.setup import VariedSetup
from windtunnel.records import Plain
from windtunnel.web.worker import WorkerContext


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    state = worker.state(request["query"])
    for machine in state.machines():
        setup = VariedSetup(job=worker.cache.job(state), machine=machine, strategy=state.strategy).on(machine)
        worker.cache.trace(state, spread_over(setup.strategy, machine), machine.device.kind)
    return "", {}
