"""Chapters 13 to 15: small recurrent networks, after training, what to do first."""

from __future__ import annotations

from collections import Counter

from findings_text import clock

from guidebook import charts
from guidebook.cases import CPU, GPU, NETWORKS, SEQUENCES, SMALL, UNITS
from guidebook.drawings import Drawings, Spec
from guidebook.tables import FINDINGS, USERS, Tables
from guidebook.values import duration

_BOUND = {
    "resnet50, RTX 4090": "net.resnet50.gpu",
    "ffn, RTX 4090": "net.ffn.gpu",
    "resnet50, H200, 8 loaders": "loaders.8",
    "alexnet in bf16, data copied": "bound.copy",
    "alexnet, 4 x RTX 4090": "gpus.alexnet.rtx4090.4",
    "fcn5, RTX 4090": "net.fcn5.gpu",
}


def recurrent(t: Tables) -> Spec:
    machines = {"macbook-2016": "MacBook 2016", "k80": "K80", CPU: "Ryzen 9, 16 cores", GPU: "RTX 4090"}
    rows = [
        {"x": n, "y": 1e3 * t.g.seconds(f"rnn.{machine}.{n}"), "line": words}
        for machine, words in machines.items()
        for n in UNITS
    ]
    title = "A recurrent network, 20 timesteps, batch 1, plain PyTorch loop, by forecast"
    return charts.lines(rows, title, "recurrent units", "milliseconds", 10, log_y=True)


def frameworks(t: Tables) -> Spec:
    rows = [
        {"y": name, "x": 1e3 * seconds, "text": clock(seconds)} for name, seconds in t.frameworks().items()
    ]
    title = "The same step in seven ways on one core of a Xeon (measured)"
    return charts.bars(rows, title, "milliseconds", log=True)


def gpu_pays(t: Tables) -> Spec:
    rows = [
        {"x": batch, "y": 1e3 * t.g.example_seconds(f"rnn-batch.{machine}.{batch}"), "line": words}
        for machine, words in ((CPU, "Ryzen 9, 16 cores"), (GPU, "RTX 4090"))
        for batch in SEQUENCES
    ]
    title = "100 units, 20 timesteps: time of one sequence over the batch, by forecast"
    return charts.lines(rows, title, "batch", "milliseconds a sequence", 4, log_y=True)


def findings(t: Tables) -> Spec:
    rows = []
    for claim, words in FINDINGS.items():
        counted = Counter(part.ruling for part in t.f.verdict(claim).parts)
        rows += [
            {"y": words, "x": counted[ruling], "part": ruling}
            for ruling in ("holds", "does not hold", "can't tell")
        ]
    title = "In how many ways of writing the network each finding of 2017 holds (measured)"
    return charts.stacked(rows, title, "frameworks, variants and devices", list(FINDINGS.values()))


def training_or_answer(t: Tables) -> Spec:
    rows = [
        {"y": USERS[machine], "x": 1e3 * t.g.example_seconds(f"{key}.{machine}.64"), "line": words}
        for machine in (CPU, GPU, "h200")
        for key, words in (("train", "training step"), ("use", "answer"))
    ]
    title = "ResNet-50, batch 64: training on a picture and answering one, by forecast"
    return charts.dots(rows, title, "milliseconds a picture", [USERS[m] for m in (CPU, GPU, "h200")])


def use(t: Tables) -> Spec:
    rows = [
        {"x": batch, "y": 1e3 * t.g.seconds(f"use.{machine}.{batch}"), "line": words}
        for machine, words in USERS.items()
        for batch in (1, 8, 64)
    ]
    title = "ResNet-50 after training: time until the answer, by forecast"
    return charts.lines(rows, title, "pictures in one request", "milliseconds", 2, log_y=True)


def smaller(t: Tables) -> Spec:
    rows = [
        {"y": USERS[machine], "x": 1e3 * t.g.seconds(f"small.{job}.{machine}"), "line": words}
        for machine in SMALL
        for job, words in (("resnet18", "ResNet-18"), ("resnet50", "ResNet-50"), ("vit", "ViT"))
    ]
    title = "Time until one answer with smaller and larger networks, by forecast"
    return charts.dots(rows, title, "milliseconds", [USERS[machine] for machine in SMALL])


def bounds(t: Tables) -> Spec:
    title = "What steps consist of: six jobs, six limits, by forecast"
    return charts.stacked(t.part_rows(_BOUND), title, "% of the step", list(_BOUND))


def factors(t: Tables) -> Spec:
    rows = [{"y": row["example"], "x": row["ratio"], "line": row["part"]} for row in t.factors()]
    order = list(dict.fromkeys(row["y"] for row in rows))
    title = "How much the strongest factor of each kind changes the time"
    return charts.dots(rows, title, "slowest over fastest value", order)


def epochs(t: Tables) -> Spec:
    seconds = {name: t.g.forecasts[f"net.{name}.gpu"]["epoch_seconds"] for name in NETWORKS}
    known = sorted((name for name in NETWORKS if seconds[name]), key=lambda name: seconds[name])
    rows = [{"y": name, "x": float(seconds[name]), "text": duration(float(seconds[name]))} for name in known]
    title = "One epoch of each network's own data on one RTX 4090, by forecast"
    return charts.bars(rows, title, "seconds", log=True)


drawings: Drawings = {
    "recurrent": recurrent,
    "frameworks": frameworks,
    "gpu-pays": gpu_pays,
    "findings-2017": findings,
    "training-or-answer": training_or_answer,
    "use": use,
    "smaller": smaller,
    "bounds": bounds,
    "factors": factors,
    "epochs": epochs,
}
