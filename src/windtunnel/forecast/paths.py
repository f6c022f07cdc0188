"""The rates at which a ring of ranks runs through the links of a node, and through the network.

A ring passes each byte from rank to rank, so the slowest hop is its rate. A share is the part of a link's
stated rate that the collectives' kernels reach, fitted to published all-reduce times. docs/accuracy.md says
to which rows, and how well the other rows agree.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from windtunnel.errors import RateMissing
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import Link, Topology

Hop = Literal["nvlink", "pcie", "host", "network"]

# Parts of a link's rate that a ring reaches, with the published all-reduce times that they were fitted to.
SWITCH_SHARE = 0.80  # NVLink switches: 2 to 8 A100, 8 H200, 8 B200
# A ring of few ranks on switches reaches less: this, divided by the square of the number of ranks, is lost.
# 2 to 8 A100.
FEW_RANKS_LOSS = 0.58
LINK_SHARE = 0.897  # NVLinks between pairs: 2 to 8 V100 of a DGX-1
# Infinity Fabric between pairs: 312.9 of 448 GB/s with 8 MI300X (github stas00/ml-engineering 0030e63,
# network README).
FABRIC_SHARE = 0.70
PCIE_SHARE = 0.72  # peer-to-peer copies below one PCIe switch: 2 and 4 Titan X Pascal
PCIE_ROOT_SHARE = 0.56  # peer-to-peer copies through the PCIe root of one socket: 8 Titan X Pascal
HOST_SHARE = 0.39  # through the memory of the host, or between its sockets: 2 to 8 Titan X (Maxwell)
# Without NVLink, the network card and the ring share the PCIe root: 16 and 32 Titan X and Titan X
# Pascal in two and four nodes.
CARD_SHARE = 0.68
# A card that reads the memory of a device: packets of 256 bytes with 26 bytes of headers (PCI Express 3.0).
DMA_SHARE = 256 / 282
RDMA_SHARE = 0.95  # networks that write to the memory of a device: 32 B200 in four nodes
# TCP over Ethernet: a frame of 1538 bytes with preamble and gap carries 1448 bytes (IEEE 802.3; headers of
# IPv4 and TCP with time stamps).
TCP_SHARE = 1448 / 1538
# The host copies what TCP sends, and NCCL sends through few connections: at most 4 to 6 GB/s from a card of
# 100 Gbit/s with the best settings, of which this is the middle (github NVIDIA/nccl issue 450: four nodes of
# eight V100). GPUDirect-TCPX does not copy.
TCP_RATE = 5e9
# Between nodes the host posts each send: NCCL expects 1 us (2.27, src/graph/tuning.cc). Through libfabric
# and EFA it is more: chosen so that an all-gather of 1 to 64 KiB over two nodes of eight GPUs takes the 100
# to 124 us of public runs of nccl-tests (github bottlerocket-os/bottlerocket-kernel-kit, pull requests 313
# and 424).
POST_SECONDS = 1e-6
EFA_POST_SECONDS = 5e-6
# EFA cards below this rate (the first two generations) do not write in order (github aws/aws-ofi-nccl, which
# then turns LL128 off).
_ORDERED_EFA_RATE = 25e9
# NVLink SHARP: the part of a device's rate, and NCCL's efficiency of the switches of each generation (NCCL
# 2.27, src/graph/tuning.cc, nvlsEfficiency). The part is fitted to 5 to 8 H200 and 6 to 8 B200.
REDUCTION_SHARE = 0.82
REDUCTION_EFFICIENCIES = ((10.0, 0.74), (9.0, 0.85))


class NodePath(NamedTuple):
    """The path of data inside of a node: the kind of link, and the bytes a second that pass each rank."""

    hop: Hop
    rate: float
    is_switched: bool = False


class Network(NamedTuple):
    """What a group's ranks of one node send to other nodes in a second, and the latency of a message.

    `post_seconds`: what the host needs to post one send to one card. `cards`: those of each device, among
    which a large message is divided. `is_ordered`: writes arrive in order, which the protocol LL128 needs.
    """

    rate: float
    latency_seconds: float
    post_seconds: float = POST_SECONDS
    cards: int = 1
    is_ordered: bool = True

    @property
    def as_tuned(self) -> Network:
        """The network as NCCL's tuner sees it: it knows neither the cards nor what posting to them costs."""
        return self._replace(post_seconds=POST_SECONDS, cards=1, is_ordered=True)


def node_path(machine: Machine, ranks: int) -> NodePath:
    """The path of rings over the first `ranks` devices of a node."""
    topology, peer = machine.topology, machine.peer_link
    if ranks == 1:  # from the device to the network card
        return NodePath("pcie", _need_link(machine).rate * DMA_SHARE)
    if peer is not None and topology.peer == "switch":
        rate = peer.rate * SWITCH_SHARE * (1 - FEW_RANKS_LOSS / ranks**2)
        return NodePath("nvlink", rate, is_switched=True)
    if peer is not None and topology.peer == "mesh":
        part = _ring_part(topology, machine.devices, ranks)
        if part:
            return NodePath("nvlink", peer.rate * _mesh_share(peer) * part)
    return _pcie_path(machine, ranks)


def send_path(machine: Machine) -> NodePath:
    """The path of one transfer between two neighbouring devices of a node."""
    topology, peer = machine.topology, machine.peer_link
    if peer is not None and topology.peer in ("switch", "mesh"):
        part = 1.0 if topology.peer == "switch" else _ring_part(topology, machine.devices, 2)
        if part:
            share = SWITCH_SHARE if topology.peer == "switch" else _mesh_share(peer)
            return NodePath("nvlink", peer.rate * share * part)
    return _pcie_path(machine, 2)


def network_of(machine: Machine, ranks_per_node: int) -> Network:
    """The network as a group with this many ranks on each node sees it.

    All devices of a node run the same program, so other groups send at the same time. A group has the part of
    the node's cards that belongs to its own ranks.
    """
    link, rate = machine.network, machine.node_network_rate
    if link is None or rate is None:
        raise RateMissing(
            f"The forecast needs the network between the nodes of {machine.name}; its description has none.",
            hint='Add network = "ethernet-10g", or another link, to a machine file and use --on FILE.toml.',
        )
    share = TCP_SHARE if link.kind in ("ethernet", "tcpx") else RDMA_SHARE
    if link.kind == "ethernet":
        rate = min(rate, TCP_RATE / share * machine.topology.network_cards)
    is_efa = link.kind == "efa"
    return Network(
        rate * share * min(1.0, ranks_per_node / machine.devices),
        link.latency_seconds,
        post_seconds=EFA_POST_SECONDS if is_efa else POST_SECONDS,
        cards=max(1, machine.topology.network_cards // machine.devices),
        is_ordered=not is_efa or link.rate >= _ORDERED_EFA_RATE,
    )


def reduction_rate(machine: Machine, ranks: int) -> float | None:
    """Bytes of a tensor that switches with NVLink SHARP all-reduce in a second; None without such switches.

    A device sends its tensor to the switches, and the sum of its own part to all: (n + 1)/n of the tensor.
    """
    peer, capability = machine.peer_link, machine.device.compute_capability or 0.0
    if peer is None or not machine.topology.switch_reduces or ranks < 2:
        return None
    for generation, efficiency in REDUCTION_EFFICIENCIES:
        if capability >= generation:
            return peer.rate * REDUCTION_SHARE * efficiency * ranks / (ranks + 1)
    return None


def _pcie_path(machine: Machine, ranks: int) -> NodePath:
    link, topology = _need_link(machine), machine.topology
    is_on_one_socket = ranks <= math.ceil(machine.devices / topology.sockets)
    if topology.peer == "host" or not is_on_one_socket:
        return NodePath("host", link.rate * HOST_SHARE)
    is_below_one_switch = ranks <= topology.devices_per_uplink
    return NodePath("pcie", link.rate * (PCIE_SHARE if is_below_one_switch else PCIE_ROOT_SHARE))


def _mesh_share(peer: Link) -> float:
    return FABRIC_SHARE if peer.kind == "infinity-fabric" else LINK_SHARE


def _need_link(machine: Machine) -> Link:
    if machine.link is None:
        raise RateMissing(
            f"The forecast needs a link between the devices of {machine.name}; its description has none.",
            hint="Add link or peer_link to a machine file and use --on FILE.toml.",
        )
    return machine.link


def _ring_part(topology: Topology, devices: int, ranks: int) -> float:
    """The part of a device's NVLink rate that rings over the first `ranks` devices can use; 0: no ring."""
    if not topology.peer_links:
        return (ranks - 1) / max(1, devices - 1)  # the same number of links to each other device
    links = tuple(row[:ranks] for row in topology.peer_links[:ranks])
    if len(links) < ranks:
        return 0.0
    links_of_device = max(sum(row) for row in topology.peer_links)
    if ranks == 2:
        return links[0][1] / links_of_device
    if topology.one_ring:  # a hop without a link leaves the ring to PCIe
        return min(links[i][(i + 1) % ranks] for i in range(ranks)) / links_of_device
    rings = count_rings(links)
    if rings:
        return 2 * rings / links_of_device  # one ring in each direction
    # Without a ring NCCL sends up and down a chain. A chain of single links moves the bytes of the tensor
    # once, a ring 2(n - 1)/n times.
    return 2 * (ranks - 1) / ranks / links_of_device if _has_chain(links) else 0.0


@functools.cache
def count_rings(links: tuple[tuple[int, ...], ...]) -> int:
    """The most rings over all devices that share no link. `links`: the links between each two devices.

    >>> count_rings(((0, 1, 1), (1, 0, 1), (1, 1, 0)))
    1
    """
    rings = [ring for ring in _rings(len(links)) if _fits(ring, links)]
    return _most(rings, [list(row) for row in links])


def _most(rings: Sequence[tuple[int, ...]], left: list[list[int]], first: int = 0) -> int:
    most, bound = 0, min(sum(row) for row in left) // 2
    for position in range(first, len(rings)):
        if most == bound:
            break
        ring = rings[position]
        if _fits(ring, left):
            _take(ring, left, -1)
            most = max(most, 1 + _most(rings, left, position))
            _take(ring, left, +1)
    return most


def _rings(devices: int) -> Iterator[tuple[int, ...]]:
    """All rings through all devices, each in one direction only."""
    for order in itertools.permutations(range(1, devices)):
        if order[0] < order[-1]:
            yield (0, *order)


def _fits(ring: tuple[int, ...], left: Sequence[Sequence[int]]) -> bool:
    return all(left[a][b] > 0 for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))


def _take(ring: tuple[int, ...], left: list[list[int]], links: int) -> None:
    for a, b in zip(ring, (*ring[1:], ring[0]), strict=True):
        left[a][b] += links
        left[b][a] += links


@functools.cache
def _has_chain(links: tuple[tuple[int, ...], ...]) -> bool:
    return any(
        all(links[a][b] > 0 for a, b in itertools.pairwise(order))
        for order in itertools.permutations(range(len(links)))
    )
