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
    if task.device == "cuda":
        return "on a GPU all examples lie there from the start" if task.data == "streamed" else None
    return "one network is trained on one core; several side by side use more" if task.threads > 1 else None


def build(problem: Problem, task: Task) -> Built:
    """One call of `step` goes once over the batches that are kept, as an epoch does; `first` is a call of one step."""
    settings, training = base.library("windtunnel.fused.settings"), base.library("windtunnel.fused.train")
    n_in, n_rec = problem.weights["w_in"].shape
    network = settings.RecurrentNetwork(
        n_in=n_in, n_rec=n_rec, n_out=problem.weights["w_out"].shape[1], activation=problem.activation
    )
    weights = settings.Weights(**problem.weights)
    examples = settings.Examples(
        inputs=_by_example(problem.inputs), targets=_by_example(problem.targets)
    ).checked(network)
    order = numpy.arange(problem.batches * task.batch).reshape(problem.batches, task.batch)
    feed = base.Feed(list(order))
    if task.device == "cuda":
        return _on_gpu(problem, task, network, weights, examples, _optimizer(settings, problem), order, feed)
    engine = training.engine_for(
        network,
        weights,
        n_steps=problem.inputs.shape[1],
        batch=task.batch,
        optimizer=_optimizer(settings, problem),
    )
    return Built(
        step=lambda: engine.train(examples, order)[-1],
        first=lambda: engine.train(examples, feed()[None])[-1],
        settle=lambda: problem.batches,
        number=float,
        parameters=problem.parameters,
        dtype="float32",
        versions={
            "windtunnel": base.library("windtunnel").__version__,
            "llvmlite": base.library("llvmlite").__version__,
        },
        threads=lambda: 1,
        compiles=True,
    )


def _on_gpu(
    problem: Problem,
    task: Task,
    network: Any,
    weights: Any,
    examples: Any,
    optimizer: Any,
    order: base.Array,
    feed: base.Feed,
) -> Built:
    """The kernel that trains many networks, with one: a launch goes over all batches. A wide network's step is a captured graph."""
    torch, cuda, train = (
        base.library("torch"),
        base.library("windtunnel.fused.cuda"),
        base.library("windtunnel.fused.train"),
    )
    job = train.TrainingRun(
        network=network, examples=examples, weights=weights, optimizer=optimizer, batch=task.batch
    )
    if cuda.refusal(network, problem.inputs.shape[1]):
        captured = base.library("windtunnel.fused.captured").GraphTrainer(job)
        step, first = (lambda: captured.run(order)[-1]), (lambda: captured.run(feed()[None])[-1])
    else:
        kernel = cuda.BlockTrainer([job])
        whole = kernel.upload([order])
        step, first = (
            (lambda: kernel.run(*whole)[0, -1]),
            (lambda: kernel.run(*kernel.upload([feed()[None]]))[0, -1]),
        )
    return Built(
        step=step,
        first=first,
        settle=lambda: problem.batches,
        number=float,
        sync=torch.cuda.synchronize,
        parameters=problem.parameters,
        dtype="float32",
        versions={"windtunnel": base.library("windtunnel").__version__, "torch": torch.__version__},
        threads=lambda: 1,
        compiles=True,
        peak=lambda: {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        },
        device_name=torch.cuda.get_device_name(0),
        facts={"cuda": torch.version.cuda},
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
