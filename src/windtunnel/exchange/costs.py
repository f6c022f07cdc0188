"""What the forecast says of one worker, its links and its parameter server."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from windtunnel.errors import BadInput
from windtunnel.exchange.host import MOST_PROCESSES, WorkerStep, shared_host_costs
from windtunnel.exchange.run import ExchangeCosts
from windtunnel.forecast.collectives import Group, collective_seconds
from windtunnel.forecast.paths import DMA_SHARE, network_of
from windtunnel.forecast.workers import spread_over
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine, need
from windtunnel.prediction import forecast_trace, trace
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

# Passes of the server over memory for the gradients of a worker: it reads them, reads the weights and writes
# them.
_PASSES_OF_UPDATE = 3
SERVER_ASSUMED = {
    "host": "the machine names no parameter server: the memory of the host is assumed to hold the weights",
    "node": "the machine names no parameter server: a node of its own is assumed to hold the weights",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerForecasts:
    """Forecasts of one job for any number of workers of a machine, from one trace."""

    workload: Workload
    machine: Machine
    strategy: Strategy
    recorded: Trace
    _known: dict[int, float] = field(default_factory=dict)

    @staticmethod
    def of(workload: Workload, machine: Machine, strategy: Strategy | None = None) -> WorkerForecasts:
        """Trace the step of one worker. `strategy.batch` counts the examples of one worker here."""
        given = strategy or Strategy()
        if given.model_parallel > 1 or given.shard != "none" or given.inference:
            raise BadInput(
                "An exchange is simulated between workers that each hold the whole network and train it.",
                hint="Leave out tensor and pipeline parallelism, --shard and --inference.",
            )
        if machine.device.kind == "cpu" and given.threads is None:
            given = dataclasses.replace(given, threads=1)  # as real workers have
        batch = given.batch or workload.default_batch
        alone = dataclasses.replace(given, batch=batch, data_parallel=1, exchange="buckets")
        # The trace of one of two workers: that of a worker alone does not say when gradients are complete.
        pair = dataclasses.replace(alone, batch=2 * batch, data_parallel=2)
        recorded = dataclasses.replace(trace(workload, pair, machine.device.kind), batch=batch)
        return WorkerForecasts(workload=workload, machine=machine, strategy=alone, recorded=recorded)

    @property
    def shares_host(self) -> bool:
        """Whether the workers are processes of one host, which share its cores."""
        return self.machine.device.kind == "cpu" and self.machine.devices * self.machine.nodes == 1

    @property
    def most_workers(self) -> int:
        if self.shares_host:
            return MOST_PROCESSES
        return self.machine.devices * self.machine.nodes

    @property
    def batch(self) -> int:
        """Examples of one worker in one step."""
        return self.recorded.batch

    @property
    def gradient_bytes(self) -> float:
        return sum(gradient.bytes for gradient in self.recorded.gradients)

    def worker_step(self, cpu_seconds: float) -> WorkerStep:
        """The step of a process of one host, if it takes so long by itself."""
        recorded = self.recorded
        kept = [recorded.allocations[number] for number in recorded.held]
        weights = sum(each.part == "weights" for each in kept)
        return WorkerStep(
            cpu_seconds=cpu_seconds,
            tensors=len(recorded.gradients),
            gradient_bytes=self.gradient_bytes,
            buffers=max(0, weights - len(recorded.gradients)),
        )

    def step_seconds(self, workers: int) -> float:
        """A step of so many synchronous workers."""
        if workers not in self._known:
            total = self.batch * workers
            strategy = dataclasses.replace(self.strategy, batch=total, data_parallel=workers)
            recorded = dataclasses.replace(self.recorded, batch=total)
            strategy = spread_over(strategy, self.machine)
            forecast = forecast_trace(recorded, self.workload, self.machine, strategy)
            self._known[workers] = forecast.step_seconds
        return self._known[workers]

    def costs(self, workers: int, group: int = 1) -> ExchangeCosts:
        """The costs of so many workers, in groups of `group`."""
        alone, sent = self.step_seconds(1), self.gradient_bytes
        if self.shares_host:
            return shared_host_costs(self.worker_step(alone), workers, group, self.machine)
        return ExchangeCosts(
            compute_seconds=alone,
            exposed_seconds=max(0.0, self.step_seconds(workers) - alone),
            reduce_seconds=collective_seconds("all_reduce", sent, self._group(workers), self.machine),
            group_seconds=max(0.0, self.step_seconds(group) - alone),
            serve_seconds=_serve_seconds(sent, self.machine),
            path_seconds=_path_seconds(self.machine),
            sent_bytes=sent,
        )

    def _group(self, workers: int) -> Group:
        """Workers fill one node after another."""
        on_node = min(workers, self.machine.devices)
        return Group(on_node, -(-workers // on_node))


def server_place(machine: Machine) -> str:
    """Where the server is: "host" or "node". A machine that does not say has one where its workers meet."""
    if machine.parameter_server != "none":
        return machine.parameter_server
    return "node" if machine.nodes > 1 else "host"


def _serve_seconds(size: float, machine: Machine) -> float:
    """How long the server is busy with one worker. Receiving, sums and sending overlap: the slowest counts.

    A server on a node of its own has the network cards of one node; one in the memory of the host has the
    PCIe uplink that the devices share. Workers on the cores of the host reach it without any link.
    """
    if server_place(machine) == "node":
        link = size / network_of(machine, machine.devices).rate
    elif machine.device.kind == "cpu":
        link = 0.0
    else:
        sharing = machine.topology.devices_per_uplink / machine.devices
        link = size / (need(machine, "link.rate") * DMA_SHARE) * min(1.0, sharing)
    memory = machine.host.memory_rate
    update = size * _PASSES_OF_UPDATE / (memory * machine.topology.sockets) if memory else 0.0
    return max(link, update)


def _path_seconds(machine: Machine) -> float:
    if server_place(machine) == "node":
        return network_of(machine, machine.devices).latency_seconds
    return machine.link.latency_seconds if machine.link else 0.0
