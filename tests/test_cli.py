"""Commands as a user types them, with the first mistakes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import run

QUICK = ["--processes", "1", "--seconds", "0.1"]


def test_help_shows_examples_before_options() -> None:
    for words in ((), ("predict",), ("measure",)):
        text = run(*words, "--help").stdout
        assert 0 < text.index("Examples") < text.index("--help ")


def test_a_prediction_is_the_same_as_text_and_as_json() -> None:
    words = ("predict", "rnn", "n_rec=20", "n_steps=5", "--on", "h200")
    text, data = run(*words), run(*words, "--json")
    assert text.returncode == data.returncode == 0 and not data.stderr
    forecast = json.loads(data.stdout)
    assert {
        "step_seconds",
        "low_seconds",
        "high_seconds",
        "parts",
        "memory",
        "bound_by",
        "cautions",
        "device_seconds",
        "host_seconds",
    } <= set(forecast)
    memory = forecast["memory"]
    assert memory["peak_bytes"] > 0
    assert sum(memory["parts"].values()) == pytest.approx(memory["peak_bytes"])
    assert sum(forecast["parts"].values()) == pytest.approx(forecast["step_seconds"])
    assert f"bound by {forecast['bound_by']}" in text.stdout


def test_a_measurement_is_printed_with_its_forecast(tmp_path: Path) -> None:
    done = run(
        "measure",
        "rnn",
        "n_rec=10",
        "n_steps=5",
        "--threads",
        "1",
        "--json",
        *QUICK,
        store=tmp_path / "s.sqlite",
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["forecast_over_measured"] == pytest.approx(
        measured["forecast"]["step_seconds"] / measured["step_seconds"]
    )
    keys = {"step_seconds", "low_seconds", "high_seconds", "parts", "memory", "bound_by", "cautions"}
    assert keys <= set(measured)


def test_machines_and_networks_can_be_listed_and_shown() -> None:
    names = [m["name"] for m in json.loads(run("machine", "list", "--json").stdout)]
    assert {"k80", "h200", "i7-3820", "raspberry-pi-5"} <= set(names)
    shown = run("machine", "show", "k80").stdout
    assert "240 GB/s" in shown and "Wikipedia" in shown
    assert json.loads(run("machine", "here", "--json").stdout)["host"]["cores"] >= 1
    assert "rnn" in run("network", "list").stdout
    assert "2,752 parameters" in run("network", "show", "rnn").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("predict", "rnnn"), ("'rnnn'", "'rnn'")),
        (("predict", "rnn", "--on", "h2000"), ("'h2000'", "'h200'")),
        (("predict", "rnn", "n_recs=5", "--on", "h200"), ("'n_recs'", "'n_rec'")),
        (("predict", "rnn", "n_rec", "--on", "h200"), ("'n_rec'", "key=value")),
        (("predict", "rnn", "way=module", "--on", "h200"), ("'way'", "now called 'variant'")),
        (("network", "train", "ffn", "--on", "h200"), ("--on h200", "this machine", "--on cpu")),
        (("machine", "show", "gpt2"), ("'gpt2'", "machine list")),
        (("predict", "rnn", "n_rec=many", "--on", "h200"), ("n_rec", "whole number", "'many'")),
        (("predict", "rnn", "--precision", "fp12", "--on", "h200"), ("'fp12'",)),
        (("predict", "rnn", "--batch", "0", "--on", "h200"), ("batch", "0")),
        (
            ("predict", "rnn", "--batch", "900000000000", "--on", "h200"),
            ("DoesNotFit", "Largest batch that fits"),
        ),
        (("predict", "nowhere.py:build", "--on", "h200"), ("nowhere.py", "no file")),
        (("predict", "rnn", "--on", "nowhere.toml"), ("nowhere.toml",)),
        (("predict", "rnn", "--on", "h200", "--execution", "magic"), ("'magic'",)),
        (("predict", "rnn", "--on", "i7-3820", "--execution", "graph"), ("GPU",)),
        (("measure", "rnn", "--on", "h200"), ("h200", "predict")),
        (("network", "show", "nothing"), ("'nothing'",)),
        (("predict", "rnn", "--batch", "some"), ("--batch",)),
        (("fly", "rnn"), ("fly",)),
    ],
)
def test_a_mistake_gets_a_clear_message_and_exit_code_2(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    done = run(*words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert all(word in done.stderr for word in expected), done.stderr


def test_version_prints_the_version() -> None:
    import windtunnel

    assert run("--version").stdout.strip() == windtunnel.__version__


def test_a_missing_gpu_is_unavailable() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run("measure", "rnn", "--on", "cuda")
    assert done.returncode == 2 and "no CUDA GPU" in done.stderr


def test_the_error_for_a_failing_job_has_a_traceback_only_with_debug(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        "import torch, windtunnel as wt\n"
        "def build():\n"
        "    return wt.Workload(name='bad', loss=lambda m, b: m(b).sum(),\n"
        "        model=lambda: torch.nn.Linear(3, 3), batch=lambda n: torch.randn(n, 4),\n"
        "        optimizer=lambda p: torch.optim.SGD(p, lr=0.1))\n"
    )
    done = run("predict", f"{path}:build", "--on", "h200")
    assert done.returncode == 2 and "bad" in done.stderr and "Traceback" not in done.stderr
    assert "job.py line 3" in done.stderr
    assert "Traceback" in run("predict", f"{path}:build", "--on", "h200", "--debug").stderr
    measured = run("measure", f"{path}:build", *QUICK, store=tmp_path / "s.sqlite")
    assert (
        measured.returncode == 2
        and "Traceback" not in measured.stderr
        and "could not be measured" in measured.stderr
    )


def test_a_store_from_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    done = run("measure", "rnn", "n_steps=2", *QUICK, store=path)
    assert done.returncode == 2 and "newer windtunnel" in done.stderr


# A job whose second process waits until it is let go, so that an interrupt always comes in the midst.
HELD = """
import sqlite3, time
from pathlib import Path
import torch
import windtunnel as wt

FOLDER = Path(__file__).parent

def stored():
    with sqlite3.connect(f"file:{FOLDER / 's.sqlite'}?mode=ro", uri=True, timeout=300) as db:
        return db.execute("SELECT count(*) FROM process").fetchone()[0]

def model():
    while stored() and not (FOLDER / "go").exists():
        (FOLDER / "held").touch()
        time.sleep(0.05)
    return torch.nn.Linear(2, 2)

def build():
    return wt.Workload(
        name="held",
        model=model,
        batch=lambda n: torch.randn(n, 2),
        loss=lambda model, x: model(x).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
"""


def test_after_an_interrupt_the_same_command_continues(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HELD)
    words = [sys.executable, "-m", "windtunnel", "measure", f"{tmp_path / 'job.py'}:build"]
    words += ["--processes", "3", "--seconds", "0.1", "--store", str(tmp_path / "s.sqlite")]
    # A shell makes background processes ignore interrupts; a user's terminal does not.
    listen = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    child = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen,
    )
    while child.poll() is None and not (tmp_path / "held").exists():
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate()
    assert child.returncode == 130, err
    assert "1 of 3 processes" in err and "same command" in err and "Traceback" not in err
    (tmp_path / "go").touch()
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "before an interruption" in done.stdout
