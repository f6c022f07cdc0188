"""What a worker process writes down: one line for each step, at once, so that a kill loses nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

from windtunnel.errors import StoreError


class WorkerLog:
    """The lines of one process. Times are seconds since all processes were ready, after those of an earlier
    start of the same training."""

    def __init__(self, folder: Path, rank: int, is_server: bool) -> None:
        name = "server" if is_server else f"worker-{rank}"
        self._file = (folder / f"{name}.jsonl").open("w", encoding="utf-8")
        self._began = time.perf_counter()

    def start(self) -> None:
        self._began = time.perf_counter()

    def go_on(self, seconds: float) -> None:
        """Counts the time of an earlier start as well."""
        self._began = time.perf_counter() - seconds

    def now(self) -> float:
        return time.perf_counter() - self._began

    def step(self, number: int, **fields: float) -> None:
        """One step: when it ended, and the processor time of this process so far."""
        self._write({"step": number, "seconds": self.now(), "cpu": time.process_time(), **fields})

    def end(self, reason: str) -> None:
        self._write({"end": reason, "seconds": self.now()})

    def _write(self, line: dict[str, object]) -> None:
        try:
            print(json.dumps(line), file=self._file, flush=True)
        except OSError as error:
            raise StoreError(f"{self._file.name} cannot be written: {error.strerror}.") from error
