"""How well the devices of the first machine are fed, and what each remedy buys."""

from __future__ import annotations

import dataclasses

from windtunnel.feed.remedies import compare_remedies
from windtunnel.influence.setup import VariedSetup
from windtunnel.machine.building import shared_storage
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain
from windtunnel.reports.forecast import feed_chart
from windtunnel.reports.page import element, joined
from windtunnel.web.answers.forecast import view
from windtunnel.web.state import PageState
from windtunnel.web.worker import WorkerContext

_ASSUMED_STORAGE = "samsung-960-pro"  # as `windtunnel feed` assumes for machines that state none


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    state = worker.state(request["query"])
    machine, said = _with_storage(state.machines()[0])
    if state.strategy.data == "resident":
        state = _fed(state)
        said = f"The job's data is resident. Shown is what happens if it is read from storage. {said}"
    job = worker.cache.job(state)
    strategy = VariedSetup(job=job, machine=machine, strategy=state.strategy).on(machine).strategy
    remedies = compare_remedies(job, machine, strategy)
    chart = feed_chart(view(worker, state, state.on[0], machine), remedies)
    return joined([*([element("p", said.strip(), class_="soft")] if said else []), chart]), {}


def _fed(state: PageState) -> PageState:
    return dataclasses.replace(
        state, strategy=dataclasses.replace(state.strategy, data="storage", execution="eager")
    )


def _with_storage(machine: Machine) -> tuple[Machine, str]:
    if machine.storage is not None and machine.storage.read_rate is not None:
        return machine, ""
    storage = shared_storage(_ASSUMED_STORAGE)
    sources = {**machine.sources, "storage": "assumed"}
    said = f"{machine.name} states no storage: a {_ASSUMED_STORAGE} is assumed."
    return dataclasses.replace(machine, storage=storage, sources=sources), said
