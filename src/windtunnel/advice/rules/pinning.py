"""Copy from page-locked memory, which the GPU reads itself, instead of through a buffer of the driver."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.feeding import feed_in_words
from windtunnel.advice.setups import StepChange


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if not situation.on_gpu or strategy.data == "resident" or strategy.direct:
        return "no batch is copied from host memory to a device"
    if strategy.copies_pinned:
        return "batches are copied from pinned memory already"
    return (
        Proposal(
            name="pinned memory",
            change=StepChange(strategy={"pinned": True}),
            flag="--pinned",
            code="DataLoader(data, pin_memory=True)   # or: batch = batch.pin_memory()",
            reason=f"{feed_in_words(situation)}; from pageable memory the host copies each batch once more",
            costs="page-locked memory is lost to other programs",
            source="PyTorch, pin_memory; docs/feed.md",
        ),
    )


RULE = AdviceRule(name="pinning", about="batches in page-locked host memory", propose=propose)
