"""Launch costs of forward ops on a CPU in inference, in which autograd records nothing.

Launch costs are fitted to whole training steps, in which the costs of a layer always come together: its
module, the view of its weight, its product, their gradients. Their sum is known well, their parts are not. So
inference has costs of its own, in relation to that sum.
"""

from __future__ import annotations

import dataclasses

from windtunnel.machine.machine import LaunchCosts

# Seconds of an op under torch.no_grad() on an EPYC Turin, torch 2.13 (benchmarks/inference_launch_costs.py).
# A convolution is the mean of eight small ones, 3 to 36 us. Families that are not listed keep what they cost
# in training.
_OPS = {
    "attention": 3.4e-6,
    "convolution": 18.5e-6,
    "indexing": 1.6e-6,
    "matmul": 0.84e-6,
    "normalisation": 2.9e-6,
    "other": 0.87e-6,
    "pooling": 1.8e-6,
    "reduction": 2.4e-6,
    "softmax": 0.74e-6,
    "streaming": 0.79e-6,
    "view": 0.68e-6,
}
_MODULE = 0.8e-6
# What a linear layer with an activation costs in training by that host's fitted launch costs.
_LAYER = 13.0e-6
# Whole networks miss caches that calls in a loop hit: the median of three synthetic networks of a host probe,
# inferred on the same host.
_WHOLE_NETWORKS = 1.33


def inference_costs(costs: LaunchCosts) -> LaunchCosts:
    """The launch costs of a CPU's host without gradients."""
    scale = _WHOLE_NETWORKS * _layer_seconds(costs) / _LAYER
    forward = {**costs.forward, **{family: seconds * scale for family, seconds in _OPS.items()}}
    return dataclasses.replace(costs, forward=forward, module_seconds=_MODULE * scale)


def _layer_seconds(costs: LaunchCosts) -> float:
    """A linear layer with an activation: forward, and two products, a view and an activation backward."""
    forward = sum(costs.forward.get(name, costs.forward["other"]) for name in ("view", "matmul", "streaming"))
    backward = sum(
        count * costs.backward.get(name, costs.backward["other"])
        for name, count in (("view", 1), ("matmul", 2), ("streaming", 1))
    )
    return costs.module_seconds + forward + backward + 3 * costs.node_seconds
