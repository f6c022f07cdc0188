"""Trainings of a user's own job, in the process that the job lives in."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

from windtunnel import records
from windtunnel.errors import Interrupted
from windtunnel.exchange.outcome import ClusterTraining
from windtunnel.exchange.splitting import StepSplitter, only_stage
from windtunnel.exchange.training import ClusterOptions, Progress, train_on_cluster
from windtunnel.isolation.contained import Contained
from windtunnel.isolation.jobs import Containment, containment_of
from windtunnel.job.workload import Workload
from windtunnel.learning import own_job
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain

# What the process of the job is asked for: functions of this module.
_CHECK, _TRAIN = f"{__name__}:check_there", f"{__name__}:train_there"


def refuse_undivided_job(workload: Workload) -> bool:
    """Refuses a job whose steps several workers cannot share, before any of them starts. Whether some of its
    parameters take no part in a step."""
    own_job.refuse_several(workload)
    containment = containment_of(workload)
    if containment is None:
        return check_sharing(workload)
    return bool(containment.ask(workload, _CHECK)["unused"])


def check_sharing(workload: Workload) -> bool:
    """One gradient of the job, without its update, and one test on held-out batches. Whether a parameter has
    no gradient."""
    import torch

    lesson = own_job.lesson_of(workload)
    stage, model = only_stage(lesson, workload.name), lesson.model()
    splitter = StepSplitter(model, stage, workload.name)
    gradients, _ = splitter.gradients(next(iter(stage.batches(torch.Generator().manual_seed(0)))))
    model.eval()
    lesson.examine(model)
    known = {
        id(p) for p, gradient in zip(splitter.parameters, gradients, strict=True) if gradient is not None
    }
    return any(p.requires_grad and id(p) not in known for p in model.parameters())


def train_apart(
    workload: Workload, on: str, options: ClusterOptions, progress: Progress | None = None
) -> ClusterTraining:
    """`train_on_cluster` for a job wherever its functions are. What is learned stays there; with a folder
    its checkpoint is kept."""
    own_job.refuse_several(workload)
    containment = containment_of(workload)
    if containment is None:
        return train_on_cluster(workload, Machine.find(on), options, progress=progress)
    limits = dataclasses.replace(containment.limits, seconds=math.inf)
    child = Contained(limits, containment.hear).start()
    apart = Containment(limits, hear=containment.hear, started=child)
    try:
        data = apart.ask(workload, _TRAIN, doing="trained", on=on, options=_sent(options))
        return _training_in(data, workload.name)
    except KeyboardInterrupt:
        hint = "The same command continues." if options.folder else "Give --folder to be able to continue."
        raise Interrupted(f"The training of {workload.name} was stopped.", hint=hint) from None
    finally:
        apart.end()


def check_there(workload: Workload, request: Plain) -> Plain:
    """`check_sharing` in the process of the job."""
    return {"unused": check_sharing(workload)}


def train_there(workload: Workload, request: Plain) -> Plain:
    """`train_apart` in the process of the job."""
    sent: Plain = request["options"]
    folder = sent.pop("folder", None)
    options = records.read(ClusterOptions, sent, "the options of the training")
    options = dataclasses.replace(options, folder=Path(folder) if folder else None)
    said = ""

    def tell(done: int, total: int, text: str) -> None:
        nonlocal said
        if text != said:
            said = text
            print(f"{options.exchange}: {text}, {done:,} of at most {total:,} changes", file=sys.stderr)

    found = train_on_cluster(workload, Machine.find(request["on"]), options, progress=tell)
    data = found.plain()
    return {**data, "goal": records.plain(found.goal)}


def _sent(options: ClusterOptions) -> Plain:
    data: Plain = records.plain(dataclasses.replace(options, folder=None))
    return {**data, "folder": str(options.folder.absolute())} if options.folder else data


def _training_in(data: Plain, name: str) -> ClusterTraining:
    data.pop("target_seconds", None)
    return records.read(ClusterTraining, {"goal": None, "reached": None, **data}, f"the training of {name}")
