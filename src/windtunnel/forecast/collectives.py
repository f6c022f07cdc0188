"""Seconds of a collective: what the ranks of a group need to exchange data.

The form is that of NCCL's own tuner: start + steps x hop + bytes / rate, for each algorithm (ring, tree,
NVLink SHARP) with each protocol (LL, LL128, Simple). The fastest counts. Starts and hops are NCCL's own
constants; rates are shares of the machine's links (`forecast/paths.py`). CPUs use gloo (`forecast/gloo.py`).

Sizes are counted as nccl-tests does: the bytes of the full (reduced or gathered) tensor on one rank.

>>> seconds = collective_seconds("all_reduce", 4e9, Group(8, 1), Machine.named("8xh200"))
>>> f"{seconds * 1e3:.1f} ms"
'14.8 ms'
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from windtunnel.errors import BadInput, nearest
from windtunnel.forecast import gloo
from windtunnel.forecast.paths import (
    CARD_SHARE,
    POST_SECONDS,
    Hop,
    Network,
    NodePath,
    network_of,
    node_path,
    reduction_rate,
    send_path,
)
from windtunnel.machine.machine import Machine

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send")
# How many times as long a kernel takes while a collective runs on the same GPU. Lee et al. 2025,
# "Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", measured 18.9 %
# on average and up to 40 % over NVIDIA and AMD GPUs of data centres.
SLOWDOWN_BESIDE_COLLECTIVE = 1.19
WORST_SLOWDOWN_BESIDE_COLLECTIVE = 1.40
# The start and hops of NVLink SHARP, in a node and between nodes (NCCL 2.27, src/graph/tuning.cc).
_REDUCTION_START, _REDUCTION_NETWORK_HOP = 25e-6, 20.9e-6
# A transfer in chunks through several ranks costs the filling of the pipeline and an overhead for each chunk.
# With the best chunk size, both together grow with the square root of the transfer's time. Fitted: 2 to 8
# A100 and 8 H200. A tree over nodes also fills its hops of the network: 16 to 256 H100 of AWS (see
# _TREE_SHARE).
_PIPELINE_SECONDS = 12e-6
# Shares of the network's rate in a tree of more than two nodes, and in an all-to-all. Fitted to 2, 8 and 32
# nodes of p5.48xlarge, github crazyguitar/aws-gpu-communication-benchmark 4fdb5a4, data/nccl_all_reduce.csv
# and nccl_alltoall.csv; 4 and 16 nodes are judged (docs/accuracy.md).
_TREE_SHARE = 0.76
_ALL_TO_ALL_SHARE = 0.88
# In chunks, a send has three posts (NCCL 2.27, src/graph/tuning.cc).
_POSTS_IN_CHUNKS = 3


class Group(NamedTuple):
    """The ranks of a group: `ranks_per_node` on each of `nodes` nodes."""

    ranks_per_node: int
    nodes: int = 1

    @property
    def ranks(self) -> int:
        return self.ranks_per_node * self.nodes


class WireProtocol(NamedTuple):
    """How NCCL sends: with flags between the data (LL, LL128), or in large chunks (Simple).

    `ring_hops` and `tree_hops` are seconds by kind of hop. A kind that is missing cannot use the protocol.
    """

    start: float
    ring_hops: dict[Hop, float]
    tree_hops: dict[Hop, float]
    ring_share: float = 1.0
    tree_share: float = 1.0
    in_chunks: bool = False


# Starts and hops are NCCL's (2.27, src/graph/tuning.cc) in seconds, except those through the host's memory,
# which NCCL prices as PCIe: fitted to 2 to 8 Titan X. LL sends a flag with every 4 bytes. NCCL expects 0.92
# of the rate from LL128; the share here is fitted to 4 to 8 V100 below 16 MiB.
_LL = WireProtocol(
    start=6.6e-6,
    ring_hops={"nvlink": 0.6e-6, "pcie": 1.0e-6, "host": 1.5e-6, "network": 2.7e-6},
    tree_hops={"nvlink": 0.6e-6, "pcie": 1.0e-6, "host": 1.5e-6, "network": 5.0e-6},
    ring_share=0.5,
    tree_share=1 / 3.8,
)
_LL128 = WireProtocol(
    start=14e-6,
    ring_hops={"nvlink": 1.9e-6, "network": 4.0e-6},
    tree_hops={"nvlink": 1.25e-6, "network": 8.5e-6},
    ring_share=0.5,
    tree_share=0.25,
)
_SIMPLE = WireProtocol(
    start=8.4e-6,
    ring_hops={"nvlink": 3.4e-6, "pcie": 5.7e-6, "host": 8.5e-6, "network": 14e-6},
    tree_hops={"nvlink": 4.0e-6, "pcie": 4.0e-6, "host": 8.5e-6, "network": 14e-6},
    tree_share=0.92,
    in_chunks=True,
)


def collective_seconds(kind: str, size_bytes: float, group: Group, machine: Machine) -> float:
    """Seconds from the moment at which all ranks have called the collective to its end.

    kind   one of KINDS; "send" is one transfer between two ranks
    group  its ranks must exist on the machine
    """
    if kind not in KINDS:
        raise BadInput(f"No collective is called {kind!r}.", hint=nearest(kind, KINDS))
    _refuse_too_large(group, machine)
    if group.ranks == 1 or size_bytes <= 0:
        return 0.0
    if machine.device.kind == "cpu":
        return gloo.seconds(kind, size_bytes, group.ranks_per_node, group.nodes, machine)
    if kind == "send":
        return point_to_point_seconds(size_bytes, machine, within_node=group.nodes == 1)
    route = _route_of(group, machine)
    if kind == "all_to_all":
        return _all_to_all_seconds(size_bytes, route)
    return min(_times(kind, size_bytes, route))


def point_to_point_seconds(size_bytes: float, machine: Machine, *, within_node: bool) -> float:
    """Seconds to send a tensor from one device to another one of the same node, or of another node.

    Other devices send at the same time, as in a pipeline: a device has its part of the node's network cards.
    """
    if size_bytes <= 0:
        return 0.0
    if machine.device.kind == "cpu":
        return gloo.seconds("send", size_bytes, 2 if within_node else 1, 1 if within_node else 2, machine)
    times = []
    for protocol in (_LL, _SIMPLE):
        if within_node:
            path = send_path(machine)
            hop, rate = protocol.ring_hops[path.hop], path.rate
        else:
            network = network_of(machine, 1)
            hop = protocol.ring_hops["network"] + network.latency_seconds
            rate = min(network.rate, node_path(machine, 1).rate)
        times.append(protocol.start + hop + size_bytes / (rate * protocol.ring_share))
    return min(times)


class _Route(NamedTuple):
    """The path of a group's data through a machine."""

    group: Group
    path: NodePath
    network: Network | None
    reduction_rate: float | None
    ll_rate: float

    @property
    def rate(self) -> float:
        """Bytes a second of a ring through each rank, or of all its rings through each node."""
        if self.network is None:
            return self.path.rate
        shares_root = self.path.hop != "nvlink" and self.group.ranks_per_node > 1
        return min(self.path.rate * (CARD_SHARE if shares_root else 1.0), self.network.rate)


def _route_of(group: Group, machine: Machine) -> _Route:
    is_alone = group.nodes == 1
    return _Route(
        group=group,
        path=node_path(machine, group.ranks_per_node),
        network=None if is_alone else network_of(machine, group.ranks_per_node),
        reduction_rate=reduction_rate(machine, group.ranks_per_node),
        ll_rate=_ll_rate(machine.device.compute_capability or 0.0, group.nodes),
    )


def _ll_rate(compute_capability: float, nodes: int) -> float:
    """The most that the LL protocol carries, in bytes a second (NCCL 2.27, src/graph/tuning.cc)."""
    if nodes > 1:
        return 39e9 if nodes == 2 else 20.4e9
    for generation, rate in ((10, 282e9), (9, 141e9), (8, 87.7e9)):
        if compute_capability >= generation:
            return rate
    return 39e9


def _times(kind: str, size_bytes: float, route: _Route) -> Iterator[float]:
    """The seconds of each algorithm with a protocol that these links can use."""
    tuned = route if route.network is None else route._replace(network=route.network.as_tuned)
    if kind != "all_reduce":
        # NCCL uses the protocol that its tuner expects to be fastest. The tuner does not know that posting
        # takes longer on this network.
        protocols = _protocols(route)
        chosen = min(protocols, key=lambda protocol: _ring_seconds(kind, size_bytes, tuned, protocol))
        yield _ring_seconds(kind, size_bytes, route, chosen)
        return
    # Published all-reduces over EFA do not show that posting takes longer.
    for protocol in _protocols(tuned):
        yield _ring_seconds(kind, size_bytes, tuned, protocol)
        yield _tree_seconds(size_bytes, tuned, protocol)
    if route.reduction_rate is not None:
        yield _reduction_seconds(size_bytes, tuned, route.reduction_rate)


def _protocols(route: _Route) -> list[WireProtocol]:
    """The protocols that the links of the path can use."""
    usable = [protocol for protocol in (_LL, _LL128, _SIMPLE) if route.path.hop in protocol.ring_hops]
    is_ordered = route.network is None or route.network.is_ordered
    return usable if is_ordered else [protocol for protocol in usable if protocol is not _LL128]


def _ring_seconds(kind: str, size_bytes: float, route: _Route, protocol: WireProtocol) -> float:
    ranks, nodes = route.group.ranks, route.group.nodes
    rounds = 2 if kind == "all_reduce" else 1
    steps = rounds * (ranks - 1)
    network_steps = min(steps, rounds * nodes) if nodes > 1 else 0
    hop, network_hop = _hops(route, protocol, protocol.ring_hops)
    if route.network is not None:
        # The host posts the sends of all steps, also while data moves inside of the nodes.
        posts = _POSTS_IN_CHUNKS * route.network.cards if protocol.in_chunks else 1
        hop = max(hop, posts * route.network.post_seconds)
    start = protocol.start + (steps - network_steps) * hop + network_steps * network_hop
    # From or to one rank, every byte passes every hop; else, each rank's part of the tensor does not pass
    # its own.
    passes = 1.0 if kind in ("broadcast", "reduce") else rounds * (ranks - 1) / ranks
    rate = route.rate * protocol.ring_share
    return start + _transfer(passes * size_bytes, rate, route, protocol)


def _tree_seconds(size_bytes: float, route: _Route, protocol: WireProtocol) -> float:
    """Up and down two trees, each with one half of the tensor."""
    hop, network_hop = _hops(route, protocol, protocol.tree_hops)
    depth = (route.group.ranks_per_node - 1) * hop + math.log2(route.group.nodes) * network_hop
    filling = 2 * math.log2(route.group.nodes) * network_hop
    transfer = _transfer(2 * size_bytes, route.rate * protocol.tree_share, route, protocol, filling)
    return protocol.start + 2 * depth + transfer


def _reduction_seconds(size_bytes: float, route: _Route, rate: float) -> float:
    """NVLink SHARP: the switches add. Between nodes the sums of the nodes go up and down a tree."""
    if route.network is None:
        return _REDUCTION_START + _transfer(size_bytes, rate, route, _SIMPLE)
    hop = _REDUCTION_NETWORK_HOP + 2 * route.network.latency_seconds
    filling = 2 * math.log2(route.group.nodes) * hop
    # With two nodes each sends its sum to the other. In a larger tree a node sends up and down.
    share = 1.0 if route.group.nodes == 2 else _TREE_SHARE / 2
    rate = min(rate, route.network.rate * share)
    return _REDUCTION_START + filling + _transfer(size_bytes, rate, route, _SIMPLE, filling)


def _all_to_all_seconds(size_bytes: float, route: _Route) -> float:
    """Every rank sends an equal part of its tensor to every other rank, all at the same time."""
    ranks, per_node = route.group.ranks, route.group.ranks_per_node
    hop, network_hop = _hops(route, _SIMPLE, _SIMPLE.ring_hops)
    inside = size_bytes * (per_node - 1) / ranks / route.path.rate
    if route.network is None:
        return _SIMPLE.start + hop + inside
    leaving = size_bytes * per_node * (ranks - per_node) / ranks
    outside = leaving / (route.network.rate * _ALL_TO_ALL_SHARE)
    posts = (ranks - per_node) * _POSTS_IN_CHUNKS * POST_SECONDS
    return _SIMPLE.start + max(hop, network_hop) + posts + max(inside, outside)


def _hops(route: _Route, protocol: WireProtocol, hops: dict[Hop, float]) -> tuple[float, float]:
    """Seconds of a hop inside of a node and of one between nodes."""
    hop = hops[route.path.hop]
    if route.network is None:
        return hop, 0.0
    # In chunks, the receiver also waits for a flush of what the card has written.
    waits, posts = (2, _POSTS_IN_CHUNKS) if protocol.in_chunks else (1, 1)
    return max(hop, posts * POST_SECONDS), hops["network"] + waits * route.network.latency_seconds


def _transfer(
    size_bytes: float, rate: float, route: _Route, protocol: WireProtocol, filling: float = 0.0
) -> float:
    """Seconds for the bytes. `filling`: hops of the network that the chunks pass one after another."""
    if protocol is _LL:
        rate = min(rate, route.ll_rate)
    seconds = size_bytes / rate
    if not protocol.in_chunks:
        return seconds
    inside = _PIPELINE_SECONDS if route.path.is_switched else 0.0
    return seconds + math.sqrt((inside + filling) * seconds)


def _refuse_too_large(group: Group, machine: Machine) -> None:
    if group.ranks_per_node < 1 or group.nodes < 1:
        raise BadInput(f"{group} has no ranks.", hint="Both numbers must be at least 1.")
    if machine.device.kind == "gpu" and (
        group.ranks_per_node > machine.devices or group.nodes > machine.nodes
    ):
        raise BadInput(
            f"A group of {group.nodes} x {group.ranks_per_node} ranks does not fit {machine.name}, which has "
            f"{machine.nodes} x {machine.devices} devices.",
            hint=f"Name a larger machine, as in {group.nodes}x{group.ranks_per_node}x<GPU>.",
        )
