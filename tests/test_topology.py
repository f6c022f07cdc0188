"""Links, storage, the topology of nodes, how machines are built from the catalogue, how they are shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from windtunnel.cli import machine_text
from windtunnel.errors import BadRecord, UnknownName
from windtunnel.machine.machine import CATALOG, Machine, names, node_names
from windtunnel.machine.topology import LATENCIES, STORAGE_LATENCIES, Link, Storage, Topology

GOLDEN = Path(__file__).parent / "golden"
COUNTED_GPUS = [f"8x{name}" for name in names() if Machine.named(name).device.kind == "gpu"]
A_MACHINE = """
name = "mine"
title = "a machine of my own"

[host]
kind = "cpu"
model = "a CPU"

[device]
kind = "gpu"
model = "a GPU"
"""


def load(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return Machine.load(path)


# Links and storage


def test_a_link_needs_a_rate_above_zero(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="rate"):
        Link(name="pcie", rate=0.0)
    with pytest.raises(BadRecord, match="rate"):
        load(tmp_path, A_MACHINE + '\n[link]\nname = "pcie-3.0-x16"\n')
    with pytest.raises(BadRecord, match="latency_seconds"):
        Link(name="pcie", rate=1.0, latency_seconds=-1e-6)


@pytest.mark.parametrize("kind", LATENCIES)
def test_a_link_has_the_latency_of_its_kind(kind: str) -> None:
    latency, source = LATENCIES[kind]  # type: ignore[index]
    link = Link(name=f"{kind}-9", rate=1.0)
    assert (link.kind, link.latency_seconds) == (kind, latency)
    assert source and latency > 0
    assert Link(name="x", rate=1.0, kind=kind).latency_seconds == latency  # type: ignore[arg-type]
    assert Link(name=f"{kind}-9", rate=1.0, latency_seconds=0.0).latency_seconds == 0.0


@pytest.mark.parametrize("kind", STORAGE_LATENCIES)
def test_storage_has_the_latency_of_its_kind(kind: str) -> None:
    latency, source = STORAGE_LATENCIES[kind]  # type: ignore[index]
    assert Storage(name="x", kind=kind).latency_seconds == latency  # type: ignore[arg-type]
    assert source and latency > 0


def test_faster_kinds_of_storage_answer_sooner() -> None:
    latencies = {kind: latency for kind, (latency, _) in STORAGE_LATENCIES.items()}
    assert latencies["ssd"] < latencies["network"] < latencies["hdd"]


def test_a_file_of_an_earlier_version_still_loads(tmp_path: Path) -> None:
    text = A_MACHINE + '\n[link]\nname = "pcie-4.0-x16"\nrate = "31.5 GB/s"\n'
    machine = load(tmp_path, text + '\n[storage]\nname = "disk"\nread_rate = "1 GB/s"\n')
    assert machine.link == Link(name="pcie-4.0-x16", rate=31.5e9, kind="pcie", latency_seconds=1e-6)
    assert machine.storage is not None and machine.storage.kind == "ssd"
    assert machine.topology == Topology()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[topology]\npeers = 3\n", "peer"),
        ('[topology]\npeer = "bus"\n', "bus"),
        ("[topology]\ndevices_per_uplink = 0\n", "devices_per_uplink"),
        ("[topology]\noversubscription = 0.5\n", "oversubscription"),
        ("[topology]\npeer_links = [[0, 1], [1]]\n", "columns"),
        ("[topology]\npeer_links = [[0, 1], [2, 0]]\n", "both ends"),
        ('[topology]\npeer = "switch"\n', "peer_link"),
        ('parameter_server = "cloud"\n', "cloud"),
    ],
)
def test_a_wrong_topology_is_refused(tmp_path: Path, text: str, word: str) -> None:
    before, after = A_MACHINE.split("\n[host]")
    whole = f"{before}\n{text}\n[host]{after}" if not text.startswith("[") else f"{A_MACHINE}\n{text}"
    with pytest.raises(BadRecord, match=word):
        load(tmp_path, whole)


def test_a_mesh_of_too_many_devices_is_refused() -> None:
    with pytest.raises(BadRecord, match="at most"):
        Topology(peer="mesh", peer_links=tuple((0,) * 11 for _ in range(11)))


# Nodes of the catalogue


@pytest.mark.parametrize("name", node_names())
def test_a_node_shares_the_figures_of_its_gpu(name: str) -> None:
    node = Machine.named(name)
    gpu = next(m for m in map(Machine.named, names()) if m.device == node.device)
    assert (node.profile, node.launch_costs, node.assumed_host) == (
        gpu.profile,
        gpu.launch_costs,
        gpu.assumed_host,
    )
    if not name.startswith("guide"):  # the guide computes with a faster link than the card has
        assert (node.link, node.peer_link) == (gpu.link, gpu.peer_link)


@pytest.mark.parametrize("name", node_names())
def test_a_node_of_the_catalogue_makes_sense(name: str) -> None:
    node, topology = Machine.named(name), Machine.named(name).topology
    assert node.devices > 1
    assert node.devices % topology.sockets == 0
    assert topology.devices_per_uplink <= node.devices
    assert not topology.peer_links or len(topology.peer_links) == node.devices
    if topology.peer_links and node.peer_link is not None:
        per_gpu = {sum(row) for row in topology.peer_links}
        assert len(per_gpu) == 1  # each GPU uses all its NVLinks
    if topology.switch_reduces:  # NVLink switches add from Hopper on
        assert topology.peer == "switch" and (node.device.compute_capability or 0) >= 9
    assert node.network is not None or node.name == "guide-figure-5"


def test_every_machine_of_the_task_is_in_the_catalogue() -> None:
    wanted = {
        "guide-figure-5 guide-figure-6 dgx-1-v100 dgx-1-p100 dgx-a100 hgx-h100 hgx-h200 dgx-b200",
        "p3.16xlarge p3dn.24xlarge p4d.24xlarge p4de.24xlarge p5.48xlarge p5en.48xlarge p6-b200.48xlarge",
        "nd40rs-v2 nd96asr-v4 nd96amsr-a100-v4 nd96isr-h100-v5 nd96isr-h200-v5",
        "a2-highgpu-8g a2-ultragpu-8g a3-highgpu-8g a3-megagpu-8g a3-ultragpu-8g a4-highgpu-8g",
        "rtx2080ti-node-10gbe rtx2080ti-node-100gbe rtx2080ti-node-100gib p2.16xlarge p2.8xlarge",
    }
    assert {name for line in wanted for name in line.split()} <= set(node_names())


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("hgx-h100", 8 * 400e9),
        ("hgx-h200", 8 * 400e9),
        ("dgx-a100", 8 * 200e9),
        ("p4d.24xlarge", 400e9),
        ("p5.48xlarge", 3200e9),
        ("p5en.48xlarge", 3200e9),
        ("p6-b200.48xlarge", 3200e9),
        ("a3-megagpu-8g", 1600e9),
        ("rtx2080ti-node-10gbe", 10e9),
    ],
)
def test_the_network_of_a_node_in_bits_a_second(name: str, rate: float) -> None:
    assert Machine.named(name).node_network_rate == rate / 8


def test_the_guides_figures_have_its_counts() -> None:
    five, six = Machine.named("guide-figure-5"), Machine.named("guide-figure-6")
    assert (five.nodes, five.devices, five.topology.devices_per_uplink) == (1, 4, 4)
    assert (six.nodes, six.devices, six.parameter_server) == (4, 4, "node")
    assert five.link is not None and five.link.rate == 31.5e9
    assert not five.transfer_unit  # a property to switch on
    assert dataclasses.replace(five, transfer_unit=True).transfer_unit


# Counted names


def test_a_count_of_gpus_has_the_topology_of_their_usual_node() -> None:
    eight, node = Machine.named("8xh100"), Machine.named("hgx-h100")
    assert (eight.topology, eight.network, eight.peer_link) == (node.topology, node.network, node.peer_link)
    assert "hgx-h100" in eight.assumed_topology
    assert not node.assumed_topology


def test_a_count_above_the_usual_node_means_several_nodes() -> None:
    machine = Machine.named("64xh100")
    assert (machine.name, machine.nodes, machine.devices) == ("8x8xh100", 8, 8)
    assert machine == Machine.named("8x8xh100")
    assert Machine.named("12xh100").name == "2x6xh100"
    assert Machine.named("8xh100").name == "8xh100"
    assert Machine.named("2x16xv100-32gb").devices == 16  # as the name says


@pytest.mark.parametrize("name", COUNTED_GPUS)
def test_every_counted_gpu_has_a_topology_and_a_network_and_says_that_both_are_assumed(name: str) -> None:
    machine = Machine.named(name)
    assert machine.assumed_topology
    assert machine.network is not None and machine.source_of("network.rate")
    assert machine.source_of("topology.sockets")
    assert machine.topology.peer in ("switch", "mesh") or machine.peer_link is None


def test_fewer_gpus_of_a_node_use_fewer_of_its_cards() -> None:
    assert Machine.named("4xh100").topology.network_cards == 4
    assert Machine.named("2x2xdgx-a100").topology.network_cards == 2
    assert Machine.named("1xrtx2080ti-node-10gbe").topology.network_cards == 1


def test_nodes_are_counted_as_nodes() -> None:
    four = Machine.named("4xdgx-a100")
    assert (four.nodes, four.devices, four.name) == (4, 8, "4xdgx-a100")
    assert (Machine.named("3x4xdgx-a100").nodes, Machine.named("3x4xdgx-a100").devices) == (3, 4)
    assert Machine.named("2xguide-figure-6").nodes == 8
    with pytest.raises(BadRecord, match="has 8"):
        Machine.named("2x16xdgx-a100")
    with pytest.raises(BadRecord, match="above 0"):
        Machine.named("0xh100")
    with pytest.raises(UnknownName, match="dgx-a10"):
        Machine.named("4xdgx-a10")


def test_a_node_file_names_its_gpu(tmp_path: Path) -> None:
    text = 'name = "mine"\ntitle = "my node"\ndevice = "a100-40gb"\ndevices = 4\nnetwork = "ethernet-100g"\n'
    machine = load(tmp_path, text + '\n[topology]\npeer = "mesh"\n')
    gpu = Machine.named("a100-40gb")
    assert (machine.device, machine.link, machine.devices) == (gpu.device, gpu.link, 4)
    assert machine.source_of("device.memory_rate") == gpu.source_of("device.memory_rate")
    with pytest.raises(BadRecord, match="CPU machine"):
        load(tmp_path, text.replace("a100-40gb", "epyc-7763"))
    with pytest.raises(UnknownName, match="a100-41gb"):
        load(tmp_path, text.replace("a100-40gb", "a100-41gb"))


def test_a_node_without_its_gpus_is_one_cpu() -> None:
    alone = Machine.named("dgx-a100").with_cpu_only()
    assert (alone.device, alone.topology, alone.devices) == (alone.host, Topology(), 1)


# Shown


@pytest.mark.parametrize("name", [*node_names(), *COUNTED_GPUS, "4x8xh100", "2x1xepyc-7763"])
def test_a_drawing_fits_80_columns_and_names_every_rate(name: str) -> None:
    machine = Machine.named(name)
    lines = machine_text.draw(machine)
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    text = "\n".join(lines)
    links = [machine.link, machine.network, machine.peer_link if machine.devices > 1 else None]
    has_links = machine.topology.peer in ("switch", "mesh")
    for link in links if has_links else links[:2]:
        assert link is None or link.name in text
    if machine.device.kind == "gpu":
        last = machine.devices - 1
        assert any(f"{word} {last}" in text for word in ("GPU", "and", "to"))


def test_a_drawing_shows_the_transfer_unit_and_a_crowded_network() -> None:
    machine = Machine.named("2xhgx-h100")
    topology = dataclasses.replace(machine.topology, oversubscription=2.0)
    text = "\n".join(machine_text.draw(dataclasses.replace(machine, transfer_unit=True, topology=topology)))
    assert "transfer unit" in text and "200 GB/s a node" in text and "oversubscribed 2 times" in text


@pytest.mark.parametrize("name", ["dgx-1-v100", "4x8xh100"])
def test_a_shown_node_equals_its_golden_output(name: str) -> None:
    assert machine_text.describe(Machine.named(name)) + "\n" == (GOLDEN / f"machine-{name}.txt").read_text()


def test_the_list_groups_nodes_by_their_gpu() -> None:
    text = machine_text.table([Machine.named(name) for name in (*names(), *node_names())])
    single, nodes = text.split("\nnode ")
    assert "h200 " in single and "dgx-a100" not in single
    lines = nodes.splitlines()
    header = lines.index("  NVIDIA H200 SXM")
    assert {line.split()[0] for line in lines[header + 1 : header + 5]} == {
        "a3-ultragpu-8g",
        "hgx-h200",
        "nd96isr-h200-v5",
        "p5en.48xlarge",
    }


def test_no_machine_has_the_name_of_a_node() -> None:
    assert not set(names()) & set(node_names())
    assert all((CATALOG / "nodes" / f"{name}.toml").is_file() for name in node_names())
