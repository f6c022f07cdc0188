"""windtunnel measure"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.cli import words
from windtunnel.errors import DoesNotFit, Unavailable, WindtunnelError
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.forecast.timeline import Timeline

HELP = """
Measure real training steps on this machine, in fresh processes, beside the forecast.

[bold]Examples[/bold]

  windtunnel measure rnn n_rec=50 n_steps=100 --threads 1

  windtunnel measure fcn5 --threads 2 --processes 5 --seconds 4

  windtunnel measure my_job.py:build --on cuda --batch 64 --precision bf16 --json
"""


def measure(
    job: words.Job,
    on: Annotated[str, typer.Option("--on", help="here, cpu or cuda.")] = "here",
    batch: words.Batch = None,
    precision: words.Precision = "fp32",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: words.Data = "resident",
    prefetch: words.Prefetch = 0,
    accumulate: words.Accumulate = 1,
    recompute: words.Recompute = "none",
    optimizer: words.Optimizer = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=1000, help="Fresh processes at least.")
    ] = 3,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, max=86400, help="Longest steady timing in each process.")
    ] = 2.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds after which a process is given up.")
    ] = 600.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew even where an interrupted measurement could go on.")
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="The store of measurements; WINDTUNNEL_STORE or a per-user file else."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline", help="Write forecast and one measured step to this file, for ui.perfetto.dev."
        ),
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel import perfetto
    from windtunnel.accuracy.difference import explain
    from windtunnel.measurement.measure import measure as measure_step
    from windtunnel.measurement.steady import Protocol
    from windtunnel.measurement.store import Store

    strategy = words.make_strategy(
        batch=batch,
        precision=precision,
        threads=threads,
        execution=execution,
        data=data,
        prefetch=prefetch,
        accumulate=accumulate,
        recompute=recompute,
        optimizer=optimizer,
    )
    if timeline:
        words.refuse_unwritable(timeline, "--timeline")
    workload, machine = words.find_job(job), Machine.find(on)
    protocol = Protocol(
        processes=processes,
        most_processes=max(processes, min(2 * processes, processes + 2)),
        seconds=seconds,
        timeout_seconds=timeout,
    )
    forecast, schedule, caution = _forecast(workload, machine, strategy)
    kept = Store(store)
    seen: list[dict[str, Any]] = []
    with _progress(f"measuring {workload.name}") as progress:
        measured = measure_step(
            workload,
            machine,
            strategy,
            protocol=protocol,
            store=kept,
            fresh=fresh,
            progress=progress,
            timeline=seen.append if timeline else None,
        )
    ratio = forecast.step_seconds / measured.step_seconds if forecast else None
    difference = explain(forecast, measured) if forecast else None
    both = {
        **measured.plain(),
        "forecast": forecast.plain() if forecast else None,
        "forecast_over_measured": ratio,
        "difference": difference.plain() if difference else None,
    }
    beside = (
        f"{forecast}\n\n{difference}\n\nforecast over measured: {ratio:.2f}"
        if forecast
        else f"forecast: none, {caution}"
    )
    words.show(as_json, lambda: both, lambda: f"{measured}\n\n{beside}")
    if timeline:
        flown = [perfetto.from_timeline(schedule)] if schedule else []
        perfetto.write(
            timeline,
            perfetto.together(
                *flown, *(perfetto.from_events(each["events"], left_out=each["left_out"]) for each in seen)
            ),
        )


def _forecast(
    workload: Workload, machine: Machine, strategy: Strategy
) -> tuple[Forecast | None, Timeline | None, str]:
    """The forecast to lay beside. What cannot be forecast may still be measured; what does not fit may not."""
    from windtunnel.prediction import predict_with_timeline

    if machine.name != "here":
        raise Unavailable(
            f"measure runs on this machine; {machine.name} is not it.",
            hint=f"Use: windtunnel predict ... --on {machine.name}",
        )
    try:
        return *predict_with_timeline(workload, machine, strategy), ""
    except DoesNotFit:
        raise
    except WindtunnelError as error:
        return None, None, error.message


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that moves between processes and is still while one is timed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        yield lambda done, most: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("processes"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def move(done: int, most: int) -> None:
            bar.update(task, completed=done, total=max(done, most), refresh=True)

        yield move
