"""A job in a process of its own: what comes back is equal, whatever the job does is named, and what was
traced once is kept as long as nothing changes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windtunnel as wt
from windtunnel import ownership
from windtunnel.errors import BadInput, BadJob, JobStopped
from windtunnel.isolation import cache as caching
from windtunnel.isolation import child, codec
from windtunnel.isolation.cache import AnswerCache
from windtunnel.isolation.jobs import PRICED_ONLY, Containment, contained, traced_fields
from windtunnel.isolation.limits import TraceLimits, read_limits
from windtunnel.isolation.notes import users_line_in
from windtunnel.prediction import forecast_trace, trace
from windtunnel.trace import Allocation, Collective, Compilation, Gradient, Op, StoredExample, Trace

_SPEC = importlib.util.spec_from_file_location(
    "attack_jobs", Path(__file__).parent.parent / "benchmarks" / "attack_jobs.py"
)
assert _SPEC is not None and _SPEC.loader is not None
attack_jobs = importlib.util.module_from_spec(_SPEC)
sys.modules["attack_jobs"] = attack_jobs
_SPEC.loader.exec_module(attack_jobs)

JOB = """
import os
import torch
from torch import nn
import windtunnel as wt
from windtunnel import ownership
{top}

def build(width=8):
    {body}
    return wt.Workload(
        name="mine",
        model=lambda: nn.Linear(8, width),
        batch=lambda n: torch.randn(n, 8),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        {more}
    )
"""


def write_job(folder: Path, top: str = "", body: str = "pass", more: str = "") -> str:
    path = folder / "job.py"
    path.write_text(JOB.format(top=top, body=body, more=more))
    return f"{path}:build"


@pytest.fixture
def containment() -> Iterator[Containment]:
    made = Containment(TraceLimits(seconds=600.0))
    yield made
    made.end()


# ---------------------------------------------------------------- what comes back is equal

FAMILIES = st.sampled_from(
    ["aten.mm", "aten.add", "triton.x", "ä\x1b\ud800".encode("utf-8", "replace").decode()]
)
NUMBERS = st.floats(allow_nan=False) | st.integers(min_value=0, max_value=2**70)
NAMES = st.integers(min_value=0, max_value=5)
COLLECTIVES = st.builds(
    Collective, st.sampled_from(["all_reduce", "send"]), NUMBERS, st.just("data"), NAMES, st.booleans()
)
OPS = st.builds(
    Op,
    name=FAMILIES,
    family=FAMILIES,
    phase=st.sampled_from(["forward", "backward", "update"]),
    dtype=st.sampled_from(["fp32", "bf16"]),
    flop=NUMBERS,
    read_bytes=NUMBERS,
    written_bytes=NUMBERS,
    shape=st.lists(NAMES, max_size=3).map(tuple),
    calls=NAMES,
    module=st.text(max_size=5),
    allocated=st.lists(NAMES, max_size=2).map(tuple),
    freed=st.lists(NAMES, max_size=2).map(tuple),
    block=st.none() | st.integers(-1, 3),
    collective=st.none() | COLLECTIVES,
    mark=st.text(max_size=2),
    waits=st.lists(st.text(max_size=2), max_size=2).map(tuple),
)
TRACES = st.builds(
    Trace,
    job=st.text(max_size=5),
    batch=NAMES,
    target=st.just("gpu"),
    precision=st.just("fp32"),
    ops=st.lists(OPS, max_size=4).map(tuple),
    allocations=st.dictionaries(NAMES, st.builds(Allocation, bytes=NUMBERS, part=st.just("data"))),
    held=st.lists(NAMES, max_size=2).map(tuple),
    batch_bytes=NUMBERS,
    parameters=st.integers(0, 10**13),
    module_calls=NAMES,
    nodes=NAMES,
    backward_calls=NAMES,
    update_calls=NAMES,
    torch=st.just("2"),
    cautions=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    compilation=st.none() | st.builds(Compilation, graphs=NAMES, breaks=NAMES, nodes=NAMES, inputs=NAMES),
    stored=st.none() | st.builds(StoredExample, bytes=NUMBERS, examples=st.none() | NAMES),
    gradients=st.lists(
        st.builds(Gradient, st.text(max_size=2), NAMES, NUMBERS, NAMES, NAMES), max_size=2
    ).map(tuple),
    owners=st.dictionaries(NAMES, NAMES),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(TRACES)
def test_any_trace_is_the_same_after_its_way_through_bytes(made: Trace) -> None:
    again = codec.decode(codec.encode(made))
    assert again == made
    assert repr(again.ops) == repr(made.ops)


REAL = [
    ("rnn", {"n_steps": 5}, wt.Strategy(), "cpu"),
    ("rnn", {"n_steps": 5}, wt.Strategy(optimizer="adam", precision="bf16"), "gpu"),
    ("vae", {}, wt.Strategy(batch=3), "gpu"),
    ("lstm", {}, wt.Strategy(inference=True), "gpu"),
    ("resnet18", {"size": 32}, wt.Strategy(batch=4, layout="channels_last"), "gpu"),
    ("ffn", {}, wt.Strategy(batch=8, data_parallel=2, accumulate=2), "gpu"),
]


@pytest.mark.parametrize(("job", "values", "strategy", "target"), REAL)
def test_a_contained_job_has_the_same_trace_and_forecast_to_the_last_digit(
    containment: Containment, job: str, values: dict[str, object], strategy: wt.Strategy, target: str
) -> None:
    here = wt.Workload.named(job, **values)
    with contained(containment):
        there = wt.Workload.named(job, **values)
        found = trace(there, strategy, target)
    expected = trace(here, strategy, target)
    assert found == expected
    machine = wt.Machine.named("i7-3820" if target == "cpu" else "2xh100")
    first, second = (forecast_trace(t, here, machine, strategy) for t in (expected, found))
    assert first.plain() == second.plain()


CHANGES: dict[str, object] = {
    "threads": 3,
    "data": "streamed",
    "prefetch": 2,
    "loaders": 2,
    "load_ahead": 3,
    "pinned": True,
    "direct": True,
    "cudnn_benchmark": True,
    "expandable_segments": True,
    "shard": "weights",
    "pipeline_schedule": "gpipe",
    "virtual_stages": 2,
}
NEEDED: dict[str, dict[str, object]] = {
    "loaders": {"data": "storage"},
    "load_ahead": {"data": "storage", "loaders": 1},
    "pinned": {"data": "streamed"},
    "direct": {"data": "storage"},
    "virtual_stages": {"pipeline_parallel": 2, "pipeline_schedule": "interleaved"},
}


@pytest.mark.parametrize("name", PRICED_ONLY)
def test_a_field_that_is_left_out_of_the_key_does_not_change_the_trace(name: str) -> None:
    job = wt.Workload.named("gpt2", layers=4, width=32, heads=2, context=8, vocabulary=50)
    base = {"batch": 4, "data_parallel": 2, "accumulate": 2}
    parallel = {"pipeline_parallel": 2} if name == "virtual_stages" else {}
    plain = wt.Strategy(**base, **parallel)  # type: ignore[arg-type]
    changed = wt.Strategy(**{**base, **NEEDED.get(name, {}), name: CHANGES[name]})  # type: ignore[arg-type]
    assert trace(job, plain, "gpu") == trace(job, changed, "gpu")
    assert traced_fields(plain) == traced_fields(changed)


# ---------------------------------------------------------------- whatever the job does is named

ATTACKS = [
    ("exit(0)", "build", "SystemExit"),
    ("os._exit(0)", "forward", "exit code 0"),
    ("segmentation fault", "forward", "signal 11 (SIGSEGV)"),
    ("abort", "top", "signal 6 (SIGABRT)"),
    ("SIGTERM", "batch", "signal 15 (SIGTERM)"),
    ("SIGKILL", "init", "signal 9 (SIGKILL)"),
    ("BaseException", "forward", "Odd: odd"),
    ("KeyboardInterrupt", "build", "KeyboardInterrupt"),
    ("str() raises", "init", "str() raised ZeroDivisionError"),
    ("message of a megabyte", "build", "xxx ..."),
    ("hang", "forward", "did not end within 3 s"),
    ("prints without end", "build", "did not end within 3 s"),
    ("memory", "build", "GiB are allowed"),
    ("closes all descriptors", "top", "closed the files of its process"),
    ("raises hostile text", "build", "\\x1b[2J\\u202e"),
]


@pytest.mark.parametrize(("name", "place", "words"), ATTACKS)
def test_a_job_cannot_take_the_command_down(tmp_path: Path, name: str, place: str, words: str) -> None:
    attack = next(a for a in attack_jobs.attacks() if (a.name, a.place) == (name, place))
    path = tmp_path / "job.py"
    path.write_text(attack.source())
    limits = ["--trace-seconds", "3" if "did not end within" in words else "600", "--trace-memory", "1.5GiB"]
    done = run("predict", f"{path}:build", "--on", "h200", "--json", *limits)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_crash_names_the_line_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB.format(top="", body="import ctypes; ctypes.string_at(0)", more=""))
    done = run("predict", f"{path}:build", "--on", "h200")
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if "ctypes" in line)
    assert f"job.py line {number} in build()" in done.stderr


NUISANCES = ["prints megabytes", "closes descriptor 1", "leaves a thread", "forks", "deletes its file"]


@pytest.mark.parametrize("name", NUISANCES)
def test_a_nuisance_does_not_disturb_the_answer(tmp_path: Path, name: str) -> None:
    attack = next(a for a in attack_jobs.attacks() if a.name == name)
    path = tmp_path / "job.py"
    path.write_text(attack.source())
    done = run("predict", f"{path}:build", "--on", "h200", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == "attack"
    assert len(done.stderr) < 100_000
    assert ("the rest is left out" in done.stderr) == (name == "prints megabytes")


@pytest.mark.parametrize("command", ["measure", "compare", "feed", "crossover"])
def test_every_command_that_builds_a_job_contains_it(tmp_path: Path, command: str) -> None:
    job = write_job(tmp_path, body="os._exit(0)")
    more = {"compare": ["threads=1", "batch=2"], "crossover": ["--over", "width=2..4", "--no-measure"]}
    done = run(command, job, *more.get(command, []))
    assert done.returncode == 2
    assert "exit code 0" in done.stderr


def test_in_python_a_job_is_traced_here_unless_it_is_to_be_isolated() -> None:
    import torch

    ended = []

    def batch(n: int) -> torch.Tensor:
        ended.append(os.getpid())
        return torch.randn(n, 8)

    job = wt.Workload(
        name="mine",
        model=lambda: torch.nn.Linear(8, 8),
        batch=batch,
        loss=lambda model, x: model(x).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    machine = wt.Machine.named("h200")
    isolated = wt.predict(job, machine, isolate=True)
    assert not ended
    assert wt.predict(job, machine).plain() == isolated.plain()
    assert ended
    crashing = dataclasses.replace(job, model=lambda: os._exit(3))
    with pytest.raises(JobStopped, match="exit code 3") as caught:
        wt.predict(crashing, machine, isolate=True)
    assert caught.value.state == "exited"


def test_a_contained_decoder_is_timed_where_the_job_is(tmp_path: Path, containment: Containment) -> None:
    data = "data=wt.StoredData(example_bytes=1000, decode=lambda stored: sum(stored)),"
    with contained(containment):
        job = wt.Workload.named(write_job(tmp_path, more=data))
    assert job.data is not None
    assert 0 < job.data.timed() < 10, "seconds, though on a busy machine"
    with pytest.raises(BadJob, match="process of its own"):
        job.model()


def test_a_kill_of_the_parent_leaves_no_child() -> None:
    code = (
        "from windtunnel.isolation.contained import Contained\n"
        "from windtunnel.isolation.limits import TraceLimits\n"
        "import time\n"
        "print(Contained(TraceLimits()).start().pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        for _ in range(6000):  # a loaded machine
            if not _is_alive(child):
                break
            time.sleep(0.05)
        assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_child_ends_if_its_parent_ended_before_it_began() -> None:
    code = "from windtunnel import child_lifetime; child_lifetime.die_with_parent(1 << 22); print('lives')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_the_last_line_of_the_users_code_is_found_in_a_dump() -> None:
    dump = (
        "Timeout (0:00:03)!\nThread 0x01 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 5 in wait\n'
        '  File "/data/train.py", line 12 in forward\n  File "/data/train.py", line 40 in build\n'
    )
    assert users_line_in(dump) == "train.py line 12 in forward()"
    assert users_line_in("nothing") == ""


# ---------------------------------------------------------------- limits


def test_limits_come_from_options_then_variables_then_defaults() -> None:
    assert read_limits(None, None, {}).seconds == 600.0
    assert read_limits(None, None, {"WINDTUNNEL_TRACE_SECONDS": "7"}).seconds == 7.0
    assert read_limits("9 s", "2GiB", {"WINDTUNNEL_TRACE_SECONDS": "7"}).seconds == 9.0
    assert read_limits(None, "2GiB", {}).memory_bytes == 2 * 2**30
    assert 0 < TraceLimits().memory_bytes < 2**60


@pytest.mark.parametrize(
    "given_values", [("0", None), ("nan", None), ("x", None), (None, "1B"), (None, "9e99")]
)
def test_absurd_limits_are_refused_with_the_bound(given_values: tuple[str | None, str | None]) -> None:
    with pytest.raises(BadInput, match="--trace-"):
        read_limits(*given_values, {})


def test_an_option_of_every_command_needs_its_value() -> None:
    done = run("predict", "rnn", "--trace-seconds")
    assert (done.returncode, "needs a value" in done.stderr) == (2, True)


# ---------------------------------------------------------------- what was traced once is kept


def asked(folder: Path, job: str, strategy: wt.Strategy | None = None) -> int:
    """How many questions a forecast of the job needs from a process."""
    containment = Containment(cache=AnswerCache(folder))
    with contained(containment):
        trace(wt.Workload.named(job), strategy or wt.Strategy(), "gpu")
    return containment.asked


def edit_job(folder: Path) -> None:
    write_job(folder, top="import neighbour", body="width = 9")


def edit_neighbour(folder: Path) -> None:
    (folder / "neighbour.py").write_text("WIDTH = 10\n")


def edit_data(folder: Path) -> None:
    (folder / "config.txt").write_text("12")


def list_more(folder: Path) -> None:
    (folder / "shards" / "b").write_text("")


def set_variable(folder: Path) -> None:
    os.environ["WINDTUNNEL_TEST_WIDTH"] = "5"


def damage(folder: Path) -> None:
    for path in (folder / "cache").glob("*.answer"):
        if body := path.read_bytes():
            path.write_bytes(body[:-3] + b"abc")


def make_job_that_reads(folder: Path) -> str:
    (folder / "neighbour.py").write_text("WIDTH = 8\n")
    (folder / "config.txt").write_text("8")
    (folder / "shards").mkdir()
    body = (
        "folder = os.path.dirname(__file__); open(os.path.join(folder, 'config.txt')).read(); "
        "os.listdir(os.path.join(folder, 'shards')); os.environ.get('WINDTUNNEL_TEST_WIDTH')"
    )
    return write_job(folder, top="import neighbour", body=body)


@pytest.mark.parametrize("change", [edit_job, edit_neighbour, edit_data, list_more, set_variable, damage])
def test_a_trace_is_kept_until_what_it_depends_on_changes(
    tmp_path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_TEST_WIDTH", "4")
    job = make_job_that_reads(tmp_path)
    assert asked(tmp_path / "cache", job) == 2  # what it is, and its trace
    assert asked(tmp_path / "cache", job) == 0
    assert asked(tmp_path / "cache", job, wt.Strategy(threads=3, data="streamed")) == 0
    assert asked(tmp_path / "cache", job, wt.Strategy(batch=7)) == 1
    change(tmp_path)
    assert asked(tmp_path / "cache", job) == 2


def test_the_cache_is_bounded_and_forgets_what_was_not_used_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_MOST_BYTES", 3000)
    kept = AnswerCache(tmp_path)
    for number in range(10):
        kept.put(["job", number], {}, bytes(700))
        for path in tmp_path.glob("*.answer"):
            os.utime(
                path, ns=(facts := path.stat()).st_mtime_ns and (facts.st_atime_ns, facts.st_mtime_ns - 10**9)
            )
        assert kept.get(["job", 0]) is not None  # used each time
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000
    assert kept.get(["job", 1]) is None
    assert kept.get(["job", 9]) is not None


def test_sources_and_packages_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = AnswerCache(tmp_path)
    kept.put("question", {}, b"answer")
    assert kept.get("question") == b"answer"
    monkeypatch.setattr(caching, "versions", lambda: ["another torch"])
    assert kept.get("question") is None


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = AnswerCache(tmp_path / "file" / "folder")
    kept.put("question", {}, b"answer")
    assert kept.get("question") is None


def test_the_second_command_starts_no_process_and_says_the_same(tmp_path: Path) -> None:
    job = write_job(tmp_path, body="print('traced now')")
    first, second = (run("predict", job, "--on", "h200", WINDTUNNEL_CACHE=str(tmp_path / "c")) for _ in "ab")
    assert first.stdout == second.stdout
    assert ("traced now" in first.stderr, "traced now" in second.stderr) == (True, False)
    third = run("predict", job, "--on", "h200", "--no-cache", WINDTUNNEL_CACHE=str(tmp_path / "c"))
    assert (third.stdout, "traced now" in third.stderr) == (first.stdout, True)
    off = run("predict", job, "--on", "h200", WINDTUNNEL_CACHE="off")
    assert "traced now" in off.stderr


def test_what_a_killed_process_left_in_the_cache_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    boot, parent, start = ownership.own_mark().split("-")[0], os.getppid(), ownership._start(os.getppid())
    gone, living = (tmp_path / f".new-{boot}-{parent}-{when}-abc" for when in ("1", start))
    for left in (gone, living):
        left.write_bytes(b"half")
    AnswerCache(tmp_path).put("question", {}, b"answer")
    assert not gone.exists() and living.exists()


def test_a_job_that_leaves_no_descriptors_is_no_fault_of_ours() -> None:
    failed = child.failure_of(OSError(errno.EMFILE, "Too many open files"), "job.py:build")
    assert failed["kind"] == "BadJob" and "Too many open files" in failed["message"]
    assert not child.failure_of(OSError(errno.EIO, "Input/output error"), "job.py:build")["kind"]


# What a job does to Python itself, or to the code that answers for it.
SABOTAGE = {
    "import json; json.dumps = json.loads = None": "changed Python itself",
    "import builtins; builtins.len = lambda each: 1 / 0": "changed Python itself",
    "from windtunnel.isolation import child; child.describe = lambda job: {}": "cannot be read",
    "from windtunnel.errors import JobStopped; raise JobStopped('as ours')": "as ours",
    "raise type('Own', (wt.errors.BadInput,), {'__init__': lambda self: None})()": "Own",
    "raise SystemExit('x' * 10_000_000)": "ended the program",
}


@pytest.mark.parametrize(("body", "said"), SABOTAGE.items())
def test_a_job_that_changes_python_or_raises_our_errors_is_named(
    tmp_path: Path, body: str, said: str
) -> None:
    done = run("predict", write_job(tmp_path, top="import windtunnel.errors", body=body), "--on", "h200")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr) < 20_000


def test_an_error_of_any_length_is_shortened_in_its_middle() -> None:
    done = run("predict", "rnn", "n_rec=" + "x" * 100_000)
    assert done.returncode == 2 and len(done.stderr) < 20_000
    assert "characters) ..." in done.stderr and done.stderr.startswith("BadRecord")


# ---------------------------------------------------------------- measuring processes


def measure_in(folder: Path, job: wt.Workload, protocol: wt.Protocol) -> wt.Measurement:
    with contextlib.closing(wt.Store(folder / "store.sqlite")) as store:
        return wt.measure(job, wt.Machine.find("cpu"), protocol=protocol, store=store)


def test_a_thread_that_a_job_leaves_does_not_cost_the_timeout(tmp_path: Path) -> None:
    top = "import threading, time; threading.Thread(target=time.sleep, args=(100_000,)).start()"
    top += "\nimport subprocess; subprocess.Popen(['sleep', '100000'])"
    job = wt.Workload.named(write_job(tmp_path, top="pass"))
    (tmp_path / "job.py").write_text(JOB.format(top=top, body="pass", more=""))
    protocol = wt.Protocol(processes=1, most_processes=1, seconds=0.01, timeout_seconds=900.0)
    start = time.monotonic()
    measured = measure_in(tmp_path, job, protocol)
    assert measured.step_seconds > 0
    assert time.monotonic() - start < protocol.timeout_seconds


def test_a_measured_job_that_raises_anything_is_named(tmp_path: Path) -> None:
    job = wt.Workload.named(write_job(tmp_path))
    body = "raise type('Odd', (BaseException,), {'__str__': lambda self: 1 / 0})()"
    (tmp_path / "job.py").write_text(JOB.format(top="", body=body, more=""))
    protocol = wt.Protocol(processes=1, most_processes=1, seconds=0.01)
    with pytest.raises(wt.MeasurementFailed, match=r"Odd.*str"):
        measure_in(tmp_path, job, protocol)


def test_what_a_measured_job_prints_is_bounded(tmp_path: Path) -> None:
    job = wt.Workload.named(write_job(tmp_path))
    body = "print('x' * 10_000_000, flush=True); os.kill(os.getpid(), 11)"
    (tmp_path / "job.py").write_text(JOB.format(top="", body=body, more=""))
    protocol = wt.Protocol(processes=1, most_processes=1, seconds=0.01)
    with pytest.raises(wt.MeasurementFailed, match=signal.Signals(11).name) as caught:
        measure_in(tmp_path, job, protocol)
    assert len(str(caught.value)) < 2000
