"""Measure the rows of a truth table, one after another in one process.

    python benchmarks/truth.py collect CASES.toml OUT.jsonl [--on cuda|cpu] [--seconds-per-row 2.5]
                                                            [--budget 400] [--again]
    python benchmarks/truth.py table OUT.jsonl TABLE.jsonl [--machine NAME] [--host-factor X]

`collect` appends a line as soon as a row is done, so a kill loses nothing and the next call continues. All
rows are timed before any is profiled, because a profiler that was active once may slow later launches. So a
row has two lines, which readers join. `table` joins them and drops the details of ops.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import gc
import importlib.metadata
import itertools
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from windtunnel import records
from windtunnel.accuracy import truth
from windtunnel.accuracy.truth import TruthCase as Case
from windtunnel.accuracy.truth import read_cases
from windtunnel.machine import here
from windtunnel.measurement import compilation, job
from windtunnel.measurement.report import ProcessReport, ReferenceLoop, Samples
from windtunnel.measurement.sampler import Sampler
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.windows import keep_quiet

LEAST_GROUP_SECONDS = {"cuda": 0.05, "cpu": 0.02}
LEAST_GROUPS = {"cuda": 5, "cpu": 7}
LEAST_WARM_STEPS = 5
PROFILED_STEPS = 3
MOST_SHAPES = 150
LEFT_OUT = ("ops", "shapes", "row_seconds", "detail")
DRIVER_CALL = re.compile(r"(cuda|cu|hip)[A-Z]")
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "numpy")


def main() -> None:
    options = parse_options()
    if options.verb == "table":
        facts = {"machine": options.machine, "host_factor": options.host_factor}
        write_table(options.out, options.table, facts, options.pace)
    else:
        collect(options)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("collect")
    verb.add_argument("cases", type=Path)
    verb.add_argument("out", type=Path)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    verb.add_argument("--on", choices=("cuda", "cpu"), default=default, help=f"Default: {default}.")
    help_text = "for warming up and timing a row, not for building it"
    verb.add_argument("--seconds-per-row", type=float, default=2.5, help=help_text)
    help_text = "seconds after which no further row is begun"
    verb.add_argument("--budget", type=float, default=400.0, help=help_text)
    verb.add_argument("--again", action="store_true", help="try rows that failed once more")
    verb = verbs.add_parser("table")
    verb.add_argument("out", type=Path)
    verb.add_argument("table", type=Path)
    verb.add_argument("--machine", help="the machine's name. Default: the name of the table's file.")
    help_text = "how slow the host was compared with the machine's description, by a probe of the same hour"
    verb.add_argument("--host-factor", type=float, help=help_text)
    help_text = (
        "seconds of plain Python when the machine was probed: each row gets its own factor by its pace"
    )
    verb.add_argument("--pace", type=float, help=help_text)
    return parser.parse_args()


def collect(options: argparse.Namespace) -> None:
    """Time every case, then profile every case, until the budget is used."""
    begin, out = time.perf_counter(), options.out
    lines = truth.whole_lines(out) if out.exists() else []
    if out.exists():  # drop the half line that a kill may have left
        records.write_whole(out, "".join(json.dumps(line) + "\n" for line in lines))
    failed = {line["key"] for line in lines if "error" in line and not options.again}
    done = {(line["key"], line["pass"]) for line in lines if "key" in line and "error" not in line}
    out.parent.mkdir(parents=True, exist_ok=True)
    passes = (("time", lambda *at: time_case(*at, options.seconds_per_row)), ("profile", profile_case))
    left = 0
    with out.open("a", encoding="utf-8") as file:
        if not file.tell():
            print(json.dumps(header(options.on)), file=file, flush=True)
        for (name, measure), case in itertools.product(passes, read_cases(options.cases)):
            if (case.key, name) in done or case.key in failed:
                continue
            if time.perf_counter() - begin > options.budget:
                left += 1
                continue
            line = {
                "key": case.key,
                "pass": name,
                **records.plain(case),
                **attempt(measure, case, options.on),
            }
            print(json.dumps(line), file=file, flush=True)
            show(line, case, time.perf_counter() - begin)
            if "error" in line:
                failed.add(case.key)
            if "CUDA error" in line.get("error", ""):
                raise SystemExit("The device cannot continue; start again to go on with the next row.")
    print(f"{time.perf_counter() - begin:.0f} s; {left} passes left, {len(failed)} rows failed.")


def attempt(measure: Callable[[Case, str], dict[str, Any]], case: Case, device: str) -> dict[str, Any]:
    """The measured figures, or the error by name; nothing of the case stays in memory either way."""
    clear(device)
    begin = time.perf_counter()
    figures: dict[str, Any] = {}
    for part in (lambda: measure(case, device), lambda: clear(device)):
        try:
            figures |= part() or {}
        except Exception as error:
            figures["error"] = f"{type(error).__name__}: {str(error).strip()[:500]}"
    return {**figures, "row_seconds": time.perf_counter() - begin}


def clear(device: str) -> None:
    """As empty as a fresh process: no tensors, no cache, no workspaces, no compiled code."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def build(case: Case, device: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """One whole step and a wait for its end, as a measurement has them."""
    strategy = case.strategy()
    job.set_up(torch, strategy, case.threads or torch.get_num_threads(), device)
    torch.manual_seed(0)
    step, sync = job.make_step(torch, case.workload(), strategy, device)
    sync()
    return step, sync


def time_case(case: Case, device: str, seconds: float) -> dict[str, Any]:
    """Seconds of a steady step, of the host alone, and memory, all without a profiler."""
    pace = interpreter_pace()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    begin = time.perf_counter()
    step, sync = build(case, device)
    built = time.perf_counter()
    messages: list[dict[str, Any]] = []
    sampler = Sampler(step, sync, LEAST_GROUP_SECONDS[device], messages.append, watches=device == "cpu")
    first = sampler.first()
    if case.strategy().compiles:
        compilation.forget_peak(torch, device)
    sampler.warm_up(0.4 * seconds)
    groups = steady_groups(sampler, device, 0.6 * seconds)
    low, middle, high = statistics.quantiles(groups, n=4)
    figures = {
        "step_seconds": middle,
        "low_seconds": low,
        "high_seconds": high,
        "groups": len(groups),
        "group_steps": sampler.group,
        "host_seconds": sampler.host_seconds(),
        "first_seconds": first,
        "warm_steps": sum(len(each["seconds"]) for each in messages if each["phase"] == "warm"),
        "build_seconds": built - begin,
        "pace": pace,
    }
    if device == "cuda":
        peaks = {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        return figures | {name: peak - before for name, peak in peaks.items()} | {"before_bytes": before}
    return figures | {"pace_after": interpreter_pace()}


def steady_groups(sampler: Sampler, device: str, most: float) -> list[float]:
    """Seconds of a step over groups of steps, in quiet windows only. Slow steps get up to four times that."""
    least = LEAST_GROUPS[device] * sampler.group * sampler.one
    sampler.steady(Protocol(seconds=max(most, min(least, 4 * most)), precision=1e-9))
    report = ProcessReport(
        samples={"steady": Samples(seconds=tuple(sampler.seconds))},
        reference_loop=ReferenceLoop(readings=tuple(sampler.readings)),
    )
    return list(keep_quiet(report).steady)


def interpreter_pace() -> float:
    """Seconds of a fixed loop of plain Python on this host, now."""
    samples = []
    for _ in range(20):
        start = time.perf_counter()
        here.interpreter_loop()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def profile_case(case: Case, device: str) -> dict[str, Any]:
    """Seconds and calls of a step by op, on the device. On a CPU they include the host's part."""
    step, sync = build(case, device)
    for _ in range(LEAST_WARM_STEPS):
        step()
    sync()
    activities = [ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    if case.detail:  # only needed to find the op of a kernel, and takes the most time
        activities = list({ProfilerActivity.CPU, *activities})
    with profile(activities=activities, record_shapes=case.detail) as recorded:
        for _ in range(PROFILED_STEPS):
            step()
        sync()
    if device == "cuda":
        return device_work(recorded.profiler.kineto_results.events(), case.detail)
    return host_work(recorded, case.detail)


def device_work(raw: list[Any], detail: bool) -> dict[str, Any]:
    """Kernels, copies and fills on the device, each counted for the innermost op that launched it.

    Raw events are used, because the profiler's own summary counts a range on the device in addition to its
    kernels.
    """
    cuda = torch.autograd.DeviceType.CUDA
    own = [
        e
        for e in raw
        if e.device_type() != cuda and not e.linked_correlation_id() and not e.is_user_annotation()
    ]
    # The driver numbers its calls in a series of its own.
    launchers = {e.correlation_id(): e for e in own if not DRIVER_CALL.match(e.name())}
    work = [e for e in raw if e.device_type() == cuda and not e.is_user_annotation()]
    moved = sum(e.name().startswith(("Memcpy", "Memset")) for e in work)
    ops: dict[str, Credit] = collections.defaultdict(Credit)
    shapes: dict[tuple[str, str], Credit] = collections.defaultdict(Credit)
    for event in work:
        link = event.linked_correlation_id()
        op = launchers.get(link) if link else None
        name = op.name() if op is not None else "unknown"
        ops[name].add(event.duration_ns() / 1e9, link)
        if detail:
            shapes[name, str(op.shapes()) if op is not None else ""].add(event.duration_ns() / 1e9, link)
    totals = {
        "device_seconds": sum(e.duration_ns() for e in work) / 1e9,
        "kernels": len(work) - moved,
        "moves": moved,
    }
    figures: dict[str, Any] = {name: total / PROFILED_STEPS for name, total in totals.items()}
    return figures | {"ops": per_step(ops)} | ({"shapes": by_shapes(shapes)} if detail else {})


def host_work(recorded: Any, detail: bool) -> dict[str, Any]:
    ops: dict[str, Credit] = collections.defaultdict(Credit)
    shapes: dict[tuple[str, str], Credit] = collections.defaultdict(Credit)
    for number, event in enumerate(recorded.events()):
        if event.name.startswith("aten::"):
            ops[event.name].add(event.self_cpu_time_total / 1e6, number)
            shapes[event.name, str(event.input_shapes)].add(event.self_cpu_time_total / 1e6, number)
    seconds = sum(credit.seconds for credit in ops.values()) / PROFILED_STEPS
    return {"op_seconds": seconds, "ops": per_step(ops)} | ({"shapes": by_shapes(shapes)} if detail else {})


class Credit:
    """Seconds of an op and the calls behind them; a call may launch several kernels."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: set[int] = set()

    def add(self, seconds: float, call: int) -> None:
        self.seconds += seconds
        self.calls.add(call)

    def plain(self) -> list[float]:
        return [self.seconds / PROFILED_STEPS, len(self.calls) / PROFILED_STEPS]


def per_step(ops: dict[str, Credit]) -> dict[str, list[float]]:
    """Seconds and calls per step, the longest first."""
    return {name: credit.plain() for name, credit in sorted(ops.items(), key=lambda item: -item[1].seconds)}


def by_shapes(shapes: dict[tuple[str, str], Credit]) -> list[list[Any]]:
    """[op, shapes of its inputs, seconds per step, calls per step], the longest first."""
    ordered = sorted(shapes.items(), key=lambda item: -item[1].seconds)[:MOST_SHAPES]
    return [[name, text, *credit.plain()] for (name, text), credit in ordered]


def header(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device,
        "python": platform.python_version(),
    }
    for name in LIBRARIES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = None
    facts |= {"cpu": here.cpu_name(), "cpus": len(here.available_cpus()), "pace": interpreter_pace()}
    if device == "cuda":
        facts |= {
            "gpu": torch.cuda.get_device_name(0),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def show(line: dict[str, Any], case: Case, elapsed: float) -> None:
    figures = " ".join(
        f"{name[:4]} {line[name] * 1e3:.3f} ms"
        for name in ("step_seconds", "host_seconds", "device_seconds")
        if name in line
    )
    result = line.get("error") or figures
    print(f"{elapsed:6.1f} s  {line['row_seconds']:5.1f}  {line['pass']:7}  {case}: {result}", flush=True)


def write_table(out: Path, table: Path, facts: dict[str, Any], pace: float | None) -> None:
    """Write the header and one line for each row, without the details that only tuning needs."""
    head, rows = truth.read_lines(out)
    for row in rows if pace else ():
        if "pace_after" in row:
            row["host_factor"] = (row["pace"] * row["pace_after"]) ** 0.5 / pace
    short = [{name: value for name, value in row.items() if name not in LEFT_OUT} for row in rows]
    known = {name: value for name, value in facts.items() if value is not None}
    records.write_whole(table, "".join(json.dumps(line) + "\n" for line in (head | known, *short)))
    print(f"{len(rows)} rows, {sum('error' in row for row in rows)} with an error.")


if __name__ == "__main__":
    main()
