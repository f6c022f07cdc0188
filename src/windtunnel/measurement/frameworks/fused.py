"""This project's fused recurrent engine: forward, backward, clipping and update of many steps in one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built, EpochShape, Problem, Step, Tensor, TracedStep
from windtunnel.measurement.frameworks.task import Task
from windtunnel.networks.definitions.rnn import Settings

if TYPE_CHECKING:
    from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One network's training: `order` has the rows of examples in each batch."""

    network: RecurrentNetwork
    weights: Weights
    examples: Examples
    optimizer: Optimizer
    order: base.Array


def environment(task: Task) -> dict[str, str]:
    return {}


def refusal(task: Task) -> str | None:
    if task.device == "gpu":
        return "on a GPU all examples are resident from the start" if task.data == "streamed" else None
    return "one network is trained on one core; several side by side use more" if task.threads > 1 else None


def traced(task: Task) -> TracedStep:
    """FusedRNN under PyTorch's optimiser, on the one core that the engine uses."""
    settings = cast(Settings, base.settings_of(task))
    return TracedStep(
        settings={**task.settings, "variant": "fused"},
        threads=1 if task.device == "cpu" else None,
        epoch=EpochShape(
            n_rec=settings.n_rec,
            ends=settings.n_in + settings.n_out,
            timesteps=settings.n_steps * task.batch,
        ),
    )


def build(problem: Problem, task: Task) -> Built:
    """One call of `step` is an epoch: it goes once over all batches. `first` is a call of one step."""
    return JOBS[task.job][task.variant](problem, task)


def _epoch(problem: Problem, task: Task) -> Built:
    settings = base.library("windtunnel.fused.settings")
    n_in, n_rec = problem.weights["w_in"].shape
    network = settings.RecurrentNetwork(
        n_in=n_in, n_rec=n_rec, n_out=problem.weights["w_out"].shape[1], activation=problem.activation
    )
    examples = settings.Examples(inputs=_by_example(problem.inputs), targets=_by_example(problem.targets))
    epoch = Epoch(
        network=network,
        weights=settings.Weights(**problem.weights),
        examples=examples.checked(network),
        optimizer=_optimizer(problem),
        order=numpy.arange(problem.batches * task.batch).reshape(problem.batches, task.batch),
    )
    return _on_gpu(problem, task, epoch) if task.device == "gpu" else _on_cpu(problem, task, epoch)


def _on_cpu(problem: Problem, task: Task, epoch: Epoch) -> Built:
    engine = base.library("windtunnel.fused.train").engine_for(
        epoch.network,
        epoch.weights,
        n_steps=problem.inputs.shape[1],
        batch=task.batch,
        optimizer=epoch.optimizer,
    )
    feed = base.Feed(list(epoch.order))
    return Built(
        step=lambda: engine.train(epoch.examples, epoch.order)[-1],
        first=lambda: engine.train(epoch.examples, feed()[None])[-1],
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


def _on_gpu(problem: Problem, task: Task, epoch: Epoch) -> Built:
    torch = base.library("torch")
    step, first = _gpu_calls(problem, task, epoch)
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
        peak=functools.partial(base.torch_peak, torch),
        device_name=torch.cuda.get_device_name(0),
        facts={"cuda": torch.version.cuda},
    )


def _gpu_calls(problem: Problem, task: Task, epoch: Epoch) -> tuple[Step, Step]:
    """An epoch and a single step.

    A narrow network runs in the kernel that trains many, a wide one as a CUDA graph.
    """
    cuda, train = base.library("windtunnel.fused.cuda"), base.library("windtunnel.fused.train")
    feed = base.Feed(list(epoch.order))
    run = train.TrainingRun(
        network=epoch.network,
        examples=epoch.examples,
        weights=epoch.weights,
        optimizer=epoch.optimizer,
        batch=task.batch,
    )
    if cuda.refusal(epoch.network, problem.inputs.shape[1]):
        captured = base.library("windtunnel.fused.captured").GraphTrainer(run)
        return (lambda: captured.run(epoch.order)[-1]), (lambda: captured.run(feed()[None])[-1])
    kernel = cuda.BlockTrainer([run])
    whole = kernel.upload([epoch.order])

    def first() -> Tensor:
        return kernel.run(*kernel.upload([feed()[None]]))[0, -1]

    return (lambda: kernel.run(*whole)[0, -1]), first


def _by_example(batches: base.Array) -> base.Array:
    """(batches, timesteps, batch, width) to (examples, timesteps, width)."""
    count, timesteps, batch, width = batches.shape
    return numpy.ascontiguousarray(batches.transpose(0, 2, 1, 3).reshape(count * batch, timesteps, width))


def _optimizer(problem: Problem) -> Optimizer:
    from windtunnel.fused.settings import Optimizer

    return Optimizer(
        name="adam" if problem.optimizer == "adam" else "sgd",
        rate=problem.rate,
        momentum=base.MOMENTUM if problem.optimizer == "momentum" else 0.0,
        beta1=base.BETAS[0],
        beta2=base.BETAS[1],
        eps=base.EPSILON,
        clip_norm=problem.clip_norm,
    )


JOBS: dict[str, dict[str, Callable[[Problem, Task], Built]]] = {"rnn": {"epoch": _epoch}}
