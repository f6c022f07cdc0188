"""Forecasts against a table of measured steps: how far off they are, and whether that is within the tolerances beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel import records
from windtunnel.accuracy.truth import QUANTITIES, Quantity, Row, Table
from windtunnel.agreement import Agreement, ShareRange, Tolerance, agree, error_of, exceeded
from windtunnel.errors import BadInput, Unavailable, WindtunnelError
from windtunnel.forecast.forecast import Forecast
from windtunnel.machine.machine import Machine
from windtunnel.prediction import predict

_TITLES: dict[Quantity, str] = {"device": "device time", "step": "step", "memory": "peak memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A measured row with its forecast, or why there is none."""

    row: Row
    forecast: Forecast | None = None
    reason: str = ""
    excused: bool = False

    def predicted(self, quantity: Quantity) -> float | None:
        if self.forecast is None:
            return None
        return {
            "device": self.forecast.device_seconds,
            "step": self.forecast.step_seconds,
            "memory": self.forecast.memory.peak_bytes,
        }[quantity]

    def error(self, quantity: Quantity) -> float | None:
        predicted, measured = self.predicted(quantity), self.row.measured(quantity)
        return None if predicted is None or measured is None else error_of(predicted, measured)

    @property
    def inside(self) -> bool | None:
        """Whether the measured step lies in the forecast's interval."""
        if self.forecast is None or self.row.step_seconds is None:
            return None
        return self.forecast.low_seconds <= self.row.step_seconds <= self.forecast.high_seconds

    def plain(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "case": records.plain(self.row.case),
            "bound": self.row.bound,
            "inside": self.inside,
            "reason": self.reason,
        }
        for quantity in QUANTITIES:
            told[quantity] = {
                "predicted": self.predicted(quantity),
                "measured": self.row.measured(quantity),
                "error": self.error(quantity),
            }
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One line of a report: what was judged, over which rows, and in what it is worse than asked."""

    section: str
    name: str
    found: Agreement | None
    asked: Tolerance | None = None
    over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of how many, against the span that was asked for."""

    section: str
    name: str
    count: int
    rows: int
    asked: ShareRange | None = None

    @property
    def over(self) -> tuple[str, ...]:
        return (
            ()
            if self.asked is None
            or (self.rows and self.asked.least <= self.count / self.rows <= self.asked.most)
            else ("share",)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All judgements over a table; `pairs` keeps every row, those without a forecast too."""

    table: Table
    machine: str
    pairs: tuple[Pair, ...]
    judgements: tuple[Judgement | Share, ...]

    @property
    def left_out(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.reason)

    @property
    def refused(self) -> int:
        return sum(bool(pair.reason) and not pair.excused for pair in self.pairs)

    @property
    def failures(self) -> tuple[str, ...]:
        """What is beyond its tolerance, in words."""
        told = [f"{j.name}: {', '.join(j.over)}" for j in self.judgements if j.over]
        most = self.table.tolerances.refused
        return tuple(
            told
            + (
                [f"{self.refused} rows went without a forecast, {most} may"]
                if most is not None and self.refused > most
                else []
            )
        )

    def plain(self, rows: bool) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "table": str(self.table.path),
            "machine": self.machine,
            "header": dict(self.table.header),
            "judgements": [{**records.plain(j), "over": list(j.over)} for j in self.judgements],
            "left_out": [{"case": str(pair.row.case), "reason": pair.reason} for pair in self.left_out],
            "failures": list(self.failures),
            **({"rows": [pair.plain() for pair in self.pairs]} if rows else {}),
        }


def find_machine(table: Table) -> Machine:
    """The machine the table was measured on, as forecasts know it."""
    if table.machine not in ("here", "cpu"):
        return Machine.named(table.machine)
    from windtunnel.machine import here

    measured, name = table.header.get("cpu"), here.cpu_name()
    if measured is not None and measured != name:
        raise BadInput(
            f"{table.path.name} was measured on {measured}; this machine is {name}.",
            hint="Collect a table here with benchmarks/truth.py and give its file.",
        )
    return Machine.here().with_cpu_only()


def forecast_rows(table: Table, machine: Machine, told: Callable[[int], None] = lambda _: None) -> list[Pair]:
    """A forecast for each row; `told` hears how many are done."""
    pairs = []
    for number, row in enumerate(table.rows):
        told(number)
        pairs.append(_forecast(row, machine))
    return pairs


def _forecast(row: Row, machine: Machine) -> Pair:
    if row.error:
        return Pair(row=row, reason=f"not measured: {row.error}", excused=True)
    if row.host_factor is not None:
        machine = machine.with_host_factor(row.host_factor)
    try:
        return Pair(row=row, forecast=predict(row.case.workload(), machine, row.case.strategy()))
    except Unavailable as error:
        return Pair(row=row, reason=error.message, excused=True)
    except WindtunnelError as error:
        return Pair(row=row, reason=f"{type(error).__name__}: {error.message}")
    except Exception as error:  # a fault of our own in one row must not hide the others
        return Pair(row=row, reason=f"fault: {type(error).__name__}: {error}")


def judge(table: Table, machine: str, pairs: Sequence[Pair]) -> Report:
    """Eager rows against the tolerances, then by kind and precision; rows run another way stand apart."""
    asked = table.tolerances
    eager = [pair for pair in pairs if pair.row.case.execution == "eager"]
    bound = {name: [pair for pair in eager if pair.row.bound == name] for name in ("device", "host", None)}
    lines: list[Judgement | Share | None] = [
        _judgement("all", "device time", eager, "device", asked.device),
        _judgement("all", "step, device-bound", bound["device"], "step", asked.device_bound),
        _judgement("all", "step, host-bound", bound["host"], "step", asked.host_bound),
        _judgement("all", "step", bound[None], "step", asked.step),
        _judgement("all", "peak memory", eager, "memory", asked.memory),
        _share("all", "steps inside the interval", eager, asked.inside),
    ]
    for section, name_of in (
        ("kind", lambda pair: pair.row.case.kind),
        ("precision", lambda pair: pair.row.case.precision),
    ):
        lines += _by(section, eager, name_of)
    lines += _by(
        "execution", [pair for pair in pairs if pair not in eager], lambda pair: pair.row.case.execution
    )
    return Report(
        table=table,
        machine=machine,
        pairs=tuple(pairs),
        judgements=tuple(line for line in lines if line is not None),
    )


def _by(section: str, pairs: Sequence[Pair], name_of: Callable[[Pair], str]) -> Iterable[Judgement | None]:
    for name in sorted({name_of(pair) for pair in pairs}):
        some = [pair for pair in pairs if name_of(pair) == name]
        for quantity in QUANTITIES:
            yield _judgement(section, f"{name}: {_TITLES[quantity]}", some, quantity, None)


def _judgement(
    section: str, name: str, pairs: Sequence[Pair], quantity: Quantity, asked: Tolerance | None
) -> Judgement | None:
    """None where nothing is to be said; a tolerance without a row to hold it against is not met."""
    errors = [error for pair in pairs if (error := pair.error(quantity)) is not None]
    if not errors:
        return (
            None
            if asked is None
            else Judgement(section=section, name=name, found=None, asked=asked, over=("no rows",))
        )
    found = agree(errors)
    return Judgement(
        section=section, name=name, found=found, asked=asked, over=exceeded(found, asked) if asked else ()
    )


def _share(section: str, name: str, pairs: Sequence[Pair], asked: ShareRange | None) -> Share | None:
    known = [pair.inside for pair in pairs if pair.inside is not None]
    return (
        Share(section=section, name=name, count=sum(known), rows=len(known), asked=asked)
        if known or asked
        else None
    )
