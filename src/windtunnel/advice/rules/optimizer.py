"""The fused form of Adam or AdamW: one pass over weights, gradients and moments, not one for each op."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.isolation.jobs import optimizer_of

_FUSED = {"adam": "Adam", "adamw": "AdamW"}


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if not situation.trains:
        return "inference has no update"
    name = strategy.optimizer or optimizer_of(situation.workload)
    if name.startswith("fused-"):
        return "the optimizer is fused already"
    if name not in _FUSED:
        own = name or "several optimizers, or one that is not of torch.optim"
        return f"fused forms are forecast for Adam and AdamW; this job uses {own}"
    form = _FUSED[name]
    return (
        Proposal(
            name=f"fused {form}",
            change=StepChange(strategy={"optimizer": f"fused-{name}"}),
            flag=f"--optimizer fused-{name}",
            code=f"optimizer = torch.optim.{form}(model.parameters(), lr=lr, fused=True)",
            reason=_reason(situation),
            costs="results differ in rounding only",
            source="PyTorch, torch.optim.AdamW(fused=True); forecasts of fused updates: docs/accuracy.md",
        ),
    )


def _reason(situation: Situation) -> str:
    """What the update costs: its calls where these bound the step, else its passes over the weights."""
    weights = f"{situation.forecast.parameters:,} weights"
    if situation.forecast.bound_by != "launch":
        return f"{situation.spent('update')} for {weights}; the fused form reads and writes each of them once"
    calls = sum(op.phase == "update" for op in situation.trace.ops)
    return (
        f"{situation.spent('launch')}; the update of {weights} is {calls:,} calls, the fused form one or two"
    )


RULE = AdviceRule(
    name="optimizer", about="the fused form of Adam or AdamW instead of the plain one", propose=propose
)
