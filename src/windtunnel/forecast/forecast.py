"""Forecast one training step: a trace on a machine under a strategy in, a Forecast and its timeline out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.forecast import memory
from windtunnel.forecast.allocator import Rounding
from windtunnel.forecast.cautions import cautions_of
from windtunnel.forecast.contributors import build_step, contributors_of
from windtunnel.forecast.price import Price, Pricer, threads_of
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import Timeline, lay_out
from windtunnel.forecast.uncertainty import interval_of, spreads_of
from windtunnel.machine.machine import Machine
from windtunnel.results import Result
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Result):
    """A step that was computed, not run. `families` are the device's seconds by family of op."""

    flop: float = 0.0
    parameters: int = 0
    families: Mapping[str, float] = field(default_factory=dict)

    def headline(self) -> str:
        return f"forecast: {Result.headline(self)}"

    def _own_lines(self) -> list[str]:
        rate = units.show(self.flop / self.step_seconds, "flop/s")
        return [
            f"  work     {units.show(self.flop, 'flop')} a step at {rate}; {self.parameters:,} parameters"
        ]


class ForecastStep(NamedTuple):
    """A forecast and the schedule behind it."""

    forecast: Forecast
    timeline: Timeline


def forecast_step(
    trace: Trace, machine: Machine, strategy: Strategy, profile: Profile, examples: int | None = None
) -> ForecastStep:
    """Price the ops, schedule them, account for the time, and compute the memory from the same trace."""
    _refuse_impossible(machine, strategy)
    machine = _with_network_launch_costs(machine, profile)
    pricer = Pricer(machine, strategy, trace, profile)
    prices = pricer.price(trace.ops)
    timeline = lay_out(build_step(contributors_of(trace, prices, machine, strategy, profile)))
    parts = timeline.parts()
    low, high = interval_of(timeline, machine, spreads_of(machine, profile))
    workspaces = [price.workspace_bytes for price in prices]
    forecast = Forecast(
        job=trace.job,
        machine=machine.name,
        strategy=_described(strategy, machine),
        batch=trace.batch,
        step_seconds=timeline.step_seconds,
        low_seconds=low,
        high_seconds=high,
        parts=parts,
        memory=memory.account(trace, machine, strategy, workspaces, Rounding(**profile.rounding)),
        bound_by=max(parts, key=lambda part: parts[part]),
        device_seconds=sum(price.device_seconds for price in prices),
        host_seconds=_host_seconds(timeline, machine, prices),
        families=_seconds_by_family(trace, prices),
        examples=examples,
        cautions=(*trace.cautions, *cautions_of(pricer, timeline, machine, profile)),
        flop=trace.flop,
        parameters=trace.parameters,
    )
    return ForecastStep(forecast, timeline)


def _refuse_impossible(machine: Machine, strategy: Strategy) -> None:
    if strategy.execution == "graph" and machine.device.kind == "cpu":
        raise BadInput(
            f"execution=graph needs a GPU; {machine.name} computes on its CPU.",
            hint="Use --execution eager, or --on a GPU machine.",
        )
    if strategy.execution == "graph" and strategy.data == "streamed":
        raise BadInput(
            "execution=graph reads its batch from a fixed address, so data=streamed is not possible.",
            hint="Use --data resident or --execution eager.",
        )
    if machine.launch_costs is None:
        raise BadInput(
            f"The description of {machine.name} has no launch costs.",
            hint="Load it with Machine.load or Machine.named, which fill them in.",
        )


def _described(strategy: Strategy, machine: Machine) -> dict[str, object]:
    """The strategy as it will be run: the machine's defaults filled in, fields without effect left out."""
    fields = strategy.fields()
    fields.pop("batch", None)
    if machine.device.kind == "cpu":
        fields["threads"] = threads_of(machine, strategy)
        fields.pop("data")
    else:
        fields.pop("threads", None)
    if not strategy.prefetch:
        fields.pop("prefetch")
    return dict(fields)


def _with_network_launch_costs(machine: Machine, profile: Profile) -> Machine:
    """Scale launch costs up: whole networks miss caches that the microbenchmarks hit."""
    costs = machine.launch_costs and machine.launch_costs.scaled(profile.launch_cost_factor)
    return dataclasses.replace(machine, launch_costs=costs)


def _host_seconds(timeline: Timeline, machine: Machine, prices: Sequence[Price]) -> float:
    if machine.device.kind == "gpu":
        return timeline.busy_seconds("host")
    return sum(price.host_seconds for price in prices)


def _seconds_by_family(trace: Trace, prices: Sequence[Price]) -> dict[str, float]:
    families: dict[str, float] = {}
    for op, price in zip(trace.ops, prices, strict=True):
        if price.device_seconds > 0:
            families[op.family] = families.get(op.family, 0.0) + price.device_seconds
    return families
