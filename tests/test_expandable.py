"""Expandable segments: the allocator's pages worked by hand, what a forecast gains, and advice that names
them."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from typing import Any

import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel.errors import BadInput
from windtunnel.forecast.allocator import Block, Exhausted, Pools
from windtunnel.forecast.expandable import ExpandablePools
from windtunnel.forecast.memory import DeviceMemory
from windtunnel.measurement import environment
from windtunnel.prediction import memory_of
from windtunnel.units import MIB

H200, CPU = wt.Machine.named("h200"), wt.Machine.named("i7-3820")


def test_blocks_never_overlap_and_all_pages_can_be_returned() -> None:
    rng = random.Random(0)
    pools, blocks = ExpandablePools(), list[Block]()
    for number in range(3000):
        if blocks and rng.random() < 0.5:
            pools.free(blocks.pop(rng.randrange(len(blocks))))
        else:
            blocks.append(pools.take(int(2 ** rng.uniform(0, 26)), rng.choice(("", "other"))))
        if number % 100 == 0:
            pools.release()
        assert pools.allocated == sum(block.size for block in blocks) <= pools.reserved <= pools.most_reserved
    by_pool = itertools.groupby(sorted(blocks, key=lambda b: id(b.free_list)), key=lambda b: id(b.free_list))
    for _, group in by_pool:
        spans = sorted((block.address, block.address + block.size) for block in group)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for block in blocks:
        pools.free(block)
    pools.release()
    assert (pools.allocated, pools.reserved) == (0, 0)


def test_a_segment_grows_where_plain_segments_leave_a_gap() -> None:
    # 60 are freed, and 10 of these are taken again: a plain segment of 60 then cannot be returned, so a
    # second tensor of 60 needs 120 in all. The expandable one grows: 10 + 60 lie in four pages of 20.
    for pools, fits in ((Pools(limit=100 * MIB), False), (ExpandablePools(limit=100 * MIB), True)):
        pools.free(pools.take(60 * MIB))
        pools.take(10 * MIB)
        if fits:
            assert pools.take(60 * MIB).address == 10 * MIB and pools.reserved == 80 * MIB
        else:
            with pytest.raises(Exhausted):
                pools.take(60 * MIB)


def test_pages_of_a_freed_block_are_returned_and_mapped_again() -> None:
    # A (0 to 50) and B (50 to 100) fill five pages. Without A, its two whole pages are returned; the 10
    # before B stay mapped. 45 then fit at the start again, where the two pages are mapped once more.
    pools = ExpandablePools(limit=140 * MIB)
    first, _ = pools.take(50 * MIB), pools.take(50 * MIB)
    pools.free(first)
    pools.release()
    assert pools.reserved == 60 * MIB
    assert pools.take(45 * MIB).address == 0 and pools.reserved == 100 * MIB


def test_large_blocks_are_cut_exactly() -> None:
    # Plain segments keep a rest of 1 MiB in the block.
    assert ExpandablePools().take(11 * MIB).size == 11 * MIB and Pools().take(11 * MIB).size == 12 * MIB


def growing(width: int = 512) -> wt.Workload:
    """A network whose activations have different sizes, so that freed segments rarely suit the next one."""
    sizes = [width * k for k in (1, 3, 2, 5, 4, 7, 6, 1)]
    return wt.Workload(
        name="growing",
        model=lambda: nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in itertools.pairwise(sizes))
        ),
        batch=lambda n: torch.randn(n, width),
        loss=lambda m, b: m(b).square().mean(),
        optimizer=lambda params: torch.optim.AdamW(params),
    )


def test_fragmentation_shrinks_and_the_parts_sum_to_what_is_needed() -> None:
    plain, grown = (
        memory_of(growing(), H200, wt.Strategy(batch=4096, expandable_segments=on)) for on in (False, True)
    )
    assert grown.fragmented_bytes < plain.fragmented_bytes
    assert grown.total_bytes < plain.total_bytes
    for memory in (plain, grown):
        assert sum(memory.needed_parts.values()) == pytest.approx(memory.total_bytes)
        assert memory.reserved_bytes >= memory.peak_bytes


def test_a_cpu_has_no_segments_to_grow() -> None:
    strategy = wt.Strategy(expandable_segments=True)
    with pytest.raises(BadInput, match="expandable_segments needs a GPU"):
        wt.predict(wt.Workload.named("fcn5"), CPU, strategy)
    with pytest.raises(wt.Unavailable, match="expandable_segments needs a GPU"):
        wt.measure(wt.Workload.named("fcn5"), wt.Machine.here().with_cpu_only(), strategy)


def test_a_measuring_process_gets_the_allocators_setting_and_keeps_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.setenv(name, "max_split_size_mb:64,expandable_segments:False")
    assert environment.for_child(1)[name] == "max_split_size_mb:64,expandable_segments:False"
    found = environment.for_child(1, expandable=True)[name]
    assert found == "max_split_size_mb:64,expandable_segments:True"


def options_of(line: str) -> dict[str, Any]:
    """The change of the strategy that a line of advice names."""
    words = re.match(r"--([a-z-]+)( [a-z0-9-]+)? ", line)
    assert words is not None, line
    name, value = words[1].replace("-", "_"), (words[2] or "").strip()
    return {name: int(value) if value.isdigit() else value if value != "needs" else True}


@pytest.mark.parametrize("share", [0.97, 0.8, 0.45])
def test_every_advice_that_is_said_to_fit_does(share: float) -> None:
    strategy = wt.Strategy(batch=4096)
    needed = memory_of(growing(), H200, strategy)
    assert isinstance(needed, DeviceMemory)
    small = dataclasses.replace(
        H200, device=dataclasses.replace(H200.device, memory_bytes=share * needed.total_bytes)
    )
    with pytest.raises(wt.DoesNotFit) as refusal:
        wt.predict(growing(), small, strategy)
    lines = refusal.value.hint.replace("\n    ", "\n").splitlines()
    fitting = [line for line in lines if "which fits" in line]
    for line in fitting:
        wt.predict(growing(), small, dataclasses.replace(strategy, **options_of(line)))
    largest = re.search(r"Largest batch that fits: (\d+)", refusal.value.hint)
    assert fitting or largest or "Smallest number of devices" in refusal.value.hint, refusal.value.hint
    if largest is not None:
        wt.predict(growing(), small, dataclasses.replace(strategy, batch=int(largest[1])))
