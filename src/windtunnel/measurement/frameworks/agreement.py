"""Whether a framework does the same work as the reference: losses, parameters and dtype for every job.

The reference is NumPy by hand. PyTorch is the reference for the jobs that NumPy does not build.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windtunnel import records
from windtunnel.measurement.frameworks import base, catalogue, run
from windtunnel.measurement.frameworks import numpy as by_hand
from windtunnel.measurement.frameworks.task import Task
from windtunnel.networks import definitions
from windtunnel.records import Plain

STEPS = 10
# Of a loss. Float32 sums in another order differ by 1e-6, a missing clip or bias by more than 1e-3.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkComparison:
    """`apart` is the largest relative difference of a loss; `difference` says what differs."""

    task: Task
    apart: float
    parameters: int
    dtype: str
    difference: str

    @property
    def agrees(self) -> bool:
        return not self.difference

    def plain(self) -> Plain:
        return {**records.plain(self), "agrees": self.agrees}


def tasks(
    name: str,
    *,
    threads: int = 1,
    device: Literal["cpu", "gpu"] = "cpu",
    variants: Sequence[str] | None = None,
) -> list[Task]:
    """Every trial of every job, in each variant that the framework can run there."""
    rows = [
        Task(
            framework=name,
            variant=variant,
            job=job,
            settings=trial.settings,
            batch=trial.batch,
            device=device,
            threads=threads,
            data=trial.data,
            optimizer=trial.optimizer,
        )
        for job, known in catalogue.named(name).variants.items()
        for trial in definitions.named(job).trials
        for variant in known
    ]
    return [
        task
        for task in rows
        if catalogue.refusal(task) is None and (variants is None or task.variant in variants)
    ]


def check(
    name: str, *, device: Literal["cpu", "gpu"] = "cpu", variants: Sequence[str] | None = None
) -> list[FrameworkComparison]:
    """Compare all of a framework's trials with the reference, in one process of its own."""
    rows = tasks(name, device=device, variants=variants)
    return [compare(task, trace) for task, trace in zip(rows, run.traces(rows, STEPS), strict=True)]


def compare(task: Task, trace: Plain) -> FrameworkComparison:
    pairs = list(zip(trace["losses"], expected(task), strict=True))
    apart = max(abs(a - b) / abs(b) if a == a else float("inf") for a, b in pairs)
    parameters, dtype = trace["ready"]["parameters"], trace["ready"]["dtype"]
    differences = []
    if not apart <= TOLERANCE:
        step = next(i for i, (a, b) in enumerate(pairs) if not abs(a - b) <= TOLERANCE * abs(b))
        loss, reference = pairs[step]
        differences.append(f"losses differ from step {step + 1}: {loss:.6g} for {reference:.6g}")
    if parameters != base.problem_of(task).parameters:
        differences.append(f"{parameters} parameters for {base.problem_of(task).parameters}")
    if dtype != "float32":
        differences.append(f"computes in {dtype}")
    return FrameworkComparison(
        task=task, apart=apart, parameters=parameters, dtype=dtype, difference="; ".join(differences)
    )


def expected(task: Task) -> list[float]:
    """The reference's losses for a task."""
    if task.job in by_hand.JOBS:
        reference = dataclasses.replace(task, framework="numpy", variant="hand")
        built = by_hand.build(base.problem_of(task), reference)
        return [float(built.step()) for _ in range(STEPS)]
    reference = dataclasses.replace(task, framework="torch", variant="module", device="cpu", threads=1)
    return _losses(json.dumps(records.plain(reference)))


@functools.cache
def _losses(task: str) -> list[float]:
    return run.losses(records.read(Task, json.loads(task), "task"), STEPS)
