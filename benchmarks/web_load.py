"""How fast and how steady `windtunnel serve` answers: a slider of one user, then many users at once.

    python benchmarks/web_load.py                 # 50 users for 60 s; about 3 minutes with the first traces
    python benchmarks/web_load.py --users 10 --seconds 15 --json load.json

It starts a page of its own on loopback, with a folder of its own for traces, and ends it. Users move sliders,
add machines and read pages; between two requests each waits a moment, as people do. An error is an answer
other than 200 (or 202, which is asked again), or none within 30 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

JOBS = ("ffn", "rnn", "resnet18", "resnet50", "gpt2")
MACHINES = ("h200", "h100", "a100-80gb", "rtx4090", "t4", "2xh100", "8xh100")
BATCHES = (8, 16, 32, 64, 128)
PAGES = ("/machines", "/machines/h200", "/networks", "/studies", "/accuracy", "/guide", "/static/page.css")
_WAIT_SECONDS = 30.0


@dataclass
class CellCounts:
    """What the users saw, by kind of request."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    coming: int = 0

    def add(self, kind: str, seconds: float) -> None:
        self.seconds.setdefault(kind, []).append(seconds)


async def answered(client: httpx.AsyncClient, path: str, kind: str, tally: CellCounts) -> None:
    """Ask until the answer is there; a part that is still coming is asked again, as the script does."""
    began = time.perf_counter()
    while True:
        try:
            response = await client.get(path, timeout=_WAIT_SECONDS)
        except httpx.HTTPError as error:
            tally.errors.append(f"{path}: {type(error).__name__}")
            return
        if response.status_code == 202 and time.perf_counter() - began < 10 * _WAIT_SECONDS:
            tally.coming += 1
            await asyncio.sleep(0.3)
            continue
        if response.status_code != 200:
            tally.errors.append(f"{path}: status {response.status_code} {response.text[:100]}")
            return
        tally.add(kind, time.perf_counter() - began)
        return


async def user(number: int, base: str, seconds: float, pause: float, tally: CellCounts) -> None:
    """One user: mostly sliders, sometimes another page."""
    chance = random.Random(number)
    async with httpx.AsyncClient(base_url=base) as client:
        end = time.monotonic() + seconds
        await asyncio.sleep(chance.random() * pause)
        job = chance.choice(JOBS)
        await answered(client, f"/?job={job}&on=h200&batch=32", "whole page", tally)
        while time.monotonic() < end:
            if chance.random() < 0.2:
                await answered(client, chance.choice(PAGES), "other page", tally)
            else:
                machines = "&".join(
                    f"on={name}" for name in chance.sample(MACHINES, chance.choice((1, 1, 2)))
                )
                path = f"/part/forecast?job={job}&{machines}&batch={chance.choice(BATCHES)}"
                await answered(client, path, "slider", tally)
            await asyncio.sleep(pause * (0.5 + chance.random()))


async def warm(base: str) -> float:
    """Trace every job at every batch once, alone and in several copies; the seconds that took."""
    began, tally = time.perf_counter(), CellCounts()
    async with httpx.AsyncClient(base_url=base) as client:
        for job in JOBS:
            for batch in BATCHES:
                for machine in ("h200", "2xh100", "8xh100"):
                    path = f"/part/forecast?job={job}&on={machine}&batch={batch}"
                    await answered(client, path, "warm", tally)
    if tally.errors:
        raise SystemExit(f"The page could not be warmed up: {tally.errors[:3]}")
    return time.perf_counter() - began


async def slide(base: str) -> dict[str, list[float]]:
    """One user alone moves the batch, the machine and the number of devices of traced jobs."""
    found: dict[str, list[float]] = {}
    async with httpx.AsyncClient(base_url=base) as client:
        for job in JOBS:
            for machine in ("l4", "l40s", "a10", "4xh200", "mi300x"):  # nobody has asked for these yet
                for batch in BATCHES:
                    began = time.perf_counter()
                    path = f"/part/forecast?job={job}&on={machine}&batch={batch}"
                    response = await client.get(path, timeout=_WAIT_SECONDS)
                    if response.status_code == 200:
                        found.setdefault(job, []).append(time.perf_counter() - began)
    return found


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "median_ms": round(1e3 * statistics.median(ordered), 1),
        "95th_ms": round(1e3 * ordered[int(0.95 * (len(ordered) - 1))], 1),
        "worst_ms": round(1e3 * ordered[-1], 1),
    }


def processor_seconds(pid: int) -> float:
    """Of the page with all its workers."""
    whole = psutil.Process(pid)
    times = [each.cpu_times() for each in (whole, *whole.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def load(base: str, pid: int, users: int, seconds: float, pause: float) -> dict[str, object]:
    tally, before = CellCounts(), processor_seconds(pid)
    await asyncio.gather(*(user(number, base, seconds, pause, tally) for number in range(users)))
    count = sum(map(len, tally.seconds.values()))
    memory = sum(
        each.memory_info().rss
        for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    )
    return {
        "users": users,
        "seconds": seconds,
        "answers": count,
        "answers_per_second": round(count / seconds, 1),
        "errors": len(tally.errors),
        "first_errors": tally.errors[:5],
        "asked_again": tally.coming,
        "processor_seconds": round(processor_seconds(pid) - before, 1),
        "memory_mib": round(memory / 2**20),
        "by_kind": {kind: summary(found) for kind, found in sorted(tally.seconds.items())},
    }


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "windtunnel", "serve", "--port", "0"]
    environment = {**os.environ, "WINDTUNNEL_CACHE": str(folder / "traces")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"http://[^/]+", line)
    if found is None:
        raise SystemExit(line + process.stderr.read())
    return process, found[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds between a user's requests")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, base = start(Path(folder))
        try:
            seconds = asyncio.run(warm(base))
            print(f"{len(JOBS) * len(BATCHES) * 3} first answers, traces among them: {seconds:.0f} s")
            slider = {job: summary(found) for job, found in asyncio.run(slide(base)).items()}
            print("one user's slider, traced jobs, answers that were not kept:")
            for job, found in slider.items():
                print(f"  {job:10} {found}")
            result = asyncio.run(load(base, process.pid, given.users, given.seconds, given.pause))
            print(json.dumps(result, indent=1))
        finally:
            process.terminate()
            process.wait(timeout=20)
    if given.json:
        given.json.write_text(json.dumps({"slider": slider, "load": result}, indent=1) + "\n")
    sys.exit(1 if result["errors"] else 0)


if __name__ == "__main__":
    main()
