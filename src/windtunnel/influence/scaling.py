"""Throughput over the number of devices: each keeps its batch, or all share one batch. By forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from windtunnel.advice.setups import Setup
from windtunnel.advice.trials import Forecaster
from windtunnel.errors import WindtunnelError
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

COUNTS = (1, 2, 4, 8, 16, 32, 64)
_NODE = 8  # devices of a node, for machines of one device: beyond it, devices are in further nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStep:
    """The step with this many devices. `efficiency`: throughput over that of as many single devices."""

    devices: int
    nodes: int
    batch: int
    step_seconds: float
    low_seconds: float
    high_seconds: float
    bound_by: str
    communication_share: float
    efficiency: float
    fits: bool

    @property
    def examples_per_second(self) -> float:
        return self.batch / self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """Steps over the number of devices.

    own_batch     each device keeps its batch, so that an update has more examples
    shared_batch  the batch of an update stays, and devices divide it; only where it can be divided
    left_out      numbers that could not be forecast, and why
    """

    job: str
    machine: str
    batch: int
    own_batch: tuple[ScaledStep, ...] = ()
    shared_batch: tuple[ScaledStep, ...] = ()
    left_out: tuple[str, ...] = ()


def scaling_curve(
    workload: Workload,
    machine: Machine,
    strategy: Strategy | None = None,
    counts: Sequence[int] = COUNTS,
    progress: Callable[[str], None] = lambda text: None,
) -> ScalingCurve | str:
    """Data-parallel training on more and more devices of this kind; or why there is no such curve."""
    strategy = strategy or Strategy()
    if machine.device.kind == "cpu":
        return f"{machine.name} computes on its CPU: devices are counted for GPUs only."
    if strategy.inference:
        return "Copies of a network answer queries independently: inference scales with the devices."
    if strategy.model_parallel > 1:
        return "The degrees of the strategy divide the model: windtunnel plan searches these."
    own = _per_device(workload, machine, strategy)
    search = _Search(workload, machine, strategy, Forecaster(), progress)
    single = search.step(1, own, None)
    if isinstance(single, str):
        return single
    each, shared, left_out = [single], [single], list[str]()
    for count in [count for count in counts if count > 1]:
        found = search.step(count, own * count, single)
        if isinstance(found, str):
            left_out.append(f"{count} devices: {found}")
        else:
            each.append(found)
        if own % (count * strategy.accumulate) == 0:
            divided = search.step(count, own, single)
            if not isinstance(divided, str):
                shared.append(divided)
    return ScalingCurve(
        job=workload.name,
        machine=machine.name,
        batch=own,
        own_batch=tuple(each),
        shared_batch=tuple(shared) if len(shared) > 1 else (),
        left_out=tuple(left_out),
    )


def _per_device(workload: Workload, machine: Machine, strategy: Strategy) -> int:
    """The batch of one device as the job runs now."""
    setup = Setup(workload=workload, machine=machine, strategy=strategy, on=machine.name)
    return setup.per_device


class _Search:
    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        strategy: Strategy,
        forecaster: Forecaster,
        progress: Callable[[str], None],
    ) -> None:
        self.workload, self.machine, self.strategy = workload, machine, strategy
        self.forecaster, self.progress = forecaster, progress

    def step(self, count: int, batch: int, single: ScaledStep | None) -> ScaledStep | str:
        """The forecast with so many devices, or why there is none."""
        self.progress(f"forecasting {count} device{'s' if count > 1 else ''}, batch {batch}")
        machine = _with(self.machine, count)
        shard = "none" if count == 1 else self.strategy.shard
        strategy = replace(self.strategy, batch=batch, data_parallel=None, shard=shard)
        setup = Setup(workload=self.workload, machine=machine, strategy=strategy, on=machine.name)
        try:
            forecast = self.forecaster.forecast(setup).forecast
        except WindtunnelError as error:
            return error.message.splitlines()[0]
        ideal = single.examples_per_second * count if single else forecast.examples_per_second
        return ScaledStep(
            devices=count,
            nodes=machine.nodes,
            batch=forecast.batch,
            step_seconds=forecast.step_seconds,
            low_seconds=forecast.low_seconds,
            high_seconds=forecast.high_seconds,
            bound_by=forecast.bound_by,
            communication_share=forecast.parts.get("communication", 0.0) / forecast.step_seconds,
            efficiency=forecast.examples_per_second / ideal,
            fits=forecast.memory.fits is not False,
        )


def _with(machine: Machine, count: int) -> Machine:
    """This many devices: in nodes of the usual size, with the links of the catalogue where it has them."""
    from windtunnel.influence.factors.devices import named_node

    node = machine.devices if machine.devices > 1 else _NODE
    name = machine.name.rpartition("x")[2] if machine.devices * machine.nodes > 1 else machine.name
    return named_node(machine, name, min(count, node), -(-count // node))
