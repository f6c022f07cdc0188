"""Time what a host probe times beside steps of tuning networks, in one process and in turn.

    python benchmarks/host_check.py collect OUT.jsonl [--seconds 0.8] [--rounds 2]      (needs a GPU)
    python benchmarks/host_check.py report OUT.jsonl

`collect` writes a line for each timing as soon as it is done. `report` needs no GPU: it says by which factor
the launch costs of the catalogue have to be multiplied to forecast each step, for synthetic networks and for
tuning networks. A host probe is good if both agree.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from windtunnel.accuracy import truth
from windtunnel.calibration import probe_networks
from windtunnel.calibration.network_factors import factor_of
from windtunnel.calibration.steps import Job, StepTimer, TimedStep
from windtunnel.errors import Unavailable
from windtunnel.machine import profiles
from windtunnel.machine.machine import CATALOG, Machine
from windtunnel.prediction import trace
from windtunnel.strategy import Strategy


def jobs() -> Iterator[tuple[str, str, Job]]:
    """Sort, name and job: synthetic networks, then those tuning rows whose step waits for the host."""
    for workload in (*probe_networks.host_networks(), *probe_networks.ordinary_networks()):
        yield "synthetic", workload.name, (workload, Strategy())
    _, rows = truth.read_lines(CATALOG / "tuning" / "h200.jsonl")
    fields = {field.name for field in dataclasses.fields(truth.TruthCase)}
    for row in rows:
        seconds, device = row.get("step_seconds"), row.get("device_seconds")
        if not (seconds and device and seconds > truth.HOST_BOUND * device):
            continue
        case = truth.TruthCase(**{name: row[name] for name in fields if row.get(name) is not None})
        if case.execution == "eager":
            yield "tuning", str(case), (case.workload(), case.strategy())


def collect(out: Path, seconds: float, rounds: int) -> None:
    with out.open("w", encoding="utf-8") as file:
        for number in range(rounds):
            for sort, name, job in jobs():
                timer = StepTimer([job], "gpu")
                timer.time(seconds)
                line = {"round": number, "sort": sort, "name": name, "seconds": timer.seconds()[0]}
                print(json.dumps({**line, "at": time.time()}), file=file, flush=True)


def report(out: Path) -> None:
    timed: dict[str, list[float]] = {}
    for line in out.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        timed.setdefault(found["name"], []).append(found["seconds"])
    machine = Machine.named("h200")
    profile, costs = profiles.profile_for(machine), machine.launch_costs
    assert costs is not None
    factors: dict[str, list[float]] = {}
    for sort, name, (workload, strategy) in jobs():
        if name not in timed:
            continue
        recorded = trace(workload, strategy, "gpu")
        seconds = statistics.median(timed[name])
        step = TimedStep(name=name, strategy=strategy, seconds=seconds, recorded=recorded)
        try:
            factor = factor_of([step], machine, profile, costs).factor
        except Unavailable:
            print(f"{sort:<10}{name[:60]:<62}{seconds * 1e3:8.2f} ms  limited by the device")
            continue
        factors.setdefault(sort, []).append(factor)
        print(f"{sort:<10}{name[:60]:<62}{seconds * 1e3:8.2f} ms  factor {factor:.2f}")
    for sort, values in factors.items():
        print(f"{sort:<10}median {statistics.median(values):.3f}, {min(values):.2f} to {max(values):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("collect", "report"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.verb == "collect":
        collect(options.out, options.seconds, options.rounds)
    else:
        report(options.out)


if __name__ == "__main__":
    main()
