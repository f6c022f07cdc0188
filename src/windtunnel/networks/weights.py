"""Initial weights, the setting `init` of every network.

init=modern   PyTorch's or the paper's own, scaled by the number of inputs of each layer
init=guide    uniform between -0.1 and 0.1, since the guide advises low values like 0.1; biases 0
init=NUMBER   uniform between -NUMBER and NUMBER; biases 0
init=NUMBERx  those of `modern` times NUMBER; biases as they are
"""

from __future__ import annotations

import torch
from torch import nn

from windtunnel.networks.definitions.checks import bound_of as bound_of
from windtunnel.networks.definitions.checks import factor_of


def initialise(model: nn.Module, init: str, job: str) -> nn.Module:
    """Apply the setting `init` to matrices, kernels and biases; normalisation layers keep their weights."""
    factor = factor_of(init)
    if factor is not None:
        _scale(model, factor)
        return model
    bound = bound_of(init, job)
    if bound is not None:
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                nn.init.uniform_(parameter, -bound, bound)
            elif "bias" in name:
                nn.init.zeros_(parameter)
    return model


@torch.no_grad()
def _scale(model: nn.Module, factor: float) -> None:
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.mul_(factor)
