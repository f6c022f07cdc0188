"""Whether a framework does the same work as NumPy by hand: the losses of ten steps, parameters and dtype, for every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel import records
from windtunnel.measurement.frameworks import base, catalogue, run
from windtunnel.measurement.frameworks import numpy as reference
from windtunnel.measurement.frameworks.task import Task

STEPS = 10
TOLERANCE = 1e-4  # of a loss; float32 sums in another order are apart by 1e-6, a missing clip or bias by more than 1e-3
# Small jobs in which everything shows: clipping bites, every optimiser is asked, batches have one example or several.
_CASES: tuple[dict[str, Any], ...] = (
    {
        "job": "rnn",
        "settings": {"n_in": 3, "n_rec": 12, "n_out": 2, "n_steps": 6},
        "batch": 1,
        "optimizer": "sgd",
        "data": "resident",
    },
    {
        "job": "rnn",
        "settings": {"n_in": 3, "n_rec": 12, "n_out": 2, "n_steps": 6, "activation": "sigmoid", "rate": 0.01},
        "batch": 4,
        "optimizer": "adam",
        "data": "streamed",
    },
    {
        "job": "fcn5",
        "settings": {"layers": (20, 16, 16, 16, 9), "rate": 0.1},
        "batch": 8,
        "optimizer": "momentum",
        "data": "resident",
    },
    {
        "job": "ffn",
        "settings": {"inputs": 12, "classes": 5},
        "batch": 16,
        "optimizer": "adam",
        "data": "streamed",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`apart` is the largest relative difference of a loss from the reference's; `difference` says what is not the same, if anything."""

    task: Task
    apart: float
    parameters: int
    dtype: str
    difference: str

    @property
    def agrees(self) -> bool:
        return not self.difference

    def plain(self) -> dict[str, Any]:
        return {**records.plain(self), "agrees": self.agrees}


def tasks(
    name: str, *, threads: int = 1, device: Any = "cpu", variants: Sequence[str] | None = None
) -> list[Task]:
    """What a framework is asked: every case in every way that it can do there."""
    framework = catalogue.named(name)
    asked = [
        Task(framework=name, variant=variant, threads=threads, device=device, **case)
        for case in _CASES
        for variant in framework.variants.get(case["job"], ())
    ]
    return [
        task
        for task in asked
        if catalogue.refusal(task) is None and (variants is None or task.variant in variants)
    ]


def check(name: str, *, device: Any = "cpu", variants: Sequence[str] | None = None) -> list[Verdict]:
    """Ask a framework all of it, in one process of its own."""
    asked = tasks(name, device=device, variants=variants)
    return [judge(task, seen) for task, seen in zip(asked, run.traces(asked, STEPS), strict=True)]


def judge(task: Task, seen: dict[str, Any]) -> Verdict:
    wanted = expected(task)
    apart = max(
        abs(a - b) / abs(b) if a == a else float("inf") for a, b in zip(seen["losses"], wanted, strict=True)
    )
    parameters, dtype = seen["ready"]["parameters"], seen["ready"]["dtype"]
    differences = []
    if not apart <= TOLERANCE:
        step = next(
            i
            for i, (a, b) in enumerate(zip(seen["losses"], wanted, strict=True))
            if not abs(a - b) <= TOLERANCE * abs(b)
        )
        differences.append(
            f"losses part at step {step + 1}: {seen['losses'][step]:.6g} for {wanted[step]:.6g}"
        )
    if parameters != base.problem_of(task).parameters:
        differences.append(f"{parameters} parameters for {base.problem_of(task).parameters}")
    if dtype != "float32":
        differences.append(f"computes in {dtype}")
    return Verdict(
        task=task, apart=apart, parameters=parameters, dtype=dtype, difference="; ".join(differences)
    )


def expected(task: Task) -> list[float]:
    """The reference's losses for a task."""
    built = reference.build(base.problem_of(task), task)
    return [float(built.step()) for _ in range(STEPS)]
