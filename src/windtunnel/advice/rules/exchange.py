"""When and how data-parallel workers sum their gradients."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange

_CODE = {
    "buckets": "model = DistributedDataParallel(model)",
    "tensors": "model = DistributedDataParallel(model, bucket_cap_mb=0)",
    "after": "for p in model.parameters(): dist.all_reduce(p.grad.div_(workers))   # after loss.backward()",
}
_COSTS = {
    "buckets": "memory for the buckets",
    "tensors": "many small collectives",
    "after": "nothing overlaps: only for networks whose exchange is short",
}


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if (strategy.data_parallel or 1) < 2:
        return "one data-parallel worker exchanges nothing"
    if strategy.shard != "none" or strategy.pipeline_parallel > 1:
        return "sharded and pipelined workers have an exchange of their own"
    others = [form for form in _CODE if form != strategy.exchange]
    return tuple(
        Proposal(
            name=f"exchange by {form}",
            change=StepChange(strategy={"exchange": form}),
            flag=f"--exchange {form}",
            code=_CODE[form],
            reason=f"{situation.spent('communication')} with {strategy.exchange}",
            costs=_COSTS[form],
            source="the guide (Wuensche 2018), IV-B: an exchange that stops training costs its whole time; "
            "study wuensche-2018",
        )
        for form in others
    )


RULE = AdviceRule(name="exchange", about="buckets, single tensors, or after backward", propose=propose)
