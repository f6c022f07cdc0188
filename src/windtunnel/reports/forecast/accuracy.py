"""How far a forecast can be trusted: what its interval means, and by whose probe it is priced."""

from __future__ import annotations

from windtunnel.machine import profiles
from windtunnel.reports.forecast.marks import numbers
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, element, joined

_LANES = {"host": "launches of the host", "device": "kernels of the device"}


def accuracy_note(view: ForecastView) -> Markup:
    """In a few sentences, and the spread of each kind of work in a table."""
    machine = view.machine
    whose = machine.profile or profiles.nearest(machine)
    by = (
        f"{machine.name} was probed: kernels are priced by what was timed on it."
        if machine.profile
        else f"{machine.name} was not probed: it is priced by its data sheet and by the probe of {whose}."
    )
    said = (
        "This is a forecast: nothing ran. Four of five measured steps should lie within the interval. "
        f"{by} docs/accuracy.md says how forecasts were judged, beside the simplest baseline. "
        "To be sure, measure: windtunnel measure, or windtunnel validate."
    )
    rows = [
        [_LANES.get(lane, lane), f"\N{MULTIPLICATION SIGN}/\N{DIVISION SIGN} {spread:.2f}"]
        for lane, spread in view.timeline.spreads.items()
        if lane
    ]
    return joined(
        [
            element("p", said),
            numbers("Within which factor times are known, for four of five", ("Work", "Factor"), rows),
        ]
    )
