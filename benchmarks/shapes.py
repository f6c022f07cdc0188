"""How best to divide a small recurrent network among the threads of one block: every division that fits, timed on this GPU.

    python benchmarks/shapes.py [N_REC,...]

Prints microseconds an example at 10 and 100 timesteps, and what a timestep and an update cost by the line through the two.
`windtunnel/fused/cuda.py` (`_SHAPES`) holds what this found on an H200.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from windtunnel.fused import cuda
from windtunnel.fused.many import TrainingRun
from windtunnel.fused.settings import Examples, RecurrentNetwork, Optimizer

SHAPES = [(lanes, devices) for lanes in (1, 2, 4, 8) for devices in (1, 2, 4, 8) if devices <= lanes]
EXAMPLES, ROUNDS = 200, 7
REGISTERS = 255


def measure(n_rec: int, n_steps: int) -> float:
    """Microseconds an example."""
    draw = np.random.default_rng(0)
    examples = Examples(
        inputs=draw.uniform(-1, 1, (EXAMPLES, n_steps, 2)),
        targets=draw.uniform(-1, 1, (EXAMPLES, n_steps, 2)),
    )
    batch = cuda.Batch([TrainingRun(network=RecurrentNetwork(n_rec=n_rec), examples=examples, optimizer=Optimizer(rate=1e-4))])
    placed, seconds = batch.place([np.arange(EXAMPLES)[:, None]]), []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        batch.run(*placed)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / EXAMPLES * 1e6


def main() -> None:
    for n_rec in map(int, (sys.argv[1] if len(sys.argv) > 1 else "10,20,32,50,64,100,128").split(",")):
        for lanes, units in SHAPES:
            shape = cuda.ThreadLayout(n_rec, lanes, units)
            if shape.held(RecurrentNetwork(n_rec=n_rec)) > REGISTERS or shape.threads > 1024:
                continue
            setattr(cuda, "thread_layout", lambda network, shape=shape: shape)  # noqa: B010  a checker minds the plain way
            few, many = measure(n_rec, 10), measure(n_rec, 100)
            step = (many - few) / 90
            print(
                f"n_rec {n_rec:4} lanes {lanes} units {units} threads {shape.threads:4}: {few:6.2f} {many:7.2f} us; {step:.3f} a timestep, {few - 10 * step:.2f} an update",
                flush=True,
            )


if __name__ == "__main__":
    main()
