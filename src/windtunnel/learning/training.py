"""Trains a network on real data until it is good enough.

The stages run in order. Each epoch ends with an evaluation on held-out data and a checkpoint, from which an
interrupted training continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from windtunnel import bounds, networks, records
from windtunnel.errors import BadInput, Interrupted, Unavailable, WindtunnelError
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.workload import Workload
from windtunnel.learning import checkpoint, data
from windtunnel.learning.goal import parse_goal as parse_goal
from windtunnel.learning.loop import Progress, TrainingLoop
from windtunnel.learning.options import TrainingIdentity
from windtunnel.learning.options import TrainingOptions as TrainingOptions
from windtunnel.learning.result import TrainingResult

SMALLEST_PHOTOGRAPH = 32


def train(
    job: str | Workload,
    options: TrainingOptions | None = None,
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Trains a built-in network on real data and evaluates it on held-out data.

    `job` is a name ("ffn") or a `Workload.named(...)` with settings. `data` is the name of a data set or the
    path of your own data. Default: the data set of the network.
    """
    if isinstance(job, Workload):
        if job.origin is None:
            raise BadInput(
                f"job {job.name} was made in Python and has no lesson.",
                hint="Train a built-in network: `windtunnel network list` shows all.",
            )
        name, settings = job.origin.job, job.origin.settings
    else:
        name, settings = job, {}
    lesson, identity = prepare(name, settings, data)
    return train_lesson(lesson, options, identity=identity, progress=progress)


def prepare(
    name: str, settings: Mapping[str, object], source: str | None = None
) -> tuple[Lesson, TrainingIdentity]:
    """The lesson of a built-in network on its own data set or on the user's data, and its identity."""
    network = networks.named(name)
    chosen = records.read(network.settings, settings, f"job {name}")
    bounds.check_settings(chosen, f"job {name}")
    source = source or str(network.module.DATA)
    dataset = data.load(
        source,
        network.module.DATA,
        size=_picture_size(chosen, settings, source),
        channels=getattr(chosen, "channels", None),
        classes=getattr(chosen, "classes", None) if "classes" in settings else None,
        n_steps=getattr(chosen, "n_steps", None),
    )
    identity = TrainingIdentity(network=name, settings=records.plain(chosen), data=source)
    return _lesson_of(name, chosen, dataset), identity


def train_lesson(
    lesson: Lesson,
    options: TrainingOptions | None = None,
    *,
    identity: TrainingIdentity | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Runs the stages of a lesson.

    The checkpoint stores `identity`; that of another training is refused. The random state of the caller is
    restored afterwards.
    """
    options = options or TrainingOptions()
    check_device(options.device)
    if options.folder is not None:
        checkpoint.require()
    if options.epochs is not None and not 1 <= options.epochs <= bounds.MOST_EPOCHS:
        raise BadInput(f"A training takes from 1 to {bounds.MOST_EPOCHS:,} epochs, not {options.epochs}.")
    if not 0 <= options.seed <= bounds.MOST_SEED:
        raise BadInput(f"A seed must be from 0 to {bounds.MOST_SEED}, not {options.seed}.")
    goal = parse_goal(options.until) if isinstance(options.until, str) else options.until
    with random_state(options.seed):
        loop = TrainingLoop(lesson, options, goal, identity, progress)
        try:
            return loop.run()
        except KeyboardInterrupt:
            hint = "Give a folder to be able to continue."
            if options.folder:
                hint = "The same command continues after the last complete epoch."
            epoch = loop.rows[-1].epoch if loop.rows else 0
            raise Interrupted(f"Stopped after epoch {epoch}.", hint=hint) from None


def check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise BadInput(f"A network can be trained on cpu or cuda, not on {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("PyTorch finds no CUDA GPU on this machine.", hint="Use --on cpu.")


def use_threads(threads: int) -> None:
    """Sets the threads of PyTorch; small networks often train fastest on one."""
    if not 1 <= threads <= bounds.MOST_THREADS:
        raise BadInput(f"A training takes from 1 to {bounds.MOST_THREADS} threads, not {threads}.")
    torch.set_num_threads(threads)


def _picture_size(chosen: Any, settings: Mapping[str, object], source: str) -> int | None:
    """The size that the user set. Default: that of the data set; 32 pixels or more for photographs."""
    size = getattr(chosen, "size", None)
    if not isinstance(size, int):  # the size of a language model is a word
        return None
    if "size" in settings:
        return size
    return None if source in data.NAMES else max(size, SMALLEST_PHOTOGRAPH)


def _lesson_of(name: str, settings: Any, dataset: Dataset) -> Lesson:
    """The lesson of a network on this data set, which may lack facts that the network needs."""
    network = networks.named(name)
    try:
        lesson: Lesson = network.module.teach(settings, dataset)
    except WindtunnelError:
        raise
    except KeyError as error:
        has = ", ".join((*dataset.facts, *dataset.train))
        raise BadInput(
            f"job {name} cannot learn from {dataset.name}: it needs {error.args[0]!r}; the data has {has}.",
            hint=f"Use --data {network.module.DATA}, or data of the same kind.",
        ) from error
    return lesson


@contextlib.contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Random numbers from `seed` inside; afterwards the caller's random state is restored."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
