"""windtunnel factors"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel import units
from windtunnel.cli import words
from windtunnel.cli.printing import tell
from windtunnel.errors import BadInput
from windtunnel.machine.machine import Machine

HELP = """
Rank what matters: vary each factor of a job alone (network, depth, width, timesteps, batch, precision,
threads, device, number of devices, data flow, exchange, framework) and show its influence on time, memory,
energy and price. Also says whether the job is of small or large scale. By forecast; the machine need not be
available.

`windtunnel factors guide` asks whether the guide's order of factors (Wuensche 2018, section V) holds for its
own examples.

[bold]Examples[/bold]

  windtunnel factors resnet50 --on h200

  windtunnel factors rnn n_rec=100 --on k80 --only timesteps,width,device

  windtunnel factors my_job.py:build --on 4xh100 --batch 256 --price 2.5

  windtunnel factors ffn --on i7-3820 --learn --seconds 60

  windtunnel factors resnet50 --on h200 --plot factors.svg
"""
_Only = Annotated[
    str | None,
    typer.Option("--only", help="Vary only these factors: device,batch,data-place.", show_default=False),
]
_Compiled = Annotated[bool, typer.Option("--compiled", help="Also with torch.compile; its trace takes long.")]
_Price = Annotated[
    str | None,
    typer.Option(
        "--price",
        help="Price of a device-hour: 2.5, or for some machines h200=3.5,a100-80gb=1.8.",
        show_default=False,
    ),
]
_Learn = Annotated[
    bool,
    typer.Option(
        "--learn",
        help="Really train small runs here with other initial weights, nodes and layers; built-in networks.",
    ),
]
_Seconds = Annotated[float, typer.Option("--seconds", help="Seconds of all runs of --learn together.")]
_Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        help="The target of --learn (accuracy=0.95). Default: what the job reaches in half of its run.",
        show_default=False,
    ),
]
_Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs", help="Passes over the data in a whole training, for the scale.", show_default=False
    ),
]
_Reasonable = Annotated[
    str, typer.Option("--reasonable", help="The longest training that counts as small scale (24h, 90min).")
]
_Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw the chart to FILE.svg, .png or .html (needs the extra plots).",
        show_default=False,
    ),
]


def factors(
    job: words.Job,
    on: words.On = "here",
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: words.Data = "resident",
    prefetch: words.Prefetch = 0,
    loaders: words.Loaders = 0,
    storage: words.StorageName = None,
    example_bytes: words.ExampleBytes = None,
    decode: words.Decode = None,
    examples: words.Examples = None,
    inference: words.Inference = False,
    only: _Only = None,
    compiled: _Compiled = False,
    price: _Price = None,
    learn: _Learn = False,
    seconds: _Seconds = 60.0,
    until: _Until = None,
    epochs: _Epochs = None,
    reasonable: _Reasonable = "24h",
    plot: _Plot = None,
    as_json: words.Json = False,
) -> None:
    if plot:
        words.refuse_plot(plot)
    if job == ["guide"]:
        from windtunnel.influence.guide import guide_order

        if plot:
            raise BadInput("--plot draws one job, not the guide's examples.", hint="Leave --plot out.")
        order = guide_order(progress=_progress)
        words.show(as_json, order.plain, lambda: str(order))
        return
    from windtunnel.influence.learned import LearnOptions
    from windtunnel.influence.scale import ScaleOptions
    from windtunnel.influence.survey import FactorOptions
    from windtunnel.influence.survey import factors as survey

    if (until is not None or seconds != 60.0) and not learn:
        raise BadInput("--seconds and --until are about --learn.", hint="Add --learn, or leave them out.")
    options = FactorOptions(
        only=tuple(name for name in (only or "").split(",") if name),
        compiled=compiled,
        prices=_prices(price),
        learn=LearnOptions(seconds=seconds, until=until) if learn else None,
        scale=ScaleOptions(reasonable_seconds=_duration(reasonable), epochs=epochs),
    )
    strategy = words.make_strategy(
        batch=batch,
        precision=precision,
        threads=threads,
        execution=execution,
        data=data,
        prefetch=prefetch,
        loaders=loaders,
        inference=inference,
    )
    workload = words.with_stored_data(words.find_job(job), example_bytes, decode, examples)
    machine = words.with_storage(Machine.find(on), storage)
    found = survey(workload, machine, strategy, options, progress=_progress)
    words.show(as_json, found.plain, lambda: str(found))
    if plot:
        from windtunnel.reports.tornado import chart

        chart(found).save(plot)


def _progress(text: str) -> None:
    tell(text)


def _prices(text: str | None) -> dict[str, float]:
    """By the name of a machine; a price without a name is that of any machine."""
    prices: dict[str, float] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        name, _, number = part.rpartition("=")
        try:
            prices[name] = float(number)
        except ValueError:
            prices[name] = -1.0
        if not 0 < prices[name] < float("inf"):
            raise BadInput(
                f"--price {part!r} is not a price of a device-hour.",
                hint="Write --price 2.5, or --price h200=3.5,a100-80gb=1.8.",
            )
    return prices


def _duration(text: str) -> float:
    """Seconds of "24h", "90min", "2days" or a quantity such as "500 s"."""
    scales = {"h": units.HOUR_SECONDS, "min": units.MINUTE_SECONDS, "days": units.DAY_SECONDS}
    for symbol, scale in scales.items():
        if text.endswith(symbol):
            return units.parse(text.removesuffix(symbol), "s") * scale
    return units.parse(text, "s")
