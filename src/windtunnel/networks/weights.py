"""Initial weights, a setting of every network: modern practice, or the guide's low values.

`modern` keeps what the layers themselves choose (scaled by their fan-in). `guide` draws weights uniformly from ±0.1, since
the guide advises to start at low values like 0.1; a number does the same with that bound. Biases then start at 0.
"""

from __future__ import annotations

from torch import nn

from windtunnel.networks.definitions.checks import bound_of as bound_of


def initialise(model: nn.Module, init: str, job: str) -> nn.Module:
    """Draw the weights anew where the setting asks for it; matrices and kernels only, normalisation keeps its own."""
    bound = bound_of(init, job)
    if bound is not None:
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                nn.init.uniform_(parameter, -bound, bound)
            elif "bias" in name:
                nn.init.zeros_(parameter)
    return model
