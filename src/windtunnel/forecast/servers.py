"""A parameter server in the memory of a host: the traffic of its devices and of its CPU for each tensor."""

from __future__ import annotations

from windtunnel.forecast.paths import DMA_SHARE, network_of
from windtunnel.machine.machine import Machine, need

# Passes of the CPU over a tensor besides reading the gradient of each device: it reads the weights and writes
# them. The sum stays in its cache: tensors are summed in pieces.
_PASSES_OF_UPDATE = 2


def host_server_seconds(size: float, devices: int, machine: Machine) -> float:
    """Seconds to send gradients of `size` bytes to the host of a node, and to fetch as many weights.

    Each device copies over its own link, but those below one PCIe switch share its uplink. The CPU reads all
    gradients from memory, and weights once more. PCIe carries both directions at once, and tensors follow
    one another, so copies to the host, the CPU's work and copies back overlap: the slowest of them counts.

    >>> machine = Machine.named("p2.8xlarge")
    >>> [round(1e3 * host_server_seconds(500e6, devices, machine)) for devices in (1, 2, 4, 8)]
    [35, 70, 140, 140]
    """
    sharers = min(devices, machine.topology.devices_per_uplink)
    copies = size * sharers / (need(machine, "link.rate") * DMA_SHARE)
    memory = machine.host.memory_rate
    if memory is None:
        return copies
    return max(copies, size * (devices + _PASSES_OF_UPDATE) / (memory * machine.topology.sockets))


def between_hosts_seconds(size: float, nodes: int, machine: Machine) -> float:
    """Seconds to send gradients to the servers on the hosts of all nodes, and then to fetch the weights.

    A host sums the gradients of its own devices before it sends them. Each server has an equal share of the
    weights, so a node sends and receives all but its own share, once for all its devices.
    """
    network = network_of(machine, machine.devices)
    return 2 * (network.latency_seconds + size * (1 - 1 / nodes) / network.rate)
