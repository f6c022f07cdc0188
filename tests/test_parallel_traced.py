"""The forms add the collectives of PyTorch's own distributed code, traced under its `fake` process group."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import windtunnel as wt
from windtunnel.errors import BadJob
from windtunnel.forecast import forms
from windtunnel.forecast.forms.exchange import BUCKET_BYTES, FIRST_BUCKET_BYTES, buckets_of
from windtunnel.networks._transformer import Shape, TransformerBlock
from windtunnel.strategy import Strategy
from windtunnel.trace import Gradient
from windtunnel.trace.record import record

WIDTH, LENGTH, WORKERS = 64, 16, 8


class Net(nn.Module):
    """Blocks between two layers, as small as possible."""

    def __init__(self) -> None:
        super().__init__()
        shape = Shape(layers=4, width=WIDTH, heads=8, dropout=0.0, causal=True)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock(shape) for _ in range(4))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, states):
        states = self.first(states)
        for block in self.blocks:
            states = block(states)
        return self.last(states)


def job(model=Net) -> wt.Workload:
    return wt.Workload(
        name="net",
        model=model,
        batch=lambda n: torch.randn(n, LENGTH, WIDTH),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(_of_one_kind(list(parameters))),
    )


def _of_one_kind(parameters):
    """AdamW takes no mixture of distributed and plain tensors."""
    distributed = [p for p in parameters if hasattr(p, "to_local")]
    return distributed or parameters


def collectives(trace):
    return [(op.phase, op.collective.kind, op.collective.bytes) for op in trace.ops if op.collective]


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_in_groups() -> nn.Module:
    """Weights divided among groups of four workers; the groups sum their gradients."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 4, 4), mesh_dim_names=("copies", "parts"))
    return fully_shard(Net(), mesh=mesh)


def divided() -> nn.Module:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net()
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention": PrepareModuleInput(
                    input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
                ),
                "attention.queries_keys_values": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "widen": ColwiseParallel(),
                "narrow": RowwiseParallel(),
            },
        )
    return model


def test_weights_are_gathered_and_gradients_summed_in_the_order_of_fully_shard():
    strategy = Strategy(batch=4, data_parallel=WORKERS, shard="weights")
    own = record(job(sharded), strategy, "gpu")
    derived = forms.applied(record(job(), strategy, "gpu"), strategy)

    assert collectives(derived) == collectives(own)
    assert len(collectives(own)) == 14  # root once, 4 blocks twice; 4 blocks and root summed


def test_the_users_own_collectives_are_not_added_twice():
    strategy = Strategy(batch=4, data_parallel=WORKERS)
    own = record(job(sharded), strategy, "gpu")
    assert forms.applied(own, strategy) is own


def test_of_divided_tensors_only_the_part_of_one_worker_counts():
    """Weights and Adam's state by `fully_shard`, and the products of layers by `parallelize_module`."""
    strategy = Strategy(batch=4, data_parallel=WORKERS)
    plain, own = record(job(), strategy, "gpu"), record(job(sharded), strategy, "gpu")
    for part in ("weights", "optimiser"):
        whole, share = (
            sum(t.allocations[name].bytes for name in t.held if t.allocations[name].part == part)
            for t in (plain, own)
        )
        assert share == pytest.approx(whole / WORKERS, rel=0.01)
    ways = record(job(divided), strategy, "gpu"), record(job(), Strategy(batch=4, tensor_parallel=8), "gpu")
    by_torch, here = (sum(op.flop for op in t.ops if op.family == "matmul") for t in ways)
    assert by_torch == pytest.approx(here)


def test_a_kernel_waits_for_the_gather_whose_result_it_reads():
    own = record(job(sharded), Strategy(batch=4, data_parallel=WORKERS), "gpu")
    gathers = {op.mark for op in own.ops if op.collective and op.collective.kind == "all_gather"}
    awaited = {mark for op in own.ops if op.collective is None for mark in op.waits}
    assert gathers <= awaited


def test_groups_of_a_mesh_are_recorded_with_their_size_and_how_far_apart_their_ranks_are():
    own = record(job(sharded_in_groups), Strategy(batch=4, data_parallel=WORKERS), "gpu")
    found = {
        (op.collective.kind, op.collective.ranks, op.collective.stride) for op in own.ops if op.collective
    }
    assert found == {("all_gather", 4, 1), ("reduce_scatter", 4, 1), ("all_reduce", 2, 4)}


def test_tensor_parallel_layers_exchange_what_parallelize_module_exchanges():
    own = record(job(divided), Strategy(batch=4, data_parallel=WORKERS), "gpu")
    derived = record(job(), Strategy(batch=4, tensor_parallel=WORKERS), "gpu")
    forward = [each for each in collectives(derived) if each[0] == "forward"]

    assert forward == [each for each in collectives(own) if each[0] == "forward"]
    assert collectives(derived) == collectives(own)


@pytest.mark.parametrize("seed", range(3))
def test_buckets_are_those_of_distributed_data_parallel(seed):
    rng = random.Random(seed)
    sizes = [rng.choice((64, 4096, 300_000, 2_000_000, 9_000_000)) for _ in range(60)]
    gradients = [Gradient(str(i), size, 4.0 * size, 0, i) for i, size in enumerate(sizes)]
    with torch._subclasses.FakeTensorMode():
        tensors = [torch.empty(size) for size in sizes]
    limits = [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(sizes))

    assert [[int(g.name) for g in bucket] for bucket in buckets_of(gradients)] == expected


def test_buckets_count_the_bytes_of_weights_where_gradients_are_added_up_in_fp32():
    """Twenty gradients of 10 MB for bf16 weights of 5 MB: after the first, six of them fill a bucket."""
    gradients = [Gradient(str(i), 2_500_000, 10e6, 0, i) for i in range(20)]
    assert [len(bucket) for bucket in buckets_of(gradients)] == [1, 3, 3, 3, 3, 3, 3, 1]
    assert [len(bucket) for bucket in buckets_of(gradients, [5e6] * 20)] == [1, 6, 6, 6, 1]


def test_heads_that_do_not_divide_are_refused_with_the_degree_and_the_remedy() -> None:
    job = wt.Workload.named("gpt2", layers=2)
    with pytest.raises(BadJob, match=r"gpt2 cannot be divided between 8 tensor-parallel workers") as refused:
        record(job, Strategy(batch=2, tensor_parallel=8), "gpu")
    assert "divides the width and the number of heads" in str(refused.value)
    with pytest.raises(BadJob) as plain:
        record(_raising(), Strategy(batch=2), "gpu")
    assert "tensor-parallel" not in str(plain.value)


def _raising() -> wt.Workload:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).view(7, -1).mean()

    return wt.Workload(
        name="raising",
        model=lambda: nn.Linear(4, 4),
        batch=lambda n: torch.zeros(n, 4),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
