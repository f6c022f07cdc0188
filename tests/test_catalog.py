"""The catalogue: every machine loads, every figure has a source, and the papers' figures are in it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from windtunnel import records
from windtunnel.errors import BadRecord, UnknownName
from windtunnel.machine.machine import CATALOG, Link, Machine, Storage, names, node_names

FILES = list((CATALOG / "machines").glob("*.toml"))
NAMES = sorted(path.stem for path in FILES)
PAPERS_MACHINES = ("k80", "m2090", "m2070", "gtx1080", "i7-3820", "e5-2660-v2", "macbook-2016")
NODES = list(node_names())
SOURCED_PARTS = ("host", "device", "link", "peer_link", "network", "topology", "storage")


def shared(kind: str) -> dict[str, dict[str, Any]]:
    """The entries of links.toml or storage.toml."""
    return tomllib.loads((CATALOG / f"{kind}.toml").read_text(encoding="utf-8"))


def link(name: str) -> Link:
    entry = {key: value for key, value in shared("links")[name].items() if key != "source"}
    return records.read(Link, {"name": name, **entry}, name)


def storage(name: str) -> Storage:
    entry = {key: value for key, value in shared("storage")[name].items() if key != "source"}
    return records.read(Storage, {"name": name, **entry}, name)


def figures(data: Any, path: str) -> Iterator[str]:
    """The dotted path of every number below `data`."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from figures(value, f"{path}.{key}")
    elif isinstance(data, list):
        for value in data:
            yield from figures(value, path)
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield path


def figures_of(machine: Machine) -> list[str]:
    """The paths of all figures. A machine with one device has no topology to speak of."""
    plain = records.plain(machine)
    parts = [part for part in SOURCED_PARTS if part != "topology" or machine.devices > 1]
    return [path for part in parts for path in figures(plain.get(part, {}), part)]


def gpus() -> list[Machine]:
    return [machine for machine in map(Machine.named, NAMES) if machine.device.kind == "gpu"]


def cpus() -> list[Machine]:
    return [machine for machine in map(Machine.named, NAMES) if machine.device.kind == "cpu"]


# Whole catalogue


def test_the_catalogue_has_at_least_35_machines() -> None:
    assert len(NAMES) >= 35
    assert names() == tuple(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_loads_under_the_name_of_its_file(name: str) -> None:
    machine, named = Machine.load(CATALOG / "machines" / f"{name}.toml"), Machine.named(name)
    assert machine.name == name
    # A file of one's own has the host that it names; GPUs of the catalogue share the reference host.
    shared = {f: getattr(named, f) for f in ("launch_costs", "assumed_host", "sources")}
    assert (dataclasses.replace(machine, **shared) if machine.device.kind == "gpu" else machine) == named
    assert (machine.devices, machine.nodes) == (1, 1)


@pytest.mark.parametrize("name", NODES)
def test_a_node_loads_under_the_name_of_its_file(name: str) -> None:
    assert Machine.load(CATALOG / "nodes" / f"{name}.toml") == Machine.named(name)
    assert Machine.named(name).name == name


@pytest.mark.parametrize("name", NAMES + NODES)
def test_every_figure_of_a_machine_has_a_source(name: str) -> None:
    machine = Machine.named(name)
    paths = figures_of(machine)
    assert len(paths) >= 5, f"only these figures: {paths}"
    assert [path for path in paths if not machine.source_of(path).strip()] == []


@pytest.mark.parametrize("name", NAMES + NODES)
def test_every_source_belongs_to_a_figure(name: str) -> None:
    machine = Machine.named(name)
    plain = records.plain(machine)
    for key in machine.sources:
        value: Any = plain
        for part in key.split("."):
            assert part in value, f"{name} has a source for {key}, but no such figure"
            value = value[part]


@pytest.mark.parametrize("name", NAMES + NODES)
def test_no_text_of_a_machine_names_a_local_path(name: str) -> None:
    machine = Machine.named(name)
    text = " ".join([machine.title, machine.note, *machine.sources.values()])
    assert "/work" not in text and "/home" not in text and "/tmp" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_has_an_fp32_rate_and_a_memory_rate(name: str) -> None:
    device = Machine.named(name).device
    assert "fp32" in device.flop_rates
    assert device.memory_rate


@pytest.mark.parametrize("name", [*NAMES, *NODES, "8xh100", "2x4xt4"])
@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_machine_saved_and_loaded_is_the_same_machine(name: str, suffix: str, tmp_path: Any) -> None:
    machine = Machine.named(name)
    machine.save(tmp_path / f"{name}.{suffix}")
    assert Machine.load(tmp_path / f"{name}.{suffix}") == machine


@pytest.mark.parametrize("kind", ["links", "storage"])
def test_every_shared_entry_has_a_rate_and_a_source(kind: str) -> None:
    entries = shared(kind)
    assert entries
    for name, entry in entries.items():
        built = link(name) if kind == "links" else storage(name)
        assert (built.rate if isinstance(built, Link) else built.read_rate or 0) > 0, name
        assert entry["source"].strip(), name


# Physical relations


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("slow", "fast"), [("fp64", "fp32"), ("fp32", "tf32"), ("tf32", "bf16"), ("bf16", "fp8")]
)
def test_a_format_with_fewer_bits_is_never_slower(name: str, slow: str, fast: str) -> None:
    rates = Machine.named(name).device.flop_rates
    if slow in rates and fast in rates:
        assert rates[fast] >= rates[slow]


def test_the_order_of_precisions_is_tested_on_more_than_ten_machines() -> None:
    with_both = [m for m in gpus() if {"fp32", "tf32", "bf16"} <= set(m.device.flop_rates)]
    assert len(with_both) > 10


def test_a_gpu_reads_its_own_memory_faster_than_its_link() -> None:
    linked = [machine for machine in gpus() if machine.link]
    assert len(linked) > 20
    for machine in linked:
        assert machine.link is not None and machine.device.memory_rate is not None
        assert machine.device.memory_rate > machine.link.rate, machine.name


def test_a_peer_link_is_faster_than_the_link_to_the_host() -> None:
    peered = [machine for machine in gpus() if machine.peer_link]
    assert len(peered) > 5
    for machine in peered:
        assert machine.link is not None and machine.peer_link is not None
        assert machine.peer_link.rate > machine.link.rate, machine.name


def test_the_note_of_a_gpu_without_a_link_says_that_memory_is_shared() -> None:
    unlinked = [machine for machine in gpus() if machine.link is None]
    assert {"apple-m1", "jetson-orin"} <= {machine.name for machine in unlinked}
    for machine in unlinked:
        assert "share one memory" in machine.note, machine.name
        assert machine.host.memory_rate == machine.device.memory_rate, machine.name


def test_the_note_of_a_gpu_with_a_link_explains_its_host() -> None:
    for machine in gpus():
        if machine.link:
            assert "host is" in machine.note, machine.name
            assert machine.host.kind == "cpu" and machine.host.clock_rate, machine.name


def test_a_cpu_machine_computes_on_its_host() -> None:
    assert len(cpus()) >= 9
    for machine in cpus():
        assert machine.device == machine.host, machine.name
        assert (
            machine.device.cores and machine.device.threads and machine.device.threads >= machine.device.cores
        )


def test_the_peak_of_a_cpu_is_cores_times_clock_times_a_power_of_two() -> None:
    for machine in cpus():
        if machine.name == "raspberry-pi-4":  # measured, as its note says
            continue
        device = machine.device
        assert device.cores and device.clock_rate
        for precision, allowed in (("fp32", (16, 32, 64)), ("fp64", (8, 16, 32))):
            per_cycle = device.flop_rates[precision] / (device.cores * device.clock_rate)
            assert any(per_cycle == pytest.approx(flop, rel=1e-6) for flop in allowed), (
                machine.name,
                per_cycle,
            )


@pytest.mark.parametrize(
    ("generation", "transfers", "encoding"),
    [("2.0", 5e9, 8 / 10), ("3.0", 8e9, 128 / 130), ("4.0", 16e9, 128 / 130), ("5.0", 32e9, 128 / 130)],
)
def test_the_rate_of_a_pcie_link_follows_from_its_standard(
    generation: str, transfers: float, encoding: float
) -> None:
    assert link(f"pcie-{generation}-x16").rate == pytest.approx(transfers * 16 * encoding / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("infiniband-edr", 100e9),
        ("infiniband-hdr", 200e9),
        ("infiniband-ndr", 400e9),
        ("ethernet-1g", 1e9),
        ("ethernet-10g", 10e9),
        ("ethernet-25g", 25e9),
        ("ethernet-100g", 100e9),
        ("ethernet-200g", 200e9),
        ("roce-400g", 400e9),
        ("efa-100g", 100e9),
        ("efa-400g", 400e9),
    ],
)
def test_the_rate_of_a_network_is_its_bits_over_eight(name: str, bits: float) -> None:
    assert link(name).rate == bits / 8


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("nvlink-1", 80e9),
        ("nvlink-2", 150e9),
        ("nvlink-3", 300e9),
        ("nvlink-4", 450e9),
        ("nvlink-5", 900e9),
        ("infinity-fabric-mi300x", 448e9),
    ],
)
def test_the_rate_between_gpus_is_that_of_one_direction(name: str, rate: float) -> None:
    assert link(name).rate == rate


# Counted names


def test_a_count_in_the_name_gives_devices_in_a_node() -> None:
    one, eight = Machine.named("h200"), Machine.named("8xh200")
    assert (eight.devices, eight.nodes, eight.name) == (8, 1, "8xh200")
    assert (eight.device, eight.host, eight.link) == (one.device, one.host, one.link)
    assert one.sources.items() <= eight.sources.items()


def test_two_counts_in_the_name_give_nodes_and_devices() -> None:
    machine = Machine.named("4x8xh200")
    assert (machine.nodes, machine.devices) == (4, 8)


def test_a_cpu_machine_has_several_nodes_but_not_several_devices() -> None:
    assert Machine.named("2x1xepyc-9654").nodes == 2
    with pytest.raises(BadRecord, match="CPU machine"):
        Machine.named("2xepyc-9654")


def test_the_error_for_an_unknown_machine_names_the_most_similar_one() -> None:
    with pytest.raises(UnknownName) as caught:
        Machine.named("gtx1081")
    assert "gtx1080" in str(caught.value) + str(getattr(caught.value, "hint", ""))


def test_a_gpu_machine_without_its_gpu_is_the_cpu_machine() -> None:
    alone, cpu = Machine.named("k80").with_cpu_only(), Machine.named("e5-2660-v2")
    assert alone.device == alone.host == cpu.host
    assert (alone.link, alone.peer_link) == (None, None)
    assert [path for path in figures_of(alone) if not alone.source_of(path)] == []


# The papers' own numbers


def test_all_machines_of_the_papers_are_in_the_catalogue() -> None:
    assert set(PAPERS_MACHINES) <= set(NAMES)


def test_one_die_of_the_k80_has_half_of_the_cards_24_gb() -> None:
    machine = Machine.named("k80")
    assert machine.device.memory_bytes == 24e9 / 2
    assert machine.device.cores == 2496 / 192
    assert machine.host == Machine.named("e5-2660-v2").host
    assert Machine.named("2xk80").devices * (machine.device.memory_bytes or 0) == 24e9


def test_the_m2090_has_512_cuda_cores_at_1_3_ghz_and_6_gb() -> None:
    device = Machine.named("m2090").device
    assert (device.cores, device.clock_rate, device.memory_bytes) == (512 // 32, 1.3e9, 6e9)
    assert device.flop_rates["fp32"] == pytest.approx(512 * 2 * 1.3e9, rel=1e-3)


def test_the_m2070_is_the_smaller_fermi_card() -> None:
    device = Machine.named("m2070").device
    assert (device.cores, device.memory_bytes) == (448 // 32, 6e9)
    assert device.flop_rates["fp32"] == pytest.approx(448 * 2 * 1.15e9, rel=1e-3)
    assert device.memory_rate == pytest.approx(150e9, rel=0.01)


def test_the_i7_3820_has_four_physical_cores() -> None:
    device = Machine.named("i7-3820").device
    assert (device.cores, device.threads) == (4, 8)


def test_the_e5_2660_v2_has_ten_cores_of_2_2_ghz() -> None:
    device = Machine.named("e5-2660-v2").device
    assert (device.cores, device.clock_rate) == (10, 2.2e9)


def test_the_macbook_runs_at_2_9_ghz_with_16_gb() -> None:
    device = Machine.named("macbook-2016").device
    assert (device.kind, device.clock_rate, device.memory_bytes) == ("cpu", 2.9e9, 16e9)


def test_the_papers_transfer_rates_are_in_the_catalogue() -> None:
    assert link("pcie-4.0-x16").rate == 31.5e9
    assert storage("samsung-960-pro").read_rate == 3.5e9
    assert storage("5x-samsung-960-pro").read_rate == 17e9


def test_five_striped_drives_are_slower_than_five_times_one_and_than_their_link() -> None:
    one, five = storage("samsung-960-pro").read_rate, storage("5x-samsung-960-pro").read_rate
    assert one and five
    assert one < five < 5 * one
    assert five < link("pcie-4.0-x16").rate


def test_filling_a_gtx_1080_over_pcie_4_takes_the_time_in_the_guide() -> None:
    memory = 8e9  # the guide counts the card's "8 GB" in decimal; CUDA reports somewhat less than 8 GiB
    assert memory < (Machine.named("gtx1080").device.memory_bytes or 0) < 8 * 2**30
    seconds = memory / link("pcie-4.0-x16").rate
    assert seconds == pytest.approx(0.253968, abs=5e-7)
    assert 4 * seconds == pytest.approx(1.015873, abs=5e-7)
    assert 3 * seconds == pytest.approx(0.7619, abs=5e-5)


def test_a_gpu_has_the_gibibytes_of_its_name_less_what_the_driver_and_ecc_keep() -> None:
    """A card sold with 24 GB has 24 GiB. CUDA reports at least 0.92 of that (ECC), and never all of it."""
    for name, sold in (
        ("rtx3090", 24),
        ("rtx4090", 24),
        ("a10", 24),
        ("t4", 16),
        ("h200", 141),
        ("a100-80gb", 80),
    ):
        memory = Machine.named(name).device.memory_bytes or 0
        assert 0.92 < memory / (sold * 2**30) < 1, name
