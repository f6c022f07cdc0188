"""The forecast: the same job on each machine, and the parts, memory and timeline of each."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel import units
from windtunnel.errors import WindtunnelError
from windtunnel.forecast.workers import spread_over
from windtunnel.influence.setup import VariedSetup
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain
from windtunnel.reports.forecast import (
    ForecastView,
    accuracy_note,
    cautions,
    comparison,
    headline,
    memory_chart,
    memory_need,
    parts_bar,
    timeline_chart,
    view_of_trace,
)
from windtunnel.reports.forecast.marks import panel
from windtunnel.reports.page import Markup, element, joined
from windtunnel.results import in_words
from windtunnel.web.state import PageState
from windtunnel.web.worker import WorkerContext


def answer(worker: WorkerContext, request: Plain) -> tuple[str, Plain]:
    """All machines side by side, then one after the other; the first one is shown open."""
    state = worker.state(request["query"])
    views, refused = [], dict[str, WindtunnelError]()
    for name, machine in zip(state.on, state.machines(), strict=True):
        try:
            views.append(view(worker, state, name, machine))
        except WindtunnelError as error:
            if len(state.on) == 1:
                raise
            refused[name] = error
    if not views:
        raise next(iter(refused.values()))
    pieces = [_title(state, views)]
    pieces += [headline(views[0]) if len(views) == 1 else panel("Side by side", comparison(views))]
    pieces += [_refusal(name, error) for name, error in refused.items()]
    pieces += [
        _details(each, is_open=number == 0, alone=len(views) == 1) for number, each in enumerate(views)
    ]
    return joined(pieces, "\n"), _facts(views[0])


def view(worker: WorkerContext, state: PageState, name: str, machine: Machine) -> ForecastView:
    """The forecast on one machine, with the options that its device has."""
    job = worker.cache.job(state)
    strategy = VariedSetup(job=job, machine=machine, strategy=state.strategy).on(machine).strategy
    strategy = spread_over(strategy, machine)
    worker.tell(f"tracing {state.job} for a {machine.device.kind.upper()}")
    recorded = worker.cache.trace(state, strategy, machine.device.kind)
    worker.tell(f"forecasting {state.job} on {name}")
    return view_of_trace(recorded, job, machine, strategy, name)


def _title(state: PageState, views: Sequence[ForecastView]) -> Markup:
    """The job in words, as the command line says it."""
    first = views[0].forecast
    where = first.machine if len(views) == 1 else f"{len(views)} machines"
    settings = f" with {state.settings_text}" if state.settings else ""
    more = ", ".join(filter(None, (first.inputs, in_words(first.strategy))))
    words = f"Batch {first.batch:,}" + (f", {more}" if more else "")
    return joined(
        [
            element("h2", f"{state.job} on {where}{settings}", class_="answer"),
            element("p", words, class_="lead"),
        ]
    )


def _facts(first: ForecastView) -> Plain:
    forecast = first.forecast
    return {
        "batch": forecast.batch,
        "title": f"{units.show(forecast.step_seconds, 's')} a step on {first.name}",
        "parameters": forecast.parameters,
        "cpu": first.machine.device.kind == "cpu",
    }


def _details(each: ForecastView, *, is_open: bool, alone: bool) -> Markup:
    body = joined(
        [
            *([] if alone else [headline(each)]),
            element(
                "div",
                panel("Where the time goes", parts_bar(each)),
                panel("Memory needed", memory_need(each)),
                class_="panels",
            ),
            panel("Memory over the step", memory_chart(each)),
            panel("Timeline of one step", timeline_chart(each)),
            cautions(each.forecast.cautions),
            element(
                "details",
                element("summary", "How far to trust this forecast"),
                accuracy_note(each),
                class_="trust",
            ),
        ],
        "\n",
    )
    if alone:
        return body
    step = units.show(each.forecast.step_seconds, "s")
    head = element("summary", element("b", each.name), f" {step}, bound by {each.forecast.bound_by}")
    return element("details", head, body, class_="machine", open="" if is_open else None)


def _refusal(name: str, error: WindtunnelError) -> Markup:
    return element(
        "div",
        element("p", element("b", name), f": {error.message}"),
        element("p", error.hint, class_="soft"),
        class_="alert",
        role="status",
    )
