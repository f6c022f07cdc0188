"""windtunnel network list | show | train | use"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel import bounds, networks, records, units
from windtunnel.cli import words
from windtunnel.cli.printing import tell
from windtunnel.foreign import shown
from windtunnel.learning.text import wrapped as _wrapped
from windtunnel.machine.machine import torch_device
from windtunnel.records import Plain

app = typer.Typer(
    help="Built-in networks: what they are for, what they cost, and training them on real data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_SHOW = """
Show what a network is for, its settings and layers, and the parameters, flop and memory of one step.

Example: windtunnel network show rnn n_rec=200
"""
_TRAIN = """
Train a network on a built-in data set or on your own, and test it on held-out examples.

[bold]Examples[/bold]

  windtunnel network train ffn --until accuracy=0.95

  windtunnel network train gan --epochs 30 --folder digits

  windtunnel network train dcn size=32 channels=3 --data photos/ --on cuda

  windtunnel network train lstm --data book.txt

If the training is interrupted, the same command continues after the last complete epoch.
"""
_USE = """
Use a network that `windtunnel advise --data FILE` trained: on new rows or pictures, or to continue a text.

[bold]Examples[/bold]

  windtunnel network use windtunnel-runs/flowers-1a2b3c4d --data new_flowers.csv

  windtunnel network use windtunnel-runs/flowers-1a2b3c4d --data new_flowers.csv --to predictions.csv
"""
_DataSet = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="digits, text, images, arithmetic, decision, or a path. Default: the network's own data set.",
        show_default=False,
    ),
]
_Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        help="Stop when a result on the held-out examples is reached: accuracy=0.95, 'loss<=0.2'.",
        show_default=False,
    ),
]
_Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        min=1,
        max=bounds.MOST_EPOCHS,
        help="Epochs of each stage. Default: the network's own.",
        show_default=False,
    ),
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        help="The folder for weights, curve and samples. Default: a new folder in windtunnel-runs.",
        show_default=False,
    ),
]
_Seed = Annotated[
    int,
    typer.Option(
        "--seed", min=0, max=bounds.MOST_SEED, help="Seed of initial weights, order of examples and noise."
    ),
]
_Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Start again from epoch 0 instead of continuing an interrupted training."),
]


@app.command("list", help="List all built-in networks.\n\nExample: windtunnel network list")
def list_networks(as_json: words.Json = False) -> None:
    entries = [networks.named(name) for name in networks.names()]
    words.show(as_json, lambda: [records.plain(entry) for entry in entries], lambda: _list(entries))


@app.command("show", help=_SHOW)
def show_network(job: words.NetworkName, as_json: words.Json = False) -> None:
    from windtunnel.forecast.memory import account
    from windtunnel.isolation.jobs import layers_of
    from windtunnel.learning.guide import WHEN
    from windtunnel.machine.machine import Machine
    from windtunnel.prediction import trace
    from windtunnel.strategy import Strategy

    network = networks.named(job[0])
    workload = words.find_job(job)
    settings = records.read(network.settings, _settings(job), f"job {network.name}")
    recorded = trace(workload, Strategy(), "cpu")
    memory = account(recorded, Machine.named("i7-3820"), Strategy())
    facts: Plain = {
        **records.plain(network),
        "guide": WHEN[network.name],
        "settings": {f.name: records.plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)},
        "data": network.module.DATA,
        "batch": recorded.batch,
        "parameters": recorded.parameters,
        "flop": recorded.flop,
        "peak_bytes": memory.peak_bytes,
        "layers": layers_of(workload),
        "cautions": _cautions(network, settings),
    }
    words.show(as_json, lambda: facts, lambda: _text(facts))


@app.command("train", help=_TRAIN)
def train_network(
    job: words.NetworkName,
    data: _DataSet = None,
    until: _Until = None,
    epochs: _Epochs = None,
    on: words.OnThisMachine = "cpu",
    threads: words.Threads = None,
    folder: _Folder = None,
    seed: _Seed = 0,
    fresh: _Fresh = False,
    as_json: words.Json = False,
) -> None:
    from windtunnel.learning import training

    name = networks.named(job[0]).name
    goal = training.parse_goal(until) if until else None
    kind = words.find_device(on, "training")
    if threads is not None:
        training.use_threads(threads)
    lesson, identity = training.prepare(name, _settings(job), data)
    options = training.TrainingOptions(
        epochs=epochs,
        until=goal,
        device=torch_device(kind),
        folder=folder or identity.folder(seed),
        seed=seed,
        fresh=fresh,
    )
    with _progress(f"training {name}") as progress:
        result = training.train_lesson(lesson, options, identity=identity, progress=progress)
    facts = {
        "network": name,
        "settings": identity.settings,
        "data": identity.data,
        "seed": seed,
        "device": kind,
        "until": until,
        **result.plain(),
    }
    words.show(as_json, lambda: facts, lambda: str(result))


@app.command("use", help=_USE)
def use_network(
    saved: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of the network.", show_default=False)
    ],
    data: Annotated[Path, typer.Option("--data", help="New rows, pictures, or a text.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write all predictions to this CSV file.", show_default=False),
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.choosing import answers
    from windtunnel.choosing import saved as networks_of_ladder

    if to is not None:
        words.refuse_unwritable(to, "--to")
    found = answers.answers_of(networks_of_ladder.load(saved), data)
    if to is not None:
        found.write(to)
    words.show(as_json, found.plain, lambda: str(found))


def _settings(job: list[str]) -> dict[str, object]:
    """The settings on the command line, after the job has checked them."""
    origin = words.find_job(job).origin
    return dict(origin.settings) if origin else {}


def _cautions(network: networks.NetworkEntry, settings: object) -> list[str]:
    caution = getattr(network.module, "caution", None)
    return list(caution(settings)) if caution else []


def _list(entries: list[networks.NetworkEntry]) -> str:
    lines = []
    for kind, members in itertools.groupby(entries, key=lambda entry: entry.kind):
        lines += [kind, *(f"  {entry.name:<14}{entry.title}" for entry in members)]
    return "\n".join(lines)


def _text(facts: Plain) -> str:
    settings = " ".join(f"{key}={_word(value)}" for key, value in facts["settings"].items())
    flop, memory = units.show(facts["flop"], "flop"), units.show(facts["peak_bytes"], "B")
    lines = [
        f"{facts['name']}: {facts['title']}",
        *_wrapped("for", facts["purpose"]),
        *_wrapped("guide", facts["guide"]),
        *_wrapped("source", facts["source"]),
        *_wrapped("settings", settings),
        *_wrapped("data", facts["data"]),
        f"  size      {facts['parameters']:,} parameters",
        f"  a step    {flop} and {memory} at batch {facts['batch']} on a CPU",
    ]
    for caution in facts["cautions"]:
        lines += _wrapped("caution", caution)
    return "\n".join([*lines, "  layers", *_layer_lines(facts["layers"])])


def _layer_lines(layers: list[Plain]) -> list[str]:
    """One line for each layer. Its bar shows the logarithm of its number of output values for one example."""
    from windtunnel.learning.pictures import bar

    most = max(layer["width"] for layer in layers)
    rows = [("", "", "output", "parameters", "output values for one example, on a logarithmic scale")]
    for number, layer in enumerate(layers):
        name = (layer["name"] or "(whole)") if number else ""
        shape, parameters = "x".join(map(str, layer["shape"])), f"{layer['parameters']:,}"
        width = f"{bar(layer['width'], most)} {layer['width']:,}"
        rows.append((name, layer["kind"], shape, parameters, width))
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"    {name:<{wide[0]}}  {kind:<{wide[1]}}  {shape:<{wide[2]}}  {parameters:>{wide[3]}}  {width}"
        for name, kind, shape, parameters, width in rows
    ]


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error; if that is no terminal, one line for each epoch."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}, {task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, text="starting", rate="")

        def move(done: int, total: int, text: str) -> None:
            speed = bar.tasks[task].speed
            rate = f"{units.digits(speed)} steps/s" if speed else ""
            bar.update(task, completed=done, total=total, text=text, rate=rate)

        yield move


def _lines() -> Callable[[int, int, str], None]:
    last = ""

    def move(done: int, total: int, text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            tell(f"step {done:,} of {total:,}: {shown(text)}")

    return move


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
