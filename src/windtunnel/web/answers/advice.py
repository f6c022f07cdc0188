"""What to change: advice for the first machine, each with a link that applies it."""

from __future__ import annotations

import dataclasses

from windtunnel.advice.engine import AdviceOptions, advise
from windtunnel.advice.result import Advice, Suggestion
from windtunnel.advice.setups import Setup
from windtunnel.errors import WindtunnelError
from windtunnel.records import Plain
from windtunnel.reports.forecast import advice_list
from windtunnel.strategy import Strategy
from windtunnel.web.allowed import read_settings
from windtunnel.web.state import CountedMachine, PageState, storages
from windtunnel.web.worker import WorkerContext

SECONDS = 30.0  # of the search; what is left out by then is named


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    state = worker.state(request["query"])
    machine = state.machines()[0]
    options = AdviceOptions(seconds=SECONDS, on=state.on[0], storage=state.storage, progress=worker.tell)
    found = advise(worker.cache.job(state), machine, state.strategy, options=options)

    def link(suggestion: Suggestion) -> str | None:
        after = applied(worker, state, suggestion.setup)
        return None if after is None or after == state else f"/?{after.query()}"

    return advice_list(found, link, _together(worker, state, found)), {}


def _together(worker: WorkerContext, state: PageState, found: Advice) -> str | None:
    """The address that applies the best combination."""
    whole = found.together
    after = applied(worker, state, whole.tried.setup) if whole is not None and whole.tried.fits else None
    if after is None or whole is None or len(whole.names) < 2:
        return None
    return f"/?{after.query()}"


def applied(worker: WorkerContext, state: PageState, setup: Setup | None) -> PageState | None:
    """The state of the page with a setup of the advice; None where no link can say it."""
    if setup is None or (setup.storage and setup.storage not in storages()):
        return None
    origin = setup.workload.origin
    try:
        words = " ".join(f"{key}={value}" for key, value in (origin.settings if origin else {}).items())
        settings = read_settings(words, state.job) if origin else state.settings
        first = str(CountedMachine.read(setup.on))
        worker.allowed.label(origin.job) if origin else None
    except WindtunnelError:
        return None
    return dataclasses.replace(
        state,
        settings=settings,
        on=tuple(dict.fromkeys((first, *state.on[1:]))),
        strategy=_plain(setup, state.strategy),
        storage=setup.storage,
    )


def _plain(setup: Setup, before: Strategy) -> Strategy:
    """Without the number of workers that the machine gives by itself: another machine has another one."""
    devices = setup.machine.devices * setup.machine.nodes
    own = setup.strategy.data_parallel
    if before.data_parallel is None and own in (None, devices // setup.strategy.model_parallel):
        return dataclasses.replace(setup.strategy, data_parallel=None)
    return setup.strategy
