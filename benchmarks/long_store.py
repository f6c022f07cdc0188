"""A store of a long run: how long status, report, export and resume take, and how much memory.

Bar: with 50,000 cells each within 10 s and 1 GB, also while eight processes read and one writes. Judged are
the seconds of a processor: on a machine with other work the clock says more.

    python benchmarks/long_store.py --cells 50000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SECONDS, BYTES = 10.0, 1e9
READERS = 8
FIGURES, LINES, STEPS = 2, 10, 50
_SAMPLES = 60


def write_study(folder: Path, cells: int) -> Path:
    """A study of so many cells: two figures with ten lines each, over two axes.

    The time of a report also grows with its charts, by about 0.2 s for each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text('title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n')
    sizes = list(range(10, 10 + max(1, cells // FIGURES // LINES // STEPS)))
    labels = [f"torch:variant{number}" for number in range(LINES)]
    for figure in range(1, FIGURES + 1):
        lines = (
            f'title = "F"\nsource = "S"\njob = "rnn"\n[settings]\nn_in = {figure}\n[grid]\nn_rec = {sizes}',
            f"n_steps = {list(range(1, STEPS + 1))}",
            f'[[case]]\nname = "cpu"\nlabels = {json.dumps(labels)}\n',
        )
        (folder / f"figure-{figure}.toml").write_text("\n".join(lines))
    return folder


class Machine:
    """A machine on which every cell can be measured."""

    cores, has_gpu = 4, False

    def facts(self, task: Any) -> dict[str, Any]:
        return {"cpu": "a CPU", "cpus": 4, "cores": 4, "versions": {task.framework: "1"}}

    def obstacle(self, task: Any) -> None:
        return None


def report_of(number: int, size: int, rng: random.Random) -> Any:
    """What a child reports."""
    from windtunnel.measurement.report import PeakMemory, ProcessReport, Ready, ReferenceLoop, Samples

    steady = tuple(1e-5 * size * rng.uniform(0.99, 1.01) for _ in range(_SAMPLES))
    return ProcessReport(
        number=number,
        samples={"first": Samples(seconds=(1.0,)), "steady": Samples(seconds=steady)},
        memory=PeakMemory(peak_bytes=1e6),
        ready=Ready(threads=1, versions={"python": "3.11", "torch": "2.13"}),
        reference_loop=ReferenceLoop(readings=((0, 1e-4), (30, 1e-4)), seconds=1e-4),
    )


class Engine:
    """Answers each piece as a child would."""

    def measure(self, work: Iterable[Any]) -> Iterator[Any]:
        from windtunnel.study.run.engine import Outcome

        rng = random.Random(1)
        for piece in work:
            report = report_of(piece.number, piece.task.settings["n_rec"], rng)
            yield Outcome(work=piece, report=report)


def build(folder: Path, cells: int) -> Path:
    """A run that lacks its last five cells, stored as a run stores it. Only waiting for the disk, and the
    resampling of intervals, are left out."""
    from windtunnel.measurement.steady import Interval
    from windtunnel.measurement.store import Settled, Store
    from windtunnel.measurement.summary import summarise
    from windtunnel.study import study as studies
    from windtunnel.study.run.runner import Order, RunCallbacks, _Run

    path, rng = folder / "store.sqlite", random.Random(2)
    study, store = studies.find(str(write_study(folder / "mine", cells))), Store(path)
    for setting in ("journal_mode = MEMORY", "synchronous = OFF", "cache_size = -200000"):
        store._db.execute(f"PRAGMA {setting}")
    for cell in _Run(study, store, Machine(), Order(seed=1), RunCallbacks()).cells[:-5]:
        first, second = (report_of(number, cell.task.settings["n_rec"], rng) for number in (0, 1))
        middle = statistics.median(first.steady)
        over = Interval(median=middle, low=middle * 0.995, high=middle * 1.005)
        whole = summarise([first, second], over, "precision")
        store.add(cell.id, first)
        store.add(cell.id, second, Settled(cell=cell.id, summary=whole))
    store.close()
    return path


def resume(folder: Path) -> None:
    """Continue the run: what a command does before and while it measures the last five cells."""
    from windtunnel.measurement.store import Store
    from windtunnel.study import study as studies
    from windtunnel.study.run.runner import Order, run

    store = Store(folder / "store.sqlite")
    states = run(studies.find(str(folder / "mine")), store, Engine(), Machine(), Order(seed=1)).states
    print(json.dumps(states))


def write_for(folder: Path, seconds: float) -> None:
    """Add measurements, one after another, as a running study does."""
    from windtunnel.measurement.store import Store

    store, end, count = Store(folder / "store.sqlite"), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        store.add_forecasts("writer", {(f"task {count}", "here"): {"step_seconds": 1.0}})
        count += 1
        time.sleep(0.2)
    print(json.dumps({"written": count}))


def commands(folder: Path) -> dict[str, list[str]]:
    study, store = str(folder / "mine"), ["--store", str(folder / "store.sqlite")]
    windtunnel = [sys.executable, "-m", "windtunnel", "study"]
    own = [sys.executable, __file__, "--folder", str(folder)]
    return {
        "status": [*windtunnel, "status", study, *store],
        "report": [*windtunnel, "report", study, "--out", str(folder / "report.html"), *store],
        "export csv": [*windtunnel, "export", study, "--out", str(folder / "rows.csv"), *store],
        "export json": [*windtunnel, "export", study, "--out", str(folder / "rows.json"), *store],
        "export samples": [
            *windtunnel,
            "export",
            study,
            "--samples",
            "--out",
            str(folder / "s.jsonl"),
            *store,
        ],
        "resume": [*own, "--resume"],
    }


def timed(command: list[str]) -> tuple[float, float, float, int]:
    """Seconds, seconds of a processor, most bytes and exit code of a command."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status):
        print(errors[-2000:], file=sys.stderr)
    busy = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, busy, usage.ru_maxrss * 1024.0, os.waitstatus_to_exitcode(status)


def at_once(folder: Path) -> tuple[float, float, bool]:
    """Eight readers while one writes: seconds of the clock, most seconds of a processor, if all are good."""
    writer = subprocess.Popen([sys.executable, __file__, "--folder", str(folder), "--write", "60"])
    time.sleep(1.0)
    begin = time.perf_counter()
    command = commands(folder)["status"]
    readers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(READERS)]
    busy, good = 0.0, True
    for reader in readers:
        _, status, usage = os.wait4(reader.pid, 0)
        busy, good = max(busy, usage.ru_utime + usage.ru_stime), good and status == 0
    took = time.perf_counter() - begin
    writer.terminate()
    writer.wait()
    return took, busy, good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, default=None, help="keep the store here, or use the one there")
    parser.add_argument("--only", default="", help="one command")
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resume or options.write:
        resume(options.folder) if options.resume else write_for(options.folder, options.write)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or Path(place)
        if not (folder / "store.sqlite").exists():
            start = time.perf_counter()
            size = build(folder, options.cells).stat().st_size
            print(
                f"built {options.cells:,} cells, {size / 1e6:.0f} MB, in {time.perf_counter() - start:.0f} s"
            )
            print(f"  most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f} MB")
        missed = 0
        for name, command in commands(folder).items():
            if options.only in ("", name):
                seconds, busy, most, code = timed(command)
                good = code == 0 and busy <= SECONDS and most <= BYTES
                missed += not good
                verdict = "ok" if good else "MISSED"
                times = f"{seconds:6.1f} s {busy:6.1f} s of a processor"
                print(f"{name:<16}{times} {most / 1e6:6.0f} MB  {verdict}", flush=True)
        if not options.only:
            took, busy, good = at_once(folder)
            missed += not (good and busy <= SECONDS)
            verdict = "ok" if good and busy <= SECONDS else "MISSED"
            print(f"{READERS} readers, one writer: {took:.1f} s, {busy:.1f} s of a processor each  {verdict}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
