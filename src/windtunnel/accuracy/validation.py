"""Forecasts against a table of measured steps: their errors, and whether they are within the tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from windtunnel import prediction, records
from windtunnel.accuracy import text
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.accuracy.gains import Gain, GainQuantity, find_gains
from windtunnel.accuracy.truth import (
    QUANTITIES,
    Quantity,
    Tolerances,
    TruthRow,
    TruthTable,
    find_table,
    read_table,
)
from windtunnel.agreement import Agreement, ShareRange, Tolerance, agree, error_of, exceeded
from windtunnel.displays import Displayed
from windtunnel.errors import BadInput, Unavailable, WindtunnelError, nearest
from windtunnel.forecast.forecast import Forecast
from windtunnel.machine.machine import Machine

TABLES = ("truth", "tuning", "blind")
_FUSED = "fused"  # the kind of rows of the fused engine
Section = Literal["all", "kind", "precision", "execution", "compiled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A measured row with its forecast and its roofline time, or the reason why there is no forecast.

    `excused`: the reason does not count against the forecasts.
    """

    row: TruthRow
    forecast: Forecast | None = None
    roofline_seconds: float | None = None
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
        return _error(self.predicted(quantity), self.row.measured(quantity))

    def roofline_error(self, quantity: Quantity) -> float | None:
        """The error of the plain roofline; it forecasts no memory."""
        if quantity == "memory" or self.error(quantity) is None:
            return None
        return _error(self.roofline_seconds, self.row.measured(quantity))

    @property
    def inside(self) -> bool | None:
        """Whether the measured step lies in the forecast's interval."""
        if self.forecast is None or self.row.step_seconds is None:
            return None
        return self.forecast.low_seconds <= self.row.step_seconds <= self.forecast.high_seconds

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""
        quantities: dict[str, object] = {
            quantity: {
                "predicted": self.predicted(quantity),
                "measured": self.row.measured(quantity),
                "error": self.error(quantity),
                "roofline_error": self.roofline_error(quantity),
            }
            for quantity in QUANTITIES
        }
        return {
            "case": records.plain(self.row.case),
            "bound": self.row.bound,
            "inside": self.inside,
            "reason": self.reason,
            **quantities,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The errors of some rows in one quantity, those of the simplest baseline, and the broken tolerances.

    The baseline is the plain roofline; of compiled rows, that compiling gains nothing.
    """

    section: Section
    name: str
    errors: Agreement | None
    baseline: Agreement | None = None
    tolerance: Tolerance | None = None
    broken: tuple[str, ...] = ()

    @property
    def baseline_name(self) -> str:
        return "no_gain" if self.section == "compiled" else "roofline"

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""
        return _without_none(
            section=self.section,
            name=self.name,
            errors=records.plain(self.errors),
            **{self.baseline_name: records.plain(self.baseline)},
            tolerance=records.plain(self.tolerance),
            broken=list(self.broken),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many rows of how many, and the share that is allowed."""

    section: Section
    name: str
    count: int
    rows: int
    tolerance: ShareRange | None = None

    @property
    def broken(self) -> tuple[str, ...]:
        limits = self.tolerance
        if limits is None or (self.rows and limits.least <= self.count / self.rows <= limits.most):
            return ()
        return ("share",)

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""
        return _without_none(
            section=self.section,
            name=self.name,
            count=self.count,
            rows=self.rows,
            tolerance=records.plain(self.tolerance),
            broken=list(self.broken),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Displayed):
    """How far forecasts are from a table of measured steps.

    Prints itself; `text(rows=True)` shows each row.
    """

    table: TruthTable
    machine: str
    pairs: tuple[Pair, ...]
    judgements: tuple[Judgement | Share, ...]

    @property
    def gains(self) -> list[Gain]:
        """Compiled rows beside the eager rows of the same cases."""
        return find_gains(self.pairs)

    @property
    def left_out(self) -> tuple[Pair, ...]:
        """Rows without a forecast."""
        return tuple(pair for pair in self.pairs if pair.reason)

    @property
    def refused(self) -> int:
        return sum(bool(pair.reason) and not pair.excused for pair in self.pairs)

    @property
    def failures(self) -> tuple[str, ...]:
        """The broken tolerances in words; empty where all are met."""
        broken = [each for each in self.judgements if each.broken]
        failures = [f"{_full_name(each)}: {', '.join(each.broken)}" for each in broken]
        most = self.table.tolerances.refused
        if most is not None and self.refused > most:
            failures.append(f"{self.refused} rows have no forecast, {most} may")
        return tuple(failures)

    def plain(self, rows: bool = False) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "table": str(self.table.path),
            "machine": self.machine,
            "header": dict(self.table.header),
            "judgements": [each.plain() for each in self.judgements],
            "left_out": [{"case": str(pair.row.case), "reason": pair.reason} for pair in self.left_out],
            "failures": list(self.failures),
            **({"rows": [pair.plain() for pair in self.pairs]} if rows else {}),
            **({"gains": [gain.plain() for gain in self.gains]} if rows and self.gains else {}),
        }

    def text(self, rows: bool = False) -> str:
        return "\n".join(text.lines(self, rows))

    def __str__(self) -> str:
        return self.text()


def validate(
    machine_name: str = "h200", table: str = "truth", progress: Callable[[int, int], None] | None = None
) -> Validation:
    """Forecast every row of a machine's table of measured steps and compare.

    `machine_name`: a machine of the catalogue that has a table, or FILE.jsonl. `table`: "truth", on which
    nothing was tuned; "tuning"; or "blind", measured after the code was frozen. `progress` gets the rows done
    and all rows. Measures nothing, needs no GPU.
    """
    if table not in TABLES:
        raise BadInput(f"There is no table {table!r}.", hint=nearest(table, TABLES))
    measured = read_table(find_table(machine_name, table))
    machine = find_machine(measured)
    return judge(measured, machine.name, forecast_rows(measured, machine, progress))


def find_machine(table: TruthTable) -> Machine:
    """The machine that the table was measured on, as forecasts know it."""
    if table.machine not in ("here", "cpu"):
        return Machine.named(table.machine)
    from windtunnel.machine import here

    measured, name = table.header.get("cpu"), here.cpu_name()
    if measured is not None and measured != name:
        raise BadInput(
            f"{table.path.name} was measured on {measured}; this machine is {name}.",
            hint="Measure a table here with benchmarks/truth.py and name its file.",
        )
    return Machine.here().with_cpu_only()


def forecast_rows(
    table: TruthTable, machine: Machine, progress: Callable[[int, int], None] | None = None
) -> list[Pair]:
    """A forecast for each row."""
    pairs: list[Pair] = []
    for row in table.rows:
        if progress is not None:
            progress(len(pairs), len(table.rows))
        pairs.append(_forecast(row, machine))
    if progress is not None:
        progress(len(pairs), len(pairs))
    return pairs


def _forecast(row: TruthRow, machine: Machine) -> Pair:
    if row.error:
        return Pair(row=row, reason=f"not measured: {row.error}", excused=True)
    if row.host_factor is not None:
        machine = machine.with_host_factor(row.host_factor)
    try:
        workload, strategy = row.case.workload(), row.case.strategy()
        trace = prediction.trace(workload, strategy, machine.device.kind)
        return Pair(
            row=row,
            forecast=prediction.forecast_trace(trace, workload, machine, strategy),
            roofline_seconds=roofline_seconds(trace, machine, strategy),
        )
    except Unavailable as error:
        return Pair(row=row, reason=error.message, excused=True)
    except WindtunnelError as error:
        return Pair(row=row, reason=f"{type(error).__name__}: {error.message}")
    except Exception as error:  # a bug that one row triggers must not hide the other rows
        return Pair(row=row, reason=f"fault: {type(error).__name__}: {error}")


def judge(table: TruthTable, machine: str, pairs: Sequence[Pair]) -> Validation:
    """Judge eager rows by the tolerances, by kind and by precision, and other executions separately.

    Rows of the fused engine have a line of their own: its one call is no ordinary network.
    """
    limits = table.tolerances
    eager = [pair for pair in pairs if pair.row.case.execution == "eager"]
    ordinary = [pair for pair in eager if pair.row.case.kind != _FUSED]
    fused = [pair for pair in eager if pair.row.case.kind == _FUSED]
    others = [pair for pair in pairs if pair.row.case.execution != "eager"]
    device_bound, host_bound, unknown = (
        [pair for pair in ordinary if pair.row.bound == bound] for bound in ("device", "host", None)
    )
    judgements: list[Judgement | Share | None] = [
        _judge("device", ordinary, "device", limits.device),
        _judge("step, device-bound", device_bound, "step", limits.device_bound),
        _judge("step, host-bound", host_bound, "step", limits.host_bound),
        _judge("step", unknown, "step", limits.step),
        _judge("memory", ordinary, "memory", limits.memory),
        _judge("fused engine: step", fused, "step"),
        _share_inside(eager, limits.inside),
        *_judge_by("kind", eager, lambda pair: pair.row.case.kind),
        *_judge_by("precision", eager, lambda pair: pair.row.case.precision),
        *_judge_by("execution", others, lambda pair: pair.row.case.execution),
        *_judge_gains(find_gains(pairs), limits),
    ]
    return Validation(
        table=table,
        machine=machine,
        pairs=tuple(pairs),
        judgements=tuple(each for each in judgements if each is not None),
    )


def _judge_by(
    section: Section, pairs: Sequence[Pair], name_of: Callable[[Pair], str]
) -> Iterable[Judgement | Share | None]:
    for name in sorted({name_of(pair) for pair in pairs}):
        some = [pair for pair in pairs if name_of(pair) == name]
        for quantity in QUANTITIES:
            yield _judge(f"{name}: {quantity}", some, quantity, section=section)
        yield _share_inside(some, section=section, name=f"{name}: inside")


def _judge_gains(gains: Sequence[Gain], limits: Tolerances) -> Iterable[Judgement | None]:
    """Compiled rows against the tolerances of torch.compile, beside the baseline that it gains nothing."""
    tolerances: dict[GainQuantity, Tolerance | None] = {
        "step": limits.compiled_step,
        "gain": limits.gain,
        "memory": limits.compiled_memory,
    }
    for quantity, tolerance in tolerances.items():
        errors = [gain.error(quantity) for gain in gains]
        baselines = [gain.baseline_error(quantity) for gain in gains]
        yield _summarise(quantity, errors, baselines, tolerance, "compiled")


def _judge(
    name: str,
    pairs: Sequence[Pair],
    quantity: Quantity,
    tolerance: Tolerance | None = None,
    section: Section = "all",
) -> Judgement | None:
    errors = [pair.error(quantity) for pair in pairs]
    rooflines = [pair.roofline_error(quantity) for pair in pairs]
    return _summarise(name, errors, rooflines, tolerance, section)


def _summarise(
    name: str,
    errors: Sequence[float | None],
    baselines: Sequence[float | None],
    tolerance: Tolerance | None,
    section: Section,
) -> Judgement | None:
    """None where there is nothing to judge; a tolerance without any row counts as broken."""
    known, unskilled = ([e for e in some if e is not None] for some in (errors, baselines))
    if not known:
        if tolerance is None:
            return None
        return Judgement(section=section, name=name, errors=None, tolerance=tolerance, broken=("no rows",))
    agreement = agree(known)
    return Judgement(
        section=section,
        name=name,
        errors=agreement,
        baseline=agree(unskilled) if unskilled else None,
        tolerance=tolerance,
        broken=exceeded(agreement, tolerance) if tolerance else (),
    )


def _share_inside(
    pairs: Sequence[Pair],
    tolerance: ShareRange | None = None,
    section: Section = "all",
    name: str = "steps inside the interval",
) -> Share | None:
    known = [pair.inside for pair in pairs if pair.inside is not None]
    if not known and tolerance is None:
        return None
    return Share(
        section=section,
        name=name,
        count=sum(known),
        rows=len(known),
        tolerance=tolerance,
    )


def _full_name(judged: Judgement | Share) -> str:
    return f"compiled {judged.name}" if judged.section == "compiled" else judged.name


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else error_of(predicted, measured)


def _without_none(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
