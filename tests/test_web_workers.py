"""The workers of the page: what they answer is what the command line says, and no job can hold them."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wide_study import write_wide_study

import windtunnel as wt
from windtunnel import units
from windtunnel.web.allowed import AllowedJobs
from windtunnel.web.worker_pool import Busy, PoolSetup, Reply, Ticket, WorkerPool

JOBS = """
import os, time
import torch
import windtunnel as wt

def build(width=8, label="mine"):
    return wt.Workload(
        name=label,
        model=lambda: torch.nn.Linear(8, width),
        batch=lambda n: torch.randn(n, 8),
        loss=lambda model, x: model(x).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )

def hostile():
    return build(label='<script>alert(1)</script>\\x1b[2J')

def hang():
    time.sleep(100_000)

def leave():
    os._exit(3)
"""
Ask = Callable[..., Reply]
# A busy machine takes long to start a worker.
PATIENT = {"quick_seconds": 300.0, "seconds": 900.0, "trace_seconds": 600.0}


def setup_of(folder: Path, **changes: object) -> PoolSetup:
    file = folder / "jobs.py"
    file.write_text(JOBS)
    names = [f"{file}:{name}" for name in ("build", "hostile", "hang", "leave")]
    fields = {"cache": folder / "cache", "files": AllowedJobs.with_files(names).files, **PATIENT, **changes}
    return PoolSetup(quick_workers=1, tracing_workers=1, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    whole = WorkerPool(setup_of(tmp_path_factory.mktemp("page")))
    yield whole
    whole.end()


@pytest.fixture(scope="module")
def ask(pool: WorkerPool) -> Ask:
    def asked(query: str, task: str = "forecast", **details: object) -> Reply:
        job = re.sub(r"^.*job=([^&]*).*$", r"\\1", query)
        return pool.ask(task, query, job, **details).future.result(timeout=1800)

    return asked


def test_the_page_says_what_predict_says(ask: Ask) -> None:
    forecast = wt.predict(wt.Workload.named("ffn"), wt.Machine.named("h200"), wt.Strategy(batch=64))
    reply = ask("job=ffn&on=h200&batch=64")
    assert reply.state == "done", reply.message
    text = html.unescape(reply.text)
    assert units.show(forecast.step_seconds, "s") in text
    assert f"{units.show(forecast.low_seconds, 's')} to {units.show(forecast.high_seconds, 's')}" in text
    assert forecast.bound_by in text
    assert reply.facts["batch"] == 64


def test_a_traced_job_is_answered_by_a_worker_that_traces_nothing(pool: WorkerPool, ask: Ask) -> None:
    """Another machine with the same kind of device, another storage, another number of devices."""
    ask("job=ffn&on=8xh100&batch=128")
    seen = []
    pool._tracing.put, before = lambda ticket, priority: seen.append(ticket), pool._tracing.put
    try:
        for query in (
            "job=ffn&on=a100-80gb&batch=64",
            "job=ffn&on=h200&batch=64&precision=tf32",
            "job=ffn&on=4xh100&batch=64",
            "job=ffn&on=2x8xh200&batch=256",
            "job=ffn&on=h200&batch=64&data=streamed&prefetch=2",
        ):
            assert ask(query).state == "done"
    finally:
        pool._tracing.put = before
    assert not seen


def test_what_is_traced_ahead_is_then_quick(pool: WorkerPool, ask: Ask) -> None:
    pool.ahead("job=ffn&on=h200&batch=32", "ffn")
    end = time.monotonic() + 600
    while pool._tracing.count(1) and time.monotonic() < end:
        time.sleep(0.05)
    assert ask("job=ffn&on=h200&batch=32").state == "done"


def test_equal_questions_are_asked_once_and_kept(pool: WorkerPool) -> None:
    first = pool.ask("forecast", "job=ffn&on=t4&batch=64", "ffn")
    second = pool.ask("forecast", "job=ffn&on=t4&batch=64", "ffn")
    assert first is second
    first.future.result(timeout=1800)
    assert pool.ask("forecast", "job=ffn&on=t4&batch=64", "ffn") is first


def test_machines_stand_side_by_side_and_one_that_cannot_is_named(ask: Ask) -> None:
    reply = ask("job=ffn&on=h200&on=2xh200&batch=63")
    assert reply.state == "done", reply.message
    assert "2xh200" in reply.text and "cannot be divided equally" in reply.text


def test_a_step_that_does_not_fit_is_shown_as_such(ask: Ask) -> None:
    reply = ask("job=ffn&settings=hidden%3D100000000&on=jetson-nano&batch=64")
    assert reply.state == "done", reply.message
    assert "does not fit" in reply.text.lower()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("job=ffn&settings=hidden%3D0&on=h200", "hidden"),
        ("job=ffn&settings=nothing%3D1&on=h200", "nothing"),
        ("job=torchvision:nosuchnet&on=h200", "nosuchnet"),
        ("job=ffn&on=i7-3820&execution=graph&batch=64&shard=weights", "shard"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(ask: Ask, query: str, words: str) -> None:
    reply = ask(query)
    assert reply.state == "refused"
    assert words in reply.message and "Traceback" not in reply.message


def test_a_registered_file_is_forecast_with_its_settings_and_hostile_names_are_harmless(ask: Ask) -> None:
    assert ask("job=jobs.py:build&settings=width%3D16&on=h200&batch=8").state == "done"
    reply = ask("job=jobs.py:hostile&on=h200&batch=8")
    assert reply.state == "done", reply.message
    assert "<script>" not in reply.text and "\x1b" not in reply.text


def test_a_job_that_ends_its_process_or_hangs_is_named_and_others_are_still_answered(
    ask: Ask, tmp_path: Path
) -> None:
    left = ask("job=jobs.py:leave&on=h200")
    assert left.state == "refused" and "exit code 3" in left.message
    assert ask("job=ffn&on=l4&batch=64").state == "done", "in a new process"
    # On a busy machine others need a longer limit, too.
    assert any(_answers_after_a_hang(tmp_path, limit) for limit in (5.0, 50.0, 500.0))


def _answers_after_a_hang(folder: Path, limit: float) -> bool:
    """Whether a worker traces within the limit, after a job that hangs has exceeded it."""
    whole = WorkerPool(setup_of(folder, trace_seconds=limit))
    try:
        hung = whole.ask("forecast", "job=jobs.py:hang&on=h200", "hang").future.result(timeout=1800)
        assert hung.state == "refused" and "did not end within" in hung.message
        good = whole.ask("forecast", "job=ffn&on=l4&batch=64", "ffn").future.result(timeout=1800)
        return good.state == "done"
    finally:
        whole.end()


def test_too_many_questions_are_refused_at_once(tmp_path: Path) -> None:
    whole = WorkerPool(setup_of(tmp_path, most_waiting=2))
    try:
        tickets: list[Ticket] = []
        with pytest.raises(Busy, match="wait already"):
            for batch in range(1, 9):
                tickets.append(whole.ask("forecast", f"job=ffn&on=h200&batch={batch}", "ffn"))
        assert len(tickets) <= 8
    finally:
        whole.end()


def test_advice_has_links_that_the_page_accepts(ask: Ask) -> None:
    from urllib.parse import parse_qsl

    from windtunnel.web.state import read_state

    reply = ask("job=ffn&on=h200&batch=64", task="advice")
    assert reply.state == "done", reply.message
    links = [html.unescape(link) for link in re.findall(r'href="/\?([^"]*)"', reply.text)]
    assert links
    for link in links:
        state = read_state(parse_qsl(link), AllowedJobs())
        assert state.query() == link
        assert state != read_state(parse_qsl("job=ffn&on=h200&batch=64"), AllowedJobs())


@pytest.mark.parametrize("task", ["scaling", "feed"])
def test_further_parts_are_answered(ask: Ask, task: str) -> None:
    reply = ask("job=ffn&on=h200&batch=64", task=task)
    assert reply.state == "done", reply.message
    assert "<svg" in reply.text


def test_a_network_shows_its_layers_and_settings(ask: Ask) -> None:
    reply = ask("job=ffn", task="network")
    assert reply.state == "done", reply.message
    assert "hidden" in reply.text and "<svg" in reply.text and "parameters" in reply.text.lower()


def test_a_study_with_ten_thousand_cells_is_shown_page_by_page(tmp_path: Path) -> None:
    folder, rows = write_wide_study(tmp_path)
    setup = setup_of(tmp_path, rows=(rows,), studies={"wide": str(folder)})
    whole = WorkerPool(setup)
    try:
        overview = whole.ask("study", "wide", "wide").future.result(timeout=1800)
        assert overview.state == "done", overview.message
        assert "10,000" in overview.text
        one = whole.ask("study", "wide", "wide", figure="figure-1").future.result(timeout=1800)
        assert one.state == "done", one.message
        assert len(one.text) < 8e6
    finally:
        whole.end()


def test_a_study_folder_cannot_be_named_by_a_browser(ask: Ask, tmp_path: Path) -> None:
    reply = ask(str(tmp_path), task="study")
    assert reply.state == "refused"
