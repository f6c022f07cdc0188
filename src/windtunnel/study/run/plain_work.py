"""Pieces of work and their outcomes as plain data, for other machines."""

from __future__ import annotations

import platform

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.measurement.cells import DONE
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import ProcessReport
from windtunnel.measurement.steady import Protocol
from windtunnel.records import Plain
from windtunnel.study.run.engine import Outcome, Work, carry_out

NODE_DIED, NO_RESULT = "node died", "no result"


def to_plain(work: Work) -> Plain:
    """A piece of work as plain data, for another machine."""
    return {
        "key": work.key,
        "number": work.number,
        "task": records.plain(work.task),
        "protocol": records.plain(work.protocol),
    }


def from_plain(data: Plain) -> Work:
    """The piece of work from its plain data."""
    return Work(
        key=data["key"],
        number=data["number"],
        task=records.read(Task, data["task"], "task"),
        protocol=records.read(Protocol, data["protocol"], "protocol"),
    )


def carry_out_plain(data: Plain) -> Plain:
    """The function that runs on the other machine. Any failure there is returned by name."""
    try:
        outcome = carry_out(from_plain(data))
        report = {} if outcome.report is None else {**outcome.report.plain(), "node": platform.node()}
        return {"report": report, "state": outcome.state, "error": outcome.error}
    except Exception as error:
        return {
            "report": {},
            "state": "failed",
            "error": f"{type(error).__name__}: {error} (on {platform.node()})",
        }


def outcome_of(work: Work, data: Plain) -> Outcome:
    if data["state"] != DONE:
        return Outcome(work=work, state=data["state"], error=data["error"])
    try:
        return Outcome(work=work, report=ProcessReport.read(data["report"]))
    except BadRecord as error:
        return Outcome(work=work, state=NO_RESULT, error=f"Its report cannot be read: {error.message}")


def lost(work: Work, error: object) -> Outcome:
    lines = str(error).strip().splitlines()
    return Outcome(
        work=work,
        state=NODE_DIED,
        error=f"The machine that measured it was lost: {lines[0] if lines else type(error).__name__}",
    )
