"""windtunnel plan"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel import units
from windtunnel.cli import words
from windtunnel.errors import BadInput
from windtunnel.machine.machine import Machine

HELP = """
Find the fastest, cheapest or smallest way to run a job on several GPUs: degrees of data, tensor and
pipeline parallelism, micro-batch, recomputation, sharding, exchange, and the number of devices. By forecast;
the machine need not be available.

[bold]Examples[/bold]

  windtunnel plan resnet50 --on 8xh100 --batch 1024 --precision bf16

  windtunnel plan llm:llama layers=32 width=4096 heads=32 inner=11008 --on 64xh100 --batch 1024 --tokens 1e12

  windtunnel plan gpt2 --on 4x8xa100-80gb --batch 512 --examples 1e7 --deadline 24h --price 2.5

  windtunnel plan gpt2 --on 8xh100 --batch 512 --examples 1e6 --budget 500 --price 2.5 --to plan.toml

  windtunnel plan my_job.py:build --on 8xh100 --batches 256,512,1024 --for cheapest --json
"""


def plan(
    job: words.Job,
    on: words.On = "here",
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            help="Examples in one step of all devices together. Default: the job's own on each device.",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(
            "--batches",
            help="Several batches to choose from: 256,512 or 256..2048 (doubled each time).",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            help="pytorch, fp32, tf32, bf16 or fp16, as in predict. Several to choose from: pytorch,bf16.",
        ),
    ] = "pytorch",
    aim: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="fastest, cheapest (fewest device-hours) or smallest (fewest devices). Default: fastest; "
            "with --deadline alone, cheapest.",
            show_default=False,
        ),
    ] = None,
    examples: Annotated[
        float | None,
        typer.Option(
            "--examples",
            help="Examples of the whole run. Default: those of the job, once.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", help="Tokens of the whole run, for sequences.", show_default=False),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", help="The run ends within this time: 24h, 90min, 3days.", show_default=False
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", help="Price of one device for an hour, in any currency.", show_default=False),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="The run costs at most this; needs --price.", show_default=False),
    ] = None,
    optimizer: words.Optimizer = None,
    layout: words.Layout = None,
    expandable_segments: words.ExpandableSegments = False,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write the best plan to this TOML or JSON file.", show_default=False),
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.planning.goal import PlanChoices, PlanGoal
    from windtunnel.planning.plan import plan as make_plan

    formats = [name.strip() for name in precision.split(",")]
    strategy = words.make_strategy(
        batch=batch,
        precision=formats[0],
        optimizer=optimizer,
        layout=layout,
        expandable_segments=expandable_segments,
    )
    goal = PlanGoal(
        aim=aim,  # type: ignore[arg-type]
        deadline_seconds=None if deadline is None else units.parse_duration(deadline),
        budget=budget,
        price=price,
        examples=examples,
        tokens=tokens,
    )
    if batch is not None and batches is not None:
        raise BadInput("The batch is given twice.", hint="Give --batch or --batches.")
    choices = PlanChoices(
        batches=() if batches is None else _batches(batches),
        precisions=tuple(formats),  # type: ignore[arg-type]
    )
    if to is not None:
        words.refuse_unwritable(to, "--to")
    machine = Machine.find(on)
    table = make_plan(words.find_job(job), machine, strategy, goal, choices)
    if to is not None:
        table.saved(job, on if machine.name == table.machine else table.machine).save(to)
    words.show(as_json, table.plain, lambda: str(table))


def _batches(text: str) -> tuple[int, ...]:
    """A list of batches, or all doublings in a range."""
    ends = units.parse_range(text)
    try:
        if ends is None:
            return tuple(int(word) for word in text.split(","))
        if ends[0] and ends[1] and 1 <= ends[0] <= ends[1]:
            doublings = range(int(ends[1]).bit_length())
            return tuple(n for power in doublings if (n := int(ends[0]) * 2**power) <= ends[1])
    except ValueError:
        pass
    raise BadInput(f"--batches {text} is neither a list nor a range.", hint="Write 256,512 or 256..2048.")
