"""The whole step as one captured CUDA graph: the host launches once instead of once for each op."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.isolation.jobs import optimizer_of

_WAIT = "windtunnel.wait"  # where the host reads a value of the device
_SOURCE = (
    "study brandfonbrener-2017 on an H200: the captured loop of a recurrent network is 1.86 to 18 times as "
    "fast as the loop, 10 at the median of 95 cells (docs/findings.md)"
)


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if not situation.on_gpu:
        return "CUDA graphs need a GPU"
    if strategy.execution == "graph":
        return "the step is captured already"
    if strategy.is_parallel:
        return "capturing the exchanges of several workers needs care and is not advised"
    if strategy.data != "resident":
        return f"a captured step reads its batch from a fixed address; the data are {strategy.data}"
    if any(op.name == _WAIT for op in situation.trace.ops):
        return "the host reads values of the device in the step, which cannot be captured"
    return (
        Proposal(
            name="CUDA graph",
            change=StepChange(strategy={"execution": "graph"}),
            flag="--execution graph",
            code="with torch.cuda.graph(graph := torch.cuda.CUDAGraph()): step(batch)   # graph.replay()",
            reason=_reason(situation),
            costs="shapes and addresses must not change, and no value may be read in the step; the batch is "
            f"copied into a fixed tensor; a few steps must run before the capture{_capturable(situation)}",
            source=_SOURCE,
        ),
    )


def _capturable(situation: Situation) -> str:
    """What an optimizer that counts its steps needs."""
    name = situation.strategy.optimizer or optimizer_of(situation.workload)
    needs = situation.trains and name.removeprefix("fused-") in ("adam", "adamw")
    return "; Adam needs capturable=True" if needs else ""


def _reason(situation: Situation) -> str:
    count = f"{len(situation.trace.ops):,} ops"
    works = f"the device works {situation.forecast.utilisation:.0%} of the step"
    if not situation.forecast.parts.get("launch", 0.0):
        return f"launches of {count} are hidden behind kernels and {works}; captured, kernels follow closer"
    return f"{situation.spent('launch')} for {count}, and {works}; a captured step is one launch"


RULE = AdviceRule(name="graph", about="one captured CUDA graph for the whole step", propose=propose)
