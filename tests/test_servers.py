"""Parameter servers in the memory of a host, and GPUs that share the power of one card."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from windtunnel.forecast.links import NETWORK, PEER, Links, LinkSeconds
from windtunnel.forecast.paths import LINK_SHARE, NodePath, node_path
from windtunnel.forecast.servers import between_hosts_seconds, host_server_seconds
from windtunnel.forecast.workers import Workers
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import ParameterServer
from windtunnel.prediction import predict
from windtunnel.strategy import Strategy
from windtunnel.trace import Collective

SIZE = 553e6  # the gradients of VGG16


def served(devices: int, server: ParameterServer = "host", name: str = "p2.8xlarge") -> LinkSeconds:
    machine = dataclasses.replace(Machine.named(name), parameter_server=server)
    workers = Workers(data=devices, devices_per_node=machine.devices)
    return Links(machine=machine, workers=workers).carry(Collective("server", SIZE, "data"))


@functools.cache
def step(devices: int, server: ParameterServer = "host", on: str = "p2.8xlarge") -> float:
    machine = dataclasses.replace(Machine.named(on), parameter_server=server)
    strategy = Strategy(batch=2048 * devices, data_parallel=devices, exchange="server-after")
    return predict(Workload.named("fcn5", layers=(512, 4096, 4096, 512)), machine, strategy).step_seconds


def test_a_server_on_the_host_by_hand() -> None:
    """PCIe 3.0 x16 at 15.754 GB/s, of which packets leave 256/282. Four dies of a p2.8xlarge share an uplink.

    553 MB / (15.754 GB/s x 0.9078) = 38.67 ms for one die, twice that for two, four times that for four. The
    CPU reads 10 x 553 MB at 59.7 GB/s = 92.6 ms for eight: less than 154.7 ms of copies.
    """
    expected = {1: 38.67e-3, 2: 77.34e-3, 4: 154.7e-3, 8: 154.7e-3}
    for devices, seconds in expected.items():
        assert served(devices) == LinkSeconds(PEER, pytest.approx(seconds, rel=1e-3))


def test_the_cpu_is_the_limit_where_it_has_many_gradients_to_read() -> None:
    """A root port for each of 16 devices: 18 x 553 MB / 59.7 GB/s = 166.7 ms against 38.7 ms of copies."""
    machine = Machine.named("p2.8xlarge")
    alone = dataclasses.replace(machine.topology, devices_per_uplink=1)
    wide = dataclasses.replace(machine, topology=alone, devices=16)
    assert host_server_seconds(SIZE, 16, wide) == pytest.approx(18 * SIZE / 59.7e9)


@pytest.mark.parametrize("name", ["p2.8xlarge", "dgx-1-p100", "dgx-a100", "guide-figure-5"])
def test_more_devices_on_one_host_never_take_less_time(name: str) -> None:
    counts = range(1, Machine.named(name).devices + 1)
    seconds = [host_server_seconds(SIZE, count, Machine.named(name)) for count in counts]
    assert seconds == sorted(seconds)


def test_a_faster_link_is_never_slower() -> None:
    machine = Machine.named("p2.8xlarge")
    assert machine.link is not None
    faster = dataclasses.replace(machine, link=dataclasses.replace(machine.link, rate=2 * machine.link.rate))
    for devices in (1, 4, 8):
        assert host_server_seconds(SIZE, devices, faster) <= host_server_seconds(SIZE, devices, machine)


def test_one_worker_talks_to_a_server_on_the_host_and_to_nobody_else() -> None:
    assert served(1, "none") == LinkSeconds(PEER, 0.0)
    assert step(1, "host") > step(1, "none")
    plain = Strategy(batch=2048, data_parallel=1)
    alone = predict(Workload.named("fcn5", layers=(512, 4096, 4096, 512)), Machine.named("p2.8xlarge"), plain)
    assert step(1, "none") == pytest.approx(alone.step_seconds, rel=0.02)


def test_weights_on_the_host_cost_more_than_weights_on_the_devices() -> None:
    for devices in (2, 4, 8):
        assert served(devices).seconds > served(devices, "none").seconds


def test_between_nodes_a_host_sends_the_sum_of_its_devices_once() -> None:
    """Four nodes at 1.25 GB/s, of which TCP leaves 1448/1538: 2 x 3/4 x 553 MB / 1.177 GB/s = 704.8 ms."""
    machine = dataclasses.replace(Machine.named("4xp2.8xlarge"), parameter_server="host")
    assert between_hosts_seconds(SIZE, 4, machine) == pytest.approx(0.7048, rel=1e-3)
    links = Links(machine=machine, workers=Workers(data=32, devices_per_node=8))
    carried = links.carry(Collective("server", SIZE, "data"))
    assert carried == LinkSeconds(NETWORK, between_hosts_seconds(SIZE, 4, machine))
    assert machine.network is not None
    fast = dataclasses.replace(machine.network, kind="roce", rate=100 * machine.network.rate)  # not TCP
    fast_links = Links(machine=dataclasses.replace(machine, network=fast), workers=links.workers)
    inside = host_server_seconds(SIZE, 8, machine)
    assert fast_links.carry(Collective("server", SIZE, "data")).seconds == inside


def test_more_nodes_never_take_less_time() -> None:
    machine = dataclasses.replace(Machine.named("8xp2.8xlarge"), parameter_server="host")
    seconds = [between_hosts_seconds(SIZE, nodes, machine) for nodes in range(2, 9)]
    assert seconds == sorted(seconds)


# Cards with several GPUs


def test_gpus_of_one_card_are_slower_together_than_alone() -> None:
    machine = Machine.named("p2.8xlarge")
    assert machine.with_busy_boards(1) is machine
    busy = machine.with_busy_boards(2).device
    assert busy.flop_rates["fp32"] < machine.device.flop_rates["fp32"]
    assert busy.memory_rate == machine.device.memory_rate


def test_a_card_with_one_gpu_keeps_its_clock_whatever_the_others_do() -> None:
    for name in ("dgx-1-p100", "8xh100", "4xgtx1080"):
        machine = Machine.named(name)
        assert machine.with_busy_boards(4) is machine


# One ring in the order of the devices


def ring(ranks: int, *, one_ring: bool) -> NodePath:
    machine = Machine.named("dgx-1-p100")
    topology = dataclasses.replace(machine.topology, one_ring=one_ring)
    return node_path(dataclasses.replace(machine, topology=topology), ranks)


def test_one_ring_in_order_of_devices_leaves_nvlink_where_two_neighbours_have_none() -> None:
    """A P100 of a DGX-1 has four NVLinks of 20 GB/s. The ring 0-1-2-3 has one between each two neighbours. In
    0-1-...-7 there is none from 3 to 4, and none from 7 to 0."""
    four, eight = ring(4, one_ring=True), ring(8, one_ring=True)
    assert four == NodePath("nvlink", pytest.approx(20e9 * LINK_SHARE))
    assert eight.hop == "host" and eight.rate < four.rate


def test_one_ring_is_never_faster_than_all_rings() -> None:
    for ranks in range(2, 9):
        assert ring(ranks, one_ring=True).rate <= ring(ranks, one_ring=False).rate
