"""Stand-ins for a study's engine and machine, so that thousands of cells run in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.report import PeakMemory, ProcessReport, Ready, Samples
from windtunnel.study.run.engine import Outcome, Work

HEAD = 'title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n'


def samples_of(work: Work, count: int = 5) -> list[float]:
    """What a process measures: always the same for the same cell and number."""
    rng = random.Random(f"{work.key} {work.number}")
    base = 0.001 * work.task.settings["n_rec"]
    return [base * rng.uniform(0.99, 1.01) for _ in range(count)]


def report_of(work: Work, seconds: Iterable[float] | None = None) -> ProcessReport:
    """What a child reports, with these steady samples or those of `samples_of`."""
    steady = samples_of(work) if seconds is None else seconds
    return ProcessReport(
        number=work.number,
        samples={"first": Samples(seconds=(1.0,)), "steady": Samples(seconds=tuple(steady))},
        memory=PeakMemory(peak_bytes=1000.0),
        ready=Ready(threads=1),
    )


class FakeEngine:
    """Answers each piece as `answer` says, or with a good report, and remembers the order."""

    def __init__(self, answer: Callable[[Work], Outcome | None] = lambda work: None) -> None:
        self.answer = answer
        self.seen: list[Work] = []

    def measure(self, work: Iterable[Work]) -> Iterator[Outcome]:
        for piece in work:
            self.seen.append(piece)
            yield self.answer(piece) or Outcome(work=piece, report=report_of(piece))


class FakeMachine:
    cores = 4
    has_gpu = False

    def __init__(self, missing: str = "", version: str = "1") -> None:
        self.missing, self.version = missing, version

    def facts(self, task: Task) -> dict[str, Any]:
        return {"cpu": "fake", "cpus": 4, "cores": 4, "versions": {task.framework: self.version}}

    def obstacle(self, task: Task) -> tuple[str, str] | None:
        if task.framework == self.missing:
            return "not installed", f"{task.framework} is not installed."
        return ("no gpu here", "no GPU") if task.device != "cpu" else None


def write_study(
    folder: Path, n_rec: Iterable[int], labels: Iterable[str] = ("torch:loop",), more: str = ""
) -> Path:
    """A study of one figure over n_rec."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(HEAD)
    lines = [
        'title = "F"\nsource = "S"\njob = "rnn"\n[grid]',
        f"n_rec = {list(n_rec)}",
        f'[[case]]\nname = "cpu"\nlabels = {list(labels)!r}\n{more}',
    ]
    (folder / "figure-1.toml").write_text("\n".join(lines).replace("'", '"'))
    return folder
