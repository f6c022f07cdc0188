"""Price collectives: which link carries each, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.forecast.collectives import Group, collective_seconds, point_to_point_seconds
from windtunnel.forecast.servers import between_hosts_seconds, host_server_seconds
from windtunnel.forecast.workers import Workers
from windtunnel.machine.machine import Machine
from windtunnel.trace import Collective

PEER, NETWORK = "peer link", "network"  # kinds of lanes


class LinkSeconds(NamedTuple):
    """A collective on the link that carries it."""

    lane: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of a machine between the workers of a strategy."""

    machine: Machine
    workers: Workers
    _known: dict[Collective, LinkSeconds] = field(default_factory=dict, compare=False)

    def carry(self, collective: Collective) -> LinkSeconds:
        """The link and the seconds of a collective."""
        if collective not in self._known:
            self._known[collective] = self._price(collective)
        return self._known[collective]

    def _price(self, collective: Collective) -> LinkSeconds:
        group = self.workers.group(collective.axis, collective.ranks, collective.stride)
        lane = PEER if group.nodes == 1 else NETWORK
        if collective.kind == "server":
            return LinkSeconds(lane, self._serve(collective.bytes, group))
        if group.ranks == 1:
            return LinkSeconds(PEER, 0.0)
        if collective.kind in ("send", "recv"):
            return self._send(collective, group)
        return LinkSeconds(lane, collective_seconds(collective.kind, collective.bytes, group, self.machine))

    def _serve(self, size: float, group: Group) -> float:
        """Seconds through parameter servers, with a share of all gradients on each node.

        Weights are on the devices, or in the memory of the host where the machine says so. Many tensors are
        transferred at once, so the slower of the two paths, inside of a node and between nodes, counts.
        """
        if self.machine.parameter_server == "host":
            inside = host_server_seconds(size, group.ranks_per_node, self.machine)
            between = between_hosts_seconds(size, group.nodes, self.machine) if group.nodes > 1 else 0.0
            return max(inside, between)
        return 0.0 if group.ranks == 1 else self._serve_on_devices(size, group)

    def _serve_on_devices(self, size: float, group: Group) -> float:
        """Sums go to the servers and weights back. Each half moves what a reduce-scatter or an all-gather
        moves. No ring passes through all nodes, so the hops are those between two of them.
        """
        near = Group(group.ranks_per_node, min(group.nodes, 2))
        size *= (1 - 1 / group.ranks) / (1 - 1 / near.ranks)
        kinds = ("reduce_scatter", "all_gather")
        return sum(collective_seconds(kind, size, near, self.machine) for kind in kinds)

    def _send(self, collective: Collective, group: Group) -> LinkSeconds:
        """The slowest hop of a pipeline counts: between nodes, if one of them is."""
        within = group.nodes == 1
        seconds = point_to_point_seconds(collective.bytes, self.machine, within_node=within)
        return LinkSeconds(PEER if within else NETWORK, seconds)
