"""The fused form of AdamW: one pass over weights, gradients and moments instead of one for each op."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.job.workload import Workload


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if not situation.trains:
        return "inference has no update"
    name = strategy.optimizer or _own_optimizer(situation.workload)
    if name == "fused-adamw":
        return "the optimiser is fused already"
    if name not in ("adam", "adamw"):
        return f"fused forms are forecast for AdamW only; this job uses {name}"
    change = "AdamW decays weights, which Adam does not: set weight_decay=0; " if name == "adam" else ""
    return (
        Proposal(
            name="fused AdamW",
            change=StepChange(strategy={"optimizer": "fused-adamw"}),
            flag="--optimizer fused-adamw",
            code="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
            reason=f"{situation.spent('update')} for {situation.forecast.parameters:,} weights; the fused "
            "form reads and writes each of them once",
            costs=f"{change}results differ in rounding only",
            source="PyTorch, torch.optim.AdamW(fused=True); forecasts of fused updates: docs/accuracy.md",
        ),
    )


def _own_optimizer(workload: Workload) -> str:
    """The job's own optimiser by its class, such as "adamw"; the job is asked for one of a single weight."""
    if workload.optimizer is None:
        return "optimisers of its own"
    torch: Any = importlib.import_module("torch")
    made: Any = None
    with contextlib.suppress(Exception):  # whatever a user's function does with an unusual network
        made = workload.optimizer([torch.nn.Parameter(torch.zeros(1))])
    if made is None:
        return "an optimiser of its own"
    fused = getattr(made, "defaults", {}).get("fused")
    name = type(made).__name__.lower()
    return f"fused-{name}" if fused else name


RULE = AdviceRule(name="optimizer", about="fused AdamW instead of Adam or AdamW", propose=propose)
