"""Measure what this host pays to launch FusedRNN forward and backward, as lines for launch_costs.toml.

    python benchmarks/fused_launch_costs.py cpu             (or cuda)

Calls of a tiny network are timed in turn with microbenchmarks, which show how fast this host is compared with
the catalogue's reference host. On a CPU the network's little arithmetic is included. The time of a whole step
is printed beside its forecast.
"""

from __future__ import annotations

import statistics
import sys
import time
import tomllib
from collections.abc import Callable
from typing import Any

import torch

import windtunnel as wt
from windtunnel import units
from windtunnel.calibration import calibrate
from windtunnel.calibration.host import _make_step
from windtunnel.machine.machine import CATALOG

ROUNDS = 5


def main(device: str) -> None:
    kind = "gpu" if device == "cuda" else "cpu"
    sync = torch.cuda.synchronize if kind == "gpu" else (lambda: None)
    job = wt.Workload.named("rnn", variant="fused", n_rec=8, n_steps=4)
    machine = wt.Machine.here()
    assert machine.device.kind == kind and machine.launch_costs is not None, (
        f"this machine's own device is a {machine.device.kind}"
    )
    model, source = job.model().to(device), job.batch(1)[0].to(device)
    weights, seed, one = (
        list(model.parameters()),
        torch.ones_like(model(source)),
        torch.ones(1, device=device, requires_grad=True),
    )
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: model(source),
        "both": lambda: torch.autograd.grad(model(source), weights, seed),
        "view": lambda: one.view(1),
        "ask": lambda: torch.autograd.grad(one.view(1), one, seed.view(-1)[:1]),
        "step": _make_step(job, device),
    }
    samples: dict[str, list[float]] = {name: [] for name in (*calls, "factor")}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(_seconds(call, sync))
        samples["factor"].append(calibrate.host_factor(machine, machine.launch_costs).factor)
    seconds = {name: statistics.median(values) for name, values in samples.items()}
    reference = tomllib.loads((CATALOG / "launch_costs.toml").read_text())[kind]
    pace = units.parse(reference["backward_seconds"], "s") / (
        machine.launch_costs.backward_seconds * seconds["factor"]
    )
    backward = seconds["both"] - seconds["forward"] - (seconds["ask"] - seconds["view"])
    for phase, cost in (("forward", seconds["forward"]), ("backward", backward)):
        reference_cost, here = units.show(cost * pace, "s"), units.show(cost, "s")
        print(f'[{kind}.{phase}]\nfused = "{reference_cost}"          # {here} here')
    forecast = wt.predict(job, machine, wt.Strategy())
    predicted = units.show(forecast.step_seconds * seconds["factor"], "s")
    print(f"a step of {units.show(seconds['step'], 's')}; forecast {predicted} with the present costs")


def _seconds(call: Callable[[], Any], sync: Callable[[], Any], times: int = 200) -> float:
    """Of one call among many without waiting in between; the median of a few rounds."""
    for _ in range(20):
        call()
    samples = []
    for _ in range(5):
        sync()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        samples.append((time.perf_counter() - begin) / times)
    sync()
    return statistics.median(samples)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
