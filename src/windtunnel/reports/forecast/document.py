"""The report of a job on some machines as one HTML file that needs no network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import windtunnel
from windtunnel import records
from windtunnel.errors import BadInput
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.reports import page
from windtunnel.reports.forecast.accuracy import accuracy_note
from windtunnel.reports.forecast.advice import advice_list
from windtunnel.reports.forecast.cautions import cautions
from windtunnel.reports.forecast.comparison import comparison
from windtunnel.reports.forecast.factors import factors_chart
from windtunnel.reports.forecast.feed import feed_chart
from windtunnel.reports.forecast.gather import ForecastReport, gather
from windtunnel.reports.forecast.headline import headline
from windtunnel.reports.forecast.lanes import timeline_chart
from windtunnel.reports.forecast.marks import panel
from windtunnel.reports.forecast.measured import Beside, measured_table
from windtunnel.reports.forecast.memory import memory_chart, memory_need
from windtunnel.reports.forecast.parts import parts_bar
from windtunnel.reports.forecast.scaling import scaling_chart
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, Piece, element, joined
from windtunnel.results import in_words
from windtunnel.strategy import Strategy

_MOST_NAME = 80  # characters of a file's name
_HEAD = 4096  # bytes of a file in which a report names its generator


def file_name(report_of: str, machines: tuple[str, ...]) -> str:
    """The name of a report that was given none: the job and its machines."""
    words = page.anchor("-".join((report_of, *(Path(machine).stem for machine in machines))))
    return f"{words[:_MOST_NAME].rstrip('-')}.html"


def refuse_other_file(path: Path) -> None:
    """A report may replace a report, and no other file."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise BadInput(
            f"--out {path}: a report is an HTML file.", hint=f"Name it {path.stem or 'report'}.html."
        )
    if not path.exists() or path.is_dir():
        return
    try:
        with path.open("rb") as file:
            is_report = page.GENERATOR.encode() in file.read(_HEAD)
    except OSError as error:
        raise BadInput(f"--out {path} cannot be read: {error.strerror or error}.") from error
    if not is_report:
        raise BadInput(
            f"--out {path} exists and is not a report of windtunnel, so it is not replaced.",
            hint="Name another file, or remove it.",
        )


def write_report(
    workload: Workload,
    machines: Sequence[str],
    strategy: Strategy | None = None,
    *,
    path: str | Path,
    measured: Sequence[Beside] = (),
    brief: bool = False,
) -> Path:
    """Write the forecast of a job on some machines, by name, as one HTML file that needs no network.

    `measured`: what ran here, as (text, forecast, measurement). `brief`: no advice, factors or scaling.
    """
    place = Path(path)
    refuse_other_file(place)
    found = [(name, Machine.find(name)) for name in machines]
    report = gather(workload, found, strategy or Strategy(), brief=brief)
    place.parent.mkdir(parents=True, exist_ok=True)
    return write(dataclasses.replace(report, measured=tuple(measured)), place)


def write(report: ForecastReport, path: Path) -> Path:
    """Write the page. A failure leaves the old file whole."""
    return records.write_whole(path, build(report))


def build(report: ForecastReport) -> str:
    """The page as text."""
    parts: list[tuple[str, Piece]] = []
    if report.measured:
        parts.append(("Measured here", panel("Forecast beside measurement", measured_table(report.measured))))
    if len(report.views) > 1:
        parts.append(("Machines side by side", panel("Time of a step", comparison(report.views))))
    for view, feed in zip(report.views, report.feeds, strict=True):
        parts.append((_machine_title(view, report), machine_section(view, feed)))
    parts += _of_first(report)
    if report.command:
        parts.append(("How to repeat it", _command(report)))
    first = report.views[0].forecast
    inputs = f", {first.inputs}" if first.inputs else ""
    settings = f"{report.settings}; " if report.settings else ""
    lead = f"{settings}batch {first.batch:,}{inputs}, {in_words(first.strategy)}. {_basis(report)}"
    foot = f"Written by windtunnel {windtunnel.__version__}. This file is complete and loads nothing."
    return page.document(_title(report), element("p", lead, class_="sub"), parts, foot)


def machine_section(view: ForecastView, feed: object = None) -> Markup:
    """All of one machine: headline, parts and memory, timeline, feed, cautions, accuracy."""
    from windtunnel.feed.remedies import RemedyTable

    remedies = feed if isinstance(feed, RemedyTable) else None
    return joined(
        [
            element("p", _about(view), class_="soft"),
            headline(view),
            cautions(view.forecast.cautions),
            panel("Where the time goes", parts_bar(view)),
            panel(
                "Timeline of one step",
                timeline_chart(view),
                lead="Each row is a resource that works through its tasks one by one.",
            ),
            element(
                "div",
                panel("Memory over the step", memory_chart(view)),
                panel("What the device must have", memory_need(view)),
                class_="panels",
            ),
            panel("How busy each resource is", feed_chart(view, remedies)),
            panel("How far to trust it", accuracy_note(view)),
        ]
    )


def _of_first(report: ForecastReport) -> list[tuple[str, Piece]]:
    """What was computed for the first machine only."""
    on = f" on {report.views[0].name}" if len(report.views) > 1 else ""
    parts: list[tuple[str, Piece]] = []
    if report.advice is not None:
        body = _said(report.advice) if isinstance(report.advice, str) else advice_list(report.advice)
        parts.append((f"What to change{on}", panel("Advice, by its gain", body)))
    if report.scaling is not None:
        parts.append((f"More devices{on}", panel("Throughput", scaling_chart(report.scaling))))
    if report.influence is not None:
        known = report.influence
        body = _said(known) if isinstance(known, str) else factors_chart(known)
        parts.append((f"What matters{on}", panel("Influence of each factor", body)))
    return parts


def _basis(report: ForecastReport) -> str:
    return "Forecast, beside steps that ran." if report.measured else "Forecast, nothing was run."


def _said(reason: str) -> Markup:
    return element("p", reason, class_="note")


def _title(report: ForecastReport) -> str:
    names = [view.name for view in report.views]
    return f"{report.job} on {' and '.join([', '.join(names[:-1]), names[-1]] if names[:-1] else names)}"


def _machine_title(view: ForecastView, report: ForecastReport) -> str:
    return view.name if len(report.views) > 1 else "Forecast"


def _about(view: ForecastView) -> str:
    machine, forecast = view.machine, view.forecast
    count = machine.devices * machine.nodes
    model = machine.device.model or machine.name
    nodes = f" in {machine.nodes} nodes" if machine.nodes > 1 else ""
    host = f"; host: {forecast.host}" if forecast.host else ""
    counted = f"{count} \N{MULTIPLICATION SIGN} " if count > 1 else ""
    return f"{counted}{model}{nodes}{host}."


def _command(report: ForecastReport) -> Markup:
    words = f"Use windtunnel {windtunnel.__version__}. The command predict prints the same figures as text."
    lines = element("pre", report.command, tabindex="0")
    return joined([element("p", words, class_="soft"), lines])
