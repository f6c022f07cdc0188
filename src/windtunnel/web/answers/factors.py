"""Which factor matters most, on the first machine."""

from __future__ import annotations

from windtunnel.influence.setup import VariedSetup
from windtunnel.influence.survey import factors
from windtunnel.records import Plain
from windtunnel.reports.forecast import factors_chart
from windtunnel.web.worker import WorkerContext


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    state = worker.state(request["query"])
    machine, job = state.machines()[0], worker.cache.job(state)
    strategy = VariedSetup(job=job, machine=machine, strategy=state.strategy).on(machine).strategy
    found = factors(job, machine, strategy, progress=worker.tell)
    return factors_chart(found), {}
