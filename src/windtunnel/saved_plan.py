"""A plan in a file: a strategy, and the job and the machine that it was made for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.records import Plain
from windtunnel.strategy import Strategy

# Options that a forecast needs in addition to job, machine and strategy, as the command line names them.
OPTIONS = ("storage", "example_bytes", "decode", "examples", "host", "host_factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """How to run a job.

    job       the words that name it on a command line: rnn n_rec=50
    on        the machine, as --on names it: 8xh100
    why       the purpose of the plan, in words
    options   further options that its forecast needs, by name (`OPTIONS`)
    forecast  figures that were forecast for it, in base units; nothing reads them back
    """

    strategy: Strategy
    job: tuple[str, ...] = ()
    on: str | None = None
    why: str = ""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    forecast: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @staticmethod
    def load(path: str | Path) -> SavedPlan:
        """Read a plan from a TOML or JSON file. A file that holds only a strategy is a plan, too."""
        data, where = records.load(Path(path)), str(path)
        if "strategy" not in data:
            return SavedPlan(strategy=Strategy.read(data, where))
        given = data["strategy"]
        if not isinstance(given, Mapping):
            raise BadRecord(f"{where}: strategy must be a table, not {given!r}.")
        rest = {name: value for name, value in data.items() if name != "strategy"}
        plan = records.read(_Facts, rest, where)
        _check_options(plan.options, where)
        return SavedPlan(
            strategy=Strategy.read(given, f"{where}: strategy"),
            job=plan.job,
            on=plan.on,
            why=plan.why,
            options=plan.options,
            forecast=plan.forecast,
        )

    def save(self, path: str | Path) -> None:
        """Write this plan to a TOML or JSON file that `load` reads."""
        data: Plain = records.plain(self)
        data["strategy"] = self.strategy.fields()
        records.save(Path(path), {name: value for name, value in data.items() if value not in ("", [], {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The fields of a file other than the strategy."""

    job: tuple[str, ...] = ()
    on: str | None = None
    why: str = ""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    forecast: Mapping[str, object] = dataclasses.field(default_factory=dict)


def _check_options(options: Mapping[str, object], where: str) -> None:
    for name, value in options.items():
        if name not in OPTIONS:
            raise BadRecord(f"{where}: options: unknown {name!r}. Known: {', '.join(OPTIONS)}.")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise BadRecord(f"{where}: options: {name} must be a word or a number, not {value!r}.")
