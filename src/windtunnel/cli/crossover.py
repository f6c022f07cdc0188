"""windtunnel crossover"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel import records, units
from windtunnel.cli import levels, words

HELP = """
Find where one device or framework overtakes another: by forecast, then by few measurements.

[bold]Examples[/bold]

  windtunnel crossover rnn n_steps=20 --over n_rec=10..5000 --between cpu,cuda

  windtunnel crossover rnn --over n_rec=10..2000 --between torch:loop,jax:scan --budget 300

  windtunnel crossover rnn --over n_rec=10..5000 --between macbook-2016,h200 --no-measure --plot crossing.svg

Without a GPU on this machine, the side `cuda` is forecast on an h200, and the answer says so.
"""


Over = Annotated[str, typer.Option("--over", help="The setting to sweep and its range: n_rec=10..5000.")]
Between = Annotated[
    str,
    typer.Option(
        "--between",
        help="Two of: cpu, cuda, a machine's name, framework:variant (torch:loop, jax:scan@cuda).",
    ),
]
NoMeasure = Annotated[bool, typer.Option("--no-measure", help="Use forecasts only.")]
Budget = Annotated[
    float, typer.Option("--budget", min=1, help="Seconds after which no further value is measured.")
]
Processes = Annotated[
    int, typer.Option("--processes", min=1, max=100, help="Fresh processes for each value.")
]
Seconds = Annotated[
    float, typer.Option("--seconds", min=0.01, max=3600, help="Longest steady timing in each process.")
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw the result to FILE.svg, .png or .html (needs the extra plots).",
        show_default=False,
    ),
]


def crossover(
    job: words.Job,
    over: Over,
    between: Between = "cpu,cuda",
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: words.Data = "resident",
    no_measure: NoMeasure = False,
    budget: Budget = 600.0,
    processes: Processes = 2,
    seconds: Seconds = 1.0,
    plot: Plot = None,
    store: levels.StoreFile = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.measurement.steady import Protocol
    from windtunnel.measurement.store import Store
    from windtunnel.study.crossover.search import parse_between, parse_over, search
    from windtunnel.study.crossover.sides import Sides

    name, low, high = parse_over(over)
    if plot:
        words.refuse_plot(plot)
    strategy = words.make_strategy(
        batch=batch, precision=precision, threads=threads, execution=execution, data=data
    )
    job_name, *words_of_settings = job
    # A framework's task takes numbers, not text.
    settings = {key: units.literal(text) for key, text in records.parse_settings(words_of_settings).items()}
    protocol = Protocol(processes=processes, most_processes=processes + 1, seconds=seconds)
    sides = Sides(
        job=job_name,
        over=name,
        between=parse_between(between),
        settings=settings,
        strategy=strategy,
        protocol=protocol,
        store=None if no_measure else Store(store),
    )
    answer = search(sides, low, high, 0.0 if no_measure else budget)
    words.show(as_json, answer.plain, lambda: str(answer))
    if plot:
        from windtunnel.reports.crossover import chart

        chart(answer).save(plot)
