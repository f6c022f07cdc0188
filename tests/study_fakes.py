"""Stand-ins for a study's engine and machine, so that its runner can be asked thousands of times in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from windtunnel.measurement.frameworks.task import Task
from windtunnel.study.run.engine import Outcome, Work

HEAD = 'title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n'


def samples_of(work: Work, count: int = 5) -> list[float]:
    """What a process measures: always the same for the same cell and number."""
    rng = random.Random(f"{work.key} {work.number}")
    base = 0.001 * work.task.settings["n_rec"]
    return [base * rng.uniform(0.99, 1.01) for _ in range(count)]


def report_of(work: Work) -> dict[str, Any]:
    return {
        "samples": {
            "first": {"steps": 1, "seconds": [1.0]},
            "steady": {"steps": 1, "seconds": samples_of(work)},
        },
        "memory": {"peak_bytes": 1000.0},
        "ready": {"kind": "ready", "threads": 1},
    }


class FakeEngine:
    """Gives each piece what `answer` says, a good report else, and remembers the order."""

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
    (folder / "figure-1.toml").write_text(
        f'title = "F"\nsource = "S"\njob = "rnn"\n[grid]\nn_rec = {list(n_rec)}\n[[case]]\nname = "cpu"\nlabels = {list(labels)!r}\n{more}'.replace(
            "'", '"'
        )
    )
    return folder
