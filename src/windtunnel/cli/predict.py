"""windtunnel predict"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel.cli import words

HELP = """
Predict a training step's time, memory and bottleneck on a machine that need not be here.

[bold]Examples[/bold]

  windtunnel predict rnn n_rec=50 n_steps=100 --on h200

  windtunnel predict fcn5 --on i7-3820 --threads 4

  windtunnel predict my_job.py:build width=512 --on 8xh100 --batch 64 --precision bf16 --json
"""


def predict(
    job: words.Job,
    on: Annotated[
        str, typer.Option("--on", help="here, cpu, cuda, a machine's name (8xh200, 4x8xh200) or FILE.toml.")
    ] = "here",
    batch: words.Batch = None,
    precision: words.Precision = "fp32",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: words.Data = "resident",
    prefetch: words.Prefetch = 0,
    accumulate: words.Accumulate = 1,
    recompute: words.Recompute = "none",
    optimizer: words.Optimizer = None,
    host_factor: Annotated[
        float | None,
        typer.Option("--host-factor", help="How slow the host is, as `machine probe --host` tells."),
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="Write the step to this file, for ui.perfetto.dev.")
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel import perfetto
    from windtunnel.prediction import predict_with_timeline

    strategy = words.make_strategy(
        batch,
        precision,
        threads,
        execution,
        data,
        prefetch,
        accumulate=accumulate,
        recompute=recompute,
        optimizer=optimizer,
    )
    if timeline:
        words.refuse_unwritable(timeline, "--timeline")
    workload, machine = words.find_job(job), words.find_machine(on)
    machine = machine if host_factor is None else machine.with_host_factor(host_factor)
    forecast, schedule = predict_with_timeline(workload, machine, strategy)
    words.show(as_json, forecast.plain, lambda: str(forecast))
    if timeline:
        perfetto.write(timeline, perfetto.from_timeline(schedule))
