"""Chapters 6 to 9: several GPUs, ways to divide the work, clusters, exchange."""

from __future__ import annotations

from guidebook import charts
from guidebook.cases import GPU
from guidebook.drawings import GIB, Drawings, Spec
from guidebook.tables import FORMS, WAYS, Tables
from guidebook.values import plain

_STATED = {"CNTK": 0.35, "MXNet": 0.35, "Caffe": 0.28, "Torch": 0.10, "Tensorflow": 0.10}


def several(t: Tables) -> Spec:
    names = (
        ("resnet50", "h200", "ResNet-50, H200"),
        ("resnet50", GPU, "ResNet-50, RTX 4090"),
        ("alexnet", "h200", "AlexNet, H200"),
        ("alexnet", GPU, "AlexNet, RTX 4090"),
    )
    rows = [
        {
            "x": n,
            "y": t.g.seconds(f"gpus.{job}.{card}.1") / t.g.seconds(f"gpus.{job}.{card}.{n}"),
            "line": words,
        }
        for job, card, words in names
        for n in (1, 2, 4, 8)
    ]
    rows += [{"x": n, "y": n, "line": "perfect"} for n in (1, 2, 4, 8)]
    title = "One batch of 256 pictures divided among GPUs, by forecast"
    return charts.lines(rows, title, "GPUs", "times as fast as one GPU", 2)


def second_gpu(t: Tables) -> Spec:
    rows = [{"y": name, "x": 100 * share, "line": "as stated"} for name, share in _STATED.items()]
    rows += [{"y": name, "x": 100 * t.saved_share(name), "line": "by forecast"} for name in _STATED]
    title = "Time that a second K80 saves; the broken line is half, the most that is possible"
    return charts.dots(rows, title, "% of the time of one GPU", list(_STATED), log=False, at=50.0)


def overlap(t: Tables) -> Spec:
    rows, order = [], []
    for job, words in (("resnet50", "ResNet-50"), ("alexnet", "AlexNet")):
        for count in (2, 4, 8):
            name = f"{words}, {count} GPUs"
            order.append(name)
            for key, line in (("gpus", "overlapped"), ("after", "after backward")):
                rows.append({"y": name, "x": 1e3 * t.g.seconds(f"{key}.{job}.{GPU}.{count}"), "line": line})
    title = "Exchange during and after backward, RTX 4090, by forecast"
    return charts.dots(rows, title, "milliseconds of a step", order)


def ways(t: Tables) -> Spec:
    rows = [
        {"y": words, "x": size / GIB, "part": part}
        for name, words in WAYS.items()
        for part, size in t.g.memory_parts(f"ways.{name}").items()
    ]
    limit = float(t.g.forecasts["ways.data"]["capacity_bytes"]) / GIB
    title = "Memory of each of eight H100: a language model of 6.7 billion weights"
    return charts.stacked(rows, title, "GiB; the line is what one H100 has", list(WAYS.values()), limit)


def dense_layers(t: Tables) -> Spec:
    names = ("alexnet", "vgg16", "googlenet", "resnet50")
    rows = [
        {"y": name, "x": size / 1e6, "part": part}
        for name in names
        for part, size in (
            ("fully connected layers", t.g.weights[name]["dense"]),
            ("other layers", t.g.weights[name]["all"] - t.g.weights[name]["dense"]),
        )
    ]
    return charts.stacked(rows, "Where the weights are", "million weights", names)


def clusters(t: Tables) -> Spec:
    rows = [
        {"x": n // 4, "y": t.step_of("clusters", case, 4) / t.step_of("clusters", case, n), "line": case}
        for case in t.f.ahead.cases("clusters")
        for n in (4, 8, 16, 32, 64)
    ]
    title = "Clusters of four GTX 1080, one batch divided among all, by forecast"
    return charts.lines(rows, title, "clusters", "times as fast as one cluster", 2)


def server(t: Tables) -> Spec:
    forms = (("sync", "all-reduce"), ("server", "parameter server"))
    rows = [
        {"x": n, "y": t.g.exchange("figure-6-equal", form, n, "step_seconds"), "line": words}
        for form, words in forms
        for n in (1, 4, 8, 16)
    ]
    title = "A step of ResNet-50, 32 pictures on each GTX 1080, 10 Gbit/s, by forecast"
    return charts.lines(rows, title, "GPUs (four in each cluster)", "seconds of a step", 2)


def own_batch(t: Tables) -> Spec:
    counts = (1, 2, 4, 8, 16)
    gpt2, case = t.g.seconds("nodes-of-8.gpt2.1"), "ResNet-50, 10 Gbit/s"
    lines = {
        "perfect": {n: float(n) for n in counts},
        "GPT-2, own batch, fast network": {n: n * gpt2 / t.g.seconds(f"nodes-of-8.gpt2.{n}") for n in counts},
        "ResNet-50, own batch, 10 Gbit/s": {
            n: t.g.exchange("figure-6-equal", "sync", 4 * n) / t.g.exchange("figure-6-equal", "sync", 4)
            for n in (1, 2, 4)
        },
        "ResNet-50, one batch divided, 10 Gbit/s": {
            n: t.step_of("clusters", case, 4) / t.step_of("clusters", case, 4 * n) for n in counts
        },
    }
    rows = [{"x": n, "y": gain, "line": words} for words, line in lines.items() for n, gain in line.items()]
    title = "One batch divided, and an own batch for each server, by forecast"
    return charts.lines(rows, title, "servers", "times as fast as one server", 2)


def near_data(t: Tables) -> Spec:
    rows = [
        {"y": words, "x": value / 1e9, "text": f"{plain(value / 1e9)} GB/s"}
        for words, value in t.data_rates().items()
    ]
    title = "What nodes read while they train ResNet-50, and what links carry"
    return charts.bars(rows, title, "GB/s", log=True)


def exchange(t: Tables) -> Spec:
    rows = [
        {"x": n, "y": t.g.exchange("figure-6", form, n, "speedup"), "line": words}
        for form, words in FORMS.items()
        for n in (1, 4, 8, 16)
    ]
    title = "ResNet-50 on up to four clusters of four GTX 1080, simulated"
    return charts.lines(rows, title, "GPUs (four in each cluster)", "times as fast as one GPU", 2)


def learned(t: Tables) -> Spec:
    forms = ("sync", "async", "mixed", "local")
    rows = [
        {"y": FORMS[form], "x": float(row["epochs"]), "line": f"start {place + 1}"}
        for form in forms
        for place, row in enumerate(t.g.trainings(form))
    ]
    title = "Epochs until 92 % of held-back digits are right, 16 workers (trained)"
    return charts.dots(rows, title, "epochs", [FORMS[form] for form in forms], log=False)


def many_clusters(t: Tables) -> Spec:
    runs = {
        "16 GTX 1080, 10 Gbit/s": ("figure-6", 16),
        "40 H100, fast network": ("forty-h100", 40),
        "40 H100, one at half speed": ("forty-slow", 40),
    }
    rows = [
        {"y": words, "x": t.g.exchange(run, form, n) / t.g.exchange(run, "sync", n), "line": FORMS[form]}
        for words, (run, n) in runs.items()
        for form in ("async", "mixed", "local")
    ]
    title = "Pictures a second against synchronous exchange, simulated"
    return charts.dots(
        rows, title, "times as many (left of the line: synchronous is faster)", list(runs), at=1.0
    )


drawings: Drawings = {
    "several-gpus": several,
    "second-gpu": second_gpu,
    "overlap": overlap,
    "parallelism": ways,
    "dense-layers": dense_layers,
    "clusters": clusters,
    "server": server,
    "own-batch": own_batch,
    "near-data": near_data,
    "exchange": exchange,
    "learned": learned,
    "many-clusters": many_clusters,
}
