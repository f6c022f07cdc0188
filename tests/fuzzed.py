"""Command lines that nobody would type, for the fuzz test and for `benchmarks/fuzz.py`.

All commands and their options are asked of the command line itself: one that is added later is fuzzed, too.
A command that may run for long needs an entry in `_LITTLE`, or its test fails.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from hypothesis import strategies as st

from windtunnel.cli import app

LIMIT_SECONDS = 120
# What gives a command little to do. It stands last, so that it goes before what is fuzzed.
_LITTLE: Mapping[str, tuple[str, ...]] = {
    "measure": ("--quick", "--processes", "1", "--seconds", "0.01", "--timeout", "5"),
    "compare": ("--seconds", "1", "--timeout", "5"),
    "crossover": ("--no-measure",),
    "factors": ("--only", "batch"),
    "train": ("--epochs", "1", "--folder", "run", "--clock", "simulated"),
    "network train": ("--epochs", "1", "--folder", "run"),
    "study run": ("--dry-run",),
    "study report": ("--out", "report.html"),
    "study export": ("--out", "rows.csv"),
    # These take minutes, never end, or change what is installed: what stands last is refused after all their
    # words were read.
    "validate": ("--on", "all-reduce", "--published", "nowhere"),
    "serve": ("--port", "99999"),
    "machine probe": ("--on", "h200"),
    "frameworks install": ("nonsense",),
    "frameworks check": ("nonsense",),
}
# Options that ask for long work, which is what then happens.
_LONG = {"--measure", "--thorough", "--whole", "--learn", "--compiled", "--seconds", "--time"}
_OF_EVERY = ("--trace-seconds", "--trace-memory", "--no-cache", "--nonsense")
_NUMBERS = (
    *("0", "-1", "1", "2", "64", "1e9", "1e308", "1e400", "-1e-308", "nan", "inf", "-inf", "1_0", "_"),
    *("0x10", "2147483648", "9223372036854775808", "99999999999999999999", "1000000", "9" * 5000),
    *("1.1.1.1.1.1.1.1.1.", "\u0663"),
)
_TEXTS = (
    *("", " ", "[/]", "[bold]x[/bold]", "\x1b[2J", "a\u202eb", "a\nb", "=1+1", '" class="', "%s%n"),
    *("{0}", "..", "/", "x" * 5000, "\udcff", "--", "-", "--help", "~", "$HOME", "here", "cpu"),
    *("h200", "8xh100", "0xh200", "a:b:c", "99999999999xh200", "4x8x", "job.py:", ":build"),
    *("no.py:build", "job.toml", "x.json", "/dev/null", "/proc/self/mem"),
)
_JOBS = (
    *("rnn", "ffn", "fcn5", "vae", "lstm", "resnet18", "llm:gpt", "torchvision:resnet18", "timm:"),
    *("guide", "job.py:build"),
)
_SETTINGS = (
    *("n_rec", "n_steps", "layers", "width", "hidden", "size", "depth", "epochs", "batch", "threads"),
    *("init", "variant", "leaves", "k", "heads", "widths", "classes", "channels", "", "\x1b", "[/]"),
    "wrong",
)
_STUDIES = (*("brandfonbrener-2017", "wuensche-2018", "study.toml"),)
values = st.one_of(st.sampled_from(_NUMBERS), st.sampled_from(_TEXTS), st.text(max_size=8))


@functools.cache
def commands() -> dict[str, Any]:
    """Every command by its words."""
    return dict(_leaves(typer.main.get_command(app), ()))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
    for name, each in (inner or {}).items():
        yield from _leaves(each, (*words, name))


def little(name: str) -> tuple[str, ...]:
    """Words that give a command little to do."""
    return _LITTLE.get(name, ())


def name_of(words: Sequence[str]) -> str:
    """The command of a command line."""
    return next((name for name in commands() if name.split() == list(words[: len(name.split())])), words[0])


def options_of(name: str) -> dict[str, bool]:
    """The options of a command, and whether each takes a value."""
    own = {
        spelling: not option.is_flag
        for option in commands()[name].params
        if option.param_type_name == "option" and not _LONG & set(option.opts)
        for spelling in (*option.opts, *option.secondary_opts)
    }
    return {**own, **{each: each != "--no-cache" for each in _OF_EVERY}}


@st.composite
def command_lines(draw: st.DrawFn, name: str) -> list[str]:
    """A command with some words that may mean anything."""
    words = name.split()
    names = st.one_of(st.sampled_from(_STUDIES if words[0] == "study" else _JOBS), values)
    words += draw(st.lists(names, max_size=1))
    settings = st.builds(lambda key, value: f"{key}={value}", st.sampled_from(_SETTINGS), values)
    ranges = st.builds(lambda low, high: f"n_rec={low}..{high}", values, values)
    words += draw(st.lists(st.one_of(settings, ranges), max_size=2))
    options = options_of(name)
    for option in draw(st.lists(st.sampled_from(sorted(options)), max_size=3)):
        words += [option, draw(st.one_of(values, ranges))] if options[option] else [option]
    return [word.replace("\0", "") for word in (*words, *little(name))]


@st.composite
def any_command_line(draw: st.DrawFn) -> list[str]:
    """The same of any command; those that take a job and many options come more often."""
    often = [name for name in commands() if len(options_of(name)) > 15 for _ in range(4)]
    return draw(command_lines(draw(st.sampled_from([*commands(), *often]))))


def variables() -> dict[str, str]:
    """The environment of a fuzzed command: little time and memory for whatever it traces."""
    return {"WINDTUNNEL_TRACE_SECONDS": "10", "WINDTUNNEL_TRACE_MEMORY": "4GiB"}


def fault_of(code: int, output: str, errors: str) -> str:
    """What is wrong with how a command ended; nothing if all is well."""
    if code not in (0, 1, 2, 130):
        return f"ended with {code}" if code != -14 else "no end in time"
    if "Traceback (most recent call last)" in output + errors:
        return "traceback"
    if code and not errors.strip():
        return "says nothing"
    harmful = {c for c in output + errors if (ord(c) < 32 and c not in "\n\t\r") or c in "\u202e\x9b"}
    return f"prints {harmful}" if harmful else ""


def in_short(words: Sequence[str]) -> str:
    return " ".join(ascii(word) if len(word) < 60 else f"{word[:20]!a}..({len(word)})" for word in words)
