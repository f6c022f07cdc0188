"""windtunnel report"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel.cli import levels, predict, words
from windtunnel.cli.copied_options import with_options_of
from windtunnel.cli.printing import say
from windtunnel.errors import BadInput
from windtunnel.strategy import Strategy

HELP = """
Write the forecast of a job as one HTML file that opens without a network: step time with its parts, memory
over the step, timeline, advice, factors, scaling and feed, for one machine or several side by side.

[bold]Examples[/bold]

  windtunnel report resnet50 --on h200 --batch 64

  windtunnel report resnet50 --on h200 --on a100-80gb --on 8xh100 --batch 256 --precision bf16

  windtunnel report my_job.py:build width=512 --on 8xh100 --out job.html

  windtunnel report gpt2 --on h200 --strategy plan.toml --brief

Advice, factors and the scaling curve are those of the first machine, and take up to a minute or two.
"""
_MOST_MACHINES = 12
_OPTIONS = "How the job runs"
Machines = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        help="A machine, as for predict; several: --on h200 --on a100-80gb. Default: here.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="The file to write. Default: JOB-MACHINE.html.", show_default=False
    ),
]
Brief = Annotated[bool, typer.Option("--brief", help="Only the forecasts: no advice, factors or scaling.")]


@with_options_of(predict.predict, "on", "timeline", "batches", "as_json", title=_OPTIONS)
def report(
    context: typer.Context,
    job: words.OptionalJob = None,
    on: Machines = None,
    out: Out = None,
    brief: Brief = False,
    **options: Any,
) -> None:
    from windtunnel.reports.forecast import document
    from windtunnel.reports.forecast.gather import gather

    plan = words.read_plan(options["strategy_file"], context)
    named = words.job_of(plan, job)
    names = _machines(on, plan)
    path = out or Path(document.file_name(Path(named[0].partition(":")[0]).stem, names))
    document.refuse_other_file(path)
    words.refuse_unwritable(path, "--out")
    fields = {field.name for field in dataclasses.fields(Strategy)}
    strategy = words.make_strategy(plan, **{name: options[name] for name in options if name in fields})
    further = words.further_options(plan, options)
    workload = words.with_stored_data(
        words.find_job(named), further["example_bytes"], further["decode"], further["examples"]
    )
    machines = [
        (name, predict.find_machine(name, further["storage"], further["host"], further["host_factor"]))
        for name in names
    ]
    with levels.show_line() as show:
        progress = show if sys.stderr.isatty() else lambda text: None
        found = gather(workload, machines, strategy, _command(), brief, progress)
    document.write(found, path)
    say(f"wrote {path}: open it in a browser; it needs no network.")


def _machines(on: list[str] | None, plan: words.PlanAndTyped | None) -> tuple[str, ...]:
    """The machines in the order in which they were named, each once."""
    names = tuple(dict.fromkeys(on or [words.machine_of(plan, "here")]))
    if len(names) > _MOST_MACHINES:
        raise BadInput(
            f"--on names {len(names)} machines; a report compares at most {_MOST_MACHINES}.",
            hint="Write several reports.",
        )
    return names


def _command() -> str:
    """The command as it was typed, so that a reader can repeat it."""
    return shlex.join(["windtunnel", *sys.argv[1:]])
