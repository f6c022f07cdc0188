"""The pictures of the guide, one for each chapter, from the kept numbers."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import findings_text

from guidebook import charts
from guidebook.cases import CPU, FED, GPU, NETWORKS, UNITS, WIDTHS
from guidebook.tables import DRIVE_NAMES, FORMS, MACHINES, USERS, WAYS, Tables, figures_of_studies
from guidebook.values import Values, duration
from windtunnel import records
from windtunnel.reports.charts import Chart

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
Spec = dict[str, Any]
_GIB = 2.0**30


def write_all() -> list[str]:
    """Draw those whose description has changed; the names of all."""
    specs = all_specs()
    for name, spec in specs.items():
        path = FOLDER / f"guide-{name}.svg"
        if not path.exists() or mark(spec) not in path.read_text(encoding="utf-8"):
            records.write_whole(path, f"{Chart(spec=spec).svg()}\n{mark(spec)}\n")
    return list(specs)


def mark(spec: Spec) -> str:
    """A comment by which a test sees that a picture shows these numbers."""
    return f"<!-- {hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]} -->"


def all_specs() -> dict[str, Spec]:
    """The description of every picture."""
    values, figures = Values(), figures_of_studies()
    tables = Tables(values, figures)
    makers: dict[str, Callable[[], Spec]] = {
        "job": lambda: one_job(values),
        "network": lambda: networks(values),
        "nodes": lambda: nodes(values, figures),
        "initial-weights": lambda: initial_weights(figures),
        "threads": lambda: threads(values, figures),
        "gpu": lambda: gpu(values),
        "several-gpus": lambda: several(values),
        "parallelism": lambda: ways(values),
        "clusters": lambda: clusters(tables),
        "exchange": lambda: exchange(values),
        "data-flow": lambda: data_flow(tables),
        "memory": lambda: memory(values),
        "storage": lambda: storage(values),
        "recurrent": lambda: recurrent(values),
        "use": lambda: use(values),
        "factors": lambda: factors(tables),
    }
    return {name: maker() for name, maker in makers.items()}


def one_job(g: Values) -> Spec:
    rows = [
        {"y": words, "x": g.hours(f"job.{name}"), "text": duration(3600 * g.hours(f"job.{name}"))}
        for name, words in MACHINES.items()
    ]
    return charts.bars(rows, "ResNet-50 on ImageNet, 90 epochs, by forecast", "hours", log=True)


def networks(g: Values) -> Spec:
    rows = [
        {"y": name, "x": 1e3 * g.example_seconds(f"net.{name}.{kind}"), "line": words}
        for name in NETWORKS
        for kind, words in (("cpu", "desktop CPU, 16 cores"), ("gpu", "desktop GPU"))
    ]
    order = sorted(NETWORKS, key=lambda name: g.example_seconds(f"net.{name}.cpu"))
    title = "Training time of one example, by forecast"
    return charts.dots(rows, title, "milliseconds (each mark to the right: ten times as long)", order)


def nodes(g: Values, f: findings_text.Figures) -> Spec:
    shown = (
        "ffn on digits",
        "autoencoder on digits",
        "lstm on text",
        "recursive on trees",
        "rnn on decisions",
    )
    learned = [
        {"x": row.settings["width"], "y": skill(row), "line": row.case}
        for row in f.choice.rows
        if row.figure == "width" and row.case in shown
    ]
    timed = [
        {"x": width, "y": 1e3 * g.seconds(f"nodes.{kind}.{width}"), "line": words}
        for width in WIDTHS
        for kind, words in (("cpu", "ffn on a desktop CPU"), ("gpu", "ffn on a desktop GPU"))
    ]
    left = charts.lines(learned, "What was learned (measured)", "hidden nodes", "skill", log_x=2, width=270)
    right = charts.lines(timed, "What a step costs (forecast)", "hidden nodes", "ms", log_x=2, width=270)
    return charts.beside(left, right)


def skill(row: Any) -> float:
    return max(-0.25, statistics.fmean(row.training.skills))


def initial_weights(f: findings_text.Figures) -> Spec:
    shown = ("ffn on digits", "deep ffn on digits", "dcn on digits", "lstm on text", "recursive on trees")
    rows = [
        {"x": row.settings["initial_bound"], "y": skill(row), "line": row.case}
        for row in f.choice.rows
        if row.figure == "initial-values" and row.case in (*shown, "rnn on decisions")
    ]
    title = "What was learned, over the largest initial weight (measured)"
    return charts.lines(rows, title, "largest initial weight", "skill (below -0.25: drawn there)", log_x=10)


def threads(g: Values, f: findings_text.Figures) -> Spec:
    rows = []
    for label, words in (("torch7", "Torch, i7-3820, published"), ("caffe", "Caffe, i7-3820, published")):
        for count in (1, 2, 4, 8):
            seconds = [
                row.step_seconds
                for row in f.printed[findings_text.GUIDE]
                if row.figure == "table-1" and row.label.startswith(label) and row.threads == count
            ]
            if seconds and seconds[0]:
                gain = f.published_gain(label, 1, count)
                rows.append({"x": count, "y": gain, "line": words})
    for label, words in (("torch", "PyTorch, 16 cores, measured"), ("jax", "JAX, 16 cores, measured")):
        rows += [
            {"x": count, "y": f.gain("h200", label, 1, count) if count > 1 else 1.0, "line": words}
            for count in (1, 2, 4, 8, 16, 32)
        ]
    for job, words in (("fcn5", "same network, Ryzen 9, forecast"), ("ffn", "small network, forecast")):
        rows += [
            {"x": n, "y": g.seconds(f"threads.{job}.1") / g.seconds(f"threads.{job}.{n}"), "line": words}
            for n in (1, 2, 4, 8, 16)
        ]
    title = "Speed over one thread: a fully connected network of 118 million weights"
    return charts.lines(rows, title, "threads", "times as fast as one thread", log_x=2)


def gpu(g: Values) -> Spec:
    ways = (("net.{}.gpu", "data on the GPU"), ("gpu.{}.streamed", "data copied in each step"))
    rows = [
        {"y": name, "x": g.over(f"net.{name}.cpu", key.format(name)), "line": words}
        for name in FED
        for key, words in ways
    ]
    title = "How many times as fast as the desktop's CPU its GPU is, by forecast"
    return charts.dots(
        rows, title, "time on 16 CPU cores / time on the GPU (left of 1: CPU faster)", list(FED)
    )


def several(g: Values) -> Spec:
    names = (
        ("resnet50", "h200", "ResNet-50, H200"),
        ("resnet50", GPU, "ResNet-50, RTX 4090"),
        ("alexnet", "h200", "AlexNet, H200"),
        ("alexnet", GPU, "AlexNet, RTX 4090"),
    )
    rows = [
        {"x": n, "y": g.seconds(f"gpus.{job}.{card}.1") / g.seconds(f"gpus.{job}.{card}.{n}"), "line": words}
        for job, card, words in names
        for n in (1, 2, 4, 8)
    ]
    rows += [{"x": n, "y": n, "line": "perfect"} for n in (1, 2, 4, 8)]
    title = "One batch of 256 pictures divided among GPUs, by forecast"
    return charts.lines(rows, title, "GPUs", "times as fast as one GPU", log_x=2)


def ways(g: Values) -> Spec:
    rows = [
        {"y": words, "x": size / _GIB, "part": part}
        for name, words in WAYS.items()
        for part, size in g.memory_parts(f"ways.{name}").items()
    ]
    limit = float(g.forecasts["ways.data"]["capacity_bytes"]) / _GIB
    title = "Memory of each of eight H100: a language model of 6.7 billion weights"
    return charts.stacked(rows, title, "GiB; the line is what one H100 has", list(WAYS.values()), limit)


def clusters(t: Tables) -> Spec:
    rows = [
        {"x": n // 4, "y": t.step_of("clusters", case, 4) / t.step_of("clusters", case, n), "line": case}
        for case in t.f.ahead.cases("clusters")
        for n in (4, 8, 16, 32, 64)
    ]
    title = "Clusters of four GTX 1080, one batch divided among all, by forecast"
    return charts.lines(rows, title, "clusters", "times as fast as one cluster", log_x=2)


def exchange(g: Values) -> Spec:
    rows = [
        {"x": n, "y": g.exchange("figure-6", form, n, "speedup"), "line": words}
        for form, words in FORMS.items()
        for n in (1, 4, 8, 16)
    ]
    title = "ResNet-50 on up to four clusters of four GTX 1080, simulated"
    return charts.lines(rows, title, "GPUs (four in each cluster)", "times as fast as one GPU", log_x=2)


def data_flow(t: Tables) -> Spec:
    cases = ("copied, then computed", "copied ahead", "copied ahead, transfer unit", "data on the GPU")
    rows, order = [], []
    for devices in (1, 3, 4):
        for case in cases:
            step = t.step_of("data-flow", case, devices)
            name = f"{devices} GPU{'s' if devices > 1 else ''}: {case}"
            order.append(name)
            rows += [
                {"y": name, "x": 0.5, "part": "computing"},
                {"y": name, "x": step - 0.5, "part": "waiting for data"},
            ]
    title = "8 GB for each GPU in each step, one PCIe 4.0 bus, 0.5 s of computing"
    return charts.stacked(rows, title, "seconds of a step", order)


def memory(g: Values) -> Spec:
    names = {
        "memory.16": "batch 16",
        "memory.32": "batch 32",
        "memory.64": "batch 64",
        "memory.128": "batch 128",
        "memory.fp16": "batch 128, fp16",
        "memory.recompute": "batch 128, recompute",
        "memory.accumulate": "batch 128 as 4 x 32",
    }
    rows = [
        {"y": words, "x": size / _GIB, "part": part}
        for key, words in names.items()
        for part, size in g.memory_parts(key).items()
    ]
    limit = float(g.forecasts["memory.16"]["capacity_bytes"]) / _GIB
    title = "Memory of one training step of ResNet-50, by forecast"
    return charts.stacked(rows, title, "GiB; the line is what a GTX 1080 has", list(names.values()), limit)


def storage(g: Values) -> Spec:
    names = [(f"drive.{drive}", f"eight.{drive}", words) for drive, words in DRIVE_NAMES.items()]
    names += [("loaders.32", "eight.page-cache", "host's memory (page cache)")]
    names += [("place.resident", "eight.resident", "memory of the GPU")]
    rows = [
        {"y": words, "x": 1 / g.example_seconds(key), "line": line}
        for one, eight, words in names
        for key, line in ((one, "one H200"), (eight, "eight H200"))
    ]
    title = "ResNet-50: pictures a second by where the files are, by forecast"
    return charts.dots(rows, title, "pictures a second", [words for _, _, words in names])


def recurrent(g: Values) -> Spec:
    machines = {
        "macbook-2016": "MacBook 2016",
        "k80": "K80",
        CPU: "Ryzen 9, 16 cores",
        GPU: "RTX 4090",
    }
    rows = [
        {"x": n, "y": 1e3 * g.seconds(f"rnn.{machine}.{n}"), "line": words}
        for machine, words in machines.items()
        for n in UNITS
    ]
    title = "A recurrent network, 20 timesteps, batch 1, plain PyTorch loop, by forecast"
    return charts.lines(rows, title, "recurrent units", "ms for one example", log_x=10, log_y=True)


def use(g: Values) -> Spec:
    rows = [
        {"x": batch, "y": 1e3 * g.seconds(f"use.{machine}.{batch}"), "line": words}
        for machine, words in USERS.items()
        for batch in (1, 8, 64)
    ]
    title = "ResNet-50 after training: time of one answer, by forecast"
    return charts.lines(rows, title, "pictures in one request", "ms until the answer", log_x=2, log_y=True)


def factors(t: Tables) -> Spec:
    rows = [{"y": row["example"], "x": row["ratio"], "line": row["part"]} for row in t.factors()]
    order = list(dict.fromkeys(row["y"] for row in rows))
    title = "How much the strongest factor of each kind changes the time"
    return charts.dots(rows, title, "slowest over fastest value", order)
