"""Journeys at the command line: factors, factors guide, and predict over several batches."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from conftest import run
from typer.testing import CliRunner

from windtunnel.cli import app

RNN = ("factors", "rnn", "n_rec=20", "n_steps=8", "--on", "k80")


def test_factors_prints_a_ranking_a_chart_and_what_was_left_out() -> None:
    done = run(*RNN, "--only", "timesteps,device,batch,image-size", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("factors of rnn on k80")
    assert any(line.split()[:2] == ["1", "batch"] for line in lines)
    assert "image size: rnn: its examples are no images" in done.stdout
    assert "varying timesteps" in done.stderr and "varying" not in done.stdout


def test_factors_as_json_has_the_ranking_and_all_values() -> None:
    done = run(*RNN, "--only", "timesteps,batch", "--price", "k80=0.9", "--json")
    data = json.loads(done.stdout)
    assert set(data["ranking"]["time"]) == {"timesteps", "batch"}
    times = next(f for f in data["factors"] if f["name"] == "timesteps")
    assert [step["label"] for step in times["steps"]] == ["8", "4", "16"]
    assert {"time", "memory", "energy", "price"} <= set(times["effects"])
    assert data["scale"]["size"] == "small" and data["order"]["ruling"] == "not asked here"
    pair = data["interactions"][0]
    assert pair["ratio"] == pytest.approx(
        pair["both_seconds"] / (pair["first_seconds"] * pair["second_seconds"] / pair["base_seconds"])
    )


def test_factors_draws_its_chart(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    path = tmp_path / "factors.svg"
    done = run(*RNN, "--only", "timesteps,batch", "--plot", str(path))
    assert done.returncode == 0, done.stderr
    assert "timesteps" in path.read_text() and path.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*RNN, "--only", "devise"), "Did you mean 'device'?"),
        ((*RNN, "--only", "image-size"), "No factor of rnn can be varied"),
        ((*RNN, "--learn", "--seconds", "-3"), "Training needs more than 0 seconds, not -3"),
        ((*RNN, "--seconds", "5"), "--seconds and --until are about --learn"),
        ((*RNN, "--price", "cheap"), "is not a price of a device-hour"),
        ((*RNN, "--reasonable", "soon"), "'soon' is not a quantity"),
        ((*RNN, "--epochs", "0"), "at least one epoch"),
        ((*RNN, "--plot", "chart.pdf"), "ends in none of"),
        (("factors", "torchvision:resnet18", "--on", "t4", "--learn"), "no data set to learn from"),
        (("factors", "ffn", "--on", "nowhere"), "No machine is called"),
        (("predict", "ffn", "--on", "t4", "--batches", "1,x"), "must be whole numbers above 0"),
        (("predict", "ffn", "--on", "t4", "--batches", "1", "--batch", "2"), "--batches cannot go with"),
    ],
)
def test_bad_input_says_what_to_do(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_predict_shows_latency_over_batches() -> None:
    words = ("predict", "dcn", "--on", "raspberry-pi-5", "--inference", "--batches", "1,8,64")
    done = run(*words, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("1", "8", "64")] == ["1", "8", "64"]
    assert "latency" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    assert "no forecast was judged on a CPU of this make" in done.stdout.replace("\n      ", " ")
    data = json.loads(run(*words, "--json").stdout)
    assert [row["batch"] for row in data["batches"]] == [1, 8, 64]


def test_learning_from_the_command_line_shows_the_time_to_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    # Every look at the clock is a millisecond later: a busy machine ends as many epochs as a quiet one.
    monkeypatch.setattr(time, "perf_counter", lambda: 0.001 * next(looks))
    words = ["factors", "ffn", "--on", "i7-3820", "--only", "width", "--learn", "--seconds", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "initial weights" in done.stdout and "layers was not varied" in done.stdout
    assert "training with initial weights guide" in done.stderr
