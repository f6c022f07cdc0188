"""Perceptual decisions after Song, Yang and Wang 2016: which of two noisy inputs was stronger on average?

A trial has three periods. Fixation: noise only. Stimulus: the inputs have the means (1 + c)/2 and (1 - c)/2;
the coherence c sets how easy the trial is, and its sign which choice is right. Decision: noise again; the
outputs count only in this period, so the network must integrate the stimulus and remember the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from windtunnel.errors import BadInput
from windtunnel.job.lesson import Dataset

COHERENCES = (0.032, 0.064, 0.128, 0.256, 0.512)
MODERATE = 0.256
NOISE = 0.3
SHORTEST = 4


def periods(n_steps: int) -> tuple[int, int]:
    """The timestep at which the stimulus begins and the one at which the decision period begins."""
    if n_steps < SHORTEST:
        raise BadInput(
            f"A trial needs at least {SHORTEST} timesteps (fixation, stimulus and decision), not {n_steps}.",
            hint="Use n_steps=20 or more.",
        )
    return max(1, n_steps // 5), n_steps - max(1, n_steps // 5)


def generate(*, n_steps: int = 20, examples: int = 4000, held_out: int = 2000, seed: int = 0) -> Dataset:
    """Trials with all coherences and both choices in equal numbers."""
    generator = torch.Generator().manual_seed(seed)
    train, unseen = (_trials(n_steps, count, generator) for count in (examples, held_out))
    return Dataset(
        name="decision", train=train, held_out=unseen, facts={"n_steps": n_steps, "inputs": 2, "choices": 2}
    )


def accuracy(outputs: Tensor, trials: Mapping[str, Tensor], n_steps: int) -> dict[str, float]:
    """The share of right choices at the moderate coherence and at each coherence (the psychometric curve).

    `outputs` have the shape (time, trial, choice).
    """
    _, decision = periods(n_steps)
    right = (outputs[decision:].mean(0).argmax(1) == trials["choices"]).float()
    curve = {f"accuracy_{c:g}": float(right[trials["coherences"] == c].mean()) for c in COHERENCES}
    return {"accuracy": curve[f"accuracy_{MODERATE:g}"], **curve}


def _trials(n_steps: int, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    onset, decision = periods(n_steps)
    number = torch.arange(count)
    coherences = torch.tensor(COHERENCES)[number // 2 % len(COHERENCES)]
    choices = number % 2
    signed = torch.where(choices == 0, coherences, -coherences)
    inputs = torch.randn(count, n_steps, 2, generator=generator) * NOISE
    inputs[:, onset:decision] += torch.stack([(1 + signed) / 2, (1 - signed) / 2], 1).unsqueeze(1)
    return {"inputs": inputs, "choices": choices, "coherences": coherences}
