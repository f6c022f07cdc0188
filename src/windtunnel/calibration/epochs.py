"""What the fused recurrent engine takes for whole epochs on the machine at hand: a timestep and an update, by width."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from windtunnel.fused import cpu, cuda
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.fused.train import TrainingRun, engine_for

WIDTHS = {"cpu": (8, 16, 32, 64, 128, 256), "gpu": (8, 32, 64, 128)}
ENDS = (2, 32, 128)  # inputs, and as many outputs
LENGTHS = (10, 60)
EXAMPLES = {"cpu": 60, "gpu": 1000}  # in one call, which a GPU takes tens of microseconds to begin
ROUNDS = {"cpu": 40, "gpu": 7}  # a core has neighbours; a GPU is alone, and its calls are long


def measure_epochs(kind: str) -> tuple[tuple[float, float, float, float], ...]:
    """Rows for a profile; none of what the engine cannot hold here."""
    networks = [
        RecurrentNetwork(n_in=ends, n_rec=width, n_out=ends) for width in WIDTHS[kind] for ends in ENDS
    ]
    held = [
        each
        for each in networks
        if (not cuda.refusal(each, max(LENGTHS)) if kind == "gpu" else cpu.available())
    ]
    calls = [_call(kind, network, n_steps) for network in held for n_steps in LENGTHS]
    least = _least_seconds(calls, ROUNDS[kind])
    lines = [
        _line(short / EXAMPLES[kind], long / EXAMPLES[kind])
        for short, long in zip(least[::2], least[1::2], strict=True)
    ]
    return tuple(
        (float(each.n_rec), float(each.n_in + each.n_out), *line)
        for each, line in zip(held, lines, strict=True)
    )


def _least_seconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """All in turn, many times over: whatever disturbs only adds, and comes and goes by the second."""
    least = [math.inf] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            call()  # what the others left in the caches is not its own
            begin = time.perf_counter()
            call()
            least[place] = min(least[place], time.perf_counter() - begin)
    return least


def _line(short: float, long: float) -> tuple[float, float]:
    """Seconds of a timestep and of an update: a straight line through two lengths, which is how the engine behaves."""
    step = max(long - short, 0.0) / (LENGTHS[1] - LENGTHS[0])
    return step, max(short - LENGTHS[0] * step, short / 10)


def _call(kind: str, network: RecurrentNetwork, n_steps: int) -> Callable[[], object]:
    """So many updates with one example each."""
    draw = np.random.default_rng(0)
    shape = EXAMPLES[kind], n_steps
    examples = Examples(
        inputs=draw.uniform(-5, 5, (*shape, network.n_in)),
        targets=draw.uniform(-5, 5, (*shape, network.n_out)),
    ).checked(network)
    order, optimizer = (
        np.arange(EXAMPLES[kind])[:, None],
        Optimizer(rate=1e-12),
    )  # weights stay as they are: one that learns falls silent, and is quicker then
    return (
        _on_gpu(network, examples, order, optimizer)
        if kind == "gpu"
        else _on_cpu(network, examples, order, optimizer, n_steps)
    )


def _on_cpu(
    network: RecurrentNetwork, examples: Examples, order: np.ndarray, optimizer: Optimizer, n_steps: int
) -> Callable[[], object]:
    engine = engine_for(network, Weights.random(network, 0), n_steps=n_steps, optimizer=optimizer)
    return lambda: engine.train(examples, order)


def _on_gpu(
    network: RecurrentNetwork, examples: Examples, order: np.ndarray, optimizer: Optimizer
) -> Callable[[], object]:
    batch = cuda.BlockTrainer(
        [
            TrainingRun(
                network=network, examples=examples, weights=Weights.random(network, 0), optimizer=optimizer
            )
        ]
    )
    placed = batch.upload([order])

    def call() -> None:
        batch.run(*placed)
        torch.cuda.synchronize()

    return call
