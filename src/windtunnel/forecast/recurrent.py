"""The workspace that a recurrent call of a GPU takes beside its tensors.

A library's call has 8 MiB for every layer and way, its weights once more, and the sequence several times over, oftener where one kernel
lasts for all timesteps. How many times was learned from probes. The fused engine's workspace follows from its own code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

TERMS = 8
_LAYER_BYTES = 8 * 2**20
_WIDTHS = {"bf16": 2, "fp16": 2}


def key(shape: Sequence[int], dtype: str, *, backward: bool, kernels: float) -> str:
    """Which calls take alike: each way, by gates and number format, and by whether one kernel lasts for all timesteps."""
    how = "lasting" if kernels <= shape[0] else "launched"
    return f"{'backward' if backward else 'forward'} {shape[4]} gates {_WIDTHS.get(dtype, 4)} bytes {how}"


def terms(shape: Sequence[int], dtype: str) -> tuple[float, ...]:
    """What a call's workspace is a sum of, in bytes. `shape`: timesteps, examples, inputs, hidden, gates, layers, ways."""
    timesteps, examples, inputs, hidden, gates, layers, ways = shape
    size = _WIDTHS.get(dtype, 4)
    weights = sum(
        ways * gates * hidden * ((inputs if layer == 0 else ways * hidden) + hidden + 2)
        for layer in range(layers)
    )
    state = examples * hidden * size
    return (
        float(_LAYER_BYTES * layers * ways),
        float(weights * size),
        float(timesteps * examples * inputs * size),
        float(timesteps * state),
        float(timesteps * state * (ways - 1)),
        float(timesteps * state * ways * (layers - 1)),
        float(state * ways),
        float(state * ways * (layers - 1)),
    )


def library_bytes(
    sums: Mapping[str, Sequence[float]], shape: Sequence[int], dtype: str, *, backward: bool, kernels: float
) -> float:
    """By what was learned of calls like it; where none was seen, of those that launch for every timestep."""
    found = sums.get(key(shape, dtype, backward=backward, kernels=kernels)) or sums.get(
        key(shape, dtype, backward=backward, kernels=math.inf)
    )
    return sum(times * size for times, size in zip(found, terms(shape, dtype), strict=True)) if found else 0.0


def fused_bytes(shape: Sequence[int], *, backward: bool) -> float:
    """`shape`: timesteps, examples, inputs, hidden, outputs, equations. Weights lie in one row while it runs; on the way back there are the
    slopes of every drive, and gradients of each example, of which the only one is the result."""
    timesteps, examples, inputs, hidden, outputs, _ = shape
    weights = hidden * (inputs + hidden + 1 + outputs) + outputs
    if not backward:
        return 4.0 * (weights + 1)
    return 4.0 * (weights + 1 + examples * timesteps * hidden + (examples * weights if examples > 1 else 0))
