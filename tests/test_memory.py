"""Physical questions first: what any memory must keep to. Then PyTorch's caching allocator, case by case,
worked by hand."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable

import pytest

import windtunnel as wt
from windtunnel.forecast.allocator import Block, Heap, Pools, Rounding
from windtunnel.forecast.memory import DeviceMemory, account
from windtunnel.forecast.price import workspaces
from windtunnel.machine.profiles import profile_for
from windtunnel.prediction import largest_batch, trace
from windtunnel.trace import Allocation, Op, Phase, Trace
from windtunnel.units import MIB

H200, CPU = wt.Machine.named("h200"), wt.Machine.named("i7-3820")
TINY = {"size": "tiny", "length": 64}
Recorded = Callable[..., Trace]


def workspace(
    job: str, machine: wt.Machine = H200, settings: dict[str, object] | None = None, **how: object
) -> DeviceMemory:
    strategy = wt.Strategy(**how)  # type: ignore[arg-type]
    return account(
        trace(wt.Workload.named(job, **(settings or {})), strategy, machine.device.kind), machine, strategy
    )


def make(
    *ops: Op, allocations: dict[int, tuple[float, str]], held: tuple[int, ...] = (), batch_bytes: float = 0.0
) -> Trace:
    """A trace by hand; allocations as {name: (MiB, part)}."""
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


def op(phase: Phase, born: tuple[int, ...] = (), dead: tuple[int, ...] = (), family: str = "streaming") -> Op:
    return Op(
        name="aten.case",
        family=family,
        phase=phase,
        dtype="fp32",
        flop=0,
        read_bytes=0,
        written_bytes=0,
        born=born,
        dead=dead,
    )


def in_mib(sizes: object) -> dict[str, float]:
    return {part: size / MIB for part, size in sizes.items()}  # type: ignore[attr-defined]


def test_a_larger_batch_never_needs_less() -> None:
    workspaces = [workspace("gpt2", settings=TINY, batch=batch) for batch in (1, 2, 8, 32)]
    for figure in ("peak_bytes", "reserved_bytes", "total_bytes"):
        seen = [getattr(r, figure) for r in workspaces]
        assert seen == sorted(seen)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"execution": "graph"},
        {"data": "streamed", "prefetch": 2},
        {"recompute": "blocks"},
        {"accumulate": 2},
    ],
)
@pytest.mark.parametrize(("job", "settings"), [("gpt2", TINY), ("dcn", {})])
def test_parts_sum_to_the_peak_and_the_peak_lies_inside_what_is_reserved(
    job: str, settings: dict[str, object], how: dict[str, object]
) -> None:
    seen = workspace(job, settings=settings, **{"batch": 4, **how})
    assert seen == workspace(job, settings=settings, **{"batch": 4, **how}), (
        "the same question gets the same answer"
    )
    assert sum(seen.parts.values()) == seen.peak_bytes
    assert seen.reserved_bytes is not None and seen.peak_bytes <= seen.reserved_bytes < seen.total_bytes
    assert set(seen.parts) <= {
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
        workspace("gpt2", settings=TINY, batch=32, accumulate=n).parts["activations"] for n in (1, 2, 8)
    ]
    assert activations == sorted(activations, reverse=True) and activations[-1] < activations[0] / 4


def test_recomputing_blocks_lowers_activations_and_costs_arithmetic() -> None:
    job = wt.Workload.named("gpt2", **{**TINY, "layers": 6})
    plain, again = (trace(job, wt.Strategy(batch=32, recompute=how), "gpu") for how in ("none", "blocks"))  # type: ignore[arg-type]
    more, less = (account(steps, H200, wt.Strategy()) for steps in (plain, again))
    assert less.parts["activations"] < more.parts["activations"] and less.peak_bytes < more.peak_bytes
    assert plain.flop < again.flop < 4 / 3 * plain.flop, "no more than one further forward"


@pytest.mark.parametrize(
    ("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2), ("fused-adamw", 2)]
)
def test_an_optimiser_keeps_so_many_numbers_for_each_weight(optimizer: str, states: int) -> None:
    parts = workspace("gpt2", settings=TINY, optimizer=optimizer).parts
    assert parts.get("optimiser", 0.0) == pytest.approx(states * parts["weights"], rel=0.02)


def test_steps_of_any_memory_can_be_played_again_and_again(recorded: Recorded) -> None:
    """What is left between steps does not grow: a third and a fourth step need no more than the second."""
    from windtunnel.forecast import memory

    steps = recorded("gpt2", "gpu", batch=4, **TINY)
    pools = Pools()
    replay = memory._Replay(steps, pools, None)
    replay.hold("weights", "data")
    seen = []
    for _ in range(4):
        replay.step()
        seen.append((pools.allocated, pools.reserved, replay.peak))
    assert seen[1] == seen[2] == seen[3]


def test_on_a_cpu_the_peak_is_the_sum_of_what_is_alive(recorded: Recorded) -> None:
    """Counted anew here, without an allocator: every tensor in whole lines of 64 bytes."""
    for job in ("rnn", "ffn"):
        steps = recorded(job)
        sizes = {name: -(-a.bytes // 64) * 64 for name, a in steps.allocations.items()}
        alive = most = sum(sizes[name] for name in steps.held)
        for each in steps.ops:
            alive += sum(sizes[name] for name in each.born)
            most = max(most, alive)
            alive -= sum(sizes[name] for name in each.dead)
        seen = account(steps, CPU, wt.Strategy())
        assert seen.peak_bytes == most == sum(seen.parts.values())
        assert seen.reserved_bytes is None and seen.context_bytes == seen.spare_bytes == 0


def test_what_just_fills_the_unit_is_not_said_to_fit(recorded: Recorded) -> None:
    steps = recorded("gpt2", "gpu", batch=4, **TINY)

    def fits(capacity: float, workspace: list[float] | None) -> bool | None:
        machine = dataclasses.replace(H200, device=dataclasses.replace(H200.device, memory_bytes=capacity))
        return account(steps, machine, wt.Strategy(), workspace).fits

    for workspace in (None, [0.0] * len(steps.ops)):
        seen = account(steps, H200, wt.Strategy(), workspace)
        assert seen.reserved_bytes is not None
        assert fits(seen.reserved_bytes + seen.context_bytes, workspace) is False
        assert fits(seen.total_bytes, workspace) is True


def test_knowing_workspaces_leaves_more_of_the_unit_to_use(recorded: Recorded) -> None:
    steps = recorded("dcn", "gpu", batch=64)
    blind, told = (
        account(steps, H200, wt.Strategy()),
        account(steps, H200, wt.Strategy(), [0.0] * len(steps.ops)),
    )
    assert told.spare_bytes < blind.spare_bytes
    assert (told.peak_bytes, told.reserved_bytes) == (blind.peak_bytes, blind.reserved_bytes)


def test_the_largest_batch_is_whole_micro_batches_and_really_the_largest() -> None:
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
    assert largest_batch(job, small, wt.Strategy()) < most, (
        "activations of one micro-batch at a time take less"
    )


def test_a_job_is_traced_once_for_a_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel import prediction

    calls = []
    monkeypatch.setattr(prediction, "trace", lambda *args: calls.append(args) or trace(*args))  # type: ignore[func-returns-value]
    memory = wt.predict(wt.Workload.named("dcn"), H200).memory
    assert len(calls) == 1 and memory.parts["workspace"] > 64 * MIB, (
        "what is known of workspaces is in the forecast's memory"
    )


def test_five_thousand_ops_are_played_in_no_time() -> None:
    count = 5000
    ops = [op("forward", (i,), (i - 7,) if i % 3 and i >= 7 else ()) for i in range(count)]
    steps = make(*ops, allocations={i: (0.1 + i % 97 / 7, "activations") for i in range(count)})
    seconds = []
    for _ in range(5):
        start = time.process_time()
        account(steps, H200, wt.Strategy())
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.15, "some 20 ms where nothing else runs"


# The allocator alone.


def test_freeing_everything_leaves_nothing_allocated_and_whole_segments() -> None:
    chance = random.Random(0)
    pools, blocks = Pools(), list[Block]()
    for _ in range(3000):
        if blocks and chance.random() < 0.5:
            pools.free(blocks.pop(chance.randrange(len(blocks))))
        else:
            blocks.append(pools.take(int(2 ** chance.uniform(0, 25)), chance.choice(("", "other"))))
        assert pools.allocated == sum(block.size for block in blocks) <= pools.reserved <= pools.most_reserved
    spans = sorted((block.address, block.address + block.size) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "no two blocks overlap"
    for block in blocks:
        pools.free(block)
    assert pools.allocated == 0 and pools.reserved > 0
    pools.release()
    assert pools.reserved == 0, "all pieces were joined again, so every segment could go"


def test_on_a_cpu_there_are_no_pools() -> None:
    heap = Heap()
    block = heap.take(65)
    assert heap.allocated == block.size == 128
    heap.free(block)
    assert heap.allocated == 0


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),  # the smallest block, of a small segment
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest small request
        (MIB + 1, MIB + 512, 20 * MIB),  # one byte more rounds to a large one, which shares 20 MiB
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),  # the largest that shares
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on a segment of its own, in steps of 2 MiB
        (
            11 * MIB,
            12 * MIB,
            12 * MIB,
        ),  # 1 MiB would be left, which is not more than 1 MiB: it stays with the block
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),  # 2 MiB less 512 B are left and cut off
    ],
)
def test_one_request_by_hand(asked: int, block: int, segment: int) -> None:
    pools = Pools()
    assert pools.take(asked).size == block
    assert (pools.allocated, pools.reserved) == (block, segment)


def test_small_requests_share_small_segments() -> None:
    # 1 MiB + 1 MiB fill the first 2 MiB; the third needs another segment, and so does not the fourth of 512
    # bytes.
    pools = Pools()
    addresses = [pools.take(size).address for size in (MIB, MIB, MIB, 512)]
    assert addresses == [0, MIB, 2 * MIB, 3 * MIB]
    assert pools.reserved == 4 * MIB


def test_a_large_rest_of_up_to_one_mebibyte_stays_with_its_block() -> None:
    # 20 MiB: 9.5 are taken and 10.5 are left. 9.75 of these leave 0.75, which is too little to cut off: the
    # block is 10.5.
    pools = Pools()
    pools.take(9.5 * MIB)
    assert pools.take(9.75 * MIB).size == 10.5 * MIB
    assert (pools.allocated, pools.reserved) == (20 * MIB, 20 * MIB)


def test_the_smallest_block_that_fits_is_taken_and_of_equal_ones_the_lowest() -> None:
    pools = Pools()
    blocks = [pools.take(size * MIB) for size in (16, 12, 14, 12)]  # segments at 0, 16, 28 and 42 MiB
    for block in blocks:
        pools.free(block)
    # 12 fits all four: the two of 12 are the smallest, the lower lies at 16. Then the other, then 14, then 16
    # (whose rest of 4 is cut off).
    assert [pools.take(12 * MIB).address // MIB for _ in range(4)] == [16, 42, 28, 0]
    assert pools.reserved == 54 * MIB
    # What was cut off serves a request of 3: 12 MiB into the first segment. Another needs a new segment of
    # 20, at 54.
    assert [pools.take(3 * MIB).address // MIB for _ in range(2)] == [12, 54]
    assert pools.reserved == 74 * MIB


def test_freed_neighbours_become_one_block() -> None:
    # 20 MiB cut into 4, 4, 4 and a rest of 8. The middle one freed is 4 alone; with the first it is 8; with
    # the third all is one again.
    pools = Pools()
    first, middle, _ = (pools.take(4 * MIB) for _ in range(3))
    pools.free(middle)
    pools.free(first)
    assert pools.take(8 * MIB).address == 0, "4 + 4 before the third, as small as the rest of 8 but lower"
    assert pools.take(8 * MIB).address == 12 * MIB
    again = Pools()
    blocks = [again.take(4 * MIB) for _ in range(3)]
    for index in (1, 0, 2):
        again.free(blocks[index])
    # 19 MiB would not fit any piece; the whole segment they do, with 1 MiB to spare, which stays with the
    # block.
    assert again.take(19 * MIB).size == 20 * MIB and again.reserved == 20 * MIB


def test_small_and_large_requests_and_streams_do_not_mix() -> None:
    pools = Pools()
    pools.free(pools.take(8 * MIB))
    pools.take(Rounding().grain)  # not from the 20 MiB that are free
    assert pools.reserved == 22 * MIB
    pools.take(8 * MIB, "other")  # nor does another stream find them
    assert pools.reserved == 42 * MIB
    pools.take(8 * MIB)
    assert pools.reserved == 42 * MIB


def test_releasing_gives_back_segments_that_are_wholly_free() -> None:
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
    # Segment A (20): weights 4, batch 2, inner 6, and 8 are left; outer has a segment B (12) of its own. The
    # gradient of 4 goes to the 8. When inner and outer are gone, the state of 4 goes to the smallest hole,
    # the last 4 of A, and not to the 6 of inner. In step 2 the old gradient goes; inner finds its 6, outer B
    # and the new gradient the 4 again. Nothing more is reserved: 32.
    seen = account(STEP, H200, wt.Strategy(), [0.0] * 4)
    assert in_mib(seen.parts) == {"weights": 4, "data": 2, "optimiser": 4, "activations": 18, "gradients": 4}
    assert seen.peak_bytes == 32 * MIB == seen.reserved_bytes
    assert seen.spare_bytes == pytest.approx(0.03 * 32 * MIB)


def test_a_workspace_by_hand() -> None:
    # The second op needs 2 MiB while it runs: alive are weights 4, batch 2, state 4, activations 18 and these
    # 2, which is less than the 32 of backward. With 7 it is more. Where do 7 MiB lie? In step 1, 8 are left
    # of A: they fit, and 1 too many is kept: 8. In step 2 the state fills 4 of those 8, so a new segment of
    # 20 is needed: the block is 7.
    two, seven = (account(STEP, H200, wt.Strategy(), [0.0, size * MIB, 0.0, 0.0]) for size in (2, 7))
    assert two.peak_bytes == 32 * MIB and "workspace" not in two.parts
    assert in_mib(seven.parts) == {"weights": 4, "data": 2, "optimiser": 4, "activations": 18, "workspace": 7}
    assert (seven.peak_bytes, seven.reserved_bytes) == (35 * MIB, 52 * MIB)


def test_a_captured_step_by_hand() -> None:
    # Weights and batch: segment A (20). Warm-up on its own stream, step 1: inner 6 and outer 12 in W (20),
    # the gradient in X (20); then W is whole again, and the state goes to the 16 left of X. Step 2: inner
    # goes to the last 12 of X, outer to W, the gradient to X again. Before the capture W is free and goes: A
    # + X. The captured step finds none of that: inner and outer in G (20), the gradient in H (20). A + X + G
    # + H = 80, more than the A + W + X = 60 before.
    seen = account(STEP, H200, wt.Strategy(execution="graph"), [0.0] * 4)
    assert (seen.peak_bytes, seen.reserved_bytes) == (32 * MIB, 80 * MIB)


def test_batches_fetched_ahead_by_hand() -> None:
    # Two wait and one is trained on: 3 x 2 MiB on the copying stream, in a segment C (20) of their own. A
    # (20): weights 4, inner 6, gradient 4, state 4 where inner was. B (12): outer. In step 2 inner goes
    # behind the state.
    seen = account(STEP, H200, wt.Strategy(data="streamed", prefetch=2), [0.0] * 4)
    assert seen.parts["data"] == 6 * MIB
    assert (seen.peak_bytes, seen.reserved_bytes) == (36 * MIB, 52 * MIB)


def test_matrix_products_keep_a_workspace_for_each_thread_and_stream() -> None:
    forward, backward = op("forward", family="matmul"), op("backward", family="matmul")
    sizes = {
        how: account(
            make(forward, forward, backward, backward, allocations={}), H200, wt.Strategy(execution=how)
        ).parts["workspace"]
        / MIB  # type: ignore[arg-type]
        for how in ("eager", "compiled", "graph")
    }
    assert sizes == {"eager": 64, "compiled": 64, "graph": 128}
    assert not account(make(forward, allocations={}), CPU, wt.Strategy()).parts


def test_what_replaces_something_held_does_so_in_every_step() -> None:
    # A buffer of 4 MiB is swapped for a new one in each step: two at once, never three.
    swap = make(op("forward", (1,), (0,)), allocations={0: (4, "weights"), 1: (4, "activations")}, held=(0,))
    assert account(swap, H200, wt.Strategy()).peak_bytes == 8 * MIB


def test_nothing_takes_no_room() -> None:
    empty = make(op("forward", (0,), (0,)), allocations={0: (0, "activations")})
    assert account(empty, H200, wt.Strategy()).peak_bytes == 0
    only_held = make(op("forward"), allocations={0: (3, "weights")}, held=(0,))
    assert account(only_held, H200, wt.Strategy()).peak_bytes == 3 * MIB
