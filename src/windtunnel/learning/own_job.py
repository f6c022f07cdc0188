"""A lesson for a job of one's own: its batches to learn from, and further ones to test on.

A job says nothing of its data but how to make a batch, so the figure is its loss.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from windtunnel.errors import BadInput, BadJob
from windtunnel.job import workload as jobs
from windtunnel.job.lesson import Lesson, Stage
from windtunnel.job.workload import Batch, Model, Optimizers, Workload
from windtunnel.learning import training
from windtunnel.learning.options import TrainingIdentity
from windtunnel.learning.randomness import seeded

_PASS_STEPS = 100  # a pass over the data of a job that does not say how many examples it has: a choice
_HELD_OUT_BATCHES = 4
_SEEDS = 2**31
_HELD_OUT_SEED = _SEEDS + 1  # no training draws its batches with it


def is_own(name: str) -> bool:
    """Whether a name is that of a user's file."""
    return ".py" in name and (":" in name or name.endswith(".py"))


def prepare(
    job: str | Workload, settings: Mapping[str, object] | None = None, source: str | None = None
) -> tuple[Lesson, TrainingIdentity]:
    """The lesson of a built-in network or of a job of one's own, and its identity.

    A user's file runs here: ask for it only in a process that may run it.
    """
    if isinstance(job, str):
        if not is_own(job):
            return training.prepare(job, settings or {}, source)
        refuse_data(job, source)
        job = jobs.build_here(job, settings or {})
    return lesson_of(job), _identity_of(job)


def _identity_of(workload: Workload) -> TrainingIdentity:
    """A job's file is a part of it: an edited one is another job."""
    origin = workload.origin
    if origin is None:
        return TrainingIdentity(network=workload.name, settings={}, data="made in Python")
    data = f"{origin.job} {file_mark(origin.job)}"
    return TrainingIdentity(network=workload.name, settings=origin.settings, data=data)


def file_mark(job: str) -> str:
    """A digest of the file that a job of one's own is in. The file is read, not run."""
    body = jobs.job_file(job.rpartition(":")[0]).read_bytes() if is_own(job) else b""
    return hashlib.sha256(body).hexdigest()[:16]


def refuse_data(name: str, source: str | None) -> None:
    if is_own(name) and source:
        raise BadInput(f"--data {source}: {name} makes its own batches.", hint="Leave --data out.")


def lesson_of(workload: Workload) -> Lesson:
    """The lesson of a job whose functions are here."""
    refuse_several(workload)
    examples = workload.examples
    steps = _PASS_STEPS if examples is None else -(-examples // workload.default_batch)
    stage = Stage(
        name="training",
        epochs=1,
        steps=steps,
        batches=lambda generator: _batches(workload, generator, steps),
        optimizers=lambda model: _optimizer(workload, model),
        step=lambda model, batch, optimizer: _step(workload, model, batch, optimizer),
    )
    return Lesson(
        model=workload.model,
        stages=(stage,),
        examine=lambda model: {"loss": _held_out_loss(workload, model)},
        metric="loss",
        better="lower",
    )


def refuse_several(workload: Workload) -> None:
    """Refuses a job whose gradients and update cannot be separated. Its functions are not called."""
    if workload.optimizers is not None:
        raise BadInput(
            f"{workload.name} has optimizers(): its gradients and its updates cannot be separated.",
            hint="Several workers train jobs with one optimizer: define optimizer instead of optimizers.",
        )
    if workload.optimizer is None:
        raise BadInput(
            f"{workload.name} has no optimizer(), so workers do not know how it learns.",
            hint="Define optimizer=lambda params: ..., and let step(model, batch, optimizer) use it.",
        )


def _batches(workload: Workload, generator: torch.Generator, steps: int) -> Iterator[Batch]:
    for _ in range(steps):
        yield _batch(workload, int(torch.randint(_SEEDS, (), generator=generator)))


def _batch(workload: Workload, seed: int) -> Batch:
    with seeded(seed):
        return workload.batch(workload.default_batch)


def _optimizer(workload: Workload, model: Model) -> Optimizers:
    """The job's own. It clips what it is given, so that gradients are clipped after they are exchanged."""
    assert workload.optimizer is not None
    made, most = workload.optimizer(model.parameters()), workload.clip_norm
    if most is not None and workload.step is None and isinstance(made, torch.optim.Optimizer):
        parameters = list(model.parameters())
        made.register_step_pre_hook(lambda *_: _clip(parameters, most))
    return made


def _clip(parameters: list[torch.nn.Parameter], most: float) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, most)


def _step(workload: Workload, model: Model, batch: Batch, optimizer: Optimizers) -> torch.Tensor:
    if workload.step is not None:
        return _loss(workload, workload.step(model, batch, optimizer)).detach()
    assert workload.loss is not None
    optimizer.zero_grad(set_to_none=True)
    loss = _loss(workload, workload.loss(model, batch))
    if not loss.requires_grad:
        raise BadJob(
            f"The loss of {workload.name} has no gradient, so there is nothing to train.",
            hint="Check that parameters require gradients, and that the loss is not detached.",
        )
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def _loss(workload: Workload, loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        name = "loss" if workload.step is None else "step"
        raise BadJob(
            f"{name}() of {workload.name} returns no loss, so nothing shows what it learns.",
            hint="Return the loss as a tensor of one number, without .item().",
        )
    return loss


def _held_out_loss(workload: Workload, model: Model) -> float:
    """The mean loss of the held-out batches. The model stays as it is."""
    batches = [_batch(workload, _HELD_OUT_SEED + number) for number in range(_HELD_OUT_BATCHES)]
    with seeded(_HELD_OUT_SEED):
        return sum(_loss_at(workload, model, batch) for batch in batches) / len(batches)


def _loss_at(workload: Workload, model: Model, batch: Batch) -> float:
    """The loss of a batch. A job with its own step trains a copy for one step: its loss is that before the
    update."""
    if workload.loss is not None:
        with torch.no_grad():
            return float(_loss(workload, workload.loss(model, batch)))
    trial = copy.deepcopy(model)
    with torch.enable_grad():
        return float(_step(workload, trial, batch, _optimizer(workload, trial)))
