"""What must not harm a study: a coordinator killed at any moment, children that fail in every variant, a full
disk, two coordinators."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from study_fakes import FakeEngine, FakeMachine, samples_of, write_study

from windtunnel.measurement.steady import LEVELS
from windtunnel.measurement.store import Store, dump
from windtunnel.study import study as studies
from windtunnel.study.results import results
from windtunnel.study.run import runner
from windtunnel.study.run.engine import Local, Outcome, Work
from windtunnel.study.run.run_environment import Here
from windtunnel.study.run.runner import Order, run

TESTS = Path(__file__).parent
KILLS = 100

# A coordinator in a process of its own, which notes each piece of work before it is handed over.
COORDINATOR = """
import os, signal, sys, time, random, json, sqlite3
sys.path.insert(0, {tests!r})
from pathlib import Path
from study_fakes import FakeEngine, FakeMachine, report_of
from windtunnel.errors import StoreError
from windtunnel.study import study as studies
from windtunnel.measurement.steady import interval
from windtunnel.measurement.store import Store
from windtunnel.study.run.engine import Outcome
from windtunnel.study.run.runner import Order, run

folder = Path(sys.argv[1])
study = studies.find(str(folder / "mine"))
log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def answer(work):
    time.sleep(0.02)  # so slow that a hundred kills do not see the end, on a quick machine either
    os.write(log, f"{{work.key}} {{work.number}}\\n".encode())
    return Outcome(work=work, report=report_of(work))

def coordinate():
    store = Store(folder / "study.sqlite")
    return run(study, store, FakeEngine(answer), FakeMachine(), Order(seed=1))
"""
KILLER = """
def ended(child):  # one with nothing left to do writes no more
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

def lines():
    return (folder / "log").read_bytes().count(b"\\n")

interval([[1.0, 2.0]])
rng = random.Random(int(sys.argv[2]))
stored_before, kills = 0, []
for kill in range(int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        try:
            coordinate()
        finally:
            os._exit(0)
    if rng.random() < 0.7:  # most kills come while work is under way, however long it takes to begin
        # A second line in the log: the first piece is stored by then, however slow the disk is.
        wanted, end = lines() + rng.choice((1, 2, 2)), time.monotonic() + 60
        while lines() < wanted and time.monotonic() < end and not ended(child):
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.04))
    else:
        time.sleep(rng.uniform(0.0, 0.2))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    ran = len((folder / "log").read_bytes().splitlines())
    try:
        db = sqlite3.connect(folder / "study.sqlite", timeout=30)
        stored = db.execute("SELECT count(*) FROM process").fetchone()[0]
        db.close()
    except sqlite3.OperationalError:
        stored = 0  # killed before there were tables
    assert stored >= stored_before, "what was stored stays"
    assert ran - stored <= kill + 1, "a kill loses at most the piece in flight"
    stored_before = stored
    kills.append([stored, os.WIFSIGNALED(status)])
print(json.dumps(kills))
"""


def start(folder: Path, ending: str, *words: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(COORDINATOR.format(tests=str(TESTS))) + ending
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def each_once(folder: Path, cells: int) -> None:
    """Every cell is done, by two processes with just the samples they measured."""
    store, study = Store(folder / "study.sqlite"), studies.find(str(folder / "mine"))
    assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    stored_cells = [cell for _, _, cell in store.cells("mine")]
    assert Counter(cell.state for cell in stored_cells) == {"done": cells}
    rows = [row for row in results(study, store, samples=None) if row.origin == "measured"]
    assert len(rows) == cells and all(len(row.groups) == 2 for row in rows)
    by_size = {row.settings["n_rec"]: row for row in rows}
    for cell in stored_cells:
        for number in (0, 1):
            task = next(c.task for c in [by_task[cell.text]])
            assert by_size[task.settings["n_rec"]].groups[number] == tuple(
                samples_of(Work(key=cell.key, number=number, task=task, protocol=PROTOCOL))
            )


PROTOCOL = LEVELS["default"]
by_task: dict[str, runner.Cell] = {}


def prepare(folder: Path, cells: int) -> None:
    write_study(folder / "mine", range(10, 10 + cells))
    by_task.clear()
    by_task.update({dump(cell.task): cell for cell in runner.cells_of(studies.find(str(folder / "mine")), 4)})


def test_a_coordinator_killed_at_a_hundred_moments_measures_every_cell_once_and_loses_no_sample(
    tmp_path: Path,
) -> None:
    cells = 300
    prepare(tmp_path, cells)
    killer = start(tmp_path, KILLER, "11", str(KILLS))
    out, errors = killer.communicate(timeout=1800)
    assert killer.returncode == 0, errors
    kills = json.loads(out)
    assert len(kills) == KILLS
    killed, moved = sum(signal for _, signal in kills), len({stored for stored, _ in kills})
    # On a busy machine fewer kills see progress; a fifth still spreads them over the work.
    assert killed >= KILLS // 2 and moved >= KILLS // 5, (
        killed,
        moved,
        "kills must fall into the midst of the work",
    )
    last = FakeEngine()
    run(
        studies.find(str(tmp_path / "mine")),
        Store(tmp_path / "study.sqlite"),
        last,
        FakeMachine(),
        Order(seed=1),
    )
    ran = Counter((tmp_path / "log").read_text().split("\n")[:-1])
    stored = 2 * cells - len(last.seen)
    assert sum(ran.values()) - stored <= KILLS
    each_once(tmp_path, cells)


def test_of_two_coordinators_on_one_store_one_is_refused_and_no_cell_is_measured_twice(
    tmp_path: Path,
) -> None:
    cells = 40
    prepare(tmp_path, cells)
    both = [
        start(
            tmp_path,
            "\ntry:\n    print(coordinate().states)\n"
            "except StoreError as error:\n    print('refused', error)\n",
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=900)[0] for process in both]
    assert any("'done': 40" in text for text in outputs), outputs
    assert all("'done': 40" in text or "being run by process" in text for text in outputs), outputs
    ran = Counter((tmp_path / "log").read_text().split("\n")[:-1])
    assert len(ran) == 2 * cells and set(ran.values()) == {1}
    each_once(tmp_path, cells)


FAULTS = """
import ctypes, os, resource, signal, sys, time
from windtunnel.measurement.frameworks.base import Built

def build(problem, task):
    speak = int(sys.argv[-1])
    if task.variant == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task.variant == "hang":
        time.sleep(100_000)
    if task.variant == "memory":
        workspace = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 2**27
        resource.setrlimit(resource.RLIMIT_AS, (workspace, workspace))
        hoard = [bytearray(2**24) for _ in range(1000)]
    if task.variant == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task.variant == "garbage":
        os.write(speak, b"\\xff\\xfe half a line\\n[1, 2]\\n7\\n")
        os.write(speak, b"{\\"kind\\": \\"samples\\"}\\n{\\"no\\": \\"kind\\"}\\n")
        os._exit(0)
    if task.variant == "silent":
        os._exit(0)
    if task.variant == "raises":
        raise ValueError("no such layer")
    if task.variant == "chatty":
        print("done 0.001 s/step" * 1000)
    return Built(step=lambda: sum(range(1000)), number=float, parameters=1, dtype="float32", versions={})
"""


def test_children_that_fail_in_every_way_are_named_and_the_rest_is_unharmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = tmp_path / "faulty.py"
    framework.write_text(FAULTS)
    expected = {
        "segfault": "crashed",
        "hang": "timeout",
        "memory": "out of memory",
        "killed": "killed",
        "garbage": "no result",
        "silent": "no result",
        "raises": "raised",
        "chatty": "done",
        "good": "done",
    }
    quick = dataclasses.replace(LEVELS["quick"], timeout_seconds=900.0, seconds=0.05, warm_seconds=0.02)
    monkeypatch.setitem(LEVELS, "quick", quick)
    study = studies.find(
        str(write_study(tmp_path / "mine", (10,), [f"{framework}:{variant}" for variant in expected]))
    )
    store = Store(tmp_path / "study.sqlite")

    class Impatient:
        """An engine that gives little time to the child that hangs, and much to the others."""

        def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
            for piece in work:
                short = dataclasses.replace(piece.protocol, timeout_seconds=3.0)
                hangs = piece.task.variant == "hang"
                told = dataclasses.replace(piece, protocol=short) if hangs else piece
                for outcome in Local().measure([told]):
                    yield dataclasses.replace(outcome, work=piece)

    tally = run(study, store, Impatient(), Here(), Order(level="quick", seed=1))
    rows = {row.label.rpartition(":")[2]: row for row in results(study, store)}
    assert {variant: row.state for variant, row in rows.items()} == expected
    assert tally.failed == 7 and all(row.error for row in rows.values() if row.state != "done")
    assert "SIGSEGV" in rows["segfault"].error and "no such layer" in rows["raises"].error
    assert all((row.step_seconds is None) == (row.state != "done") for row in rows.values())


@pytest.fixture(params=["tmpfs", "limit"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder in which only so much can be written, and a line of Python that makes it so in a child."""
    if request.param == "limit":
        yield (
            tmp_path,
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        )
        return
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder, "pass"
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_the_run_says_so_and_what_was_there_stays(
    small_disk: tuple[Path, str], tmp_path: Path
) -> None:
    folder, limit = small_disk
    cells = 250
    prepare(folder if folder != tmp_path else tmp_path, cells)
    ending = (
        f"\n{limit}\ntry:\n    coordinate()\nexcept StoreError as error:\n    print(error)\n    sys.exit(3)\n"
    )
    process = start(folder, ending)
    out, errors = process.communicate(timeout=900)
    assert process.returncode == 3, errors
    assert "cannot be written" in out and "What it held before is still there" in out
    db = sqlite3.connect(folder / "study.sqlite")
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    whole = db.execute(
        "SELECT count(*), count(DISTINCT process.id) FROM process "
        "LEFT JOIN sample ON process.id = process AND phase = 'steady'"
    ).fetchone()
    assert whole[0] == whole[1], "no process without its samples"
    before = {
        row[0] for row in db.execute("SELECT key || ' ' || number FROM process JOIN cell ON cell.id = cell")
    }
    db.close()
    assert before, "it was full in the midst of the work"
    if limit != "pass":
        engine = FakeEngine()
        run(
            studies.find(str(folder / "mine")),
            Store(folder / "study.sqlite"),
            engine,
            FakeMachine(),
            Order(seed=1),
        )
        assert not before & {f"{work.key} {work.number}" for work in engine.seen}
        each_once(folder, cells)


def test_the_command_line_runs_names_what_failed_exits_2_and_goes_on(tmp_path: Path) -> None:
    framework = tmp_path / "faulty.py"
    framework.write_text(FAULTS)
    study, store = (
        write_study(tmp_path / "mine", (10,), [f"{framework}:raises", f"{framework}:good"]),
        str(tmp_path / "study.sqlite"),
    )

    def windtunnel(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "windtunnel", "study", *words, "--store", store]
        return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)

    first = windtunnel("run", str(study), "--quick", "--seconds", "0.05", "--no-forecast")
    assert first.returncode == 2 and "1 done" in first.stdout and "1 raised" in first.stdout
    assert "no such layer" in first.stderr, "reported when it happens"
    again = windtunnel("run", str(study), "--quick", "--seconds", "0.05", "--no-forecast", "--json")
    assert again.returncode == 2 and json.loads(again.stdout)["states"] == {"raised": 1, "done": 1}
    status = windtunnel("status", str(study), "--json")
    assert status.returncode == 0 and json.loads(status.stdout)["failures"][0]["state"] == "raised"
    framework.write_text(FAULTS.replace('task.variant == "raises"', "False"))
    mended = windtunnel(
        "run", str(study), "--quick", "--seconds", "0.05", "--no-forecast", "--rerun", "failed", "--json"
    )
    assert mended.returncode == 0 and json.loads(mended.stdout)["states"] == {"done": 2}
