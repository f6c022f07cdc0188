"""windtunnel advise --task: from a task or from data to a network, asked step by step in a bare terminal."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel import units
from windtunnel.choosing.task import NetworkTask, find_kind, parse_duration, parse_share
from windtunnel.cli import words
from windtunnel.cli.printing import rewrite, say, tell
from windtunnel.cli.task_options import TaskOptions
from windtunnel.cli.task_questions import ask
from windtunnel.errors import BadInput

if TYPE_CHECKING:
    from windtunnel.choosing.ladder import Progress
    from windtunnel.choosing.rungs import Rung

_SECONDS = 300.0  # of a ladder whose time nobody limits


def advise_task(options: TaskOptions) -> None:
    """Answer a task, or run the ladder on data; asks in a terminal if no option says what is wanted."""
    if options.is_bare:
        if not sys.stdin.isatty():
            raise BadInput(
                "Nothing says what you want, and there is no terminal for questions.",
                hint="Give --task 'classify images' --inputs 784 --outputs 10 --examples 60000 --error 0.03 "
                "--time 10m --on here, or --data FILE.csv. In a terminal, `windtunnel advise` asks.",
            )
        options = ask(options)
    kind = find_kind(options.task or "unclear")
    error = None if options.error is None else parse_share(options.error)
    seconds = None if options.time is None else parse_duration(options.time)
    task = NetworkTask(
        kind=kind,
        inputs=options.inputs,
        outputs=options.outputs,
        examples=options.examples,
        error=error,
        seconds=seconds,
        on=options.on,
    )
    if options.data is None:
        _recommend(task, options)
    elif kind.has_ladder:
        _run_ladder(task, options, options.data)
    else:
        _recommend_for_data(task, options, options.data)


def _recommend(task: NetworkTask, options: TaskOptions, data: str | None = None) -> None:
    from windtunnel.choosing.recommendation import recommend

    for name in ("target", "header", "to", "plot"):
        if getattr(options, name) is not None:
            raise BadInput(f"--{name} is for your own data.", hint="Give the data too, with --data.")
    answer = recommend(task, data)
    words.show(options.as_json, answer.plain, lambda: str(answer))
    if not options.as_json and data is None and task.kind.has_ladder:
        place = {"classify images": "FOLDER", "generate text": "FILE.txt"}.get(task.kind.name, "FILE.csv")
        say("\nOr try networks from shallow to deep on data of your own:")
        say(f"  windtunnel advise --data {place}")


def _recommend_for_data(task: NetworkTask, options: TaskOptions, path: Path) -> None:
    """A network that the ladder does not try, of the size of the data."""
    from windtunnel.choosing.own_data import check_content, read_own
    from windtunnel.learning.data import load

    own = read_own(path, target=options.target, header=options.header, seed=options.seed)
    check_content(task.kind, own, path.name, has_outputs=task.outputs is not None)
    size = own.facts.get("size")
    inputs = own.facts["channels"] * size * size if size else own.facts.get("inputs")
    sized = dataclasses.replace(
        task,
        inputs=task.inputs or inputs,
        outputs=task.outputs or len(own.classes) or own.facts.get("outputs"),
        examples=task.examples or sum(own.examples),
    )
    plain = dataclasses.replace(options, target=None, header=None)
    try:
        load(str(path), "images", size=size, channels=own.facts.get("channels"))
    except BadInput as error:
        _recommend(sized, plain)
        tell(f"\nYour data cannot train it yet: {error}")
    else:
        _recommend(sized, plain, str(path))


def _run_ladder(task: NetworkTask, options: TaskOptions, path: Path) -> None:
    from windtunnel.choosing import ladder
    from windtunnel.choosing.own_data import read_own
    from windtunnel.choosing.task import check_form
    from windtunnel.learning import training
    from windtunnel.machine.machine import torch_device

    if options.plot:
        words.refuse_unwritable(options.plot, "--plot")
        from windtunnel.reports import ladder as charts

        charts.check(options.plot)
    for name in ("inputs", "outputs", "examples"):
        if getattr(options, name) is not None:
            raise BadInput(f"--{name} is counted in your data.", hint="Leave it out, or leave out --data.")
    kind = words.find_device(options.on, "training")
    own = read_own(path, target=options.target, header=options.header, seed=options.seed)
    check_form(task.kind, own.form, path.name)
    if own.form == "table":
        kind = "cpu"  # networks for tables are so small that one thread trains them fastest
        training.use_threads(1)
    settings = ladder.LadderOptions(
        folder=options.to or ladder.default_folder(own, options.seed),
        seconds=task.seconds or _SECONDS,
        target=None if task.error is None else 1 - task.error,
        seed=options.seed,
        device=torch_device(kind),
        fresh=options.fresh,
    )
    try:
        result = ladder.run_ladder(own, settings, _progress())
    finally:
        if sys.stderr.isatty():  # clear the line of the progress
            rewrite("", width=78, back=True)
    words.show(
        options.as_json, result.plain, lambda: "\n".join(dataclasses.replace(result, data=str(path)).lines())
    )
    if options.plot:
        from windtunnel.reports import ladder as charts

        charts.draw(result).save(options.plot)


def _progress() -> Progress:
    """The round of the current rung on standard error; where that is no terminal, one line for each rung."""
    last = 0

    def move(rung: Rung, number: int, score: float, seconds: float) -> None:
        nonlocal last
        text = f"rung {rung.number}, {rung.title}"
        if sys.stderr.isatty():
            line = f"{text}: round {number}, best {score:.3f}, {units.show(seconds, 's')} in all"
            rewrite(line, width=78)
        elif rung.number != last:
            tell(f"training {text}")
        last = rung.number

    return move
