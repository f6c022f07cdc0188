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
            reason=f"{situation.spent('update')} for {situation.forecast.parameters:,} weights; the fused "
            "form reads and writes each of them once",
            costs="results differ in rounding only",
            source="PyTorch, torch.optim.AdamW(fused=True); forecasts of fused updates: docs/accuracy.md",
        ),
    )


RULE = AdviceRule(
    name="optimizer", about="the fused form of Adam or AdamW instead of the plain one", propose=propose
)
