"""The survey of one job: every factor over its range, ranked, with the interactions of the strongest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.errors import BadInput, DoesNotFit, WindtunnelError
from windtunnel.forecast.forecast import Forecast
from windtunnel.influence import factors as registry
from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant, VariedStep
from windtunnel.influence.effects import FactorInfluence, ranked
from windtunnel.influence.interactions import TOP, Interaction, StrongFactor, interact
from windtunnel.influence.learned import LearnedFactor, LearnOptions, learn_factors, require_lesson
from windtunnel.influence.result import Influence
from windtunnel.influence.scale import ScaleOptions, scale_of
from windtunnel.influence.setup import VariedForecasts, VariedSetup, why_not
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.prediction import predict
from windtunnel.strategy import Strategy

HOUR_SECONDS = 3600.0
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorOptions:
    """What to vary.

    only      names of factors; empty: all
    compiled  also with torch.compile, whose trace takes long
    prices    price of a device-hour by the name of a machine; "" is the price of any other
    learn     real training of small runs, where learning is concerned
    scale     what counts as a reasonable time, and the epochs of a training
    """

    only: tuple[str, ...] = ()
    compiled: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    learn: LearnOptions | None = None
    scale: ScaleOptions = field(default_factory=ScaleOptions)


def factors(
    workload: Workload,
    machine: Machine,
    strategy: Strategy | None = None,
    options: FactorOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Influence:
    """Vary each factor of a job alone and rank them by their influence on time, memory, energy and price.

    Raises DoesNotFit if the job itself does not fit, and BadInput if nothing can be varied.
    """
    options, report = options or FactorOptions(), progress or (lambda text: None)
    base = VariedSetup(job=workload, machine=machine, strategy=strategy or Strategy())
    if options.learn is not None:
        require_lesson(workload)
    survey = _Survey(base, options, report)
    survey.require_fit()
    for factor in registry.chosen(options.only, options.compiled):
        survey.vary(factor)
    if not survey.found:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in survey.missing)
        raise BadInput(f"No factor of {workload.name} can be varied. {reasons}.", hint=_hint(options.only))
    return survey.finish()


def _hint(only: tuple[str, ...]) -> str:
    return "Leave --only out, or name other factors." if only else "Use a job with settings."


class _Survey:
    """The forecasts so far."""

    def __init__(self, base: VariedSetup, options: FactorOptions, report: Progress) -> None:
        self.base, self.options, self.report = base, options, report
        self.forecaster = VariedForecasts()
        self.found: list[FactorInfluence] = []
        self.missing: list[CannotVary] = []
        self.ranges: dict[str, FactorRange] = {}

    def require_fit(self) -> None:
        forecast = self.forecaster.forecast(self.base)
        if forecast.memory.fits is False:
            predict(self.base.job, self.base.machine, self.base.strategy)  # raises, and says what would fit
            raise DoesNotFit(f"{self.base.job.name} does not fit {self.base.machine.name}.")

    def vary(self, factor: InfluenceFactor) -> None:
        self.report(f"varying {factor.name}")
        try:
            ranges = factor.vary(self.base)
        except WindtunnelError as error:
            ranges = [CannotVary(name=factor.name, reason=why_not(error))]
        for each in ranges:
            if isinstance(each, CannotVary):
                self.missing.append(each)
            else:
                self._vary_range(factor, each)

    def _vary_range(self, factor: InfluenceFactor, given: FactorRange) -> None:
        steps, left_out = [], []
        for variant in given.variants:
            try:
                steps.append(self._step(variant))
            except WindtunnelError as error:
                left_out.append(f"{variant.label}: {why_not(error)}")
        if len(steps) < 2:
            reason = "; ".join(left_out) or f"{steps[0].label if steps else 'nothing'} is its only value"
            self.missing.append(CannotVary(name=given.name, reason=reason))
            return
        self.ranges[given.name] = given
        found = FactorInfluence(
            name=given.name,
            group=factor.group,
            steps=tuple(steps),
            learns=factor.learns,
            left_out=tuple(left_out),
            note=given.note,
        )
        self.found.append(found)

    def _step(self, variant: Variant) -> VariedStep:
        if variant.stated is not None:
            seconds = variant.stated.example_seconds
            return VariedStep(
                label=variant.label,
                is_base=variant.is_base,
                example_seconds=seconds,
                low_seconds=seconds,
                high_seconds=seconds,
                source=variant.stated.source,
            )
        setup = variant.change(self.base)
        forecast = self.forecaster.forecast(setup)
        if forecast.memory.fits is False:
            raise DoesNotFit("does not fit")
        return self._varied(variant, setup, forecast)

    def _varied(self, variant: Variant, setup: VariedSetup, forecast: Forecast) -> VariedStep:
        batch, machine = forecast.batch, setup.machine
        count = machine.devices * machine.nodes
        seconds = forecast.step_seconds / batch
        power, price = machine.device.power, self._price(machine)
        return VariedStep(
            label=variant.label,
            is_base=variant.is_base,
            example_seconds=seconds,
            low_seconds=forecast.low_seconds / batch,
            high_seconds=forecast.high_seconds / batch,
            step_seconds=forecast.step_seconds,
            memory_bytes=forecast.memory.peak_bytes,
            energy_joules=None if power is None else seconds * power * count,
            price=None if price is None else seconds * count * price / HOUR_SECONDS,
            job=setup.job.name,
            machine=machine.name,
            bound_by=forecast.bound_by,
        )

    def _price(self, machine: Machine) -> float | None:
        """The price of a device-hour, of one of several devices by the name of one."""
        prices, name = self.options.prices, machine.name
        alone = name.rpartition("x")[2] if machine.devices * machine.nodes > 1 else name
        return prices.get(name, prices.get(alone, prices.get("")))

    def _interactions(self) -> tuple[Interaction, ...]:
        strong: list[StrongFactor] = []
        chosen: list[FactorInfluence] = []
        for factor in ranked(self.found):
            effect, given = factor.effect(), self.ranges[factor.name]
            combinable = all(variant.stated is None for variant in given.variants)
            if effect is None or not effect.is_clear or not combinable:
                continue
            if any(_exclude_each_other(factor, other) for other in chosen):
                continue
            chosen.append(factor)
            strong.append(
                StrongFactor(name=factor.name, variant=_strongest(factor, given, self._base_seconds))
            )
        self.report("forecasting the strongest in pairs")
        return interact(self.base, strong[:TOP], self.forecaster)

    @property
    def _base_seconds(self) -> float:
        forecast = self.forecaster.forecast(self.base)
        return forecast.step_seconds / forecast.batch

    def finish(self) -> Influence:
        base = self.forecaster.forecast(self.base)
        learned: Sequence[LearnedFactor] = ()
        if self.options.learn is not None:
            learned = learn_factors(self.base.job, self.options.learn, self.report)
        self.report("judging the scale")
        return Influence(
            base=base,
            factors=tuple(self.found),
            missing=tuple(self.missing),
            interactions=self._interactions(),
            learned=tuple(learned),
            learns=self.options.learn is not None,
            asked=tuple(self.options.only),
            compiled=self.options.compiled,
            prices=dict(self.options.prices),
            scale=scale_of(self.base, base, self.options.scale, self.forecaster),
        )


def _exclude_each_other(first: FactorInfluence, second: FactorInfluence) -> bool:
    """Another network has other sizes, so the two are not varied together."""
    return first.group == second.group == "network" and "network" in (first.name, second.name)


def _strongest(factor: FactorInfluence, given: FactorRange, base_seconds: float) -> Variant:
    """The value whose time is farthest from that of the base, in ratio."""

    def distance(step: VariedStep) -> float:
        ratio = step.example_seconds / base_seconds
        return max(ratio, 1 / ratio)

    far = max(factor.steps, key=lambda step: (distance(step), step.label))
    return next(variant for variant in given.variants if variant.label == far.label)
