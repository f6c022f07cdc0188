"""The connections of a machine: links, the topology of a node, the network, storage.

A link has a rate in one direction and a latency. The latency of a link that states none is that of its kind.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from windtunnel.errors import BadRecord
from windtunnel.units import ByteRate, Bytes, Seconds

LinkKind = Literal[
    "pcie", "nvlink", "infinity-fabric", "infiniband", "roce", "efa", "tcpx", "ethernet", "other"
]
PeerPath = Literal["switch", "mesh", "pcie", "host"]
StorageKind = Literal["hdd", "ssd", "striped", "network"]
ParameterServer = Literal["none", "host", "node"]
_NCCL = "NCCL 2.27, src/graph/tuning.cc: hop of the LL protocol"
# The latency of a small message in one direction by kind of link, and its source.
LATENCIES: dict[LinkKind, tuple[float, str]] = {
    "pcie": (1.0e-6, f"{_NCCL} over PCIe"),
    "nvlink": (0.6e-6, f"{_NCCL} over NVLink"),
    "infinity-fabric": (0.6e-6, "assumed as NVLink"),
    "infiniband": (0.6e-6, "github stas00/ml-engineering 0030e63, network README: 0.6 us for HDR"),
    "roce": (0.6e-6, "assumed as InfiniBand"),
    "efa": (
        15e-6,
        "fitted: 98 us for 32 KiB all-reduced over 32 B200, github stas00/ml-engineering 0cc3de5, "
        "network/benchmarks README",
    ),
    "tcpx": (46e-6, "fitted: see ethernet-200g-tcpx in the catalogue's links.toml"),
    "ethernet": (20e-6, "Hurwitz and Feng 2003, 10-Gigabit Ethernet: 20 us between applications over TCP"),
    "other": (20e-6, "assumed as Ethernet with TCP"),
}
# From a request to its first byte, by kind of storage, and its source.
STORAGE_LATENCIES: dict[StorageKind, tuple[float, str]] = {
    "hdd": (
        12.7e-3,
        "computed: a mean seek of 8.5 ms (Seagate Barracuda XT) and half a turn of 7200 a minute, 4.2 ms",
    ),
    "ssd": (71e-6, "computed: one of 14,000 reads a second, one at a time (Samsung 960 PRO data sheet)"),
    "striped": (71e-6, "as one SSD"),
    "network": (1e-3, "Amazon FSx for Lustre documentation: below a millisecond"),
}
_MOST_DEVICES_IN_A_MESH = 10  # rings over more devices are too many to count


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection between two memories: its rate in one direction and the latency of a small message.

    kind             what it is; if not stated, read from the beginning of its name ("pcie-4.0-x16")
    latency_seconds  one way; if not stated, that of its kind
    """

    name: str
    rate: ByteRate
    kind: LinkKind = "other"
    latency_seconds: Seconds = math.nan

    def __post_init__(self) -> None:
        require_positive(self.name, "rate", self.rate)
        if self.kind == "other":
            object.__setattr__(self, "kind", _kind_of(self.name))
        if math.isnan(self.latency_seconds):
            object.__setattr__(self, "latency_seconds", LATENCIES[self.kind][0])
        require_not_negative(self.name, "latency_seconds", self.latency_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Storage for a data set that is not in memory.

    kind             a hard disk, an SSD, `count` SSDs striped, or storage behind a network
    read_rate        of long sequential reads, all drives together
    latency_seconds  from a request to its first byte; if not stated, that of its kind
    """

    name: str
    kind: StorageKind = "ssd"
    read_rate: ByteRate | None = None
    latency_seconds: Seconds = math.nan
    count: int = 1
    capacity_bytes: Bytes | None = None

    def __post_init__(self) -> None:
        require_positive(self.name, "read_rate", self.read_rate)
        require_positive(self.name, "count", self.count)
        require_positive(self.name, "capacity_bytes", self.capacity_bytes)
        if math.isnan(self.latency_seconds):
            object.__setattr__(self, "latency_seconds", STORAGE_LATENCIES[self.kind][0])
        require_not_negative(self.name, "latency_seconds", self.latency_seconds)


def striped(storage: Storage, count: int) -> Storage:
    """`count` equal drives that are read at once (RAID 0). Storage behind a network is returned unchanged."""
    rate = storage.read_rate
    return dataclasses.replace(
        storage,
        name=f"{count}x {storage.name}",
        kind="striped" if storage.kind == "ssd" else storage.kind,
        read_rate=None if rate is None else rate * count,
        count=storage.count * count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How the devices of a node are connected, and the node to other nodes.

    devices_per_uplink  GPUs that share one PCIe uplink to the host. 1: each has its own root port. 2 or more:
                        they are below one switch. All of a node: one bus
    peer                how GPUs of a node reach each other. "switch": NVLink switches, each GPU with all its
                        rate to any other. "mesh": NVLinks between pairs. "pcie": peer-to-peer copies over
                        PCIe. "host": through the host's memory
    peer_links          of a mesh: the number of NVLinks between each two GPUs, one row for each GPU. Empty:
                        each GPU has the same number to every other
    one_ring            collectives run in one ring in the order of the devices, as those of NCCL 1 did; the
                        default is as many rings as the links of a mesh allow
    switch_reduces      the NVLink switches can add (NVLink SHARP)
    sockets             CPUs of a node; the GPUs are divided among them
    network_cards       network cards of a node; `Machine.network` is the link of one card
    oversubscription    how many times the cards' rates exceed what the network carries between nodes
    """

    devices_per_uplink: int = 1
    peer: PeerPath = "host"
    peer_links: tuple[tuple[int, ...], ...] = ()
    one_ring: bool = False
    switch_reduces: bool = False
    sockets: int = 1
    network_cards: int = 1
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for name in ("devices_per_uplink", "sockets", "network_cards"):
            require_positive("topology", name, getattr(self, name))
        if self.oversubscription < 1:
            raise BadRecord(f"topology: oversubscription must be at least 1, not {self.oversubscription}.")
        rows = self.peer_links
        if len(rows) > _MOST_DEVICES_IN_A_MESH:
            raise BadRecord(
                f"topology: peer_links has {len(rows)} rows; at most {_MOST_DEVICES_IN_A_MESH} are supported."
            )
        if any(len(row) != len(rows) for row in rows):
            raise BadRecord("topology: peer_links must have as many columns as rows.")
        if any(rows[i][j] != rows[j][i] or rows[i][j] < 0 for i in range(len(rows)) for j in range(i)):
            raise BadRecord("topology: peer_links must count the same links from both ends.")


# No rate, size, time or count of a machine is outside of these; beyond them arithmetic overflows.
_LEAST, _MOST = 1e-18, 1e24


def require_positive(owner: str, name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise BadRecord(f"{owner:.60}: {name} must be above 0, not {value:g}.")
    if value is not None and not _LEAST <= value <= _MOST:
        raise BadRecord(f"{owner:.60}: {name} must be from {_LEAST:g} to {_MOST:g}, not {value:.6g}.")


def require_not_negative(owner: str, name: str, value: float) -> None:
    if not 0 <= value <= _MOST:
        raise BadRecord(f"{owner:.60}: {name} must be from 0 to {_MOST:g}, not {value:.6g}.")


def _kind_of(name: str) -> LinkKind:
    for kind in get_args(LinkKind):
        if name.startswith(kind):
            found: LinkKind = kind
            return found
    return "other"
