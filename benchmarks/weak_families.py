"""Time kinds of ops that a plain probe seldom draws, on a GPU, and write them as a table of a probe.

    python benchmarks/weak_families.py collect FOLDER [--seconds 220] [--only stacked,volume]   (needs a GPU)
    python benchmarks/weak_families.py rows FOLDER benchmarks/probes/h200-weak.csv.gz [--most 1200]
    python benchmarks/weak_families.py try FOLDER                                               (needs no GPU)

`collect` takes about --seconds in all and writes FOLDER/timed.jsonl: a line for each case, after every group
of cases, so that nothing is lost if it is stopped. Each kind gets its share of the seconds. A line names the
draw and its number, so the case itself is drawn again where it is described. If a case breaks the process, a
new one goes on behind the group of that case. A second call with another --seed adds to the same file.

`rows` needs no GPU: it draws the cases again, describes them as a trace does, and writes the table. It takes
at most --most cases of each kind; describing thousands takes minutes.
`python benchmarks/refit.py h200` then fits the profile. `try` times some small cases of each kind on the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from windtunnel.calibration import clock
from windtunnel.calibration.case_sampler import CaseSampler
from windtunnel.families.drawing import Limits, ProbeCase

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
LIMITS = Limits(flop=3e11, elements=700_000_000, precisions=PRECISIONS, target="gpu")
SMALL = Limits(flop=2e7, elements=400_000, precisions=PRECISIONS, target="gpu")
# How the seconds are divided.
SHARES: Mapping[str, int] = {
    "stacked": 30,
    "recurrent": 14,
    "volume": 30,
    "line": 12,
    "dilated": 8,
    "depthwise_layout": 18,
    "transposed": 5,
    "bag": 8,
    "sparse": 7,
    "buckets": 5,
    "gathered_gradient": 4,
    "scatter": 4,
    "sorting": 3,
    "heads": 16,
    "bias": 5,
    "scores": 6,
    "attention_product": 8,
    "thin": 8,
    "resize": 10,
    "pooling_layout": 8,
    "volume_pooling": 4,
    "batch_norm_layout": 10,
    "instance_norm": 5,
    "group_norm_sizes": 6,
    "map_reduction": 6,
    "layout": 40,
    "applied": 14,
    "unaligned": 16,
}
_GROUP = 32  # cases under one run of the profiler
# Cases of fewer elements than this are drawn less often: a step spends its time in larger ones.
_SMALL_ELEMENTS, _SMALL_SHARE = 400_000, 0.5
_FILE = "timed.jsonl"
_MOST_PROCESSES = 6
_LEAST_SECONDS = 5.0  # below this a new process is not worth its start
_BROKEN = 75  # exit status of a process after an error that its GPU context does not survive


# --- collecting, on a GPU -------------------------------------------------------------------------------


def collect(folder: Path, seconds: float, only: Sequence[str], seed: int) -> None:
    """Time in child processes, one after another, until the seconds are over."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    own = [sys.executable, __file__, "time", str(folder), "--only", ",".join(only), "--seed", str(seed)]
    for _ in range(_MOST_PROCESSES):
        left = until - time.monotonic()
        if left < _LEAST_SECONDS or subprocess.run([*own, "--seconds", f"{left:.1f}"]).returncode == 0:
            break
    counts = Counter(line["draw"] for line in _timed_lines(folder))
    print(f"{counts.total():,} cases timed in {folder / _FILE}: {dict(counts)}")


def time_cases(folder: Path, seconds: float, only: Sequence[str], seed: int) -> None:
    """Time groups of cases, always of the kind that is farthest behind its share."""
    until = time.monotonic() + seconds
    begun = _begun(folder, seed)
    drawn = {name: _skip(draw_cases(LIMITS, name, seed), begun[name]) for name in only}
    watch, used = clock.GpuClock(LIMITS.elements), dict.fromkeys(only, 0.0)
    with (folder / _FILE).open("a", encoding="utf-8") as file:
        while time.monotonic() < until:
            name = min(only, key=lambda each: used[each] / SHARES[each])
            group = [next(drawn[name]) for _ in range(_GROUP)]
            begin = time.monotonic()
            print(json.dumps({"begun": name, "seed": seed, "count": _GROUP}), file=file, flush=True)
            timings = _time_group(watch, group)
            lines = [
                _line(name, seed, begun[name] + place, case, each)
                for place, (case, each) in enumerate(zip(group, timings, strict=True))
            ]
            file.writelines(json.dumps(line) + "\n" for line in lines if line["forward"] is not None)
            file.flush()
            begun[name] += _GROUP
            used[name] += time.monotonic() - begin


def _time_group(watch: clock.GpuClock, group: Sequence[ProbeCase]) -> list[clock.Timings]:
    """An error of the device ends the process: no later call would work."""
    try:
        timings = watch.time(group)
        torch.cuda.synchronize()
        return timings
    except RuntimeError as error:
        print(f"left out a group: {str(error)[:200]}", file=sys.stderr)
        sys.exit(_BROKEN)


def _line(name: str, seed: int, number: int, case: ProbeCase, timings: clock.Timings) -> dict[str, Any]:
    forward, backward = (None if each is None else dataclasses.astuple(each) for each in timings)
    return {
        "draw": name,
        "seed": seed,
        "number": number,
        "case": fingerprint(case),
        "forward": forward,
        "backward": backward,
    }


# --- cases that are drawn again ------------------------------------------------------------------------


def draw_cases(limits: Limits, name: str, seed: int) -> Iterator[ProbeCase]:
    """The cases of one kind; the same seed gives the same ones, whatever other kinds are drawn."""
    rng = random.Random(f"{name} {seed}")
    for case in CaseSampler(limits, rng.getrandbits(32)).draw_all({name: 1}):
        if case.elements >= _SMALL_ELEMENTS or rng.random() < _SMALL_SHARE:
            yield case


def fingerprint(case: ProbeCase) -> str:
    """A short name for a case's tensors, which shows whether it was drawn again."""
    text = f"{case.family} {case.precision} {case.tensors}"
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _skip(cases: Iterator[ProbeCase], count: int) -> Iterator[ProbeCase]:
    for _ in range(count):
        next(cases)
    return cases


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The lines so far; one that was cut off when the process ended does not count."""
    path, lines = folder / _FILE, list[dict[str, Any]]()
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _timed_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in _lines(folder) if "draw" in line]


def _begun(folder: Path, seed: int) -> Counter[str]:
    """How many cases of each kind were begun with this seed."""
    begun = Counter[str]()
    for line in _lines(folder):
        if line.get("seed") == seed:
            begun[line.get("begun", "")] += line.get("count", 0)
    return begun


# --- rows ------------------------------------------------------------------------------------------------


def write_rows(folder: Path, table: Path, most: int = 2600) -> None:
    """Describe the timed cases, at most so many of each kind, and write them as a table."""
    from windtunnel.calibration import rows as tables
    from windtunnel.calibration.probe import ProbeRow, rows_of
    from windtunnel.trace.record import Observer

    timed: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in _timed_lines(folder):
        timed[line["draw"], line["seed"]][line["number"]] = line
    rows = list[ProbeRow]()
    with Observer("gpu") as observer:
        for (name, seed), lines in timed.items():
            count = min(most, max(lines) + 1)
            for number, case in zip(range(count), draw_cases(LIMITS, name, seed), strict=False):
                if number in lines:
                    rows += rows_of(observer, case, _timings(name, lines[number], case), 1)
    tables.save(table, rows)
    print(f"{len(rows):,} rows in {table}")


def _timings(name: str, line: Mapping[str, Any], case: ProbeCase) -> clock.Timings:
    if fingerprint(case) != line["case"]:
        raise SystemExit(f"Case {line['number']} of {name} is drawn differently now; use the old version.")
    return _timing(line["forward"]), _timing(line["backward"])


def _timing(numbers: Sequence[float] | None) -> clock.OpTiming | None:
    if numbers is None:
        return None
    seconds, kernels, workspace = numbers
    return clock.OpTiming(seconds=seconds, kernels=kernels, workspace_bytes=workspace)


# --- trying, without a GPU -------------------------------------------------------------------------------


def try_cases(folder: Path, only: Sequence[str], seed: int, count: int = 6) -> None:
    """Run small cases of each kind on the CPU, so that none fails for the first time on a GPU."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = clock.Pool("cpu", SMALL.elements + 256 * 64)
    for name in only:
        refused = 0
        for _, case in zip(range(count), draw_cases(SMALL, name, seed), strict=False):
            try:
                run_once(pool, case)
            except NotImplementedError:  # by a CPU
                refused += 1
        print(f"{name}: {count - refused} of {count} cases ran")


def run_once(pool: clock.Pool, case: ProbeCase) -> None:
    """Forward and backward, as the clock calls them."""
    tensors = pool.make(case)
    result = case.call(tensors)
    wanted = [t for t in tensors if t.requires_grad]
    if wanted:
        torch.autograd.grad(result, wanted, torch.ones_like(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("collect", "time", "rows", "try"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--only", default="", help="kinds, with commas between; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=2600, help="cases of a kind that `rows` describes")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name] or list(SHARES)
    if unknown := set(only) - set(SHARES):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; there are {', '.join(SHARES)}")
    if given.what == "collect":
        collect(given.folder, given.seconds, only, given.seed)
    elif given.what == "time":
        time_cases(given.folder, given.seconds, only, given.seed)
    elif given.what == "try":
        try_cases(given.folder, only, given.seed)
    elif given.table is None:
        parser.error("rows needs the table to write")
    else:
        write_rows(given.folder, given.table, given.most)


if __name__ == "__main__":
    main()
