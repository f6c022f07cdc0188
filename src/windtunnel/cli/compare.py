"""windtunnel compare"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.cli import levels, words
from windtunnel.errors import BadInput
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

if TYPE_CHECKING:
    from windtunnel.measurement.compare import ComparisonStage

HELP = """
Compare two ways to run a job here: they run in turn, and the answer is different, same or can't tell.

JOB is a job, with settings or changes of the strategy for both sides. A and B are the sides, a word each:

  threads=2                 a change of the strategy (batch, precision, threads, execution, data, ...)

  n_rec=100                 a change of a setting of the job

  threads=2,precision=bf16  several changes

  compile=true, on=cpu      by torch.compile; on the CPU or on cuda

  framework=jax, jax:scan   a framework, or one of its variants

  old.py:build              another job; leave JOB out where both sides are jobs

  default                   the job as it is

[bold]Examples[/bold]

  windtunnel compare rnn n_rec=50 threads=1 threads=2

  windtunnel compare ffn batch=64 default precision=bf16

  windtunnel compare rnn torch:loop jax:scan --threads 1 --seconds 120

  windtunnel compare old.py:build new.py:build --within 5%

Several pairs of fresh processes are run, since processes differ. Both of a pair are alive and step in turn
(A B B A), so that other programs affect both sides equally. The answer is "different" if the interval of the
ratio excludes 1, "same" only if all of it is within the margin of --within. Batches that differ are compared
by the time of an example.
"""

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[JOB [key=value ...]] A B", help="The job and its two sides.", show_default=False
    ),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", min=1, max=86400, help="Stop after this many seconds if the answer is still not clear."
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Stop a process that reports nothing for this many seconds.")
]


def compare(
    job_and_sides: Words,
    on: words.OnThisMachine = "here",
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    threads: words.Threads = None,
    within: words.Within = "10%",
    seconds: Seconds = 60.0,
    timeout: Timeout = 600.0,
    store: levels.StoreFile = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.measurement import compare as comparing
    from windtunnel.measurement.equivalence import parse_within
    from windtunnel.measurement.store import Store

    margin = parse_within(within)
    job, a, b = _split(job_and_sides)
    changes = _of_strategy(job)
    job = [word for word in job if word.partition("=")[0] not in changes]
    options: dict[str, int | str | None] = {"batch": batch, "precision": precision, "threads": threads}
    with levels.show_line() as say:
        answer = comparing.compare(
            words.find_job(job) if job else None,
            a,
            b,
            Machine.find(on),
            strategy=words.make_strategy(**{**options, **changes}),
            store=Store(store),
            options=comparing.CompareOptions(
                within=margin,
                seconds=seconds,
                timeout_seconds=timeout,
                progress=lambda stage: say(_stage(stage)),
            ),
        )
    words.show(as_json, answer.plain, lambda: str(answer))


def _split(given: list[str]) -> tuple[list[str], str, str]:
    """The words of the job (none if both sides are jobs), and the two sides, which are the last two words."""
    if len(given) < 2:
        raise BadInput(
            f"compare needs two sides, and got only {' '.join(given)!r}.",
            hint="Write: windtunnel compare JOB A B, for example: windtunnel compare rnn threads=1 threads=2",
        )
    *job, a, b = given
    return job, a, b


def _of_strategy(job: list[str]) -> dict[str, str]:
    """The words after a job that change the strategy, not a setting: batch=64."""
    fields = {each.name for each in dataclasses.fields(Strategy)}
    changes = [word.partition("=") for word in job[1:] if "=" in word]
    return {name: value for name, _, value in changes if name in fields}


def _stage(stage: ComparisonStage) -> str:
    """The progress, without the ratio: users who stop when the ratio looks good would be wrong more often."""
    return (
        f"comparing: {stage.pairs} pairs of processes, {stage.rounds:,} rounds, "
        f"{stage.seconds:.0f} of at most {stage.most_seconds:.0f} s"
    )
