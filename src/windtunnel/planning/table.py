"""The result of planning: the best plans, the scaling curve, the whole run, refused candidates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import displays, records, units
from windtunnel.forecast.forecast import Forecast
from windtunnel.planning.goal import PlanGoal
from windtunnel.planning.run import RunLength, RunTotals
from windtunnel.records import Plain
from windtunnel.results import Printed, Row
from windtunnel.saved_plan import SavedPlan
from windtunnel.strategy import Strategy

# Two devices that do less than 1.5 times the work of one cost a third more for each example.
LEAST_GAIN = 1.5
_MOST_CAUTIONS = 3
_DEGREES = {
    "data_parallel": "data",
    "tensor_parallel": "tensor",
    "pipeline_parallel": "pipeline",
    "expert_parallel": "expert",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """A plan that fits, with its forecast. `mfu`: the share of the step that the network's arithmetic takes
    at the stated rates of the devices used."""

    strategy: Strategy
    forecast: Forecast
    devices: int
    mfu: float
    run: RunTotals

    @property
    def micro_batch(self) -> int:
        return self.forecast.batch // ((self.strategy.data_parallel or 1) * self.strategy.accumulate)

    def in_words(self) -> str:
        """What the plan sets, without the fields that all plans share."""
        strategy = self.strategy
        degrees = [
            f"{word} {getattr(strategy, name)}" for name, word in _DEGREES.items() if _is_set(strategy, name)
        ]
        words = [
            " x ".join(degrees) or "no division",
            f"micro-batch {self.micro_batch} x {strategy.accumulate}",
        ]
        if strategy.virtual_stages > 1:
            words.append(f"{strategy.virtual_stages} virtual stages")
        if strategy.sequence_parallel:
            words.append("sequence parallel")
        if strategy.shard != "none":
            words.append(f"shard {strategy.shard}")
        if strategy.exchange != "buckets":
            words.append(f"exchange {strategy.exchange}")
        if strategy.recompute != "none":
            words.append(f"recompute {strategy.recompute}")
        return ", ".join(words)

    def plain(self) -> Plain:
        return {
            "strategy": self.strategy.fields(),
            "devices": self.devices,
            "micro_batch": self.micro_batch,
            "mfu": self.mfu,
            "run": records.plain(self.run),
            "forecast": self.forecast.plain(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The fastest plan that fits on a number of devices. `efficiency`: throughput for each device, over that
    of the smallest number that fits."""

    devices: int
    batch: int
    degrees: tuple[int, int, int]
    step_seconds: float
    examples_per_second: float
    efficiency: float
    run: RunTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable(Printed):
    """Plans for a job on a machine, the best first.

    bend       the number of devices from which on doubling them gains less than 1.5 times; None: no such
    refused    what was not possible, how often and why
    searched   how many candidates there were, and how many had to be forecast
    notes      what was assumed about the question
    """

    job: str
    machine: str
    goal: PlanGoal
    length: RunLength
    plans: tuple[RankedPlan, ...]
    curve: tuple[ScalingPoint, ...]
    refused: tuple[str, ...]
    searched: str
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> RankedPlan:
        return self.plans[0]

    @property
    def bend(self) -> int | None:
        return bend_of(self.curve)

    def saved(self, job: Sequence[str] = (), on: str | None = None) -> SavedPlan:
        """The best plan, to be written to a file."""
        best, memory = self.best, self.best.forecast.memory
        figures = {
            "devices": best.devices,
            "step_seconds": best.forecast.step_seconds,
            "examples_per_second": best.forecast.examples_per_second,
            "memory_bytes": memory.total_bytes,
            "mfu": best.mfu,
        }
        if self.length.is_known:
            figures |= {"run_seconds": best.run.seconds, "device_hours": best.run.device_hours}
        why = f"{self.goal.in_words()} of {self.searched}"
        return SavedPlan(strategy=best.strategy, job=tuple(job), on=on, why=why, forecast=figures)

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        return {
            "job": self.job,
            "machine": self.machine,
            "goal": {"aim": self.goal.wanted, **records.plain(self.goal)},
            "length": records.plain(self.length),
            "plans": [plan.plain() for plan in self.plans],
            "curve": [records.plain(point) for point in self.curve],
            "bend_devices": self.bend,
            "refused": list(self.refused),
            "searched": self.searched,
            "notes": list(self.notes),
        }

    def headline(self) -> str:
        inputs = f", {self.best.forecast.inputs}" if self.best.forecast.inputs else ""
        return (
            f"plan: {self.job} on {self.machine}: {self.goal.in_words()}, "
            f"batch {self.best.forecast.batch}{inputs}"
        )

    def _rows(self) -> list[Row]:
        cautions = self.best.forecast.cautions
        others = [row for plan in self.plans[1:] for row in self._other_rows(plan)]
        return [
            *self._best_rows(),
            *(
                [("others", "the next best with other degrees, on as many devices"), *others]
                if others
                else []
            ),
            *self._curve_rows(),
            *(("note", note) for note in self.notes),
            *(("refused", text) for text in self.refused),
            ("searched", self.searched),
            *(("caution", text) for text in cautions[:_MOST_CAUTIONS] if "devices of" not in text),
        ]

    def _repr_html_(self) -> str:
        """For notebooks: the best plan, the curve over numbers of devices, and every further row."""
        head = ("devices", "step", "examples/s", "efficiency", "data x tensor x pipeline")
        curve = displays.table(head, [_point_cells(point) for point in self.curve])
        drawn = [text for _, text in self._curve_rows()]
        first = self._best_rows()
        rest = [row for row in self._rows()[len(first) :] if row[1] not in drawn[:-1]]
        return displays.display(self.headline(), self._facts(first), curve, self._facts(rest))

    def _best_rows(self) -> list[Row]:
        best, forecast = self.best, self.best.forecast
        low, high = units.show(forecast.low_seconds, "s"), units.show(forecast.high_seconds, "s")
        return [
            ("best", f"{_devices(best.devices)}: {best.in_words()}"),
            ("step", f"{units.show(forecast.step_seconds, 's')}  ({low} to {high}), {self._rate(best)}"),
            ("reason", reason(best)),
            ("memory", memory_text(best)),
            ("run", self._run_text(best)),
        ]

    def _rate(self, plan: RankedPlan) -> str:
        rate = plan.forecast.examples_per_second
        tokens = f", {units.digits(rate * self.length.length)} tokens/s" if self.length.length else ""
        return f"{units.digits(rate)} examples/s{tokens}"

    def _run_text(self, plan: RankedPlan) -> str:
        run = plan.run
        cost = (
            ""
            if run.cost is None
            else f"; cost {units.digits(run.cost)} at {self.goal.price:g} a device-hour"
        )
        whole = f"{run.steps:,} steps for {self.length.in_words()}"
        hours = f"{units.digits(run.device_hours)} device-hours{cost}"
        if not self.length.is_known:
            return f"{hours} for a million examples; give --examples or --tokens for the whole run"
        return f"{units.show(run.seconds, 's')}: {whole}; {hours}"

    def _other_rows(self, plan: RankedPlan) -> list[Row]:
        forecast = plan.forecast
        slower = (
            forecast.step_seconds
            / forecast.batch
            * self.best.forecast.batch
            / self.best.forecast.step_seconds
        )
        batch = f", batch {forecast.batch}" if forecast.batch != self.best.forecast.batch else ""
        return [
            ("", f"{units.show(forecast.step_seconds, 's')} (x {slower:.2f}): {plan.in_words()}{batch}"),
            ("", f"{reason(plan)}; {memory_text(plan)}"),
        ]

    def _curve_rows(self) -> list[Row]:
        has_price = self.goal.price is not None
        unit = "cost" if has_price else "device-hours"
        head = f"{'devices':>7} {'step':>9} {'examples/s':>10} {'efficiency':>10} {unit:>12}  d x t x p"
        lines = [_point_line(point, has_price) for point in self.curve]
        what = "fastest on each number of devices; d x t x p: data, tensor, pipeline"
        return [("scaling", what), *(("", line) for line in (head, *lines)), ("", bend_text(self.curve))]


def reason(plan: RankedPlan) -> str:
    """What the step is bound by, and how well the devices are used."""
    forecast = plan.forecast
    shares = sorted(forecast.parts.items(), key=lambda part: -part[1])
    parts = [f"{name} {seconds / forecast.step_seconds:.0%}" for name, seconds in shares if seconds > 0]
    shown = [part for part in parts if not part.endswith(" 0%")]
    used = f"devices work {forecast.utilisation:.0%}, MFU {plan.mfu:.0%}"
    return f"bound by {forecast.bound_by} ({', '.join(shown)}); {used}"


def memory_text(plan: RankedPlan) -> str:
    memory = plan.forecast.memory
    capacity = "" if memory.capacity_bytes is None else f" of {units.show(memory.capacity_bytes, 'B')}"
    return f"{units.show(memory.total_bytes, 'B')}{capacity} on each device"


def bend_of(curve: Sequence[ScalingPoint]) -> int | None:
    """The number of devices from which on doubling them gains less than `LEAST_GAIN`."""
    for near, far in itertools.pairwise(curve):
        if gain_of_doubling(near, far) < LEAST_GAIN:
            return near.devices
    return None


def gain_of_doubling(near: ScalingPoint, far: ScalingPoint) -> float:
    """By how much throughput grows for each doubling between two numbers of devices."""
    growth = math.log(far.examples_per_second / near.examples_per_second)
    return float(2 ** (growth / math.log(far.devices / near.devices)))


def bend_text(curve: Sequence[ScalingPoint]) -> str:
    if len(curve) < 2:
        return "no other number of devices has a plan that fits"
    bend = bend_of(curve)
    if bend is None:
        return f"no bend up to {_devices(curve[-1].devices)}: each doubling gains at least {LEAST_GAIN} times"
    near, far = next(pair for pair in itertools.pairwise(curve) if pair[0].devices == bend)
    return (
        f"bends at {_devices(bend)}: beyond, doubling them gains less than {LEAST_GAIN} times "
        f"({gain_of_doubling(near, far):.2f} up to {far.devices})"
    )


def _point_cells(point: ScalingPoint) -> tuple[str, ...]:
    """A point of the curve, for notebooks."""
    step, rate = units.show(point.step_seconds, "s"), units.digits(point.examples_per_second)
    return f"{point.devices:,}", step, rate, f"{point.efficiency:.0%}", " x ".join(map(str, point.degrees))


def _point_line(point: ScalingPoint, has_price: bool) -> str:
    spent = point.run.cost if has_price else point.run.device_hours
    degrees = " x ".join(map(str, point.degrees))
    step, rate = units.show(point.step_seconds, "s"), units.digits(point.examples_per_second)
    figures = f"{point.efficiency:>10.0%} {units.digits(spent or 0.0):>12}"
    return f"{point.devices:>7} {step:>9} {rate:>10} {figures}  {degrees}"


def _is_set(strategy: Strategy, name: str) -> bool:
    return (getattr(strategy, name) or 1) > 1


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'}"
