"""This project's own fused recurrent engine: forward, back through time, clipping and update of many steps in one call."""

from __future__ import annotations

from typing import Any

import numpy

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built, Problem
from windtunnel.measurement.frameworks.task import Task


def environment(task: Task) -> dict[str, str]:
    return {}


def refusal(task: Task) -> str | None:
    return "one network is trained on one core; several side by side use more" if task.threads > 1 else None


def build(problem: Problem, task: Task) -> Built:
    """One call of `step` goes once over the batches that are kept, as an epoch does; `first` is a call of one step."""
    settings, training = base.library("windtunnel.fused.settings"), base.library("windtunnel.fused.train")
    n_in, n_rec = problem.weights["w_in"].shape
    network = settings.Network(n_in=n_in, n_rec=n_rec, n_out=problem.weights["w_out"].shape[1], activation=problem.activation)
    weights = settings.Weights(**problem.weights)
    examples = settings.Examples(inputs=_by_example(problem.inputs), targets=_by_example(problem.targets)).checked(network)
    engine = training.engine_for(network, weights, n_steps=problem.inputs.shape[1], batch=task.batch, optimizer=_optimizer(settings, problem))
    order = numpy.arange(problem.batches * task.batch).reshape(problem.batches, task.batch)
    feed = base.Feed(list(order))
    return Built(
        step=lambda: engine.train(examples, order)[-1],
        first=lambda: engine.train(examples, feed()[None])[-1],
        settle=lambda: problem.batches,
        number=float,
        parameters=problem.parameters,
        dtype="float32",
        versions={"windtunnel": base.library("windtunnel").__version__, "llvmlite": base.library("llvmlite").__version__},
        threads=lambda: 1,
        compiles=True,
    )


def _by_example(batches: base.Array) -> base.Array:
    """(batches, timesteps, batch, width) to (examples, timesteps, width)."""
    count, timesteps, batch, width = batches.shape
    return numpy.ascontiguousarray(batches.transpose(0, 2, 1, 3).reshape(count * batch, timesteps, width))


def _optimizer(settings: Any, problem: Problem) -> Any:
    adam = problem.optimizer == "adam"
    momentum = base.MOMENTUM if problem.optimizer == "momentum" else 0.0
    return settings.Optimizer(
        name="adam" if adam else "sgd",
        rate=problem.rate,
        momentum=momentum,
        beta1=base.BETAS[0],
        beta2=base.BETAS[1],
        eps=base.EPSILON,
        clip_norm=problem.clip_norm,
    )
