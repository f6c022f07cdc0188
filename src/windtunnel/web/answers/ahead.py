"""Traces that a slider may ask for next, recorded while nobody waits. They are kept on disk."""

from __future__ import annotations

from windtunnel.forecast.workers import spread_over
from windtunnel.influence.setup import VariedSetup
from windtunnel.records import Plain
from windtunnel.web.desk import Desk


def answer(desk: Desk, request: Plain) -> tuple[str, Plain]:
    state = desk.state(request["query"])
    for machine in state.machines():
        setup = VariedSetup(job=desk.shelf.job(state), machine=machine, strategy=state.strategy).on(machine)
        desk.shelf.trace(state, spread_over(setup.strategy, machine), machine.device.kind)
    return "", {}
