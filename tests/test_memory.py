"""Memory forecasts: first the laws that any memory obeys, then PyTorch's caching allocator and whole steps,
worked by hand."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel import memory_advice, prediction
from windtunnel.families.recurrent import onednn_workspace_bytes
from windtunnel.forecast.allocator import Block, Exhausted, Heap, Pools, Rounding
from windtunnel.forecast.memory import DeviceMemory, account
from windtunnel.forecast.price import workspaces
from windtunnel.machine.profiles import profile_for
from windtunnel.prediction import largest_batch, trace
from windtunnel.trace import Allocation, Op, Phase, Trace
from windtunnel.units import MIB

H200, CPU = wt.Machine.named("h200"), wt.Machine.named("i7-3820")
TINY = {"size": "tiny", "length": 64}
Recorded = Callable[..., Trace]


def memory_of(
    job: str, machine: wt.Machine = H200, settings: dict[str, object] | None = None, **options: object
) -> DeviceMemory:
    strategy = wt.Strategy(**options)  # type: ignore[arg-type]
    return account(
        trace(wt.Workload.named(job, **(settings or {})), strategy, machine.device.kind), machine, strategy
    )


def make(
    *ops: Op, allocations: dict[int, tuple[float, str]], held: tuple[int, ...] = (), batch_bytes: float = 0.0
) -> Trace:
    """Build a trace by hand. `allocations` is {name: (MiB, part)}."""
    return Trace(
        job="case",
        batch=1,
        target="gpu",
        precision="fp32",
        ops=ops,
        allocations={
            name: Allocation(bytes=size * MIB, part=part) for name, (size, part) in allocations.items()
        },  # type: ignore[arg-type]
        held=held,
        batch_bytes=batch_bytes,
        parameters=0,
        module_calls=0,
        nodes=0,
        backward_calls=0,
        update_calls=0,
        torch="",
    )


def op(
    phase: Phase, allocated: tuple[int, ...] = (), freed: tuple[int, ...] = (), family: str = "streaming"
) -> Op:
    return Op(
        name="aten.case",
        family=family,
        phase=phase,
        dtype="fp32",
        flop=0,
        read_bytes=0,
        written_bytes=0,
        allocated=allocated,
        freed=freed,
    )


def in_mib(sizes: object) -> dict[str, float]:
    return {part: size / MIB for part, size in sizes.items()}  # type: ignore[attr-defined]


def test_a_larger_batch_never_needs_less_memory() -> None:
    memories = [memory_of("gpt2", settings=TINY, batch=batch) for batch in (1, 2, 8, 32)]
    for figure in ("peak_bytes", "reserved_bytes", "total_bytes"):
        sizes = [getattr(memory, figure) for memory in memories]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"execution": "graph"},
        {"data": "streamed", "prefetch": 2},
        {"recompute": "blocks"},
        {"accumulate": 2},
    ],
)
@pytest.mark.parametrize(("job", "settings"), [("gpt2", TINY), ("dcn", {})])
def test_the_parts_sum_to_the_peak_and_the_peak_is_at_most_the_reserved_memory(
    job: str, settings: dict[str, object], options: dict[str, object]
) -> None:
    memory = memory_of(job, settings=settings, **{"batch": 4, **options})
    assert memory == memory_of(job, settings=settings, **{"batch": 4, **options}), (
        "the same question gets the same answer"
    )
    assert sum(memory.parts.values()) == memory.peak_bytes
    assert memory.reserved_bytes is not None
    assert memory.peak_bytes <= memory.reserved_bytes < memory.total_bytes
    assert set(memory.parts) <= {
        "weights",
        "gradients",
        "optimiser",
        "activations",
        "data",
        "temporary",
        "workspace",
    }


def test_more_accumulation_never_raises_the_activations_at_the_peak() -> None:
    activations = [
        memory_of("gpt2", settings=TINY, batch=32, accumulate=n).parts["activations"] for n in (1, 2, 8)
    ]
    assert activations == sorted(activations, reverse=True) and activations[-1] < activations[0] / 4


def test_recomputing_blocks_needs_less_memory_and_more_arithmetic() -> None:
    job = wt.Workload.named("gpt2", **{**TINY, "layers": 6})
    plain, recomputed = (
        trace(job, wt.Strategy(batch=32, recompute=recompute), "gpu")  # type: ignore[arg-type]
        for recompute in ("none", "blocks")
    )
    more, less = (account(steps, H200, wt.Strategy()) for steps in (plain, recomputed))
    assert less.parts["activations"] < more.parts["activations"] and less.peak_bytes < more.peak_bytes
    assert plain.flop < recomputed.flop < 4 / 3 * plain.flop, "at most one more forward pass"


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2), ("fused-adam", 2), ("fused-adamw", 2)],
)
def test_an_optimiser_keeps_a_fixed_number_of_values_for_each_weight(optimizer: str, states: int) -> None:
    parts = memory_of("gpt2", settings=TINY, optimizer=optimizer).parts
    assert parts.get("optimiser", 0.0) == pytest.approx(states * parts["weights"], rel=0.02)


def test_repeated_steps_do_not_leak_memory(recorded: Recorded) -> None:
    """The third and the fourth step need as much memory as the second."""
    from windtunnel.forecast import memory

    steps = recorded("gpt2", "gpu", batch=4, **TINY)
    pools = Pools()
    replay = memory._Replay(memory._script_of(steps, None), pools)
    replay.hold("weights", "data")
    sizes = []
    for _ in range(4):
        replay.step()
        sizes.append((pools.allocated, pools.reserved, replay.peak))
    assert sizes[1] == sizes[2] == sizes[3]


def test_on_a_cpu_the_peak_has_the_live_tensors_and_what_is_lost_between_them(recorded: Recorded) -> None:
    """Count without an allocator: every tensor takes a multiple of 64 bytes."""
    for job in ("rnn", "ffn"):
        steps = recorded(job)
        sizes = {name: -(-a.bytes // 64) * 64 for name, a in steps.allocations.items()}
        alive = most = sum(sizes[name] for name in steps.held)
        for each in steps.ops:
            alive += sum(sizes[name] for name in each.allocated)
            most = max(most, alive)
            alive -= sum(sizes[name] for name in each.freed)
        memory = account(steps, CPU, wt.Strategy())
        lost = memory.parts["fragmentation"]
        assert memory.peak_bytes == sum(memory.parts.values()) == most + lost
        assert lost == pytest.approx(0.43 * most, abs=1)
        assert memory.reserved_bytes is None and memory.context_bytes == memory.spare_bytes == 0


def test_a_step_that_exactly_fills_the_device_does_not_fit(recorded: Recorded) -> None:
    steps = recorded("gpt2", "gpu", batch=4, **TINY)

    def fits(capacity: float, workspace_sizes: list[float] | None) -> bool | None:
        machine = dataclasses.replace(H200, device=dataclasses.replace(H200.device, memory_bytes=capacity))
        return account(steps, machine, wt.Strategy(), workspace_sizes).fits

    for workspace_sizes in (None, [0.0] * len(steps.ops)):
        memory = account(steps, H200, wt.Strategy(), workspace_sizes)
        assert memory.reserved_bytes is not None
        assert fits(memory.reserved_bytes + memory.context_bytes, workspace_sizes) is False
        assert fits(memory.total_bytes, workspace_sizes) is True


def test_known_workspaces_need_less_spare_memory(recorded: Recorded) -> None:
    steps = recorded("dcn", "gpu", batch=64)
    unknown = account(steps, H200, wt.Strategy())
    known = account(steps, H200, wt.Strategy(), [0.0] * len(steps.ops))
    assert known.spare_bytes < unknown.spare_bytes
    assert (known.peak_bytes, known.reserved_bytes) == (unknown.peak_bytes, unknown.reserved_bytes)


def test_the_largest_batch_is_a_multiple_of_the_micro_batches_and_no_larger_one_fits() -> None:
    job = wt.Workload.named("fcn5", layers=(4096, 1024, 64))
    small = dataclasses.replace(H200, device=dataclasses.replace(H200.device, memory_bytes=1.1e9))
    most = largest_batch(job, small, wt.Strategy(accumulate=3))
    assert most > 0 and most % 3 == 0
    fits = []
    for batch in (most, 3 * int(most * 1.05 / 3)):
        strategy = wt.Strategy(batch=batch, accumulate=3)
        steps = trace(job, strategy, "gpu")
        fits.append(
            account(steps, small, strategy, workspaces(steps, small, strategy, profile_for(small))).fits
        )
    assert fits == [True, False]
    assert largest_batch(job, small, wt.Strategy()) < most, "a micro-batch has fewer activations"


def test_a_forecast_traces_its_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel import prediction

    calls = []
    monkeypatch.setattr(prediction, "trace", lambda *args: calls.append(args) or trace(*args))  # type: ignore[func-returns-value]
    memory = wt.predict(wt.Workload.named("dcn"), H200).memory
    assert len(calls) == 1
    assert memory.parts["workspace"] > 64 * MIB, "the memory includes the learned workspaces"


def test_eight_times_the_ops_are_replayed_in_far_less_than_64_times_the_time() -> None:
    """The work grows with the number of ops, not with its square: 8 times, against 64."""

    def seconds(count: int) -> float:
        ops = [op("forward", (i,), (i - 7,) if i % 3 and i >= 7 else ()) for i in range(count)]
        steps = make(*ops, allocations={i: (0.1 + i % 97 / 7, "activations") for i in range(count)})
        times = []
        for _ in range(5):
            start = time.process_time()
            account(steps, H200, wt.Strategy())
            times.append(time.process_time() - start)
        return min(times)

    # A square would fail every time; a neighbour on the same core spoils one time or another.
    assert any(seconds(8000) < 24 * seconds(1000) for _ in range(5))


# The allocator alone.


def test_after_freeing_everything_all_segments_can_be_released() -> None:
    rng = random.Random(0)
    pools, blocks = Pools(), list[Block]()
    for _ in range(3000):
        if blocks and rng.random() < 0.5:
            pools.free(blocks.pop(rng.randrange(len(blocks))))
        else:
            blocks.append(pools.take(int(2 ** rng.uniform(0, 25)), rng.choice(("", "other"))))
        assert pools.allocated == sum(block.size for block in blocks) <= pools.reserved <= pools.most_reserved
    spans = sorted((block.address, block.address + block.size) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "no two blocks overlap"
    for block in blocks:
        pools.free(block)
    assert pools.allocated == 0 and pools.reserved > 0
    pools.release()
    assert pools.reserved == 0, "all blocks were merged again, so every segment is free"


def test_a_cpu_heap_loses_memory_between_small_blocks_only() -> None:
    """65 bytes take two grains of 64, and 43 % more are lost. Blocks from 32 MiB on lose nothing."""
    heap = Heap()
    small, large = heap.take(65), heap.take(32 * MIB)
    assert small.size == 128 and heap.allocated == 32 * MIB + int(1.43 * 128)
    heap.free(large)
    assert heap.allocated == int(1.43 * 128)
    heap.free(small)
    assert heap.allocated == 0


def test_an_lstm_on_a_cpu_keeps_the_workspace_of_onednn() -> None:
    """oneDNN returns it from forward and reads it in backward; its size is what the call really returns."""
    timesteps, examples, inputs, hidden = 50, 8, 64, 96
    weights = [torch.randn(4 * hidden, n) for n in (inputs, hidden)] + [torch.randn(4 * hidden)] * 2
    state = torch.zeros(examples, hidden)
    call = torch.ops.aten.mkldnn_rnn_layer
    source = torch.randn(timesteps, examples, inputs)
    real = call(source, *weights, state, state, False, [], 2, hidden, 1, True, False, False, True)[3].numel()
    assert onednn_workspace_bytes(timesteps, examples, inputs, hidden) == pytest.approx(real, rel=0.1)

    job = wt.Workload(
        name="lstm",
        model=lambda: nn.LSTM(inputs, hidden),
        batch=lambda n: torch.randn(timesteps, n, inputs),
        loss=lambda model, batch: model(batch)[0].sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    recorded = trace(job, wt.Strategy(batch=examples), "cpu")
    kept = [each.bytes for each in recorded.allocations.values()]
    assert onednn_workspace_bytes(timesteps, examples, inputs, hidden) in kept


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),  # the smallest block, in a small segment
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest small request
        (MIB + 1, MIB + 512, 20 * MIB),  # one byte more is a large request, which shares 20 MiB
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),  # the largest request that shares a segment
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on its own segment, a multiple of 2 MiB
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest is not more than 1 MiB, so it stays in the block
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),  # the rest of 2 MiB - 512 B is split off
    ],
)
def test_one_request_by_hand(requested: int, block: int, segment: int) -> None:
    pools = Pools()
    assert pools.take(requested).size == block
    assert (pools.allocated, pools.reserved) == (block, segment)


def test_small_requests_share_small_segments() -> None:
    # Two requests of 1 MiB fill the first segment. The third needs a second segment, where the fourth, of 512
    # bytes, fits too.
    pools = Pools()
    addresses = [pools.take(size).address for size in (MIB, MIB, MIB, 512)]
    assert addresses == [0, MIB, 2 * MIB, 3 * MIB]
    assert pools.reserved == 4 * MIB


def test_a_rest_of_up_to_one_mebibyte_stays_in_a_large_block() -> None:
    # The segment has 20 MiB. 9.5 are taken and 10.5 are left. Taking 9.75 leaves 0.75, which is too little to
    # split off: the block has 10.5.
    pools = Pools()
    pools.take(9.5 * MIB)
    assert pools.take(9.75 * MIB).size == 10.5 * MIB
    assert (pools.allocated, pools.reserved) == (20 * MIB, 20 * MIB)


def test_the_smallest_block_that_fits_is_taken_and_among_equal_blocks_the_lowest_address() -> None:
    pools = Pools()
    blocks = [pools.take(size * MIB) for size in (16, 12, 14, 12)]  # segments at 0, 16, 28 and 42 MiB
    for block in blocks:
        pools.free(block)
    # A request of 12 fits in all four. The two blocks of 12 are the smallest, and the lower one is at 16.
    # Next come the other block of 12, the block of 14 and the block of 16 (its rest of 4 is split off).
    assert [pools.take(12 * MIB).address // MIB for _ in range(4)] == [16, 42, 28, 0]
    assert pools.reserved == 54 * MIB
    # The rest of 4, at 12 MiB in the first segment, serves a request of 3. A second one needs a new segment
    # of 20, at 54.
    assert [pools.take(3 * MIB).address // MIB for _ in range(2)] == [12, 54]
    assert pools.reserved == 74 * MIB


def test_adjacent_free_blocks_are_merged() -> None:
    # A segment of 20 MiB is split into 4, 4, 4 and a rest of 8. Freeing the middle block gives a free block
    # of 4. Freeing the first makes it 8. Freeing the third merges the whole segment.
    pools = Pools()
    first, middle, _ = (pools.take(4 * MIB) for _ in range(3))
    pools.free(middle)
    pools.free(first)
    assert pools.take(8 * MIB).address == 0, (
        "4 + 4 before the third: as small as the rest of 8, but at a lower address"
    )
    assert pools.take(8 * MIB).address == 12 * MIB
    again = Pools()
    blocks = [again.take(4 * MIB) for _ in range(3)]
    for index in (1, 0, 2):
        again.free(blocks[index])
    # 19 MiB fit only in the whole segment. The rest of 1 MiB stays in the block.
    assert again.take(19 * MIB).size == 20 * MIB and again.reserved == 20 * MIB


def test_small_requests_large_requests_and_streams_have_separate_pools() -> None:
    pools = Pools()
    pools.free(pools.take(8 * MIB))
    pools.take(Rounding().grain)  # not taken from the 20 MiB that are free
    assert pools.reserved == 22 * MIB
    pools.take(8 * MIB, "other")  # another stream cannot use them either
    assert pools.reserved == 42 * MIB
    pools.take(8 * MIB)
    assert pools.reserved == 42 * MIB


def test_release_returns_only_segments_that_are_entirely_free() -> None:
    pools = Pools()
    blocks = [pools.take(size * MIB) for size in (4, 4, 32)]
    pools.free(blocks[0])
    pools.free(blocks[2])
    pools.release()
    assert (pools.allocated, pools.reserved, pools.most_reserved) == (4 * MIB, 20 * MIB, 52 * MIB)


# Whole steps by hand.

WEIGHTS, BATCH, STATE, INNER, OUTER, GRADIENT = range(6)
STEP = make(
    op("forward", (INNER,)),
    op("forward", (OUTER,)),
    op("backward", (GRADIENT,), (OUTER, INNER)),
    op("update"),
    allocations={
        WEIGHTS: (4, "weights"),
        BATCH: (2, "data"),
        STATE: (4, "optimiser"),
        INNER: (6, "activations"),
        OUTER: (12, "activations"),
        GRADIENT: (4, "gradients"),
    },
    held=(WEIGHTS, STATE, BATCH),
)


def test_a_step_by_hand() -> None:
    # Segment A (20) holds weights 4, batch 2 and inner 6; 8 are left. Outer has its own segment B (12). The
    # gradient of 4 is placed in the 8. When inner and outer are freed, the state of 4 is placed in the
    # smallest free block: the last 4 of A, not the 6 of inner. Step 2 frees the old gradient. Inner gets its
    # 6 again, outer gets B, and the new gradient gets the 4. Nothing more is reserved: 32.
    memory = account(STEP, H200, wt.Strategy(), [0.0] * 4)
    parts = {"weights": 4, "data": 2, "optimiser": 4, "activations": 18, "gradients": 4}
    assert in_mib(memory.parts) == parts
    assert memory.peak_bytes == 32 * MIB == memory.reserved_bytes
    assert memory.spare_bytes == pytest.approx(0.02 * 32 * MIB)


def test_a_workspace_by_hand() -> None:
    # The second op needs 2 MiB while it runs. Live are weights 4, batch 2, state 4, activations 18 and these
    # 2: less than the 32 of backward. A workspace of 7 is more. In step 1, it fits in the 8 that are left of
    # A; the rest of 1 stays in the block, so it has 8. In step 2 the state fills 4 of those 8, so a new
    # segment of 20 is needed, and the block has 7.
    two, seven = (account(STEP, H200, wt.Strategy(), [0.0, size * MIB, 0.0, 0.0]) for size in (2, 7))
    assert two.peak_bytes == 32 * MIB and "workspace" not in two.parts
    assert in_mib(seven.parts) == {"weights": 4, "data": 2, "optimiser": 4, "activations": 18, "workspace": 7}
    assert (seven.peak_bytes, seven.reserved_bytes) == (35 * MIB, 52 * MIB)


def test_a_captured_step_by_hand() -> None:
    # Segment A (20) holds weights and batch. Warm-up uses its own stream. Step 1: inner 6 and outer 12 in W
    # (20), the gradient in X (20). Then W is free again, and the state is placed in the 16 left of X. Step 2:
    # inner in the last 12 of X, outer in W, the gradient in X again. Before the capture, W is free and is
    # released: A + X remain. The captured step can use neither: inner and outer are in G (20), the gradient
    # in H (20). A + X + G + H = 80, more than A + W + X = 60 before.
    memory = account(STEP, H200, wt.Strategy(execution="graph"), [0.0] * 4)
    assert (memory.peak_bytes, memory.reserved_bytes) == (32 * MIB, 80 * MIB)


def test_prefetched_batches_by_hand() -> None:
    # Two batches wait and one is in use: 3 x 2 MiB on the copy stream, in their own segment C (20). A (20)
    # holds weights 4, inner 6, gradient 4, and the state of 4 where inner was. B (12) holds outer. In step 2
    # inner is placed after the state.
    memory = account(STEP, H200, wt.Strategy(data="streamed", prefetch=2), [0.0] * 4)
    assert memory.parts["data"] == 6 * MIB
    assert (memory.peak_bytes, memory.reserved_bytes) == (36 * MIB, 52 * MIB)


def test_matrix_products_keep_one_workspace_for_each_thread_and_stream() -> None:
    forward, backward = op("forward", family="matmul"), op("backward", family="matmul")
    sizes = {
        execution: account(
            make(forward, forward, backward, backward, allocations={}),
            H200,
            wt.Strategy(execution=execution),  # type: ignore[arg-type]
        ).parts["workspace"]
        / MIB
        for execution in ("eager", "compiled", "graph")
    }
    assert sizes == {"eager": 64, "compiled": 64, "graph": 128}
    assert not account(make(forward, allocations={}), CPU, wt.Strategy()).parts


def test_a_buffer_that_each_step_replaces_exists_at_most_twice() -> None:
    # Each step replaces a buffer of 4 MiB by a new one: two exist at once, never three.
    swap = make(op("forward", (1,), (0,)), allocations={0: (4, "weights"), 1: (4, "activations")}, held=(0,))
    assert account(swap, H200, wt.Strategy()).peak_bytes == 8 * MIB


def test_an_empty_tensor_takes_no_memory() -> None:
    empty = make(op("forward", (0,), (0,)), allocations={0: (0, "activations")})
    assert account(empty, H200, wt.Strategy()).peak_bytes == 0
    only_held = make(op("forward"), allocations={0: (3, "weights")}, held=(0,))
    assert account(only_held, H200, wt.Strategy()).peak_bytes == 3 * MIB


def test_gradients_kept_until_the_next_step_are_counted_once() -> None:
    # A job with its own step frees the old gradient (held) while it computes the new one. Weights 4, old
    # gradient 4, new gradient 4 - after the old one is freed. Peak: 4 + 4, in the first step and later.
    own = make(
        op("forward", (), (1,)),
        op("backward", (2,)),
        op("update"),
        allocations={0: (4, "weights"), 1: (4, "gradients"), 2: (4, "gradients")},
        held=(0, 1),
    )
    assert in_mib(account(own, H200, wt.Strategy(), [0.0] * 3).parts) == {"weights": 4, "gradients": 4}


# What is needed, and what to do if it is too much.


@pytest.mark.parametrize(
    ("job", "settings", "options"),
    [
        ("gpt2", TINY, {"batch": 8, "precision": "bf16"}),
        ("dcn", {}, {"batch": 64}),
        ("gan", {}, {"batch": 16}),
        ("lstm", {}, {"batch": 8}),
        ("rnn", {"n_steps": 5}, {"execution": "graph"}),
        ("ffn", {}, {"data": "streamed", "prefetch": 2}),
    ],
)
def test_the_parts_sum_to_what_is_said_to_be_needed(
    job: str, settings: dict[str, object], options: dict[str, object]
) -> None:
    memory = prediction.memory_of(wt.Workload.named(job, **settings), H200, wt.Strategy(**options))  # type: ignore[arg-type]
    assert sum(memory.needed_parts.values()) == memory.total_bytes
    assert memory.reserved_bytes is not None
    # Where memory is scarce, a convolution takes less workspace: the peak is then lower.
    inside = sum(memory.scarce_parts.values()) + memory.fragmented_bytes
    assert sum(memory.scarce_parts.values()) <= memory.peak_bytes and inside <= memory.reserved_bytes
    assert memory.total_bytes == pytest.approx(inside + memory.context_bytes + memory.spare_bytes)


def test_unused_segments_are_returned_before_an_allocation_fails() -> None:
    # 32 are taken and freed. With a limit of 40, a request of 34 does not fit beside them: they are returned
    # first. A request of 8 then exceeds the limit, because the 34 are in use.
    pools = Pools(limit=40 * MIB)
    pools.free(pools.take(32 * MIB))
    pools.take(34 * MIB)
    assert (pools.reserved, pools.most_reserved) == (34 * MIB, 34 * MIB)
    with pytest.raises(Exhausted):
        pools.take(8 * MIB)


def test_a_step_needs_less_than_its_allocator_reserves_where_memory_is_plentiful() -> None:
    # Weights 2 stay in segment A (20). A tensor of 32 is freed before one of 34 is needed: plenty reserves
    # 20 + 32 + 34. The driver would refuse the 34 on a small device; the 32 are returned first.
    steps = make(
        op("forward", (1,), (1,)),
        op("forward", (2,), (2,)),
        allocations={0: (2, "weights"), 1: (32, "activations"), 2: (34, "activations")},
        held=(0,),
    )
    memory = account(steps, H200, wt.Strategy(), [0.0] * 2)
    assert (memory.peak_bytes, memory.reserved_bytes) == (36 * MIB, 86 * MIB)
    assert 20 + 34 <= (memory.peak_bytes + memory.fragmented_bytes) / MIB < 20 + 34 + 1


@pytest.mark.parametrize(
    ("total", "capacity", "expected"),
    [
        (lambda n: 10.0 + 3 * n, 100.0, 30),
        (lambda n: 10.0 + 0.001 * n, 100.0, 90_000),
        (lambda n: 200.0, 100.0, 0),
        (lambda n: 50.0, 100.0, 5_000_000),
        (lambda n: 10.0 + 3 * n + (40 if n > 20 else 0), 100.0, 20),
    ],
)
def test_the_largest_number_that_fits_is_found_in_few_tries(
    total: Callable[[int], float], capacity: float, expected: int
) -> None:
    tried: list[int] = []
    count = lambda n: 1e6 * total(n) if tried.append(n) is None else 0.0  # type: ignore[func-returns-value]
    found = memory_advice.largest_that_fits(count, 1e6 * capacity, 5_000_000)
    assert found == pytest.approx(expected, rel=0.011) and len(tried) <= 12
    assert not found or total(found) <= capacity


def refusal(job: wt.Workload, gigabytes: float, **options: object) -> str:
    device = dataclasses.replace(H200.device, memory_bytes=gigabytes * 1e9)
    with pytest.raises(wt.DoesNotFit) as caught:
        wt.predict(job, dataclasses.replace(H200, device=device), wt.Strategy(**options))  # type: ignore[arg-type]
    return caught.value.hint


def wide(width: int, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> wt.Workload:
    """A network whose memory is nearly all weights, gradients and optimiser state."""
    return wt.Workload(
        name="wide",
        model=lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)),
        batch=lambda n: torch.randn(n, width),
        loss=lambda m, b: m(b).square().mean(),
        optimizer=lambda params: optimizer(params),
    )


def test_advice_names_what_makes_the_step_fit_and_not_a_format_that_does_not_help() -> None:
    # 2 x 4096 x 4096 weights are 134 MB; AdamW needs 4 of these, its temporaries a fifth. 1.3 GB hold four.
    hint = refusal(wide(4096), 1.27, batch=8)
    assert "--optimizer fused-adamw needs" in hint and "which fits" in hint
    assert "--precision" not in hint and len(hint.splitlines()) <= 4
    # Adam decays no weights: its fused form is another one.
    assert "--optimizer fused-adam needs" in refusal(wide(4096, torch.optim.Adam), 1.27, batch=8)
    assert "--optimizer fused" not in refusal(wide(4096, torch.optim.NAdam), 1.27, batch=8)


def test_advice_names_recomputation_and_micro_batches_where_activations_are_too_many() -> None:
    hint = refusal(wt.Workload.named("gpt2", **{**TINY, "layers": 6}), 1.5, batch=128)
    assert "Largest batch that fits:" in hint and "--accumulate" in hint and "recompute blocks" in hint


def test_advice_says_if_nothing_helps() -> None:
    hint = refusal(wide(4096), 0.7, batch=8)
    assert hint.startswith("Not even a batch of 1 fits.") and hint.endswith("a device with more memory.")
