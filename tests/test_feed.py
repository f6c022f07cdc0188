"""How batches come to the devices: reading, decoding and copying as lanes of the one schedule."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable

import pytest
from conftest import run

import windtunnel as wt
from windtunnel.cli import words
from windtunnel.errors import BadInput, BadJob, BadRecord, RateMissing
from windtunnel.feed.remedies import compare_remedies
from windtunnel.feed.worked_example import bus, schedule, worked_example
from windtunnel.forecast.contributors import build_step
from windtunnel.forecast.contributors.copies import BatchCopy, DirectReads
from windtunnel.forecast.contributors.loading import BatchLoading
from windtunnel.forecast.contributors.ops import CpuOps, GpuOps, StepCalls
from windtunnel.forecast.feeding import LOADER_COSTS, BatchFeed, FedBatch, feed_of
from windtunnel.forecast.forecast import Forecast, forecast_step
from windtunnel.forecast.price import Price
from windtunnel.forecast.schedule import Lane, LaneTask, StepBuilder, Wait
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.machine.profiles import profile_for
from windtunnel.machine.topology import Storage, Topology, striped
from windtunnel.trace import Op, StoredExample, Trace

JPEG = StoredExample(bytes=110e3, decode_seconds=2e-3, examples=100_000)
MACHINES = ("4xgtx1080", "h200", "i7-3820")
Recorded = Callable[..., Trace]


def machine_of(name: str, read_rate: float = 2e9, **topology: int) -> wt.Machine:
    """A machine of the catalogue with a disk and perhaps a shared uplink."""
    return dataclasses.replace(
        wt.Machine.named(name),
        storage=Storage(name="disk", read_rate=read_rate, latency_seconds=1e-4),
        topology=Topology(**topology),
    )


def fed(
    recorded: Recorded, machine: wt.Machine, stored: StoredExample | None = JPEG, **strategy: object
) -> Forecast:
    """A forecast of the guide's convolutional network, whose trace is shared among tests."""
    step = recorded("dcn", target=machine.device.kind, batch=64, size=32, channels=3)
    step = dataclasses.replace(step, stored=stored)
    chosen = wt.Strategy(batch=64, **strategy)  # type: ignore[arg-type]
    return forecast_step(step, machine, chosen, profile_for(machine)).forecast


def batch_of(step: Trace, stored: StoredExample = JPEG) -> FedBatch:
    return FedBatch.of(dataclasses.replace(step, stored=stored))


def not_slower(after: Forecast, before: Forecast) -> bool:
    return after.step_seconds <= before.step_seconds * (1 + 1e-9)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("data", ["page-cache", "storage"])
def test_more_loaders_are_never_slower_and_beyond_the_cores_do_not_help(
    recorded: Recorded, name: str, data: str
) -> None:
    machine = machine_of(name)
    counts = (0, 1, 2, 4, 64, 256)
    steps = [fed(recorded, machine, data=data, loaders=count) for count in counts]
    for before, after in itertools.pairwise(steps[1:]):
        assert not_slower(after, before)
    size = 64 * 3 * 32 * 32 * 4
    handed_over = LOADER_COSTS.receive.of(size) + LOADER_COSTS.loader.of(size)
    assert steps[1].step_seconds <= steps[0].step_seconds + handed_over, "the first loader costs no more"
    assert steps[-1].step_seconds == pytest.approx(steps[-2].step_seconds)


def test_cores_limit_what_loaders_can_do(recorded: Recorded) -> None:
    """64 pictures of 20 ms are 1.28 core seconds; four cores need 0.32 s for them, however many loaders."""
    machine = machine_of("gtx1080")
    assert machine.host.cores == 4
    slow = dataclasses.replace(JPEG, decode_seconds=20e-3)
    step = fed(recorded, machine, slow, data="page-cache", loaders=64)
    assert step.step_seconds >= 0.32 and step.bound_by == "feed"
    assert step.busy["cores"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("loaders", [0, 4])
def test_a_faster_disk_is_never_slower_and_the_page_cache_is_the_fastest(
    recorded: Recorded, name: str, loaders: int
) -> None:
    rates = (1e7, 1e8, 1e9, 1e11)
    steps = [fed(recorded, machine_of(name, rate), data="storage", loaders=loaders) for rate in rates]
    steps.append(fed(recorded, machine_of(name), data="page-cache", loaders=loaders))
    assert all(not_slower(after, before) for before, after in itertools.pairwise(steps))
    assert steps[0].step_seconds > steps[1].step_seconds and steps[0].bound_by == "feed"


@pytest.mark.parametrize("data", ["streamed", "page-cache", "storage"])
@pytest.mark.parametrize("sharing", [1, 4])
def test_prefetch_and_pinned_copies_are_never_slower(recorded: Recorded, data: str, sharing: int) -> None:
    machine = machine_of("4xgtx1080", devices_per_uplink=sharing)
    loaders = 2 if data != "streamed" else 0
    plain = fed(recorded, machine, data=data, loaders=loaders)
    pinned = fed(recorded, machine, data=data, loaders=loaders, pinned=True)
    steps = [
        plain,
        pinned,
        *(fed(recorded, machine, data=data, loaders=loaders, prefetch=n) for n in (1, 3)),
    ]
    assert all(not_slower(after, before) for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize("name", ["4xgtx1080", "h200"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_resident_is_never_slower_than_streamed_nor_that_than_loaded(
    recorded: Recorded, name: str, prefetch: int
) -> None:
    machine = machine_of(name, devices_per_uplink=4)
    steps = [
        fed(recorded, machine, data="storage", loaders=4, prefetch=prefetch),
        fed(recorded, machine, data="page-cache", loaders=4, prefetch=prefetch),
        fed(recorded, machine, data="streamed", prefetch=prefetch),
        fed(recorded, machine, data="resident"),
    ]
    assert all(not_slower(after, before) for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("data", ["page-cache", "storage"])
@pytest.mark.parametrize("loaders", [0, 1, 8])
def test_parts_sum_to_the_step_and_a_device_works_at_most_all_the_time(
    recorded: Recorded, name: str, data: str, loaders: int
) -> None:
    step = fed(recorded, machine_of(name), data=data, loaders=loaders)
    assert sum(step.parts.values()) == pytest.approx(step.step_seconds)
    assert sum(step.feed.values()) == pytest.approx(step.parts.get("feed", 0.0))
    assert set(step.feed) <= {"read", "decode"}
    assert 0 < step.utilisation <= 1
    assert all(0 <= share <= 1 + 1e-6 for share in step.busy.values())
    assert step.low_seconds <= step.step_seconds <= step.high_seconds


def test_more_devices_on_one_uplink_or_one_storage_are_never_faster(recorded: Recorded) -> None:
    def step(devices: int, nodes: int = 1, **strategy: object) -> Forecast:
        machine = machine_of("gtx1080", devices_per_uplink=devices)
        network = dataclasses.replace(machine.storage, kind="network")  # type: ignore[type-var]
        many = dataclasses.replace(machine, devices=devices, nodes=nodes, storage=network)
        return fed(recorded, many, **strategy)

    for strategy in ({"data": "streamed"}, {"data": "storage", "loaders": 2}):
        steps = [step(devices, **strategy) for devices in (8, 4, 2, 1)]
        assert all(not_slower(after, before) for before, after in itertools.pairwise(steps))
    one, ten = step(4, data="storage", loaders=2), step(4, nodes=100, data="storage", loaders=2)
    assert ten.step_seconds > one.step_seconds, "all nodes read from the same storage"


def test_twice_the_bytes_take_the_storage_twice_as_long(recorded: Recorded) -> None:
    machine, strategy = machine_of("gtx1080"), wt.Strategy(data="storage", loaders=1)
    step = recorded("dcn", target="gpu", batch=64, size=32, channels=3)
    once, twice = (
        feed_of(batch_of(step, dataclasses.replace(JPEG, bytes=size)), machine, strategy)
        for size in (1e5, 2e5)
    )
    assert twice.storage_seconds == pytest.approx(2 * once.storage_seconds)


# By hand

OP = Op(name="op", family="matmul", phase="forward", dtype="fp32", flop=0, read_bytes=0, written_bytes=0)


def feed(**changes: float) -> BatchFeed:
    figures = {
        "storage_seconds": 0.0,
        "wait_seconds": 0.0,
        "read_seconds": 0.0,
        "decode_seconds": 0.0,
        "receive_seconds": 0.0,
        "sharers": 1,
        "storage_sharers": 1,
        "cores": 100.0,
    }
    return BatchFeed(**{**figures, **changes})  # type: ignore[arg-type]


def gpu_step(loading: BatchLoading, *copies: BatchCopy, compute: float = 3.0) -> Timeline:
    ops = GpuOps(ops=(OP,), prices=(Price(0.0, compute),))
    return steady_timeline(build_step((StepCalls(seconds=0.0), loading, *copies, ops)))


@pytest.mark.parametrize(
    ("loaders", "step_seconds"),
    [
        # The batch needs 12 s of decoding on one core, the device 3 s. Without loaders the host decodes the
        # next batch while the device computes: 12 s. Two loaders take turns: 6 s; three: 4 s.
        (0, 12.0),
        (1, 12.0),
        (2, 6.0),
        (3, 4.0),
        # Four deliver every 3 s, as fast as the device computes; more deliver faster than it takes batches.
        (4, 3.0),
        (8, 3.0),
    ],
)
def test_loaders_take_turns_by_hand(loaders: int, step_seconds: float) -> None:
    loading = BatchLoading(
        feed=feed(decode_seconds=12.0), loaders=loaders, load_ahead=2, training_seconds=0.0
    )
    assert gpu_step(loading).step_seconds == pytest.approx(step_seconds)


def test_a_cpu_that_computes_on_all_cores_shares_them_with_loaders_by_hand() -> None:
    """Two cores; the step computes for 5 s on both: 10 core seconds. Decoding takes 4 core seconds. Together
    14 core seconds on two cores: 7 s a step. Without loaders: 5 + 4 = 9 s."""
    ops = CpuOps(ops=(OP,), prices=(Price(0.0, 5.0),))

    def step(loaders: int, cores: float) -> float:
        loading = BatchLoading(
            feed=feed(decode_seconds=4.0, cores=cores),
            loaders=loaders,
            load_ahead=2,
            training_seconds=10.0,
        )
        return steady_timeline(
            build_step((StepCalls(seconds=0.0, is_device=True), loading, ops))
        ).step_seconds

    assert step(0, 2.0) == pytest.approx(9.0)
    assert step(1, 2.0) == step(8, 2.0) == pytest.approx(7.0)
    assert step(1, 4.0) == pytest.approx(5.0), "with two cores more, loaders disturb nobody"


def test_one_storage_serves_all_devices_by_hand() -> None:
    """A batch takes the storage 1 s. Four devices: 4 s a step, though each computes for 3 s only. The
    account: 3 s of computing, and 1 s more of reading."""
    loading = BatchLoading(
        feed=feed(storage_seconds=1.0, storage_sharers=4), loaders=4, load_ahead=2, training_seconds=0.0
    )
    timeline = gpu_step(loading)
    assert timeline.step_seconds == pytest.approx(4.0)
    assert timeline.parts() == pytest.approx({"compute": 3.0, "feed": 1.0})
    assert timeline.busy_shares()["storage"] == pytest.approx(1.0)


def test_a_loader_waits_for_each_file_by_hand() -> None:
    """One loader waits 5 s for the files of a batch and decodes for 2 s: 7 s a step, though storage and core
    are idle most of it. Two loaders: 3.5 s."""
    figures = feed(storage_seconds=0.1, wait_seconds=5.0, decode_seconds=2.0)
    one, two = (
        gpu_step(BatchLoading(feed=figures, loaders=n, load_ahead=2, training_seconds=0.0)) for n in (1, 2)
    )
    assert one.step_seconds == pytest.approx(7.0) and two.step_seconds == pytest.approx(3.5)
    assert one.labels_of("feed")["read"] > 0 and one.labels_of("feed")["decode"] > 0


def test_a_loaded_batch_is_then_copied_by_hand() -> None:
    """Decoding 2 s beside the step. Copy 1 s, compute 3 s: 4 s a step without prefetch, 3 s with it."""
    loading = BatchLoading(feed=feed(decode_seconds=2.0), loaders=1, load_ahead=2, training_seconds=0.0)
    ahead = dataclasses.replace(loading, waits=False)
    assert gpu_step(loading, BatchCopy(seconds=1.0)).step_seconds == pytest.approx(4.0)
    assert gpu_step(ahead, BatchCopy(seconds=1.0, prefetch=1)).step_seconds == pytest.approx(3.0)


def test_direct_reads_use_no_host_by_hand() -> None:
    """Storage 1 s for each of two devices, copy 1 s, compute 3 s, one batch ahead: 3 s. Without prefetch one
    after the other: 2 + 1 + 3 = 6 s."""
    figures = feed(storage_seconds=1.0, storage_sharers=2)
    for prefetch, seconds in ((0, 6.0), (1, 3.0)):
        members = (
            StepCalls(seconds=0.0),
            DirectReads(feed=figures, prefetch=prefetch),
            BatchCopy(seconds=1.0, prefetch=prefetch, host_waits=False),
            GpuOps(ops=(OP,), prices=(Price(0.0, 3.0),)),
        )
        timeline = steady_timeline(build_step(members))
        assert timeline.step_seconds == pytest.approx(seconds)
        assert "loader" not in timeline.busy_shares()


def test_hard_disks_move_their_arms_for_each_file_by_hand(recorded: Recorded) -> None:
    """64 files of 110 kB at 100 MB/s are 70.4 ms; 64 moves of 10 ms are 640 ms more, of two disks 320 ms. In
    record files of 64 examples: one move."""
    step = recorded("dcn", target="gpu", batch=64, size=32, channels=3)
    machine, strategy = wt.Machine.named("gtx1080"), wt.Strategy(data="storage")

    def seconds(count: int, per_file: int = 1) -> float:
        disk = Storage(name="disk", kind="hdd", read_rate=1e8, latency_seconds=0.01, count=count)
        stored = dataclasses.replace(JPEG, examples_per_file=per_file)
        place = dataclasses.replace(machine, storage=disk)
        return feed_of(batch_of(step, stored), place, strategy).storage_seconds

    assert seconds(1) == pytest.approx(0.0704 + 0.64)
    assert seconds(2) == pytest.approx(0.0704 + 0.32)
    assert seconds(1, per_file=64) == pytest.approx(0.0704 + 0.01)


def test_the_core_seconds_of_loading_by_hand(recorded: Recorded) -> None:
    step = recorded("dcn", target="gpu", batch=64, size=32, channels=3)
    batch = batch_of(step)
    figures = feed_of(batch, machine_of("4xgtx1080"), wt.Strategy(data="page-cache"))
    costs = LOADER_COSTS
    read = 64 * costs.file.seconds + 64 * 110e3 / costs.file.rate
    assert figures.read_seconds == pytest.approx(read)
    assert figures.decode_seconds == pytest.approx(64 * 2e-3 + costs.alone.of(step.batch_bytes))
    assert figures.receive_seconds == 0, "nobody hands over a batch"
    loaded = feed_of(batch, machine_of("4xgtx1080"), wt.Strategy(data="page-cache", loaders=2))
    assert loaded.decode_seconds == pytest.approx(64 * 2e-3 + costs.loader.of(step.batch_bytes))
    assert loaded.receive_seconds == pytest.approx(costs.receive.of(step.batch_bytes))
    assert (figures.sharers, figures.storage_sharers, figures.cores) == (4, 4, 4)


def four_workers(prefetch: int) -> Timeline:
    """Four GPUs on one bus, each with its own lanes; a barrier joins them after each step, as synchronous
    training does."""
    step = StepBuilder()
    for worker in range(4):
        waits = (Wait("all", 1 + prefetch),)
        step.add(LaneTask(Lane("bus"), 8 / 31.5, "copy"), after=waits, name=f"batch {worker}")
    for worker in range(4):
        after = (Wait(f"batch {worker}"), Wait("all", 1))
        step.add(LaneTask(Lane("device", worker), 0.5, "compute"), after=after, name="kernels")
    every = [Wait("kernels", worker=worker) for worker in range(4)]
    step.add(LaneTask(Lane("barrier"), 0.0, "waiting"), after=every, name="all")
    return steady_timeline(step.build())


@pytest.mark.parametrize("prefetch", [0, 1])
def test_one_device_stands_for_equal_ones(prefetch: int) -> None:
    """Folded into one device whose link first serves the others, a step is as long as with four devices."""
    folded = schedule(bus(4), wt.Strategy(data="streamed", prefetch=prefetch, pinned=True))
    assert folded.step_seconds == pytest.approx(four_workers(prefetch).step_seconds)


# The guide's worked example


def test_the_guides_example_comes_out_to_its_digits() -> None:
    """8 GB / 31.5 GB/s = 0.253968 s; x 4 = 1.015873 s; x 3 = 0.761905 s. Three GPUs that compute for 0.5 s
    while the next data come idle 0.261905 s of each 0.761905 s: 0.5 / 0.761905 = 65.625 %."""
    example = worked_example()
    values = {figure.what: figure for figure in example.figures}
    assert values["inputs of a 512 x 512 grey picture"].value == 262_144
    assert f"{values['transfer to one GPU'].value:.6f}" == "0.253968"
    assert f"{values['transfer to four GPUs on the bus'].value:.6f}" == "1.015873"
    assert f"{values['transfer to three GPUs on the bus'].value:.4f}" == "0.7619"
    assert f"{values['three GPUs with prefetch: idle in each step'].value:.4f}" == "0.2619"
    assert values["three GPUs with prefetch: utilisation"].value == pytest.approx(0.65625)
    assert values["five of them, striped"].value == pytest.approx(17.5e9)
    for figure in example.figures:
        printed = figure.printed.removeprefix("around ").split()
        if figure.unit == "s" and printed:
            assert figure.text.startswith(printed[0][:6])
    one, three, used = (figure.value for figure in example.real_card)
    assert (round(one, 3), round(three, 3), round(used, 3)) == (0.508, 1.523, 0.328)


def test_what_each_remedy_buys_in_the_guides_example_by_hand() -> None:
    """Without prefetch the copies and the computing follow each other: 1.0159 + 0.5 s. The host memory of
    51.2 GB/s needs 32 / 51.2 = 0.625 s for four GPUs, which limits a switch and the transfer unit. One SSD:
    32 / 3.5 = 9.143 s; five: 1.829 s."""
    example = worked_example()
    memory = {step.name: step.step_seconds for step in example.from_memory.steps}
    assert memory["as it is"] == pytest.approx(1.515873, abs=1e-6)
    assert memory["prefetch"] == pytest.approx(1.015873, abs=1e-6)
    for name in ("a switch for two", "a root port each", "transfer unit"):
        assert memory[name] == pytest.approx(0.625)
    assert memory["resident data"] == pytest.approx(0.5)
    storage = {step.name: step for step in example.from_storage.steps}
    assert storage["as it is"].step_seconds == pytest.approx(32 / 3.5)
    assert storage["GPUDirect storage"].step_seconds == pytest.approx(32 / 3.5)
    assert storage["more storage"].step_seconds == pytest.approx(32 / 17.5)
    assert storage["more storage"].busy["storage"] == pytest.approx(1.0)


# Remedies for any job


def test_remedies_of_a_starved_job_say_what_helps() -> None:
    job = dataclasses.replace(
        wt.Workload.named("dcn", size=32, channels=3),
        data=wt.StoredData(example_bytes=110e3, decode_seconds=2e-3, examples=50_000_000),
    )
    table = compare_remedies(job, machine_of("2xgtx1080"), wt.Strategy(batch=64, data="storage", loaders=1))
    steps = {step.name: step for step in table.steps}
    base = table.base.step_seconds
    assert base is not None and table.base.bound_by == "feed"
    assert (steps["more loaders"].step_seconds or base) <= base
    assert (steps["page cache"].step_seconds or base) <= base
    together = steps["together"].step_seconds
    assert together is not None
    for name in ("prefetch", "more loaders", "more storage"):
        assert together <= (steps[name].step_seconds or 0.0) * (1 + 1e-9)
    assert "free" in steps["resident data"].reason and steps["resident data"].step_seconds is None
    assert all(step.utilisation is None or 0 < step.utilisation <= 1 for step in table.steps)
    assert "not possible" in str(table) and json.loads(json.dumps(table.plain()))["steps"]


def test_a_cpu_has_remedies_too() -> None:
    table = compare_remedies(
        wt.Workload.named("dcn"), machine_of("i7-3820"), wt.Strategy(data="storage", threads=2)
    )
    assert {step.name for step in table.steps} == {"as it is", "more loaders", "more storage", "page cache"}


def test_photographs_are_stored_as_jpeg_files() -> None:
    data = wt.Workload.named("resnet50").data
    assert data is not None and data.example_bytes == 114_660 and data.source
    assert wt.Workload.named("rnn").data is None


# Bad input


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loaders": 4}, "loaders=4 has no effect with data=resident"),
        ({"data": "streamed", "loaders": 4}, "loaders=4 has no effect"),
        ({"data": "storage", "load_ahead": 4}, "without loaders"),
        ({"data": "storage", "loaders": -1}, "loaders must be a whole number"),
        ({"data": "storage", "loaders": 1, "load_ahead": 0}, "load_ahead must be"),
        ({"pinned": True}, "pinned=True has no effect"),
        ({"data": "streamed", "pinned": False, "prefetch": 1}, "pinned=false is not possible"),
        ({"data": "page-cache", "direct": True}, "direct=True has no effect"),
        ({"data": "storage", "direct": True, "loaders": 2}, "neither loaders nor host memory"),
        ({"data": "tape"}, "cannot be 'tape'"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(BadRecord, match=match):
        wt.Strategy(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"example_bytes": 0},
        {"example_bytes": float("nan")},
        {"example_bytes": "many"},
        {"example_bytes": 1.0, "decode_seconds": -1.0},
        {"example_bytes": 1.0, "decode_seconds": 1.0, "decode": len},
        {"example_bytes": 1.0, "decode": 3},
        {"example_bytes": 1.0, "examples": 0},
        {"example_bytes": 1.0, "examples_per_file": 1.5},
    ],
)
def test_stored_data_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match="stored data"):
        wt.StoredData(**wrong)  # type: ignore[arg-type]


def test_a_jobs_own_decoder_is_timed_and_its_faults_are_told() -> None:
    slow = wt.StoredData(example_bytes=10, decode=lambda stored: sum(range(20_000)))
    assert slow.timed() > 1e-5
    assert wt.StoredData(example_bytes=10).timed() == 0
    with pytest.raises(BadJob, match="decode\\(\\) of the stored data raised ZeroDivisionError"):
        wt.StoredData(example_bytes=10, decode=lambda stored: 1 / stored[0]).timed()
    seen = wt.StoredData(example_bytes=3, decode=bytes.decode, example=lambda: b"abc").timed()
    assert seen > 0


def test_a_machine_without_storage_rate_is_refused(recorded: Recorded) -> None:
    with pytest.raises(RateMissing, match=r"storage\.read_rate"):
        fed(recorded, wt.Machine.named("h200"), data="storage", loaders=2)
    with pytest.raises(BadRecord, match="read_rate must be above 0"):
        Storage(name="nothing", read_rate=0.0)


def test_copies_on_a_cpu_are_refused(recorded: Recorded) -> None:
    with pytest.raises(BadInput, match="prefetch is about copies to a GPU"):
        fed(recorded, machine_of("i7-3820"), data="storage", prefetch=2)


def test_storage_is_named_striped_or_given_by_its_rate() -> None:
    machine = wt.Machine.named("h200")
    one = words.with_storage(machine, "samsung-960-pro").storage
    five = words.with_storage(machine, "5xsamsung-960-pro").storage
    given = words.with_storage(machine, "12GB/s").storage
    assert one and five and given
    assert (one.read_rate, five.read_rate, given.read_rate) == (3.5e9, 17.5e9, 12e9)
    assert striped(one, 5) == five and five.count == 5
    with pytest.raises(BadRecord, match="samsung"):
        words.with_storage(machine, "samsung-961-pro")


# At the command line


def test_the_command_shows_the_guides_example() -> None:
    done = run("feed", "guide")
    assert done.returncode == 0, done.stderr
    for text in ("0.253968 s", "1.015873 s", "65.625%", "262,144", "PCIe 3.0", "32.821%", "17.5 GB/s"):
        assert text in done.stdout
    data = json.loads(run("feed", "guide", "--json").stdout)
    assert data["figures"][1]["value"] == pytest.approx(8 / 31.5)


def test_the_command_shows_remedies_and_says_what_it_assumed() -> None:
    done = run("feed", "dcn", "--on", "4xgtx1080", "--example-bytes", "110KB", "--decode", "2ms")
    assert done.returncode == 0, done.stderr
    assert "more loaders" in done.stdout and "samsung-960-pro is assumed" in done.stdout


def test_predict_takes_stored_data_by_options() -> None:
    words = ("--data", "storage", "--storage", "500MB/s", "--example-bytes", "1MB", "--decode", "1ms")
    done = run("predict", "dcn", "--on", "h200", *words, "--loaders", "2", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["bound_by"] == "feed" and data["feed"] and data["utilisation"] < 0.5
    # 64 examples of 1 MB at 500 MB/s.
    assert data["step_seconds"] == pytest.approx(0.128, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--decode", "5ms"), "does not say what one stored example is"),
        (("--example-bytes", "5 parsecs"), "unknown unit"),
        (("--example-bytes", "0"), "example_bytes must be above 0"),
        (("--storage", "tape"), "tape"),
        (("--storage", "0GB/s"), "must be above 0"),
        (("--data", "moon"), "moon"),
        (("--data", "storage", "--loaders", "-1"), "loaders"),
    ],
)
def test_bad_options_are_clear_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run("predict", "rnn", "--on", "h200", *arguments)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr
