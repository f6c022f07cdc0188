"""Times every thread layout of the fused kernel that fits, on this GPU.

    python benchmarks/shapes.py [N_REC,...]

Prints microseconds per example at 10 and 100 timesteps, and the cost of a timestep and of an update from the
line through both. `windtunnel/fused/cuda.py` (`_FAST_LAYOUT`, `_SMALL_LAYOUT`) holds the results of an H200.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from windtunnel.fused import cuda
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork
from windtunnel.fused.train import TrainingRun

LAYOUTS = [(lanes, units) for lanes in (1, 2, 4, 8) for units in (1, 2, 4, 8) if units <= lanes]
EXAMPLES, ROUNDS = 200, 7
REGISTERS = 255


def measure(n_rec: int, n_steps: int) -> float:
    """Microseconds per example."""
    draw = np.random.default_rng(0)
    examples = Examples(
        inputs=draw.uniform(-1, 1, (EXAMPLES, n_steps, 2)),
        targets=draw.uniform(-1, 1, (EXAMPLES, n_steps, 2)),
    )
    network = RecurrentNetwork(n_rec=n_rec)
    run = TrainingRun(network=network, examples=examples, optimizer=Optimizer(rate=1e-4))
    trainer = cuda.BlockTrainer([run])
    order, seconds = trainer.upload([np.arange(EXAMPLES)[:, None]]), []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        trainer.run(*order)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / EXAMPLES * 1e6


def main() -> None:
    for n_rec in map(int, (sys.argv[1] if len(sys.argv) > 1 else "10,20,32,50,64,100,128").split(",")):
        for lanes, units in LAYOUTS:
            layout = cuda.ThreadLayout(n_rec, lanes, units)
            if layout.held_floats(RecurrentNetwork(n_rec=n_rec)) > REGISTERS or layout.threads > 1024:
                continue
            setattr(cuda, "thread_layout", lambda network, layout=layout: layout)  # noqa: B010  for mypy
            few, many = measure(n_rec, 10), measure(n_rec, 100)
            step = (many - few) / 90
            print(
                f"n_rec {n_rec:4} lanes {lanes} units {units} threads {layout.threads:4}: "
                f"{few:6.2f} {many:7.2f} us; {step:.3f} per timestep, {few - 10 * step:.2f} per update",
                flush=True,
            )


if __name__ == "__main__":
    main()
