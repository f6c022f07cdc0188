"""The options of every command about the process in which jobs run, and that process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windtunnel.errors import BadInput
from windtunnel.foreign import shown_lines
from windtunnel.isolation import early
from windtunnel.isolation.cache import AnswerCache, folder_from
from windtunnel.isolation.jobs import Containment, contained
from windtunnel.isolation.limits import TraceLimits, read_limits

SECONDS, MEMORY, NO_CACHE, DEBUG = "--trace-seconds", "--trace-memory", "--no-cache", "--debug"
# Commands that build or train only jobs of this package, whose code is trusted.
_TRUSTED_COMMANDS = ("machine", "validate", "frameworks", "network train")
# Commands that time steps in processes of their own; nothing else may run then.
_TIMING_COMMANDS = ("compare",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The words of a command, without the options that every command has."""

    words: tuple[str, ...]
    limits: TraceLimits
    keeps: bool
    debug: bool

    @property
    def command(self) -> str:
        return " ".join([word for word in self.words if not word.startswith("-")][:2])


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Take the options that may stand anywhere out of a command line."""
    words, values = list[str](), dict[str, str]()
    given = iter(arguments)
    for word in given:
        name, equals, value = word.partition("=")
        if name in (SECONDS, MEMORY):
            values[name] = value if equals else next(given, "")
            if not values[name]:
                raise BadInput(f"{name} needs a value.", hint=f"{SECONDS} 60 or {MEMORY} 8GiB")
        elif word in (NO_CACHE, DEBUG):
            values[word] = word
        else:
            words.append(word)
    return CommandLine(
        words=tuple(words),
        limits=read_limits(values.get(SECONDS), values.get(MEMORY), os.environ),
        keeps=NO_CACHE not in values,
        debug=DEBUG in values,
    )


_lines: list[CommandLine] = []


def current_command_line() -> CommandLine | None:
    """The current command line, for a command that starts processes of its own."""
    return _lines[-1] if _lines else None


@contextlib.contextmanager
def around(line: CommandLine) -> Iterator[None]:
    """Run the command's jobs in a process of their own, and cache its answers."""
    _lines.append(line)
    if line.command.startswith(_TRUSTED_COMMANDS):
        yield
        return
    folder = folder_from(os.environ) if line.keeps else None
    cache = AnswerCache(folder) if folder is not None else None
    containment = Containment(
        line.limits,
        cache=cache,
        hear=_print_output,
        started=early.taken(),
        rests=line.command.startswith(_TIMING_COMMANDS),
    )
    with contained(containment):
        yield
        if cache is not None and containment.asked:
            cache.note(early.identity(sys.argv[1:]))


def _print_output(text: str) -> None:
    """Print a job's output on standard error: standard output is for the result alone."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(shown_lines(text))
        sys.stderr.flush()
