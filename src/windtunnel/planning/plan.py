"""Plan a job on a machine: the public function."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from windtunnel import units
from windtunnel.errors import BadInput, DoesNotFit, WindtunnelError
from windtunnel.garbage_collection import many_lasting_objects
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.memory_advice import fewest_that_fit
from windtunnel.planning.candidates import Candidate, Space, counts_of
from windtunnel.planning.facts import JobFacts, facts_of
from windtunnel.planning.goal import PlanChoices, PlanGoal
from windtunnel.planning.run import RunLength, RunTotals, length_of, totals_of
from windtunnel.planning.search import TIME_TOLERANCE, PlannedJob, Search, TimedCandidate
from windtunnel.planning.table import PlanTable, RankedPlan, ScalingPoint
from windtunnel.strategy import Precision, Strategy
from windtunnel.trace_cache import TraceCache

_MOST_PLANS = 3
_MOST_SEARCHED = 65_536  # devices; the ways to divide more take minutes to compare
_MOST_DEVICES = 4096  # up to which the smallest number that fits is sought
_LEAST_MEMORY_TRIES = 4  # candidates whose memory is computed before a number of devices counts as too small
_SEARCHED = (
    *("data_parallel", "tensor_parallel", "pipeline_parallel", "pipeline_schedule", "virtual_stages"),
    *("accumulate", "recompute", "shard", "exchange", "sequence_parallel", "expert_parallel"),
)


def plan(
    workload: Workload,
    machine: Machine,
    strategy: Strategy | None = None,
    goal: PlanGoal | None = None,
    choices: PlanChoices | None = None,
) -> PlanTable:
    """Find the fastest, cheapest or smallest way to run a job on a machine, on any number of its devices.

    `strategy` has what stays: batch, precision, optimizer, layout. Default batch: the job's own on each
    device of the machine. Raises DoesNotFit if no candidate fits, and BadInput if none keeps the deadline or
    the budget.
    """
    goal, choices = goal or PlanGoal(), choices or PlanChoices()
    base = strategy or Strategy()
    _refuse(machine, base)
    with many_lasting_objects():
        planning = _Planning(workload, machine, base, choices)
        length = length_of(goal, workload.examples, planning.inputs, workload.name)
        return planning.table(goal, length)


def _refuse(machine: Machine, base: Strategy) -> None:
    if machine.device.kind == "cpu":
        raise BadInput(
            f"plan divides a job among GPUs; {machine.name} computes on its CPU.",
            hint="Name a machine with several GPUs, for example --on 8xh100. See: windtunnel machine list",
        )
    if machine.devices * machine.nodes == 1:
        raise BadInput(
            f"{machine.name} has one device: there is nothing to divide.",
            hint=f"Name several, for example --on 8x{machine.name}, or use: windtunnel predict JOB --on "
            f"{machine.name}",
        )
    devices = machine.devices * machine.nodes
    if devices > _MOST_SEARCHED:
        raise BadInput(
            f"{machine.name} has {devices:,} devices; plan compares at most {_MOST_SEARCHED:,}.",
            hint="Name fewer devices, or forecast one strategy with predict.",
        )
    default = Strategy()
    for name in _SEARCHED:
        if getattr(base, name) != getattr(default, name):
            raise BadInput(
                f"plan chooses {name} itself; the strategy sets it to {getattr(base, name)}.",
                hint=f"Leave {name} out, or forecast this strategy with predict.",
            )
    for name, only in (("execution", "eager"), ("data", "resident"), ("inference", False)):
        if getattr(base, name) != only:
            raise BadInput(
                f"plan forecasts {name}={only} only, not {getattr(base, name)}.",
                hint="Forecast single strategies with predict.",
            )


class _Planning:
    """One question: the searches for all numbers of devices, and what follows from them."""

    def __init__(self, workload: Workload, machine: Machine, base: Strategy, choices: PlanChoices) -> None:
        self._workload, self._machine = workload, machine
        self._devices = machine.devices * machine.nodes
        own = workload.default_batch * self._devices
        self._has_own_batch = not choices.batches and base.batch is None
        batches = choices.batches or (base.batch or own,)
        precisions: Sequence[Precision] = choices.precisions or (base.precision,)
        traces = TraceCache(workload, machine.device.kind)
        facts: dict[str, JobFacts] = {
            precision: _facts(traces, machine, base, precision) for precision in precisions
        }
        first = next(iter(facts.values()))
        self.inputs = first.inputs
        space = Space(
            batches=tuple(sorted(set(batches))),
            precisions=tuple(dict.fromkeys(precisions)),
            blocks=first.blocks,
            experts=_experts(workload),
            devices_per_node=machine.devices,
        )
        subject = PlannedJob(
            traces=traces, machine=machine, base=base, profile=profile_for(machine), facts=facts
        )
        self._search = Search(subject, space)

    def table(self, goal: PlanGoal, length: RunLength) -> PlanTable:
        limited = goal.deadline_seconds is not None or goal.budget is not None
        counts = counts_of(self._devices, finely=limited)
        ranked = {count: self._search.ranked(count) for count in counts}
        found = {count: candidate for count in counts if (candidate := next(ranked[count], None)) is not None}
        if not found:
            raise self._does_not_fit()
        totals = {count: self._totals(candidate, length, goal) for count, candidate in found.items()}
        count = _chosen(found, totals, goal, self._machine.name)
        plans = sorted(self._best_of(found[count], ranked[count]), key=lambda each: each.example_seconds)
        # Within the slack of the search a plan that was found later may be the faster one.
        found[count], totals[count] = plans[0], self._totals(plans[0], length, goal)
        return PlanTable(
            job=self._workload.name,
            machine=self._machine.name,
            goal=goal,
            length=length,
            plans=tuple(self._ranked_plan(candidate, length, goal) for candidate in plans),
            curve=self._curve(found, totals, count),
            refused=self._refusals(counts, found),
            searched=self._searched(counts),
            notes=self._notes(found[count], length),
        )

    def _totals(self, found: TimedCandidate, length: RunLength, goal: PlanGoal) -> RunTotals:
        candidate = found.candidate
        return totals_of(length, candidate.batch, found.step_seconds, candidate.devices, goal.price)

    def _best_of(self, first: TimedCandidate, others: Iterator[TimedCandidate]) -> list[TimedCandidate]:
        """The fastest plans on one number of devices whose degrees differ."""
        best = {first.candidate.degrees: first}
        for other in others:
            best.setdefault(other.candidate.degrees, other)
            if len(best) == _MOST_PLANS:
                break
        return list(best.values())

    def _ranked_plan(self, found: TimedCandidate, length: RunLength, goal: PlanGoal) -> RankedPlan:
        candidate, subject = found.candidate, self._search.subject
        peak = subject.facts[candidate.precision].peak_seconds * candidate.batch / candidate.devices
        return RankedPlan(
            strategy=candidate.strategy(subject.base),
            forecast=subject.forecast(candidate),
            devices=candidate.devices,
            mfu=peak / found.step_seconds,
            run=self._totals(found, length, goal),
        )

    def _curve(
        self, found: Mapping[int, TimedCandidate], totals: Mapping[int, RunTotals], chosen: int
    ) -> tuple[ScalingPoint, ...]:
        """Powers of two, all devices, and the number that was chosen."""
        smallest = next(iter(found.values()))
        least = smallest.example_seconds * smallest.candidate.devices
        shown = [n for n in found if n & (n - 1) == 0 or n in (self._devices, chosen)]
        return tuple(
            ScalingPoint(
                devices=count,
                batch=found[count].candidate.batch,
                degrees=found[count].candidate.degrees,
                step_seconds=found[count].step_seconds,
                examples_per_second=1 / found[count].example_seconds,
                efficiency=least / (found[count].example_seconds * count),
                run=totals[count],
            )
            for count in shown
        )

    def _refusals(self, counts: Sequence[int], found: Mapping[int, TimedCandidate]) -> tuple[str, ...]:
        search = self._search
        capacity = units.show(self._machine.device.memory_bytes or 0.0, "B")
        texts = [
            *(f"{number:,}: {reason}" for reason, number in search.space.refused.items()),
            *(
                [f"{search.too_large:,}: weights, state and activations alone exceed {capacity} on a device"]
                if search.too_large
                else []
            ),
            *([f"{search.unfit:,}: forecast, and more than {capacity} on a device"] if search.unfit else []),
            *(f"{number:,}: {reason}" for reason, number in search.banned.items()),
        ]
        empty = [count for count in counts if count not in found]
        if empty:
            texts.append(f"no plan fits on {', '.join(map(str, empty))} devices")
        return tuple(texts)

    def _searched(self, counts: Sequence[int]) -> str:
        search = self._search
        return (
            f"{search.candidates:,} candidates on {counts[0]} to {counts[-1]} devices; {search.forecasts:,} "
            f"were forecast from {len(search.subject.traces)} traces, the others cannot be "
            f"{TIME_TOLERANCE:.0%} faster"
        )

    def _notes(self, best: TimedCandidate, length: RunLength) -> tuple[str, ...]:
        notes, candidate, batches = [], best.candidate, self._search.space.batches
        if self._has_own_batch:
            notes.append(
                f"batch {candidate.batch}: the job's own {self._workload.default_batch} on each of "
                f"{self._devices} devices; --batch sets the batch of all devices together"
            )
        if len(batches) > 1:
            most = batches[-1]
            notes.append(
                f"batches {', '.join(map(str, batches))} were tried; batch {candidate.batch} takes "
                f"{most / candidate.batch:.3g} times the steps of batch {most}. Whether each example "
                "teaches as much at every batch is not known"
            )
        idle = self._devices - candidate.devices
        if idle:
            notes.append(f"{idle} of the {self._devices} devices stay idle and are not paid for")
        return tuple(notes)

    def _does_not_fit(self) -> WindtunnelError:
        memory_bytes = self._machine.device.memory_bytes or 0.0
        least, _ = self._least_memory(self._devices)
        if not math.isfinite(least):
            reasons = [
                f"{reason} ({count} candidates)" for reason, count in self._search.space.refused.items()
            ]
            return BadInput(
                f"{self._workload.name} at batch {self._search.space.batches[0]}: no plan on "
                f"{self._machine.name} can be forecast.",
                hint="\n    ".join(["Use another batch.", *reasons]),
            )
        count = self._fewest_devices()
        node = self._machine.devices
        kind = self._machine.device.model
        return DoesNotFit(
            f"{self._workload.name} at batch {self._search.space.batches[0]} fits on "
            f"{self._machine.name} with no plan. The one with the least memory needs "
            f"{units.show(least, 'B')} on each device, which has {units.show(memory_bytes, 'B')}.",
            hint=f"Smallest number of devices that fits: {count} ({count // node} nodes of {node} {kind})."
            if count
            else f"Not even {_MOST_DEVICES} devices are enough: use a smaller network, a smaller batch or "
            "devices with more memory.",
        )

    def _least_memory(self, count: int) -> tuple[float, bool]:
        """The memory of the candidates with the least memory on this many devices, and whether one fits."""
        least, fits = float("inf"), False
        for candidate in self._search.least_memory(count)[:_LEAST_MEMORY_TRIES]:
            memory = self._memory(candidate)
            if memory is not None:
                least, fits = min(least, memory[0]), fits or memory[1]
        return least, fits

    def _memory(self, candidate: Candidate) -> tuple[float, bool] | None:
        try:
            memory = self._search.subject.memory(candidate)
        except WindtunnelError:
            return None
        return memory.total_bytes, memory.fits is not False

    def _fewest_devices(self) -> int:
        return fewest_that_fit(lambda count: self._least_memory(count)[1], 2 * self._devices, _MOST_DEVICES)


def _facts(traces: TraceCache, machine: Machine, base: Strategy, precision: Precision) -> JobFacts:
    own = dataclasses.replace(
        base, batch=2 * traces.workload.default_batch, precision=precision, data_parallel=2
    )
    plain, recomputed = traces.of(own), None
    if plain.blocks:
        with contextlib.suppress(WindtunnelError):  # the search says why
            recomputed = traces.of(dataclasses.replace(own, recompute="blocks"))
    return facts_of(plain, recomputed, machine, own)


def _experts(workload: Workload) -> int:
    """The experts of each mixture layer of a language model."""
    origin = workload.origin
    if origin is None or not origin.job.startswith("llm:"):
        return 0
    return int(str(origin.settings.get("experts", 0)))


def _chosen(
    found: Mapping[int, TimedCandidate], totals: Mapping[int, RunTotals], goal: PlanGoal, machine: str
) -> int:
    """The number of devices that the goal prefers."""
    allowed = list(found)
    if goal.deadline_seconds is not None:
        allowed = [count for count in allowed if totals[count].seconds <= goal.deadline_seconds]
        if not allowed:
            raise _too_late(totals, goal.deadline_seconds, machine)
    if goal.budget is not None:
        within = [count for count in allowed if (totals[count].cost or 0.0) <= goal.budget]
        if not within:
            raise _over_budget({count: totals[count] for count in allowed}, goal)
        allowed = within
    keys = {
        "fastest": lambda count: (totals[count].seconds, count),
        "cheapest": lambda count: (totals[count].device_hours, count),
        "smallest": lambda count: (count,),
    }
    return min(allowed, key=keys[goal.wanted])


def _too_late(totals: Mapping[int, RunTotals], deadline: float, machine: str) -> BadInput:
    fastest = min(totals, key=lambda count: totals[count].seconds)
    return BadInput(
        f"No plan on {machine} keeps the deadline of {units.show(deadline, 's')}: the fastest takes "
        f"{units.show(totals[fastest].seconds, 's')} on {fastest} devices.",
        hint="Use a later deadline, more or faster devices, or a shorter run (--examples, --tokens).",
    )


def _over_budget(totals: Mapping[int, RunTotals], goal: PlanGoal) -> BadInput:
    cheapest = min(totals, key=lambda count: totals[count].device_hours)
    best = totals[cheapest]
    late = " within the deadline" if goal.deadline_seconds is not None else ""
    return BadInput(
        f"No plan{late} costs at most {goal.budget:g}: the cheapest costs {units.digits(best.cost or 0.0)} "
        f"({units.digits(best.device_hours)} device-hours on {cheapest} devices, "
        f"{units.show(best.seconds, 's')}).",
        hint="Use a larger budget, cheaper devices (--price), or a shorter run (--examples, --tokens).",
    )
