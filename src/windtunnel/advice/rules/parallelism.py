"""What several devices divide: the batch alone, or also state, gradients, weights or layers."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange

_SHARDS = {
    "optimizer": ("ZeRO-1", "ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)"),
    "gradients": ("ZeRO-2", "fully_shard(model, reshard_after_forward=False)"),
    "weights": ("FSDP", "for block in model.blocks: fully_shard(block)   # then: fully_shard(model)"),
}
_SOURCE = (
    "the guide (Wuensche 2018), III-H.1: data parallel by case or by feature, model parallel by parts; "
    "published runs: windtunnel validate --published"
)


def propose(situation: Situation) -> Answer:
    machine, strategy = situation.machine, situation.strategy
    count = machine.devices * machine.nodes
    if count < 2:
        return f"{machine.name} has one device"
    if not situation.trains:
        return "inference on several devices needs no exchange: give each its own requests"
    if strategy.pipeline_parallel > 1:
        return "the network is divided by a pipeline already: windtunnel plan searches its degrees"
    return (*_sharded(situation), *_divided(situation)) or "no other division applies"


def _sharded(situation: Situation) -> Iterator[Proposal]:
    strategy = situation.strategy
    if strategy.exchange != "buckets" or (strategy.data_parallel or 2) < 2:
        return
    for shard, (name, code) in _SHARDS.items():
        if shard != strategy.shard and strategy.execution == "eager":
            yield Proposal(
                name=f"shard {shard} ({name})",
                change=StepChange(strategy={"shard": shard}),
                flag=f"--shard {shard}",
                code=code,
                reason=f"{situation.spent('communication')}, {situation.spent('update')}; "
                f"{situation.memory_words()} on each device",
                costs="weights are gathered for each block, forward and backward"
                if shard == "weights"
                else "updated weights are gathered after each step",
                source=_SOURCE,
            )


def _divided(situation: Situation) -> Iterator[Proposal]:
    """Each layer divided among the devices of a node, where these have a link of their own."""
    strategy, machine = situation.strategy, situation.machine
    if strategy.compiles or strategy.execution == "graph" or strategy.tensor_parallel > 1:
        return
    batch, count = situation.setup.batch, machine.devices * machine.nodes
    for degree in (2, 4, 8):
        if degree <= machine.devices and count % degree == 0:
            rest = count // degree
            change: dict[str, object] = {"tensor_parallel": degree, "data_parallel": rest, "batch": batch}
            change |= {"shard": "none"} if rest == 1 else {}
            yield Proposal(
                name=f"tensor parallel {degree}",
                change=StepChange(strategy=change),
                flag=f"--tensor-parallel {degree} --data-parallel {rest} --batch {batch}",
                code="parallelize_module(model, mesh, {'mlp.up': ColwiseParallel(), "
                "'mlp.down': RowwiseParallel()})",
                reason=f"{situation.spent('communication')}; {situation.memory_words()} on each device, and "
                f"divided layers need a {degree}th of the weights",
                costs="two all-reduces a block, forward and backward: only over fast links inside of a node",
                source=_SOURCE,
            )


RULE = AdviceRule(
    name="parallelism", about="ZeRO, FSDP or tensor parallelism on several devices", propose=propose
)
