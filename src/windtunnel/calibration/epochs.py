"""Time whole epochs of the fused recurrent engine on this machine: a timestep and an update, by width."""

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
EXAMPLES = {"cpu": 60, "gpu": 1000}  # in one call; a call takes tens of microseconds to start on a GPU
_LEAST_ROUNDS = 2
ROUNDS = {"cpu": 40, "gpu": 7}  # other programs disturb a core; a GPU is undisturbed, and its calls are long


def measure_epochs(kind: str, seconds: float = math.inf) -> tuple[tuple[float, float, float, float], ...]:
    """Rows for a profile, without the networks that the engine cannot hold here. After `seconds`, no
    further round begins; every network is timed at least twice."""
    pairs = [(width, ends) for width in WIDTHS[kind] for ends in ENDS]
    networks = [RecurrentNetwork(n_in=ends, n_rec=width, n_out=ends) for width, ends in pairs]
    if kind == "gpu":
        networks = [network for network in networks if not cuda.refusal(network, max(LENGTHS))]
    elif not cpu.available():
        networks = []
    calls = [_call(kind, network, n_steps) for network in networks for n_steps in LENGTHS]
    least = _least_seconds(calls, ROUNDS[kind], seconds)
    lines = [
        _line(short / EXAMPLES[kind], long / EXAMPLES[kind])
        for short, long in zip(least[::2], least[1::2], strict=True)
    ]
    return tuple(
        (float(network.n_rec), float(network.n_in + network.n_out), *line)
        for network, line in zip(networks, lines, strict=True)
    )


def _least_seconds(calls: Sequence[Callable[[], object]], rounds: int, seconds: float) -> list[float]:
    """All calls in turn, many times: disturbances only add time, and they come and go within seconds."""
    least, end = [math.inf] * len(calls), time.perf_counter() + seconds
    for number in range(rounds):
        if number >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for place, call in enumerate(calls):
            call()  # fills the caches, which the call before had used
            begin = time.perf_counter()
            call()
            least[place] = min(least[place], time.perf_counter() - begin)
    return least


def _line(short: float, long: float) -> tuple[float, float]:
    """Seconds of a timestep and of an update, by a line through two lengths."""
    step = max(long - short, 0.0) / (LENGTHS[1] - LENGTHS[0])
    return step, max(short - LENGTHS[0] * step, short / 10)


def _call(kind: str, network: RecurrentNetwork, n_steps: int) -> Callable[[], object]:
    """A call of many updates with one example each."""
    draw = np.random.default_rng(0)
    shape = EXAMPLES[kind], n_steps
    examples = Examples(
        inputs=draw.uniform(-5, 5, (*shape, network.n_in)),
        targets=draw.uniform(-5, 5, (*shape, network.n_out)),
    ).checked(network)
    order = np.arange(EXAMPLES[kind])[:, None]
    # Weights do not change: in a network that learns, units may become inactive, which makes it faster.
    optimizer = Optimizer(rate=1e-12)
    if kind == "gpu":
        return _on_gpu(network, examples, order, optimizer)
    return _on_cpu(network, examples, order, optimizer)


def _on_cpu(
    network: RecurrentNetwork, examples: Examples, order: np.ndarray, optimizer: Optimizer
) -> Callable[[], object]:
    n_steps = examples.inputs.shape[1]
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
