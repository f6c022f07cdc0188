"""Recomputation: keep only the inputs of blocks, and compute the rest again in backward."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange

_NEARLY_FULL = 0.85


def propose(situation: Situation) -> Answer:
    memory, strategy = situation.forecast.memory, situation.strategy
    if not situation.trains:
        return "inference keeps no activations"
    if strategy.recompute != "none":
        return "blocks are recomputed already"
    if memory.capacity_bytes is None or memory.total_bytes < _NEARLY_FULL * memory.capacity_bytes:
        return f"memory is no limit: {situation.memory_words()}"
    activations = units.show(memory.parts.get("activations", 0.0), "B")
    return (
        Proposal(
            name="recompute blocks",
            change=StepChange(strategy={"recompute": "blocks"}),
            flag="--recompute blocks",
            code="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            reason=f"{situation.memory_words()}, of which activations are {activations}",
            costs="the forward pass of each block runs twice: about a third more arithmetic",
            source="PyTorch, torch.utils.checkpoint; Chen et al. 2016",
        ),
    )


RULE = AdviceRule(name="recomputation", about="recompute blocks where memory is nearly full", propose=propose)
