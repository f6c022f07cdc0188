"""A job of one's own, trained by several workers: in simulated time and as processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run

import windtunnel as wt
from windtunnel.errors import BadInput, BadJob, Interrupted, JobStopped, WindtunnelError
from windtunnel.exchange import own_jobs
from windtunnel.exchange.outcome import ClusterTraining
from windtunnel.exchange.real.launch import run_workers
from windtunnel.exchange.real.spec import RealTraining
from windtunnel.exchange.run import ExchangeSettings
from windtunnel.exchange.training import ClusterOptions, train_on_cluster
from windtunnel.exchange.variation import Variation
from windtunnel.isolation.jobs import Containment
from windtunnel.isolation.limits import TraceLimits
from windtunnel.learning import own_job

ON = "guide-figure-6"
FILE = """
import dataclasses, os, random, signal
import numpy as np
import torch
from torch import nn
import windtunnel as wt

print("the job says hello")

def batch(n):
    x = torch.tensor(np.random.rand(n, 6), dtype=torch.float32) * random.random() + torch.randn(n, 6)
    return x, x.sum(1, keepdim=True)

def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

def build(width=8, clip=0.0, examples=320, own_step=False):
    def step(model, batch, optimizer):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    return wt.Workload(
        name="mine",
        model=lambda: nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1)),
        batch=batch,
        loss=None if own_step else loss,
        step=step if own_step else None,
        optimizer=lambda params: torch.optim.Adam(params, lr=0.03),
        examples=examples or None,
        default_batch=16,
        clip_norm=clip or None,
    )

def with_step(step, **changes):
    return dataclasses.replace(build(), loss=None, step=step, **changes)

def several():
    return with_step(lambda m, b, o: None, optimizer=None, optimizers=lambda m: [])

def alone():
    return with_step(lambda m, b, o: loss(m, b), optimizer=None)

def silent():
    def step(model, batch, optimizer):
        loss(model, batch).backward()
        optimizer.step()
    return with_step(step)

def twice():
    def step(model, batch, optimizer):
        value = loss(model, batch)
        value.backward()
        optimizer.step(), optimizer.step()
        return value
    return with_step(step)

def closure():
    return with_step(lambda m, b, o: o.step(lambda: loss(m, b)))

def crashes():
    return dataclasses.replace(build(), loss=lambda m, b: os.kill(os.getpid(), signal.SIGSEGV))

def detached():
    return dataclasses.replace(build(), loss=lambda m, b: loss(m, b).detach())
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(FILE)
    return path


def job(file: Path, function: str = "build", **settings: object) -> wt.Workload:
    return wt.Workload.named(f"{file}:{function}", **settings)


def options(exchange: str = "sync", workers: int = 2, **more: object) -> ClusterOptions:
    settings = ExchangeSettings(groups=2 if exchange == "mixed" else 1, every=2)
    chosen = {"epochs": 3, "settings": settings, "variation": Variation(jitter=0.2), **more}
    return ClusterOptions(exchange=exchange, workers=workers, **chosen)  # type: ignore[arg-type]


def fly(workload: wt.Workload, *arguments: Any, **more: object) -> ClusterTraining:
    return train_on_cluster(workload, wt.Machine.find(ON), options(*arguments, **more))


def by_hand(workload: wt.Workload, steps: int, times: int = 1, clip: float = 0.0) -> list[torch.Tensor]:
    """The weights after so many plain steps, each with the examples of so many batches."""
    lesson = own_job.lesson_of(workload)
    order = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = workload.model()
    assert workload.optimizer is not None
    optimizer, batches = workload.optimizer(model.parameters()), list[Any]()
    while len(batches) < steps * times:
        batches += list(lesson.stages[0].batches(order))
    for step in range(steps):
        parts = batches[step * times : (step + 1) * times]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_one_worker_equals_plain_steps_to_the_bit(file: Path) -> None:
    for workload in (job(file), job(file, own_step=True)):
        found = fly(workload, "sync", 1)
        for one, other in zip(found.model.parameters(), by_hand(workload, 60), strict=True):
            assert torch.equal(one, other)
        assert found.rows[-1].epochs == 3 and found.metric == "loss"
        assert found.rows[-1].figures["loss"] < found.rows[0].figures["loss"] / 4


def test_synchronous_workers_equal_one_with_a_larger_batch_and_clip_what_they_have_exchanged(
    file: Path,
) -> None:
    found = fly(job(file, clip=0.5), "sync", 4, epochs=1)
    expected = by_hand(job(file, clip=0.5), 5, times=4, clip=0.5)
    for one, other in zip(found.model.parameters(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exchange", ["async", "mixed", "local"])
def test_an_own_job_learns_the_same_again_and_in_a_process_of_its_own(file: Path, exchange: str) -> None:
    here = fly(job(file), exchange, 4)
    containment = Containment(TraceLimits(seconds=600.0))
    try:
        workload = containment.take(job(file))
        containment.limits = TraceLimits(seconds=0.1)  # for traces, not for trainings
        apart = own_jobs.train_apart(workload, ON, options(exchange, 4))
    finally:
        containment.end()
    assert apart == here and apart.rows[-1].figures["loss"] < here.rows[0].figures["loss"]


def test_the_test_is_on_other_batches_and_changes_neither_network_nor_random_numbers(file: Path) -> None:
    for workload in (job(file), job(file, own_step=True)):
        lesson = own_job.lesson_of(workload)
        model = lesson.model()
        before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
        assert lesson.examine(model) == lesson.examine(model)
        assert torch.equal(state, torch.get_rng_state())
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert own_job.lesson_of(job(file, examples=0)).stages[0].steps == 100, "the size of the data is unknown"


def test_long_passes_are_tested_every_hundred_steps(file: Path) -> None:
    found = fly(job(file, examples=16 * 250), "sync", 2, epochs=1)
    assert [row.changes for row in found.rows] == [0, 50, 100, 125]


@pytest.mark.parametrize("exchange", ["sync", "server", "diloco"])
def test_processes_learn_what_the_simulation_learns(file: Path, tmp_path: Path, exchange: str) -> None:
    from safetensors.torch import load_file

    workload = job(file, clip=0.5)
    assert workload.origin is not None
    own_jobs.refuse_undivided_job(workload)
    spec = RealTraining(
        network=workload.origin.job,
        settings=workload.origin.settings,
        workers=2,
        exchange=exchange,
        every=2,
        epochs=2,
    )
    outcome = run_workers(spec, tmp_path)
    found, expected = load_file(tmp_path / "weights.safetensors"), fly(workload, exchange, 2, epochs=2)
    for name, values in expected.model.state_dict().items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-5)
    assert outcome.last == pytest.approx(expected.rows[-1].figures["loss"], rel=1e-3)


REFUSED = [
    ("several", BadInput, "has optimizers()"),
    ("alone", BadInput, "has no optimizer()"),
    ("silent", BadJob, "returns no loss"),
    ("twice", BadInput, "updates the weights 2 times"),
    ("closure", BadInput, "gives its optimizer a closure"),
    ("detached", BadJob, "has no gradient"),
    ("crashes", JobStopped, "SIGSEGV"),
    ("bild", BadJob, "has no function 'bild'"),
]


@pytest.mark.parametrize(("function", "kind", "said"), REFUSED)
def test_what_cannot_be_shared_is_refused_and_takes_no_command_down(
    file: Path, function: str, kind: type[WindtunnelError], said: str
) -> None:
    containment = Containment(TraceLimits(seconds=600.0))
    try:
        with pytest.raises(kind, match=re.escape(said)):
            own_jobs.refuse_undivided_job(containment.open(f"{file}:{function}", {}))
        with pytest.raises(kind, match=re.escape(said)) as caught:
            own_jobs.train_apart(containment.open(f"{file}:{function}", {}), ON, options())
    finally:
        containment.end()
    assert kind is not JobStopped or "while it was trained" in str(caught.value)


def test_a_stopped_training_says_how_to_go_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    containment = Containment(TraceLimits(seconds=600.0))
    workload = containment.open(f"{file}:build", {})

    def interrupt(*arguments: object, **details: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Containment, "ask", interrupt)
    try:
        with pytest.raises(Interrupted) as caught:
            own_jobs.train_apart(workload, ON, options(folder=tmp_path))
    finally:
        containment.end()
    assert "The same command continues" in caught.value.hint


def test_a_killed_training_continues_to_the_same_curve_and_an_edited_job_is_another_one(
    file: Path, tmp_path: Path
) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "run"
    mine.write_text(FILE)
    words = ["train", f"{mine}:build", "width=9", "--on", ON, "--workers", "4", "--exchange", "async"]
    words += ["--epochs", "150", "--jitter", "0.2", "--json"]
    kept = [*words, "--folder", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel", *kept],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list(folder.glob("checkpoint*")):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done, whole = run(*kept), run(*words)
    assert done.returncode == whole.returncode == 0, done.stderr + whole.stderr
    found, expected = json.loads(done.stdout), json.loads(whole.stdout)
    assert found["resumed"] > 0 and found["rows"] == expected["rows"]
    assert "the job says hello" in done.stderr
    mine.write_text(FILE.replace("lr=0.03", "lr=0.02"))
    other = run(*kept)
    assert other.returncode == 2 and "is the checkpoint of another training" in other.stderr


def test_the_command_line_trains_a_job_file_by_processes(file: Path, tmp_path: Path) -> None:
    words = ("train", f"{file}:build", "width=9", "--workers", "2", "--exchange", "async", "--epochs", "2")
    done = run(*words, "--folder", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spec"]["settings"] == {"width": 9} and found["metric"] == "loss"
    assert found["rows"][-1]["figures"]["loss"] < found["rows"][0]["figures"]["loss"]
    refused = run("train", f"{file}:build", "--data", "digits")
    assert refused.returncode == 2 and "makes its own batches" in refused.stderr
