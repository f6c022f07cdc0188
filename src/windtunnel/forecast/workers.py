"""Which workers take part in a step, and how their groups lie on the nodes of a machine.

Workers are numbered so that those of a tensor-parallel group are neighbours, then those of a data-parallel
group, then the stages of a pipeline, as Megatron-LM and nanotron do: the group that talks most lies on the
fastest links.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from windtunnel.errors import BadInput
from windtunnel.forecast.collectives import Group
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The degrees of a parallel strategy on nodes of this many devices."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    devices_per_node: int = 1

    @property
    def count(self) -> int:
        return self.data * self.tensor * self.pipeline

    def degree(self, axis: Axis) -> int:
        """The size of a group along this axis."""
        if axis == "world":
            return self.count
        return {"data": self.data, "tensor": self.tensor, "pipeline": self.pipeline, "expert": self.expert}[
            axis
        ]

    def group(self, axis: Axis, ranks: int = 0, stride: int = 1) -> Group:
        """How the ranks of one group lie on nodes.

        `ranks` and `stride`: the size of a group of the user's own code, and how far apart its ranks are.
        """
        stride = {"tensor": 1, "world": stride, "data": self.tensor, "expert": self.tensor}.get(
            axis, self.tensor * self.data
        )
        size = ranks or self.degree(axis)
        on_node = max(1, min(size, self.devices_per_node // stride))
        while size % on_node:
            on_node -= 1
        return Group(on_node, size // on_node)


def workers_of(strategy: Strategy, machine: Machine) -> Workers:
    """The workers of a strategy whose degrees are known."""
    return Workers(
        data=strategy.data_parallel or 1,
        tensor=strategy.tensor_parallel,
        pipeline=strategy.pipeline_parallel,
        expert=strategy.expert_parallel,
        devices_per_node=machine.devices,
    )


def spread_over(strategy: Strategy, machine: Machine) -> Strategy:
    """The strategy with its number of data-parallel workers: by default all devices of the machine."""
    devices, model = machine.devices * machine.nodes, strategy.model_parallel
    if model > devices or (strategy.data_parallel or 1) * model > devices:
        raise BadInput(
            f"The strategy needs {_degrees(strategy)} = {(strategy.data_parallel or 1) * model} devices; "
            f"{machine.name} has {devices}.",
            hint=_more_devices(machine, (strategy.data_parallel or 1) * model),
        )
    if strategy.data_parallel is None and devices % model:
        raise BadInput(
            f"{_degrees(strategy)} = {model} does not divide the {devices} devices of {machine.name}.",
            hint=f"Use degrees whose product divides {devices}, or say --data-parallel.",
        )
    if strategy.data_parallel is None and devices > model:
        strategy = dataclasses.replace(strategy, data_parallel=devices // model)
    _refuse_impossible(strategy)
    return strategy


def _refuse_impossible(strategy: Strategy) -> None:
    data = strategy.data_parallel or 1
    if strategy.shard != "none" and data == 1:
        raise BadInput(
            f"shard={strategy.shard} divides among data-parallel workers, and there is only one.",
            hint="Use more devices, smaller other degrees, or leave --shard out.",
        )
    if strategy.expert_parallel > 1 and data % strategy.expert_parallel:
        raise BadInput(
            f"expert_parallel={strategy.expert_parallel} must divide the {data} data-parallel workers.",
            hint="Experts are divided among workers that compute different examples.",
        )
    if strategy.is_parallel and strategy.compiles:
        raise BadInput(
            f"execution={strategy.execution} is forecast for one device only: the kernels of a compiled step "
            "of several workers are not known.",
            hint="Use --execution eager. The gain of compiling shows on one device, as in --on h100.",
        )
    if strategy.pipeline_parallel > 1 and strategy.execution == "graph":
        raise BadInput(
            "execution=graph captures one worker's step; a pipeline's stages wait for each other in between.",
            hint="Use --execution eager.",
        )


def share_of_batch(strategy: Strategy, batch: int) -> int:
    """Examples of one data-parallel worker if a step has `batch` examples."""
    data = strategy.data_parallel or 1
    if batch % (data * strategy.accumulate):
        parts = f"{data} workers" if data > 1 else ""
        micro = f"{strategy.accumulate} micro-batches" if strategy.accumulate > 1 else ""
        whole, among = data * strategy.accumulate, " with ".join(filter(None, (parts, micro)))
        raise BadInput(
            f"A batch of {batch} cannot be divided equally among {among}.",
            hint=f"Use a multiple of {whole}, for example --batch {-(-batch // whole) * whole}.",
        )
    return batch // data


def _degrees(strategy: Strategy) -> str:
    names = ("data_parallel", "tensor_parallel", "pipeline_parallel")
    used = [(name, getattr(strategy, name) or 1) for name in names]
    return " x ".join(f"{name} {degree}" for name, degree in used if degree > 1) or "one worker"


def _more_devices(machine: Machine, needed: int) -> str:
    name = machine.name.rpartition("x")[2] if machine.devices * machine.nodes > 1 else machine.name
    if machine.device.kind == "cpu":
        return f"Several nodes: --on {needed}x1x{name}"
    node = machine.devices if machine.devices > 1 else min(needed, 8)
    nodes = -(-needed // node)
    return f"Use smaller degrees, or --on {f'{nodes}x' if nodes > 1 else ''}{node}x{name}."
