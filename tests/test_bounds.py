"""Absurd sizes are refused at once, with the bound; a fuzzed command line never ends badly."""

from __future__ import annotations

from pathlib import Path

import fuzzed
import pytest
from conftest import run
from hypothesis import HealthCheck, Phase, given, settings

import windtunnel as wt
from windtunnel import bounds, networks, units
from windtunnel.errors import BadInput, BadJob, BadRecord
from windtunnel.prediction import trace
from windtunnel.trace import recorder

ABSURD = {
    "n_steps": (["predict", "rnn", "n_steps=1000000"], "at most 20,000"),
    "layers": (["predict", "gpt2", "layers=1e9"], "at most 2,000"),
    "layers of a language model": (["predict", "llm:gpt", "layers=1000000000"], "at most 2,000"),
    "width": (["network", "show", "rnn", "n_rec=99999999999999999999"], "at most 1,000,000,000"),
    "list": (["predict", "fcn5", "layers=" + "8," * 5000], "at most 1,000 entries"),
    "parameters": (["predict", "rnn", "n_rec=100000000"], "at most 1e+13"),
    "threads": (["network", "train", "ffn", "--threads", "1000000"], "from 1 to 4096"),
    "more threads": (["network", "train", "ffn", "--threads", "2147483648"], "from 1 to 4096"),
    "threads of a strategy": (["predict", "rnn", "--threads", "2147483648"], "from 1 to 4096"),
    "epochs": (["network", "train", "ffn", "--epochs", "99999999999999999999"], "1000000"),
    "epochs of a setting": (["network", "train", "ffn", "epochs=99999999999"], "at most 1,000,000"),
    "seed": (["network", "train", "ffn", "--seed", "99999999999999999999"], "9223372036854775807"),
    "batch": (["predict", "rnn", "--batch", "9" * 30], "from 1 to 1099511627776"),
    "digits": (["predict", "rnn", "n_rec=" + "9" * 5000], "whole number"),
    "digits of a range": (["crossover", "rnn", "--over", f"n_rec=1..{'9' * 5000}"], "range of whole numbers"),
    "no digits": (["crossover", "rnn", "--over", "n_rec=_.._"], "range of whole numbers"),
    "a range beyond the bound": (["crossover", "rnn", "--over", "n_steps=1..99999999"], "at most 20,000"),
    "file name": (["predict", "x" * 5000 + ".py:build"], "too long"),
    "machine file": (["predict", "rnn", "--on", "x" * 5000 + ".toml"], "too long"),
    "half a character": (["predict", "\udcff.py:build"], "no file"),
    "devices": (["predict", "rnn", "--on", "99999999999xh200"], ""),
    "digits of a machine": (["predict", "rnn", "--on", "9" * 5000 + "xh200"], "at most 9 digits"),
    "workers": (["predict", "rnn", "--on", "h200", "--data-parallel", "9999999999"], "from 1 to 1048576"),
    "a side's digits": (["compare", "rnn", "default", "n_rec=" + "9" * 5000], "whole number"),
}


@pytest.mark.parametrize(("words", "bound"), ABSURD.values(), ids=ABSURD)
def test_an_absurd_size_is_refused_with_the_bound(words: list[str], bound: str) -> None:
    done = run(*words, seconds=600, WINDTUNNEL_TRACE_SECONDS="300")
    assert done.returncode == 2, done.stderr[-500:]
    assert bound in " ".join(done.stderr.replace("\u2502", " ").split())
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 20_000


@pytest.mark.parametrize("name", networks.names())
def test_every_network_bounds_its_settings(name: str) -> None:
    entry = networks.named(name)
    counts = [f for f in entry.settings.__dataclass_fields__ if f in bounds.MOST_REPEATED]
    for setting in ["examples", *counts]:
        if setting in entry.settings.__dataclass_fields__:
            value = getattr(entry.settings(), setting)
            most = bounds.MOST_REPEATED.get(setting, bounds.MOST_SIZE)
            if isinstance(value, int):
                with pytest.raises(BadRecord, match=r"at most|divide"):
                    wt.Workload.named(name, **{setting: most + 1})


def test_a_step_of_too_many_ops_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_OPS", 100)
    with pytest.raises(BadJob, match="more than 100 ops"):
        trace(wt.Workload.named("rnn", n_steps=100), wt.Strategy(), "cpu")


def test_a_number_of_thousands_of_digits_is_text() -> None:
    assert units.literal("9" * 5000) == "9" * 5000
    assert units.parse_range("_.._") is None
    assert units.parse_range("1_0..2_0") == (10.0, 20.0)
    with pytest.raises(BadInput):
        units.parse("9" * 5000, "B")


_FUZZED = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", fuzzed.commands())
def test_a_fuzzed_command_line_ends_in_time_with_a_code_and_a_word(name: str, tmp_path: Path) -> None:
    @_FUZZED
    @given(fuzzed.command_lines(name))
    def attack(words: list[str]) -> None:
        done = run(*words, folder=tmp_path, seconds=5 * fuzzed.LIMIT_SECONDS, **fuzzed.variables())
        fault = fuzzed.fault_of(done.returncode, done.stdout, done.stderr)
        assert not fault, f"{fuzzed.in_short(words)}: {fault}\n{done.stderr[-2000:]}"

    attack()


def test_the_fuzz_test_reads_the_words_of_every_command() -> None:
    """A new command is fuzzed, unless what gives it little to do keeps its words from being read."""
    assert set(fuzzed._LITTLE) <= set(fuzzed.commands())
    assert not [name for name in fuzzed.commands() if "--help" in fuzzed.little(name)]
    for name, command in fuzzed.commands().items():
        own = {spelling for each in command.params for spelling in (*each.opts, *each.secondary_opts)}
        left_out = {word for word in own if word.startswith("--")} - set(fuzzed.options_of(name))
        assert left_out <= fuzzed._LONG | {"--help"}, f"{name} {left_out}"
    options = {option for name in fuzzed.commands() for option in fuzzed.options_of(name)}
    assert {"--on", "--trace-memory", "--exchange", "--out"} <= options
