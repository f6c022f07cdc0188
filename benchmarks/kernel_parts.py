"""What a timestep of the fused kernel waits for: times the kernel on a GPU with one part taken out at a time.

    python benchmarks/kernel_parts.py --to docs/results/fused-parts-h200.json

A kernel without a part computes wrong numbers; only its time is used. The parts overlap, so what each saves
does not add up to the whole. A timestep is the slope between 10 and 100 timesteps, and an update is the rest.
The variants are timed in turn, round after round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windtunnel.fused import cuda
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork
from windtunnel.fused.train import TrainingRun

KERNEL = Path(cuda.__file__).with_name("kernel.cu")
EXAMPLES, ROUNDS, STEPS = 200, 7, (10, 100)
_SHUFFLES = "__shfl_xor_sync(EVERYONE, given, apart)", "__shfl_xor_sync(EVERYONE, sums[0], apart)"
# By name: texts of kernel.cu and what takes their place.
PARTS: dict[str, dict[str, str]] = {
    "nothing": {},
    "barriers": {
        "#define BARRIER __syncwarp()": "#define BARRIER",
        "#define BARRIER __syncthreads()": "#define BARRIER",
    },
    "shuffles": {_SHUFFLES[0]: "given", _SHUFFLES[1]: "sums[0]"},
    # Every vector of a row is the first one, which is read once.
    "reads of rows": {
        "(begin + k * STRIDE);\n        share[k * 4 + 2]": "(begin);\n        share[k * 4 + 2]",
        "const float2*>(begin + k * STRIDE);": "const float2*>(begin);",
    },
    "outer products": {"own.dv[u][i] = fmaf(row[i], drive, own.dv[u][i]);": "own.dv[u][i] = drive;"},
}


def source_without(part: str) -> str:
    text = KERNEL.read_text()
    for old, new in PARTS[part].items():
        assert text.count(old) == 1, f"kernel.cu has changed: {old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


class Kernel:
    """The kernel without a part, for one size and both numbers of timesteps."""

    def __init__(self, part: str, n_rec: int) -> None:
        draw, network = np.random.default_rng(0), RecurrentNetwork(n_rec=n_rec)
        self._source, self._compiled, self._trainers = source_without(part), dict[Any, Any](), []
        for n_steps in STEPS:
            shape = (EXAMPLES, n_steps, 2)
            examples = Examples(inputs=draw.uniform(-5, 5, shape), targets=draw.uniform(-5, 5, shape))
            run = TrainingRun(network=network, examples=examples, optimizer=Optimizer(rate=1e-4))
            trainer = cuda.BlockTrainer([run])
            self._trainers.append((trainer, trainer.upload([np.arange(EXAMPLES)[:, None]])))

    def seconds(self) -> list[float]:
        """Of one example, at each number of timesteps."""
        setattr(cuda, "_compile", self._compile)  # noqa: B010  for mypy
        found = []
        for trainer, order in self._trainers:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            trainer.run(*order)
            torch.cuda.synchronize()
            found.append((time.perf_counter() - begin) / EXAMPLES)
        return found

    def _compile(self, macros: Any) -> Any:
        if macros not in self._compiled:
            text = macros.defines() + self._source
            kernel = torch.cuda._compile_kernel(text, "fused", nvcc_options=["--use_fast_math"])
            kernel.set_shared_memory_config(cuda._shared_limit())
            self._compiled[macros] = kernel
        return self._compiled[macros]


def measure(n_rec: int) -> list[dict[str, Any]]:
    kernels = {part: Kernel(part, n_rec) for part in PARTS}
    samples: dict[str, list[list[float]]] = {part: [] for part in PARTS}
    for number in range(-2, ROUNDS):  # the first two rounds compile and warm up
        for part, kernel in kernels.items():
            seconds = kernel.seconds()
            if number >= 0:
                samples[part].append(seconds)
    layout = cuda.thread_layout(RecurrentNetwork(n_rec=n_rec))
    sizes = {"n_rec": n_rec, "lanes": layout.lanes, "units": layout.units, "threads": layout.threads}
    rows = []
    for part, pairs in samples.items():
        seconds_at = {str(n): [round(pair[i], 12) for pair in pairs] for i, n in enumerate(STEPS)}
        rows.append({**sizes, "without": part, "example_seconds": seconds_at})
        few, many = (statistics.median(seconds_at[str(n)]) for n in STEPS)
        step = (many - few) / (STEPS[1] - STEPS[0])
        update = few - STEPS[0] * step
        print(
            f"{n_rec} units, without {part}: {step * 1e9:.0f} ns a timestep, {update * 1e6:.2f} us an update"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the fused kernel without one of its parts.")
    parser.add_argument("--n-rec", default="100,50,10")
    parser.add_argument("--seconds", type=float, default=60.0, help="No size starts later.")
    parser.add_argument("--to", type=Path, help="The file for the rows.")
    options = parser.parse_args()
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    facts = {
        "format": 1,
        "measured_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": torch.cuda.get_device_name(0),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "examples": EXAMPLES,
    }
    for n_rec in map(int, options.n_rec.split(",")):
        if time.monotonic() - begin > options.seconds:
            print(f"out of time before {n_rec} units")
            break
        rows += measure(n_rec)
        if options.to:
            lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
            options.to.write_text(f'{{\n{head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
