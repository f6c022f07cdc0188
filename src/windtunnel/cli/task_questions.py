"""The questions that a bare `windtunnel advise` asks in a terminal. Wrong answers are asked again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from windtunnel.choosing.commands import command_lines
from windtunnel.choosing.task import KINDS, TaskKind, parse_duration, parse_share
from windtunnel.cli.printing import say
from windtunnel.cli.task_options import TaskOptions
from windtunnel.errors import BadInput, Interrupted
from windtunnel.foreign import shown

T = TypeVar("T")
_ERROR = 0.05
_SHOWN_FILES = 9


def ask(options: TaskOptions) -> TaskOptions:
    """The same options from questions in a terminal."""
    say("A few questions. Enter takes the answer in [brackets]; Ctrl-C ends.")
    kind = _pick(
        "What do you want the network to do?",
        [(kind.name, kind.example) for kind in KINDS],
        default=len(KINDS),
    )
    task = KINDS[kind - 1]
    data = _ask_for_data()
    if data is not None:
        asked = dataclasses.replace(options, task=task.name, data=data, target=_ask_for_target(data))
    else:
        asked = _ask_for_sizes(dataclasses.replace(options, task=task.name), task)
    if task.has_ladder or task.outputs:
        error = _ask(_error_question(asked), f"{_ERROR}", parse_share)
        asked = dataclasses.replace(asked, error=f"{error:g}")
    seconds = _ask("How long may the training take? 30s, 5m, 2h", "5m", _as_typed(parse_duration))
    asked = dataclasses.replace(asked, time=seconds)
    say("\nThe same without questions:")
    say("\n".join(command_lines(_command(asked))), end="\n\n")
    return asked


def _error_question(asked: TaskOptions) -> str:
    """What an error is depends on the column to predict: classes, or a number."""
    from windtunnel.choosing import columns, tables

    if asked.data is not None and asked.target is not None:
        target = columns.read_target(tables.read_csv(asked.data), asked.target, asked.data.name)
        if target.numbers is not None:
            return f"How much of the variance of {asked.target!r} may stay unexplained? 0.05 is 5 in 100"
    return "Which share of wrong answers is acceptable? 0.05 is 5 in 100"


def _command(asked: TaskOptions) -> list[str]:
    """The command that is equivalent to these answers."""
    given = {
        "--task": asked.task,
        "--data": asked.data,
        "--target": asked.target,
        "--inputs": asked.inputs,
        "--outputs": asked.outputs,
        "--examples": asked.examples,
        "--error": asked.error,
        "--time": asked.time,
        "--on": None if asked.on == "here" else asked.on,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return ["windtunnel", "advise", *options]


def _ask_for_data() -> Path | None:
    """A file of the current folder, a path, or none."""
    from windtunnel.choosing.tables import ARRAYS, TABLES, TEXTS, read_csv

    kinds = (*TABLES, *ARRAYS, *TEXTS[:1])  # programs and notes are texts too, but seldom data
    here = [p for p in Path().iterdir() if p.is_file() and p.suffix.lower() in kinds]
    here.sort(key=lambda p: (kinds.index(p.suffix.lower()), p.name))
    found = [p.name for p in here[:_SHOWN_FILES]]
    choices = [(name, "") for name in found] + [("no data yet", "the guide's advice only")]

    def parse(text: str) -> Path | None:
        if text.isdigit():
            number = _in_range(text, len(choices))
            text = found[number - 1] if number <= len(found) else ""
        path = Path(text).expanduser() if text else None
        if path is not None and path.suffix.lower() in TABLES and path.is_file():
            read_csv(path)  # a file that cannot be read is asked for again
        if path is not None and not path.exists():
            raise BadInput(
                f"There is no file or folder {text!r}.", hint="Type a number of the list, or a path."
            )
        return path

    _list("Where is your data? A number of the list, or the path of a file or folder.", choices)
    return _ask("Your data", "1", parse)


def _ask_for_target(path: Path) -> str | None:
    """The column to predict, for a table with columns. One that cannot be learned is asked for again."""
    from windtunnel.choosing import columns, tables

    if path.suffix.lower() not in tables.TABLES:
        return None
    table = tables.read_csv(path)
    names = table.names
    if len(names) > 30:
        _list("Which column is to be predicted?", [(name, "") for name in names[-5:]], len(names) - 4)
    else:
        _list("Which column is to be predicted?", [(name, "") for name in names])

    def parse(text: str) -> str:
        name = names[_in_range(text, len(names)) - 1]
        columns.read_target(table, name, path.name)
        return name

    return _ask("Column", str(len(names)), parse)


def _ask_for_sizes(options: TaskOptions, kind: TaskKind) -> TaskOptions:
    """The numbers that a forecast needs."""
    return dataclasses.replace(
        options,
        inputs=_ask(f"Inputs: {kind.inputs}", "784", _whole) if kind.inputs else None,
        outputs=_ask(f"Outputs: {kind.outputs}", "10", _whole) if kind.outputs else None,
        examples=_ask("How many examples are there? For a text: characters", "10000", _whole),
        on=_ask("Machine: here, or one of `windtunnel machine list`, such as h200", "here", _machine),
    )


def _machine(text: str) -> str:
    from windtunnel.machine.machine import Machine

    Machine.find(text)
    return text


def _pick(question: str, choices: Sequence[tuple[str, str]], default: int) -> int:
    _list(question, choices)
    return _ask("Your choice", str(default), lambda text: _in_range(text, len(choices)))


def _list(question: str, choices: Sequence[tuple[str, str]], first: int = 1) -> None:
    wide = max(len(name) for name, _ in choices)
    say(f"\n{question}")
    for number, (name, text) in enumerate(choices, first):
        say(f"  {number:>3}  {name:<{wide}}  {text}".rstrip())


def _ask(question: str, default: str, parse: Callable[[str], T]) -> T:
    """Asks until the answer can be used. Ctrl-D ends as bad input, Ctrl-C as an interruption."""
    while True:
        try:
            text = input(shown(f"{question} [{default}]: ")).strip() or default
        except EOFError:
            say()
            raise BadInput(
                "The answers ended; nothing was trained.",
                hint="Run `windtunnel advise` again, or use --task.",
            ) from None
        except KeyboardInterrupt:
            say()
            raise Interrupted("Ended; nothing was trained.") from None
        try:
            return parse(text)
        except BadInput as error:
            say(f"  {error}")


def _as_typed(check: Callable[[str], object]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        check(text)
        return text

    return parse


def _in_range(text: str, most: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise BadInput(f"{text!r} is not a number from 1 to {most}.")
    return int(text)


def _whole(text: str) -> int:
    plain = text.replace(",", "").replace("_", "")
    if not plain.isdigit() or int(plain) < 1:
        raise BadInput(f"{text!r} is not a whole number above 0.")
    return int(plain)
