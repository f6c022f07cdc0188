"""Divide the experts of mixture layers among workers: each keeps some, and gets tokens from the others."""

from __future__ import annotations

import functools

from torch import nn

from windtunnel.errors import BadJob
from windtunnel.job.language import ExpertList
from windtunnel.trace import exchanges


def divide_experts(model: nn.Module, workers: int, job: str) -> None:
    """Leave each mixture layer its share of experts; tokens are sent to their experts and back."""
    lists = [module for module in model.modules() if isinstance(module, ExpertList)]
    if not lists:
        raise BadJob(
            f"{job} has no experts that workers could divide.",
            hint="Leave --expert-parallel out. Mixtures: llm:gpt experts=8, or another llm: job.",
        )
    for each in lists:
        names = [name for name, _ in each.named_children()]
        if len(names) % workers:
            raise BadJob(
                f"expert_parallel={workers} does not divide the {len(names)} experts of {job}.",
                hint="Use a degree that divides the number of experts.",
            )
        for name in names[len(names) // workers :]:
            delattr(each, name)
        each.send = functools.partial(exchanges.spread, ranks=workers)  # type: ignore[method-assign]
