"""windtunnel network list | show | train"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel import networks, records, units
from windtunnel.cli import words
from windtunnel.learning.text import wrapped as _wrapped

app = typer.Typer(
    help="The networks that can be named as jobs: what they are for, and training them for real.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_TRAIN = """
Train a network for real, on data that is here or on yours, and examine it on examples held out.

[bold]Examples[/bold]

  windtunnel network train ffn --until accuracy=0.95

  windtunnel network train gan --epochs 30 --folder digits

  windtunnel network train dcn size=32 channels=3 --data photos/ --device cuda

  windtunnel network train lstm --data book.txt

Stopped in the middle, the same command goes on from the last whole epoch.
"""


@app.command("list", help="All named networks.\n\nExample: windtunnel network list")
def list_networks(as_json: words.Json = False) -> None:
    found = [networks.named(name) for name in networks.names()]
    words.show(as_json, lambda: [records.plain(n) for n in found], lambda: _list(found))


@app.command(
    "show",
    help="What a network is for, its settings, layers, parameters, flop and memory a step.\n\nExample: windtunnel network show rnn n_rec=200",
)
def show_network(job: words.Network, as_json: words.Json = False) -> None:
    from windtunnel.forecast.memory import account
    from windtunnel.learning.guide import WHEN
    from windtunnel.learning.layers import layers
    from windtunnel.machine.machine import Machine
    from windtunnel.prediction import trace
    from windtunnel.strategy import Strategy

    network = networks.named(job[0])
    workload = words.find_job(job)
    chosen = records.read(network.settings, _given(job), f"job {network.name}")
    recorded = trace(workload, Strategy(), "cpu")
    memory = account(recorded, Machine.named("i7-3820"), Strategy())
    facts: dict[str, Any] = {
        **records.plain(network),
        "guide": WHEN[network.name],
        "settings": {f.name: records.plain(getattr(chosen, f.name)) for f in dataclasses.fields(chosen)},
        "data": network.module.DATA,
        "batch": recorded.batch,
        "parameters": recorded.parameters,
        "flop": recorded.flop,
        "peak_bytes": memory.peak_bytes,
        "layers": records.plain(layers(workload)),
        "cautions": _cautions(network, chosen),
    }
    words.show(as_json, lambda: facts, lambda: _text(facts))


@app.command("train", help=_TRAIN)
def train_network(
    job: words.Network,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="digits, text, images, arithmetic, decision, or a path; the network's own else."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Stop when a held-out figure is reached: accuracy=0.95, 'loss<=0.2'."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Epochs of each stage; the network's own number else."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    threads: words.Threads = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="Where weights, curve and samples go; a folder under windtunnel-runs else."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="For initial weights, the order of examples and all noise.")
    ] = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew even where an interrupted training could go on.")
    ] = False,
    as_json: words.Json = False,
) -> None:
    from windtunnel.learning import training

    name = networks.named(job[0]).name
    goal = training.parse_goal(until) if until else None
    training.check_device(device)
    if threads is not None:
        training.use_threads(threads)
    lesson, identity = training.prepare(name, _given(job), data)
    options = training.TrainingOptions(
        epochs=epochs,
        until=goal,
        device=device,
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
        "device": device,
        "until": until,
        **result.plain(),
    }
    words.show(as_json, lambda: facts, lambda: str(result))


def _given(job: list[str]) -> dict[str, Any]:
    """The settings among the words, checked."""
    origin = words.find_job(job).origin
    return dict(origin.settings) if origin else {}


def _cautions(network: networks.Network, settings: Any) -> list[str]:
    caution = getattr(network.module, "caution", None)
    return list(caution(settings)) if caution else []


def _list(found: list[networks.Network]) -> str:
    lines = []
    for kind, members in itertools.groupby(found, key=lambda n: n.kind):
        lines += [kind, *(f"  {n.name:<14}{n.title}" for n in members)]
    return "\n".join(lines)


def _text(facts: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={_word(value)}" for key, value in facts["settings"].items())
    lines = [
        f"{facts['name']}: {facts['title']}",
        *_wrapped("for", facts["purpose"]),
        *_wrapped("guide", facts["guide"]),
        *_wrapped("source", facts["source"]),
        *_wrapped("settings", settings),
        *_wrapped("data", facts["data"]),
        f"  size      {facts['parameters']:,} parameters",
        f"  a step    {units.show(facts['flop'], 'flop')} and {units.show(facts['peak_bytes'], 'B')} at batch {facts['batch']} on a CPU",
    ]
    for caution in facts["cautions"]:
        lines += _wrapped("caution", caution)
    return "\n".join([*lines, "  layers", *_layer_lines(facts["layers"])])


def _layer_lines(rows: list[dict[str, Any]]) -> list[str]:
    """One line a layer; its bar grows with the logarithm of how many values it gives for an example."""
    from windtunnel.learning.pictures import bar

    most = max(row["width"] for row in rows)
    table = [
        (
            (row["name"] or "(whole)") if i else "",
            row["kind"],
            "x".join(map(str, row["shape"])),
            f"{row['parameters']:,}",
        )
        for i, row in enumerate(rows)
    ]
    wide = [
        max(len(line[column]) for line in [("", "", "gives", "parameters"), *table]) for column in range(4)
    ]
    lines = [
        f"    {'':<{wide[0]}}  {'':<{wide[1]}}  {'gives':<{wide[2]}}  {'parameters':>{wide[3]}}  values an example, on a logarithmic scale"
    ]
    for line, row in zip(table, rows, strict=True):
        told = f"    {line[0]:<{wide[0]}}  {line[1]:<{wide[1]}}  {line[2]:<{wide[2]}}  {line[3]:>{wide[3]}}"
        lines.append(f"{told}  {bar(row['width'], most)} {row['width']:,}")
    return lines


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with rate and time left on standard error; where that is no terminal, a line for each epoch."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[told]}, {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, told="begins", rate="")

        def move(done: int, total: int, told: str) -> None:
            speed = bar.tasks[task].speed
            bar.update(
                task,
                completed=done,
                total=total,
                told=told,
                rate=f"{units.digits(speed)} steps/s" if speed else "",
            )

        yield move


def _lines() -> Callable[[int, int, str], None]:
    last = ""

    def move(done: int, total: int, told: str) -> None:
        nonlocal last
        if told != last:
            last = told
            print(f"step {done:,} of {total:,}: {told}", file=sys.stderr)

    return move


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
