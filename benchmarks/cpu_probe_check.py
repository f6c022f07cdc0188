"""Probe this CPU and check forecasts on the CPU truth cases: without the probe, with it, by the roofline.

    python benchmarks/cpu_probe_check.py OUT_FOLDER [--probe-seconds 170] [--seconds-per-row 2] [--budget 690]
        [--catalogue NAME --title TEXT --year YEAR --year-source TEXT] [--table blind]

It takes at most `--budget` seconds on a quiet machine. A second call with the same folder uses the profile
and the steps that are there. With --catalogue, the profile, its rows, a machine file and the table of
measured steps go into the catalogue. With --table blind, the cases are those chosen after the code was
frozen, and only the table is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import truth as measuring

from windtunnel import prediction, records
from windtunnel.accuracy import truth
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.calibration import calibrate, rows
from windtunnel.forecast.forecast import forecast_step
from windtunnel.machine import here, profiles
from windtunnel.machine.machine import CATALOG, LaunchCosts, Machine

Cases = list[truth.TruthCase]
FORECAST_SHARE = 0.15  # of the budget is kept for the forecasts


def main() -> None:
    options = parse_options()
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["WINDTUNNEL_PROFILES"] = str(options.out)
    plain = here.describe(probed=False).with_cpu_only()
    path = options.out / "cpu.json.gz"
    if not path.is_file():
        probe(plain, path, options.probe_seconds)
    left = (1 - FORECAST_SHARE) * options.budget - (time.perf_counter() - begin)
    cases = truth.read_cases(CATALOG / options.table / "cases" / "cpu.toml")
    path_of_steps = options.out / f"{options.table}.jsonl"
    steps = measure(cases, path_of_steps, options.seconds_per_row, begin, left)
    report(cases, steps, plain, here.describe().with_cpu_only())
    if options.catalogue and options.table == "truth":
        keep(options, path)
    if options.catalogue:
        keep_steps(CATALOG / options.table / f"{options.catalogue}.jsonl", cases, steps)
    print(f"{time.perf_counter() - begin:.0f} s in all")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--probe-seconds", type=float, default=calibrate.QUICK.seconds)
    parser.add_argument("--seconds-per-row", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=690.0)
    parser.add_argument("--table", choices=("truth", "blind"), default="truth", help="which cases are timed")
    parser.add_argument("--catalogue", help="the machine's name in the catalogue")
    parser.add_argument("--title", default="", help="what the machine is, for its file")
    parser.add_argument("--year", type=int, help="when the processor was launched")
    parser.add_argument("--year-source", default="", help="where the year is stated")
    return parser.parse_args()


def probe(machine: Machine, path: Path, seconds: float) -> None:
    """Probe as `windtunnel machine probe` does, print what it prints, keep the profile in any case."""
    begin = time.perf_counter()
    result = calibrate.calibrate(machine, dataclasses.replace(calibrate.QUICK, seconds=seconds))
    profiles.save(path, result.profile, result.machine_facts())
    rows.save(path.with_name("cpu.rows.csv.gz"), result.rows)
    factors = result.profile.launch_cost_factor, result.profile.cached_op_factor
    print(f"probe: {len(result.rows):,} ops in {time.perf_counter() - begin:.0f} s; ", end="")
    print(f"{len(result.learned)} of {len(result.profile.kinds)} kinds learned; factors {factors}")
    for name, how in sorted(result.learned.items()):
        kind = result.profile.kinds[name]
        print(f"  {name:<32}{how:<12}80% within {kind.spread - 1:.0%}")
    print("\n".join([*result.comparison.lines(), *result.cautions]), flush=True)


def measure(cases: Cases, path: Path, seconds: float, begin: float, left: float) -> list[dict[str, Any]]:
    """Time all cases in two rounds some minutes apart, until the seconds are used; keep the lower time."""
    lines = truth.whole_lines(path) if path.is_file() else []
    end = time.perf_counter() + left
    with path.open("a", encoding="utf-8") as file:
        for number in range(2):
            done = {line["key"] for line in lines if line["round"] == number}
            for case in cases:
                if case.key in done or time.perf_counter() > end:
                    continue
                figures = measuring.attempt(
                    lambda case, device: measuring.time_case(case, device, seconds), case, "cpu"
                )
                line = {"key": case.key, "round": number, **figures}
                lines.append(line)
                print(json.dumps(line), file=file, flush=True)
                shown = line.get("error") or f"{line['low_seconds'] * 1e3:.2f} ms"
                print(
                    f"{time.perf_counter() - begin:6.0f} s  round {number + 1}  {case}: {shown}", flush=True
                )
    return lines


def report(cases: Cases, lines: list[dict[str, Any]], plain: Machine, probed: Machine) -> None:
    """Errors of every case, then their medians and 90th percentiles."""
    ways = {
        "no probe": (plain, profiles.profile_for(plain)),
        "probed": (probed, profiles.profile_for(probed)),
    }
    print(f"no probe: priced by {profiles.nearest(plain)}; forecast over measured - 1:")
    errors: dict[str, list[float]] = {name: [] for name in (*ways, "roofline")}
    inside = dict.fromkeys(ways, 0)
    for case in cases:
        tries = [line["low_seconds"] for line in lines if line["key"] == case.key and "error" not in line]
        if not tries:
            continue
        try:
            found = forecast_case(case, ways)
        except Exception as error:  # a case that needs a library that is not here
            print(f"  {case!s:<70} no forecast: {error}")
            continue
        for name, (step, low, high) in found.items():
            errors[name].append(step / min(tries) - 1)
            if name in inside:
                inside[name] += low <= min(tries) <= high
        shown = "".join(f"{errors[name][-1]:>+10.0%}" for name in errors)
        print(f"  {case!s:<70}{min(tries) * 1e3:>9.2f} ms{shown}", flush=True)
    for name, own in errors.items():
        absolute = sorted(map(abs, own))
        ninetieth = absolute[max(0, round(0.9 * len(absolute)) - 1)]
        covered = f", {inside[name] / len(own):.0%} inside the interval" if name in inside else ""
        print(
            f"{name:<10}{len(own)} rows: median {statistics.median(absolute):.1%}, 90th {ninetieth:.1%}, "
            f"bias {statistics.median(own):+.1%}{covered}"
        )


def forecast_case(case: truth.TruthCase, ways: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Step seconds and interval by each way, and by the roofline."""
    strategy = case.strategy()
    recorded = prediction.trace(case.workload(), strategy, "cpu")
    found = {}
    for name, (machine, profile) in ways.items():
        forecast = forecast_step(recorded, machine, strategy, profile).forecast
        found[name] = forecast.step_seconds, forecast.low_seconds, forecast.high_seconds
    seconds = roofline_seconds(recorded, ways["probed"][0], strategy) or 0.0
    return {**found, "roofline": (seconds, seconds, seconds)}


def keep(options: argparse.Namespace, path: Path) -> None:
    """Put the profile, its rows and a machine file into the catalogue."""
    name, profile, facts = options.catalogue, profiles.load(str(path)), records.load(path)
    # The factor goes into the costs: CPUs without a probe may borrow these costs and another CPU's profile.
    costs = records.read(LaunchCosts, facts["launch_costs"], str(path)).scaled(profile.launch_cost_factor)
    kept = dataclasses.replace(profile, name=name, launch_cost_factor=1.0)
    profiles.save(profiles.catalog_path(name), kept, {})
    timed = rows.load(path.with_name("cpu.rows.csv.gz"))
    rows.save(Path(__file__).parent / "probes" / f"{name}.csv.gz", timed)
    fresh, date = here.describe(probed=False).with_cpu_only(), profile.date
    sources = {key: text for key, text in fresh.sources.items() if key.startswith("host")}
    sources = {key: f"{text.replace(' here', '')}, {date}" for key, text in sources.items()}
    versions = f"torch {profile.versions['torch']}, Python {profile.versions['python']}"
    sources["launch_costs"] = f"measured by microbenchmarks (windtunnel machine probe), {versions}, {date}"
    device = effective_clock(facts["device"], sources)
    if options.year:
        sources["year"] = options.year_source
    data = {
        "name": name,
        "title": options.title or name,
        **({"year": options.year} if options.year else {}),
        "profile": name,
        "host": {**device, "model": options.title or device["model"]},
        "launch_costs": records.plain(costs),
        "sources": sources,
    }
    records.save(CATALOG / "machines" / f"{name}.toml", data)
    print(f"in the catalogue: {name} ({len(timed):,} rows)")


def keep_steps(path: Path, cases: Cases, lines: list[dict[str, Any]]) -> None:
    """Write the table of measured steps: of each case the round with the lower time."""
    head = {
        **measuring.header("cpu"),
        "machine": path.stem,
        "host_factor": 1.0,
        "note": "step_seconds is the lower quartile over groups of steps, the lower of two rounds some "
        "minutes apart: the machine without load by other programs",
    }
    table = [head]
    for case in cases:
        tries = [line for line in lines if line["key"] == case.key and "error" not in line]
        if tries:
            best = min(tries, key=lambda line: line["low_seconds"])
            figures = {k: v for k, v in best.items() if k not in ("key", "round", "row_seconds")}
            table.append(
                {"key": case.key, **records.plain(case), **figures, "step_seconds": best["low_seconds"]}
            )
    records.write_whole(path, "".join(json.dumps(line) + "\n" for line in table))


def effective_clock(device: dict[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """The device with the clock at which its cores compute; a virtual machine states another one."""
    per_cycle = here._flop_per_cycle()
    if per_cycle is None:
        return device
    flop, reason = per_cycle
    sources["host.clock_rate"] = f"computed: measured fp32 rate of one core / {flop} flop a cycle ({reason})"
    return {**device, "clock_rate": device["flop_rates"]["fp32"] / device["cores"] / flop}


if __name__ == "__main__":
    sys.exit(main())
