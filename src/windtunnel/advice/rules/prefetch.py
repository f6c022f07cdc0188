"""Copy batches ahead from pinned memory, while earlier ones are trained on."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.feeding import change_of, feed_in_words, flag_of, remedy_of


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if not situation.on_gpu:
        return "nothing is copied: the CPU computes where its data lie"
    if strategy.data == "resident":
        return "nothing is copied: the data are in device memory"
    if strategy.prefetch:
        return f"{strategy.prefetch} batches are copied ahead already"
    remedy = remedy_of(situation, "prefetch")
    if isinstance(remedy, str):
        return remedy or "prefetch changes nothing here"
    change = change_of(situation, remedy)
    return (
        Proposal(
            name="prefetch",
            change=change,
            flag=flag_of(situation, change),
            code="batch = batch.to('cuda', non_blocking=True)   # from pinned memory, on its own stream",
            reason=f"{feed_in_words(situation)}; batches copied ahead do not stop the device",
            costs=f"device memory for {remedy.strategy.prefetch} further batches",
            source="the guide (Wuensche 2018), IV-B: prefetching hides a part of the transfer; docs/feed.md",
        ),
    )


RULE = AdviceRule(name="prefetch", about="batches copied ahead from pinned memory", propose=propose)
