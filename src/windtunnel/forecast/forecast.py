"""A trace on a machine under a strategy -> a Forecast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.forecast import efficiency, memory
from windtunnel.forecast.price import Price, Pricer, threads_of
from windtunnel.forecast.timeline import Timeline, lay_out
from windtunnel.machine import Machine
from windtunnel.results import Result
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Result):
    """A step that was never run."""

    flop: float = 0.0
    parameters: int = 0

    def headline(self) -> str:
        return f"forecast: {Result.headline(self)}"

    def _own_lines(self) -> list[str]:
        rate = units.show(self.flop / self.step_seconds, "flop/s")
        return [f"  work     {units.show(self.flop, 'flop')} a step at {rate}; {self.parameters:,} parameters"]


def forecast(trace: Trace, machine: Machine, strategy: Strategy, examples: int | None = None) -> Forecast:
    """Price, schedule and account one steady training step; read its memory off the same trace."""
    _refuse_impossible(machine, strategy)
    pricer = Pricer(machine, strategy, trace)
    prices = pricer.price(trace.ops)
    timeline = lay_out(trace, prices, machine, strategy)
    parts = timeline.parts()
    low, high = (_stretched(trace, prices, machine, strategy, sign) for sign in (-1, 1))
    return Forecast(
        job=trace.job,
        machine=machine.name,
        strategy=_told(strategy, machine),
        batch=trace.batch,
        step_seconds=timeline.step_seconds,
        low_seconds=low,
        high_seconds=high,
        parts=parts,
        memory=memory.account(trace, machine, strategy),
        bound_by=max(parts, key=lambda part: parts[part]),
        unit_seconds=sum(price.unit_seconds for price in prices),
        host_seconds=sum(price.host_seconds for price in prices),
        examples=examples,
        cautions=_cautions(pricer, timeline, machine, strategy),
        flop=trace.flop,
        parameters=trace.parameters,
    )


def _refuse_impossible(machine: Machine, strategy: Strategy) -> None:
    if strategy.execution == "graph" and machine.unit.kind == "cpu":
        raise BadInput(f"execution=graph needs a GPU; {machine.name} computes on its CPU.", hint="Use --execution eager, or --on a GPU machine.")
    if strategy.execution == "graph" and strategy.data == "streamed":
        raise BadInput(
            "execution=graph reads its batch from one fixed place, so data=streamed cannot go with it.", hint="Use --data resident or --execution eager."
        )
    if machine.issue is None:
        raise BadInput(
            f"{machine.name} says nothing of what its host pays to issue an op.", hint="Load it with Machine.load or Machine.named, which fill that in."
        )


def _told(strategy: Strategy, machine: Machine) -> dict[str, object]:
    """The strategy as it will be run, with the machine's defaults filled in and what plays no part left out."""
    told = strategy.told()
    told.pop("batch", None)
    if machine.unit.kind == "cpu":
        told["threads"] = threads_of(machine, strategy)
        told.pop("data")
    else:
        told.pop("threads", None)
    if not strategy.prefetch:
        told.pop("prefetch")
    return dict(told)


def _stretched(trace: Trace, prices: Sequence[Price], machine: Machine, strategy: Strategy, sign: int) -> float:
    """The step if unit and host were both as fast or as slow as the rates' uncertainty allows."""
    unit, host = efficiency.UNIT_SPREAD**sign, efficiency.HOST_SPREAD**sign
    scaled = [Price(host_seconds=p.host_seconds * host, unit_seconds=p.unit_seconds * unit) for p in prices]
    assert machine.issue is not None
    slower = dataclasses.replace(machine, issue=machine.issue.scaled(host))
    return lay_out(trace, scaled, slower, strategy).step_seconds


def _cautions(pricer: Pricer, timeline: Timeline, machine: Machine, strategy: Strategy) -> tuple[str, ...]:
    cautions = [f"rates of {machine.name} are specified ones with round efficiencies, not a measured profile: the interval is wide"]
    whole = timeline.step_seconds
    for name, seconds in sorted(pricer.assumed.items(), key=lambda item: -item[1]):
        cautions.append(f"{name} belongs to no known family and was priced by its bytes: {seconds / whole:.1%} of the step")
    cautions += pricer.notes
    if not machine.source_of("issue").startswith("measured"):
        cautions.append(f"the host's cost of issuing ops is {machine.source_of('issue') or 'assumed'}")
    count = machine.units * machine.nodes
    if count > 1:
        cautions.append(f"one unit of the {count} is used: this forecast is for one worker")
    if machine.unit.kind == "cpu" and machine.unit.cores and pricer.threads > machine.unit.cores:
        cautions.append(f"{pricer.threads} threads on {machine.unit.cores} physical cores take turns, which usually lengthens the step")
    if machine.unit.memory_bytes is None:
        cautions.append(f"{machine.name} states no memory size: whether the step fits is not known")
    return tuple(cautions)
