"""The guide's own numbers: computes docs/results/guide.json, and reads it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from guidebook.cases import OLD_GPU, Case, cases
from guidebook.ladder import ladder
from windtunnel import prediction, records
from windtunnel.exchange.comparison import compare_forms
from windtunnel.exchange.costs import WorkerForecasts
from windtunnel.exchange.run import ExchangeSettings
from windtunnel.exchange.training import ClusterOptions, train_on_cluster
from windtunnel.exchange.variation import Variation
from windtunnel.feed import worked_example
from windtunnel.forecast.workers import spread_over
from windtunnel.job.workload import Workload
from windtunnel.machine.building import shared_storage
from windtunnel.machine.machine import Machine
from windtunnel.strategy import PRICED_ONLY, Strategy
from windtunnel.trace import Trace

FILE = Path(__file__).parents[2] / "docs" / "results" / "guide.json"
DIGITS = 8  # kept of each number
FORMS = ("sync", "server", "async", "mixed", "local")
LEARNED = ("sync", "async", "mixed", "local")
SEEDS = (0, 1, 2)
TARGET = "accuracy=0.92"
Data = dict[str, Any]


def read() -> Data:
    """The kept numbers."""
    data: Data = json.loads(FILE.read_text(encoding="utf-8"))
    return data


def write(data: Data) -> None:
    lines = []
    for part, values in data.items():
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        lines.append(f'"{part}": {{\n{rows}\n}}')
    records.write_whole(FILE, "{\n" + ",\n".join(lines) + "\n}\n")


NEW = "new"  # in place of a part: only the forecasts that are not kept yet


def compute(say: Callable[[str], None], parts: tuple[str, ...] = ()) -> Data:
    """All numbers anew, or those of some parts; the others as they are kept."""
    kept = read() if FILE.exists() else {}
    makers: Mapping[str, Callable[[Callable[[str], None]], Data]] = {
        "forecasts": lambda say: forecasts(say, kept.get("forecasts", {}) if NEW in parts else {}),
        "largest": largest_batches,
        "exchange": exchanges,
        "weights": weights,
        "learned": learned,
        "data flow": data_flow,
        "ladder": ladder,
    }
    for name, maker in makers.items():
        if not parts or name in parts or (NEW in parts and (name == "forecasts" or name not in kept)):
            kept[name] = maker(say)
            write({part: kept[part] for part in makers if part in kept})
    return kept


# Forecasts


def forecasts(say: Callable[[str], None], kept: Data) -> Data:
    """Every case; those that are kept already as they are."""
    tracer, found = Tracer(), Data()
    for name, case in cases().items():
        found[name] = kept.get(name)
        if found[name] is None:
            found[name] = forecast_of(case, tracer)
            say(f"{name}: {found[name]['step_seconds']} s")
    return found


class Tracer:
    """Traces each job once for all strategies and machines that share its ops."""

    def __init__(self) -> None:
        self._kept = dict[object, Trace]()

    def trace(self, workload: Workload, strategy: Strategy, target: str) -> Trace:
        plain = Strategy()
        fields = {} if strategy.is_parallel else {name: getattr(plain, name) for name in PRICED_ONLY}
        key = (workload.name, repr(workload.origin), dataclasses.replace(strategy, **fields), target)
        if key not in self._kept:
            self._kept[key] = prediction.trace(workload, strategy, target)
        return self._kept[key]


def forecast_of(case: Case, tracer: Tracer | None = None) -> Data:
    """What the guide needs of one forecast, as plain data; also of a step that does not fit."""
    workload, machine = job_of(case), machine_of(case)
    strategy = spread_over(case.strategy, machine)
    recorded = (tracer or Tracer()).trace(workload, strategy, machine.device.kind)
    forecast = prediction.forecast_any(recorded, workload, machine, strategy).forecast
    memory = forecast.memory
    return {
        "batch": forecast.batch,
        "step_seconds": short(forecast.step_seconds),
        "low_seconds": short(forecast.low_seconds),
        "high_seconds": short(forecast.high_seconds),
        "epoch_seconds": short(forecast.epoch_seconds),
        "bound_by": forecast.bound_by,
        "parts": {name: short(value) for name, value in forecast.parts.items() if value},
        "parameters": forecast.parameters,
        "flop": short(forecast.flop),
        "memory_bytes": short(memory.total_bytes),
        "capacity_bytes": short(memory.capacity_bytes),
        "memory_parts": {name: short(value) for name, value in memory.parts.items() if value},
        "fits": memory.fits,
    }


def job_of(case: Case) -> Workload:
    workload = Workload.named(case.job, **case.settings)
    if case.packed == 1 or workload.data is None:
        return workload
    packed = dataclasses.replace(workload.data, examples_per_file=case.packed)
    return dataclasses.replace(workload, data=packed)


def machine_of(case: Case) -> Machine:
    machine = Machine.find(case.machine)
    return dataclasses.replace(machine, storage=shared_storage(case.storage)) if case.storage else machine


def short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def largest_batches(say: Callable[[str], None]) -> Data:
    """The largest batch of ResNet-50 and of GPT-2 that fits."""
    ways = {
        "plain": Strategy(),
        "recompute": Strategy(recompute="blocks"),
        "low precision": Strategy(precision="fp16"),
    }
    found = Data()
    for job in ("resnet50", "gpt2"):
        for machine in (OLD_GPU, "rtx4090", "h200"):
            for way, strategy in ways.items():
                name = f"{job}.{machine}.{way}"
                workload = Workload.named(job)
                found[name] = prediction.largest_batch(workload, Machine.named(machine), strategy)
                say(f"largest batch, {name}: {found[name]}")
    return found


def data_flow(say: Callable[[str], None]) -> Data:
    """The worked example of 2018: the step over the number of GPUs on one bus; then what remedies buy."""
    ahead, found = Strategy(data="streamed", prefetch=2), Data()
    for bus, link in (("bus", worked_example.LINK), ("old bus", worked_example.REAL_LINK)):
        for gpus in range(1, 9):
            timeline = worked_example.schedule(worked_example.bus(gpus, link), ahead)
            found[f"{bus}.{gpus}"] = short(timeline.step_seconds)
    example = worked_example.worked_example()
    for place, table in (("memory", example.from_memory), ("storage", example.from_storage)):
        for step in table.steps:
            found[f"{place}.{step.name}"] = short(step.step_seconds)
    say(f"data flow: {found}")
    return found


# Exchange


def exchanges(say: Callable[[str], None]) -> Data:
    """Forms of exchange over numbers of workers."""
    runs = {
        "figure-6": ("resnet50", "guide-figure-6", (1, 4, 8, 16), Variation(jitter=0.1)),
        "figure-6-equal": ("resnet50", "guide-figure-6", (1, 4, 8, 16), Variation()),
        "one-slow": (
            *("resnet50", "guide-figure-6", (4, 16)),
            Variation(jitter=0.1, slow_workers=1, slow_factor=2.0),
        ),
        "alexnet": ("alexnet", "guide-figure-6", (1, 4, 8, 16), Variation(jitter=0.1)),
        "forty-1080": ("resnet50", "10x4xgtx1080", (1, 8, 40), Variation(jitter=0.1)),
        "forty-h100": ("resnet50", "5x8xh100", (1, 8, 40), Variation(jitter=0.1)),
        "forty-slow": (
            *("resnet50", "5x8xh100", (40,)),
            Variation(jitter=0.1, slow_workers=1, slow_factor=2.0),
        ),
    }
    found = Data()
    for name, (job, machine, workers, variation) in runs.items():
        workers_of = WorkerForecasts.of(Workload.named(job), Machine.find(machine))
        table = compare_forms(workers_of, workers, names=FORMS, variation=variation)
        for row in table.rows:
            kept = (
                "step_seconds",
                "examples_per_second",
                "speedup",
                "staleness",
                "wait_share",
                "served_rate",
            )
            found[f"{name}.{row.form}.{row.workers}"] = {each: short(getattr(row, each)) for each in kept}
        say(f"exchange, {name}")
    return found


def learned(say: Callable[[str], None]) -> Data:
    """A feed-forward network really trained under the simulated clock of the guide's Figure 6."""
    machine, found = Machine.named("guide-figure-6"), Data()
    for form in LEARNED:
        for seed in SEEDS:
            options = ClusterOptions(
                exchange=form,
                settings=ExchangeSettings(every=10),
                variation=Variation(jitter=0.1),
                epochs=40,
                until=TARGET,
                seed=seed,
            )
            run = train_on_cluster("ffn", machine, options)
            last = run.rows[-1]
            found[f"{form}.{seed}"] = {
                "reached": run.reached,
                "seconds": short(last.seconds),
                "epochs": last.epochs,
                "changes": last.changes,
                "accuracy": short(last.figures["accuracy"]),
                "staleness": short(run.staleness),
                "workers": run.workers,
            }
            say(f"learned, {form}, seed {seed}: {found[f'{form}.{seed}']}")
    return found


def weights(say: Callable[[str], None]) -> Data:
    """How many weights of a network are in its fully connected layers, and what one stored picture is."""
    from torch import nn

    found = Data()
    for name in ("alexnet", "vgg16", "googlenet", "resnet50"):
        workload = Workload.named(name)
        assert workload.model is not None
        model = workload.model()
        dense = sum(
            parameter.numel()
            for layer in model.modules()
            if isinstance(layer, nn.Linear)
            for parameter in layer.parameters()
        )
        whole = sum(parameter.numel() for parameter in model.parameters())
        found[name] = {"all": whole, "dense": dense}
        data = workload.data
        if data is not None:
            found[name] |= {
                "example_bytes": data.example_bytes,
                "decode_seconds": data.decode_seconds,
                "examples": data.examples,
            }
        say(f"weights, {name}: {found[name]}")
    return found
