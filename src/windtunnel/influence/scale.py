"""Small or large scale, by the guide's definition made quantitative (Wuensche 2018, sections I, II and IV).

The guide calls a network small if one machine or processing unit trains it in a reasonable time, without a
large data set; and large if it has so many nodes and so much data that one unit takes too long, so that
several are needed. Three facts decide here, for a job on a machine: whether one device can hold the step,
whether it ends the training in a reasonable time, and whether the host can hold the data set. Parameters and
examples are signs of large scale; alone they decide nothing.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from windtunnel import networks, units
from windtunnel.errors import BadInput, WindtunnelError
from windtunnel.forecast.forecast import Forecast
from windtunnel.influence.setup import VariedForecasts, VariedSetup
from windtunnel.prediction import fewest_devices
from windtunnel.units import DAY_SECONDS

ScaleClass = Literal["small", "large"]
# AlexNet on ImageNet is the network of the guide's multi-GPU figures (section III.H, after Shi et al. 2016):
# 61 million parameters, 1.28 million images.
MANY_PARAMETERS = 61_000_000
MANY_EXAMPLES = 1_000_000
_PHOTOGRAPH_EPOCHS = 90  # the usual schedule for ImageNet (Goyal et al. 2017)
_GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """`reasonable_seconds`: the longest training that counts as small scale; the guide gives no number.

    `epochs`: passes over the data set in a training. Default: those of the network's own lesson, 90 for
    photographs.
    """

    reasonable_seconds: float = DAY_SECONDS
    epochs: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.reasonable_seconds < math.inf:
            raise BadInput(f"A reasonable time must be above 0 seconds, not {self.reasonable_seconds:g}.")
        if self.epochs is not None and self.epochs < 1:
            raise BadInput(f"A training needs at least one epoch, not {self.epochs}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One fact about the job. `is_large` is None where the number is not known; `decides`: it alone makes
    the job large scale."""

    name: str
    text: str
    is_large: bool | None
    decides: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What the guide says is hard at this scale, in our words, and the numbers of this job."""

    text: str
    section: str
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Whether a job on a machine is of small or large scale, why, and what is hard about it."""

    size: ScaleClass
    criteria: tuple[Criterion, ...]
    challenges: tuple[Challenge, ...]
    training_seconds: float | None = None
    epochs: int | None = None
    devices_needed: int | None = None
    facts: dict[str, float] = field(default_factory=dict)

    def sentence(self) -> str:
        deciding = [c.text for c in self.criteria if c.decides and c.is_large]
        if deciding:
            return f"large scale: {'; '.join(deciding)}"
        known = [c.text for c in self.criteria if c.decides and c.is_large is False]
        unknown = [c.text for c in self.criteria if c.decides and c.is_large is None]
        doubt = " as far as is known" if unknown else ""
        return f"small scale{doubt}: {'; '.join([*known, *unknown])}"


def scale_of(
    setup: VariedSetup, forecast: Forecast, options: ScaleOptions, forecaster: VariedForecasts
) -> Scale:
    """The scale of a job on one device of its machine."""
    facts = _Facts.of(setup, forecast, options, forecaster)
    criteria = tuple(_criteria(facts, options))
    is_large = any(c.decides and c.is_large for c in criteria)
    return Scale(
        size="large" if is_large else "small",
        criteria=criteria,
        challenges=tuple(_large_challenges(facts) if is_large else _small_challenges(facts)),
        training_seconds=facts.training_seconds,
        epochs=facts.epochs,
        devices_needed=facts.devices,
        facts=facts.plain(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The numbers of a job on one device of a machine."""

    setup: VariedSetup
    step_seconds: float
    batch: int
    needed_bytes: float
    capacity_bytes: float | None
    fits: bool | None
    parameters: int
    batch_bytes: float
    examples: int | None
    epochs: int | None
    data_bytes: float | None
    devices: int | None

    @staticmethod
    def of(
        setup: VariedSetup, forecast: Forecast, options: ScaleOptions, forecaster: VariedForecasts
    ) -> _Facts:
        one = _on_one_device(setup)
        alone = forecaster.forecast(one) if one is not setup else forecast
        recorded = forecaster.trace_of(one)
        data, job = setup.job.data, setup.job
        examples = job.examples or (data.examples if data else None)
        of_tensors = recorded.batch_bytes / max(recorded.batch, 1)
        each = data.example_bytes if data else of_tensors
        facts = _Facts(
            setup=one,
            step_seconds=alone.step_seconds,
            batch=alone.batch,
            needed_bytes=alone.memory.total_bytes,
            capacity_bytes=alone.memory.capacity_bytes,
            fits=alone.memory.fits,
            parameters=alone.parameters,
            batch_bytes=recorded.batch_bytes,
            examples=examples,
            epochs=_epochs(setup, options),
            data_bytes=None if examples is None else examples * each,
            devices=None,
        )
        return dataclasses.replace(facts, devices=_devices(facts, options))

    @property
    def epoch_seconds(self) -> float | None:
        return None if self.examples is None else self.examples / self.batch * self.step_seconds

    @property
    def training_seconds(self) -> float | None:
        epoch = self.epoch_seconds
        return None if epoch is None or self.epochs is None else epoch * self.epochs

    def plain(self) -> dict[str, float]:
        named = {
            "parameters": self.parameters,
            "examples": self.examples,
            "data_bytes": self.data_bytes,
            "epoch_seconds": self.epoch_seconds,
            "training_seconds": self.training_seconds,
            "needed_bytes": self.needed_bytes,
            "capacity_bytes": self.capacity_bytes,
        }
        return {name: float(value) for name, value in named.items() if value is not None}


def _on_one_device(setup: VariedSetup) -> VariedSetup:
    machine = setup.machine
    if machine.devices * machine.nodes == 1:
        return setup
    share = max(1, setup.batch // (machine.devices * machine.nodes))
    plain = {"data_parallel": None, "tensor_parallel": 1, "pipeline_parallel": 1, "expert_parallel": 1}
    one = setup.on(machine.with_devices(1)).with_strategy(
        **plain, shard="none", exchange="buckets", sequence_parallel=False, virtual_stages=1
    )
    return one.with_strategy(pipeline_schedule="1f1b", accumulate=1, batch=share)


def _epochs(setup: VariedSetup, options: ScaleOptions) -> int | None:
    if options.epochs is not None:
        return options.epochs
    origin = setup.job.origin
    if origin is None or origin.job not in networks.names():
        return None
    entry = networks.named(origin.job)
    if entry.module.DATA == "images":
        return _PHOTOGRAPH_EPOCHS
    default = getattr(entry.settings(), "epochs", None)
    return int(str(origin.settings.get("epochs", default))) if default is not None else None


def _devices(facts: _Facts, options: ScaleOptions) -> int | None:
    """The fewest devices that hold the step and, if each did its share, end in a reasonable time."""
    count = 1
    if facts.fits is False:
        strategy = dataclasses.replace(facts.setup.strategy, shard="weights")
        try:
            count = fewest_devices(facts.setup.job, facts.setup.machine, strategy) or 0
        except WindtunnelError:
            count = 0
        if not count:
            return None
    seconds = facts.training_seconds
    return count if seconds is None else max(count, math.ceil(seconds / options.reasonable_seconds))


def _criteria(facts: _Facts, options: ScaleOptions) -> list[Criterion]:
    host = facts.setup.machine.host.memory_bytes
    found = [
        _memory_criterion(facts),
        _time_criterion(facts, options),
        _data_criterion(facts, host),
        Criterion(
            name="parameters",
            text=f"{facts.parameters:,} parameters (AlexNet: {MANY_PARAMETERS:,})",
            is_large=facts.parameters >= MANY_PARAMETERS,
            decides=False,
        ),
    ]
    if facts.examples is not None:
        found.append(
            Criterion(
                name="examples",
                text=f"{facts.examples:,} examples (many: {MANY_EXAMPLES:,})",
                is_large=facts.examples >= MANY_EXAMPLES,
                decides=False,
            )
        )
    return found


def _memory_criterion(facts: _Facts) -> Criterion:
    needed, name = units.show(facts.needed_bytes, "B"), facts.setup.machine.name
    has = "unknown" if facts.capacity_bytes is None else units.show(facts.capacity_bytes, "B")
    verb = "does not fit" if facts.fits is False else "fits"
    text = f"the step {verb} one device ({needed} of {has})"
    if facts.fits is None:
        text = f"the step needs {needed}; the memory of {name} is not stated"
    return Criterion(
        name="memory", text=text, is_large=None if facts.fits is None else not facts.fits, decides=True
    )


def _time_criterion(facts: _Facts, options: ScaleOptions) -> Criterion:
    seconds, limit = facts.training_seconds, units.show(options.reasonable_seconds, "s")
    if seconds is None:
        missing = "examples" if facts.examples is None else "epochs"
        text = f"the time of a training is not known, because the job states no {missing}"
        return Criterion(name="time", text=text, is_large=None, decides=True)
    relation = "more" if seconds > options.reasonable_seconds else "less"
    text = (
        f"{facts.epochs} epochs take {units.show(seconds, 's')} on one device, {relation} than the {limit} "
        "that count as reasonable"
    )
    return Criterion(name="time", text=text, is_large=seconds > options.reasonable_seconds, decides=True)


def _data_criterion(facts: _Facts, host: float | None) -> Criterion:
    if facts.data_bytes is None:
        text = "the size of the data set is not known"
        return Criterion(name="data", text=text, is_large=None, decides=True)
    size = units.show(facts.data_bytes, "B")
    if host is None:
        text = f"the data set has {size}; the memory of the host is not stated"
        return Criterion(name="data", text=text, is_large=None, decides=True)
    verb = "exceeds" if facts.data_bytes > host else "fits"
    text = f"the data set of {size} {verb} the host's memory of {units.show(host, 'B')}"
    return Criterion(name="data", text=text, is_large=facts.data_bytes > host, decides=True)


def _small_challenges(facts: _Facts) -> list[Challenge]:
    training = facts.training_seconds
    time = "unknown time" if training is None else units.show(training, "s")
    return [
        Challenge(
            text="computing power during training is the main limit",
            section="IV.A",
            numbers=f"{units.show(facts.step_seconds, 's')} a step, {time} for a training",
        ),
        Challenge(
            text="the network should be as complex as the task and no more: else it trains longer or worse",
            section="IV.A",
            numbers=f"{facts.parameters:,} parameters; the factors depth, width and network above say what a "
            "change costs",
        ),
        Challenge(
            text="after training it is used without much effort",
            section="IV.A",
            numbers="windtunnel predict JOB --inference --batches 1,8,64",
        ),
    ]


def _large_challenges(facts: _Facts) -> list[Challenge]:
    machine, rate = facts.setup.machine, facts.batch_bytes / facts.step_seconds
    link = machine.link.rate if machine.link else None
    of_link = "no link between them" if link is None else f"{rate / link:.1%} of its link"
    gradients = facts.parameters * _GRADIENT_BYTES
    needed = "several" if facts.devices is None else str(facts.devices)
    data = "of unknown size" if facts.data_bytes is None else units.show(facts.data_bytes, "B")
    storage = machine.storage.read_rate if machine.storage else None
    stored = facts.setup.job.data.example_bytes if facts.setup.job.data else None
    read = (
        ""
        if stored is None
        else f"; one device reads {units.show(stored * facts.batch / facts.step_seconds, 'B/s')}"
    )
    of_storage = "" if storage is None else f" of {units.show(storage, 'B/s')}"
    return [
        Challenge(
            text="data flow from host to devices can starve them",
            section="IV.B",
            numbers=f"one device takes {units.show(rate, 'B/s')} of examples, {of_link}",
        ),
        Challenge(
            text="devices exchange gradients after each step, and wait for the slowest",
            section="IV.B",
            numbers=f"{units.show(gradients, 'B')} of gradients a step; {needed} devices at least",
        ),
        Challenge(
            text="data that exceed the host's memory come from storage, which is slower",
            section="IV.B",
            numbers=f"a data set of {data}{read}{of_storage}",
        ),
        Challenge(
            text="links between clusters are slower than those inside",
            section="IV.B",
            numbers=_network_numbers(facts, gradients),
        ),
    ]


def _network_numbers(facts: _Facts, gradients: float) -> str:
    network = facts.setup.machine.node_network_rate
    if network is None:
        return "no network is stated for this machine"
    seconds = 2 * gradients / network
    return f"an all-reduce over it takes about {units.show(seconds, 's')} (2 x gradients / rate)"
