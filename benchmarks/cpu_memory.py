"""Measures the memory of the steps of a CPU's truth table and writes it into the table's rows.

python benchmarks/cpu_memory.py src/windtunnel/catalog/truth/emerald-rapids-2-cores.jsonl

Each case runs in a fresh process: the highest resident memory of three steps after the first one, less what
the process had before the job was built. The job was built and run once before that and freed again, because
libraries load their code at the first step. Rows of the same case with other threads get the same figure.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from windtunnel.accuracy.truth import TruthCase, read_table

STEPS = 3


def main(path: Path) -> None:
    table = read_table(path)
    known: dict[str, int] = {}
    for row in table.rows:
        if row.error or row.case.execution != "eager":
            continue
        place = _place(row.case)
        if place not in known:
            known[place] = _in_fresh_process(path, row.case.key)
            print(f"{row.case}: {known[place] / 2**20:.0f} MiB", flush=True)
    peaks = {row.case.key: known[_place(row.case)] for row in table.rows if _place(row.case) in known}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(_with_peak(line, peaks)) + "\n" for line in lines))


def _place(case: TruthCase) -> str:
    """What memory depends on: all but the number of threads."""
    return str((case.job, sorted(case.settings.items()), case.batch, case.precision, case.inference))


def _with_peak(line: dict[str, Any], peaks: dict[str, int]) -> dict[str, Any]:
    return {**line, "peak_bytes": peaks[line["key"]]} if line.get("key") in peaks else line


def _in_fresh_process(path: Path, key: str) -> int:
    command = [sys.executable, __file__, str(path), key]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure(path: Path, key: str) -> int:
    import torch

    from windtunnel.measurement import job, process

    (case,) = (row.case for row in read_table(path).rows if row.case.key == key)
    strategy, workload = case.strategy(), case.workload()
    job.set_up(torch, strategy, 1, "cpu")
    job.make_step(torch, workload, strategy, "cpu")[0]()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # returns free memory to the system
    before = process.resident_bytes(reset_peak=False)
    step, sync = job.make_step(torch, workload, strategy, "cpu")
    step()
    process.resident_bytes(reset_peak=True)
    for _ in range(STEPS):
        step()
    sync()
    return process.peak_resident_bytes() - before


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        print(measure(Path(sys.argv[1]), sys.argv[2]))
