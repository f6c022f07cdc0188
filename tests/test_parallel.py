"""Several workers: what must hold of any forecast, cases worked by hand, and bad input."""

from __future__ import annotations

import dataclasses
import functools
import gc

import pytest
from conftest import run
from typer.testing import CliRunner

import windtunnel as wt
from windtunnel import prediction
from windtunnel.cli import app
from windtunnel.errors import BadInput, BadJob, BadRecord, WindtunnelError
from windtunnel.forecast.collectives import Group, collective_seconds, point_to_point_seconds
from windtunnel.forecast.contributors.ops import GpuOps
from windtunnel.forecast.contributors.stages import Stages, StageWork, most_in_flight, order_of
from windtunnel.forecast.contributors.workers import Segment, WorkerOps
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.links import Links, LinkSeconds
from windtunnel.forecast.parallel import parallel_step
from windtunnel.forecast.price import Price
from windtunnel.forecast.schedule import StepBuilder
from windtunnel.forecast.timeline import steady_timeline
from windtunnel.forecast.uncertainty import spreads_of
from windtunnel.forecast.workers import Workers
from windtunnel.machine.profiles import profile_for
from windtunnel.strategy import Strategy
from windtunnel.trace import Op
from windtunnel.trace import record as recording
from windtunnel.trace.checks import rows_of_one_worker
from windtunnel.trace.notes import Notes

SIZES = {"layers": "8", "width": "256", "heads": "8", "length": "128", "vocabulary": "1024"}


@functools.cache
def job(name: str = "llm:gpt") -> wt.Workload:
    return wt.Workload.named(name, **SIZES)


@functools.cache
def fly(on: str = "8xh100", name: str = "llm:gpt", **options) -> wt.Forecast:
    return wt.predict(job(name), wt.Machine.named(on), Strategy(**{"batch": 64, **options}))


FORMS = [
    {},
    {"shard": "optimizer"},
    {"shard": "gradients"},
    {"shard": "weights"},
    {"accumulate": 4},
    {"tensor_parallel": 4},
    {"tensor_parallel": 4, "sequence_parallel": True},
    {"pipeline_parallel": 4, "accumulate": 8},
    {"pipeline_parallel": 2, "accumulate": 4, "pipeline_schedule": "interleaved", "virtual_stages": 2},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "accumulate": 4, "recompute": "blocks"},
    {"exchange": "after"},
    {"exchange": "tensors"},
    {"exchange": "server"},
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())) or "plain")


def test_one_worker_has_nobody_to_talk_to() -> None:
    alone = wt.predict(job(), wt.Machine.named("h100"), Strategy(batch=8))
    one = wt.predict(job(), wt.Machine.named("h100"), Strategy(batch=8, data_parallel=1))
    assert one.step_seconds == alone.step_seconds
    assert one.memory == alone.memory
    assert one.parts == alone.parts
    assert "communication" not in alone.parts


def test_all_devices_of_a_machine_are_used_by_default_and_the_headline_says_so() -> None:
    assert "data parallel 8" in fly().headline()
    assert fly().workers == 8
    assert "data parallel" not in wt.predict(job(), wt.Machine.named("h100"), Strategy(batch=8)).headline()


def test_without_a_batch_each_worker_has_the_jobs_own() -> None:
    forecast = wt.predict(wt.Workload.named("rnn"), wt.Machine.named("8xh100"))
    assert forecast.batch == 8 * wt.Workload.named("rnn").default_batch


def test_a_gpu_with_the_probed_chip_has_the_spread_of_the_probe() -> None:
    profile = profile_for(wt.Machine.named("h100"))
    spreads = {name: spreads_of(wt.Machine.named(name), profile) for name in ("h200", "h100", "a100-80gb")}
    assert spreads["h200"].device == spreads["h100"].device < spreads["a100-80gb"].device
    assert 1 < spreads["h100"].of("peer link") < spreads["h100"].of("network")


@EVERY
def test_the_parts_sum_to_the_step(form) -> None:
    forecast = fly(**form)
    assert sum(forecast.parts.values()) == pytest.approx(forecast.step_seconds)
    assert forecast.low_seconds < forecast.step_seconds < forecast.high_seconds


@EVERY
def test_all_forms_do_the_same_arithmetic(form) -> None:
    """Recomputation adds a forward; dividing the work adds none."""
    if "recompute" not in form:
        assert fly(**form).flop == pytest.approx(fly().flop, rel=0.02)


@EVERY
def test_a_faster_link_is_never_slower(form) -> None:
    machine = wt.Machine.named("8xh100")
    slow = dataclasses.replace(machine, peer_link=dataclasses.replace(machine.peer_link, rate=20e9))
    strategy = prediction.spread_over(Strategy(batch=64, **form), machine)
    trace = prediction.trace(job(), strategy, "gpu")
    slower = prediction.forecast_trace(trace, job(), slow, strategy)
    faster = prediction.forecast_trace(trace, job(), machine, strategy)
    assert faster.step_seconds <= slower.step_seconds * (1 + 1e-9)
    assert slower.parts.get("communication", 0.0) >= faster.parts.get("communication", 0.0) - 1e-9


def test_memory_of_a_worker_falls_with_what_is_divided() -> None:
    totals = [fly(shard=shard).memory.peak_bytes for shard in ("none", "optimizer", "gradients", "weights")]
    assert totals == sorted(totals, reverse=True)
    state = fly(shard="optimizer").memory.parts["optimiser"] / fly().memory.parts["optimiser"]
    assert state == pytest.approx(1 / 8, rel=0.05)


def test_tensor_and_pipeline_workers_hold_a_part_of_the_weights() -> None:
    whole = fly().memory.parts["weights"]
    assert fly(tensor_parallel=4).memory.parts["weights"] == pytest.approx(whole / 4, rel=0.15)
    assert fly(pipeline_parallel=4, accumulate=8).memory.parts["weights"] < whole / 2


def test_a_stage_keeps_all_its_gradients_and_gathered_weights_until_it_exchanges() -> None:
    """Gradients of all micro-batches are added up before the one exchange, and divided weights are gathered
    once: only the optimizer's state, and the worker's own share of the weights, are divided by 2."""
    form = {"pipeline_parallel": 4, "accumulate": 8}
    whole, divided = (fly(shard=shard, **form).memory.parts for shard in ("none", "weights"))
    assert divided["gathered weights"] == pytest.approx(whole["weights"], rel=0.01)
    assert divided["weights"] == pytest.approx(whole["weights"] / 2, rel=0.05)
    assert divided["gradients"] == pytest.approx(whole["gradients"], rel=0.01)
    assert divided["optimiser"] == pytest.approx(whole["optimiser"] / 2, rel=0.05)
    assert fly(shard="gradients", **form).memory.parts == fly(shard="optimizer", **form).memory.parts


def test_sequence_parallel_workers_keep_fewer_activations() -> None:
    with_sequence = fly(tensor_parallel=4, sequence_parallel=True).memory.parts["activations"]
    assert with_sequence < fly(tensor_parallel=4).memory.parts["activations"]


def test_a_forecast_does_not_search_the_memory_of_the_process_for_cycles() -> None:
    searches = []
    strategy = Strategy(batch=64, accumulate=4, data_parallel=2, tensor_parallel=4)
    trace, machine = prediction.trace(job(), strategy, "gpu"), wt.Machine.named("8xh100")
    gc.callbacks.append(lambda phase, facts: searches.append(facts["generation"]))
    try:
        forecast_step(trace, machine, strategy, profile_for(machine))
        during = list(searches)
    finally:
        gc.callbacks.pop()
    # Objects made before count until the pause begins, those made meanwhile when it ends: one search each.
    assert len(during) <= 2 and gc.isenabled()


def test_the_exchange_overlaps_backward() -> None:
    """Over a slow link; over a fast one, copies into buckets cost more than they save."""
    machine = wt.Machine.named("8xh100")
    slow = dataclasses.replace(machine, peer_link=dataclasses.replace(machine.peer_link, rate=5e8))
    trace = prediction.trace(job(), Strategy(batch=64, data_parallel=8), "gpu")
    buckets, after = (
        prediction.forecast_trace(trace, job(), slow, Strategy(batch=64, data_parallel=8, exchange=how))
        for how in ("buckets", "after")
    )
    assert buckets.step_seconds < after.step_seconds


@pytest.mark.parametrize(
    ("ranks", "stride", "group"),
    [
        (8, 1, Group(8, 1)),  # the GPUs of a node
        (2, 8, Group(1, 2)),  # one GPU of each of two nodes, as in a mesh of 2 x 8
        (4, 4, Group(2, 2)),  # GPUs 0 and 4 of each node
        (16, 1, Group(8, 2)),
    ],
)
def test_a_group_of_the_users_own_code_lies_where_its_ranks_are(ranks, stride, group) -> None:
    assert Workers(data=16, devices_per_node=8).group("world", ranks, stride) == group


def test_gpipe_keeps_all_micro_batches_and_1f1b_only_as_many_as_stages() -> None:
    assert most_in_flight(order_of("gpipe", 0, 4, 8)) == 8
    assert [most_in_flight(order_of("1f1b", stage, 4, 8)) for stage in range(4)] == [4, 3, 2, 1]
    form = {"pipeline_parallel": 4, "accumulate": 8}
    kept = fly(pipeline_schedule="gpipe", **form).memory.parts["activations"]
    assert kept > fly(**form).memory.parts["activations"]


def pipeline(schedule: str, stages: int, micro_batches: int, groups: int = 1, send: float = 0.0):
    forward, backward = (Segment({("compute", "device"): seconds / groups}, 0.0) for seconds in (1.0, 2.0))
    work = StageWork([forward] * groups, [backward] * groups, None, Segment({}, 0.0))
    orders = [order_of(schedule, stage, stages, micro_batches, groups) for stage in range(stages)]
    step = StepBuilder()
    Stages(stages=[work] * stages, orders=orders, send=LinkSeconds("network", send)).add_to(step)
    return steady_timeline(step.build())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_of_a_pipeline_by_hand(schedule) -> None:
    """8 micro-batches of 1 s forward and 2 s backward through 4 stages: the last stage waits for 3 forwards
    and the first for 3 backwards beside its own 8 x 3 s: 24 + 3 x (1 + 2) = 33 s."""
    assert pipeline(schedule, 4, 8).step_seconds == pytest.approx(33.0)


def test_groups_of_blocks_divide_the_bubble() -> None:
    """Two groups on each stage: the bubble of 9 s halves. 24 + 4.5 = 28.5 s."""
    assert pipeline("interleaved", 4, 8, groups=2).step_seconds == pytest.approx(28.5)


def test_tensor_parallel_workers_send_only_their_parts_between_stages() -> None:
    """Half of the tensor through the network, then all of it put together inside of the node."""
    machine = wt.Machine.named("2x2xa100-80gb")
    strategy = Strategy(batch=8, accumulate=4, data_parallel=1, tensor_parallel=2, pipeline_parallel=2)
    steps = prediction.trace(job(), strategy, "gpu")
    sent = parallel_step(steps, machine, strategy, profile_for(machine))._send().seconds
    part = point_to_point_seconds(steps.boundary_bytes / 2, machine, within_node=False)
    together = collective_seconds("all_gather", steps.boundary_bytes, Group(2, 1), machine)
    assert sent == pytest.approx(part + together)


def test_sending_fills_and_drains_the_pipeline_once_at_least() -> None:
    """Two stages, one micro-batch: forward 1, send, forward 1, backward 2, send, backward 2."""
    assert pipeline("1f1b", 2, 1, send=0.5).step_seconds == pytest.approx(7.0)


def priced(host: float, device: float) -> tuple[Op, Price]:
    op = Op(
        name="aten.mm",
        family="matmul",
        phase="forward",
        dtype="fp32",
        flop=1.0,
        read_bytes=1.0,
        written_bytes=1.0,
    )
    return op, Price(host, device)


@pytest.mark.parametrize(
    "times",
    [
        [(1.0, 3.0), (1.0, 3.0), (1.0, 0.5)],  # the device is behind
        [(3.0, 1.0), (3.0, 1.0), (0.5, 4.0)],  # the host is behind
        [(1.0, 9.0), (5.0, 0.1), (0.1, 0.1), (8.0, 2.0)],  # first one, then the other
    ],
)
def test_a_chunk_of_ops_ends_when_its_ops_would_end_one_by_one(times) -> None:
    pairs = [priced(*each) for each in times]
    ops, prices = [op for op, _ in pairs], [price for _, price in pairs]
    links = Links(machine=wt.Machine.named("8xh100"), workers=Workers(data=8, devices_per_node=8))

    def seconds(contributor) -> float:
        step = StepBuilder()
        contributor.add_to(step)
        return steady_timeline(step.build()).step_seconds

    expected = seconds(GpuOps(ops=ops, prices=prices))
    assert seconds(WorkerOps(ops=ops, prices=prices, links=links)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "form", [{}, {"tensor_parallel": 2, "sequence_parallel": True}], ids=["data", "tensor"]
)
def test_equal_blocks_that_are_folded_give_the_trace_of_all(form) -> None:
    strategy = Strategy(batch=4, accumulate=2, data_parallel=2, **form)
    with rows_of_one_worker():
        folded = recording._record_once(job(), strategy, "gpu", Notes(), folds=True)
        whole = recording._record_once(job(), strategy, "gpu", Notes())

    def facts(trace):
        return [
            (op.name, op.phase, op.block, len(op.allocated), len(op.freed), op.collective, bool(op.waits))
            for op in trace.ops
            if op.phase != "update"
        ]

    assert facts(folded) == facts(whole)
    assert [(g.block, g.position, g.bytes) for g in folded.gradients] == [
        (g.block, g.position, g.bytes) for g in whole.gradients
    ]
    machine = wt.Machine.named("4xh100") if form else wt.Machine.named("2xh100")
    one, other = (
        prediction.forecast_trace(
            dataclasses.replace(trace, batch=8), job(), machine, dataclasses.replace(strategy, batch=8)
        )
        for trace in (folded, whole)
    )
    assert one.memory.peak_bytes == other.memory.peak_bytes
    assert one.step_seconds == pytest.approx(other.step_seconds, rel=0.03)


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        ("8xh100", {"data_parallel": 16}, "has 8"),
        ("8xh100", {"tensor_parallel": 16}, "has 8"),
        ("8xh100", {"tensor_parallel": 3}, "does not divide"),
        ("8xh100", {"batch": 60}, "60"),
        (
            "8xh100",
            {"pipeline_parallel": 8, "virtual_stages": 2, "pipeline_schedule": "interleaved"},
            "blocks",
        ),
        ("8xh100", {"tensor_parallel": 8, "shard": "weights"}, "only one"),
        ("8xh100", {"tensor_parallel": 2, "execution": "compiled"}, "compiled"),
        ("8xh100", {"execution": "compiled"}, "one device only"),
    ],
)
def test_degrees_that_are_not_possible_are_named(on, options, words) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        wt.predict(job(), wt.Machine.named(on), Strategy(**{"batch": 64, **options}))
    assert caught.value.hint


def test_a_degree_that_does_not_divide_the_heads_is_named() -> None:
    odd = wt.Workload.named("llm:gpt", **{**SIZES, "width": "252", "heads": "6"})
    with pytest.raises(BadJob, match=r"6 heads|features"):
        wt.predict(odd, wt.Machine.named("8xh100"), Strategy(batch=64, tensor_parallel=8))


@pytest.mark.parametrize("name", ["resnet18", "lstm"])
def test_a_network_that_cannot_be_divided_by_feature_is_refused(name) -> None:
    with pytest.raises(BadJob, match="divided by feature"):
        wt.predict(wt.Workload.named(name), wt.Machine.named("8xh100"), Strategy(tensor_parallel=8))


def test_convolutional_and_recurrent_networks_run_data_parallel() -> None:
    for name in ("resnet18", "lstm"):
        forecast = wt.predict(wt.Workload.named(name), wt.Machine.named("4xh100"))
        assert forecast.workers == 4
        assert forecast.step_seconds > 0


def test_expert_parallel_workers_keep_a_share_of_the_experts_and_exchange_tokens() -> None:
    mixture = wt.Workload.named("llm:llama", **SIZES, experts="8", active="2")
    machine = wt.Machine.named("8xh100")
    whole = wt.predict(mixture, machine, Strategy(batch=64))
    divided = wt.predict(mixture, machine, Strategy(batch=64, expert_parallel=8))
    assert divided.memory.parts["weights"] < whole.memory.parts["weights"] / 2
    trace = prediction.trace(mixture, Strategy(batch=64, data_parallel=8, expert_parallel=8), "gpu")
    sent = [op.collective for op in trace.ops if op.collective]
    # There and back, forward and backward, in each of 8 layers: two experts for each of 8 x 128 tokens.
    assert len(sent) == 4 * 8
    assert {(c.kind, c.axis, c.bytes) for c in sent} == {("all_to_all", "expert", 2 * 8 * 128 * 256 * 2.0)}
    with pytest.raises(BadJob, match="no experts"):
        wt.predict(job(), machine, Strategy(batch=64, expert_parallel=8))


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_parallel": True},
        {"pipeline_parallel": 2, "pipeline_schedule": "interleaved"},
        {"pipeline_parallel": 2, "virtual_stages": 2},
        {"shard": "all"},
        {"tensor_parallel": 0},
        {"exchange": "server", "shard": "weights"},
    ],
)
def test_a_strategy_refuses_options_without_effect(options) -> None:
    with pytest.raises(BadRecord):
        Strategy(**options)


def test_the_guides_names_of_the_splits_are_accepted() -> None:
    by = Strategy.read({"by_case": 2, "by_feature": 4, "by_parts": 2, "micro_batches": 8})
    assert by == Strategy(data_parallel=2, tensor_parallel=4, pipeline_parallel=2, accumulate=8)
    with pytest.raises(BadRecord, match="same field"):
        Strategy.read({"by_case": 2, "data_parallel": 2})


def test_at_the_command_line_every_split_has_its_flag() -> None:
    splits = "--batch 64 --by-feature 2 --by-parts 2 --by-case 2 --micro-batches 4".split()
    result = CliRunner().invoke(
        app,
        ["predict", "llm:gpt", *(f"{k}={v}" for k, v in SIZES.items()), "--on", "8xh100", *splits],
    )
    assert result.exit_code == 0, result.output
    assert "tensor parallel 2, pipeline parallel 2" in result.output.replace("\n  ", " ")
    assert "communication" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--on", "8xh100", "--batch", "7"),
        ("--on", "h100", "--data-parallel", "2"),
        ("--on", "8xh100", "--tensor-parallel", "2"),
        ("--on", "8xh100", "--pipeline-parallel", "4"),
        ("--on", "8xh100", "--shard", "everything"),
        ("--on", "8xh100", "--pipeline-schedule", "zigzag"),
    ],
)
def test_bad_input_at_the_command_line_ends_with_code_2(words) -> None:
    """In this process: `main` turns the error into exit code 2, as tests of the command line check."""
    with pytest.raises(WindtunnelError) as caught:
        app(["predict", "rnn", *words], standalone_mode=False)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_a_batch_that_cannot_be_divided_ends_the_command_with_code_2() -> None:
    result = run("predict", "rnn", "--on", "8xh100", "--batch", "7")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "--batch 8" in result.stderr


def test_a_step_that_does_not_fit_says_how_many_devices_would_do() -> None:
    big = wt.Workload.named("llm:gpt", layers="24", width="6144", heads="48", length="128", vocabulary="1024")
    with pytest.raises(wt.DoesNotFit) as caught:
        wt.predict(big, wt.Machine.named("8xa100-40gb"), Strategy(batch=64))
    assert "Smallest number of devices" in caught.value.hint or "--shard weights" in caught.value.hint
