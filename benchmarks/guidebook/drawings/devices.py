"""Chapters 4 and 5: threads and batches of a CPU, one GPU."""

from __future__ import annotations

import findings_text

from guidebook import charts
from guidebook.cases import BATCHES, FED, OLD_FED
from guidebook.drawings import Drawings, Spec
from guidebook.tables import Tables


def threads(t: Tables) -> Spec:
    rows = []
    for label, words in (("torch7", "Torch, 4 cores, published"), ("caffe", "Caffe, 4 cores, published")):
        for count in (1, 2, 4, 8):
            seconds = [
                row.step_seconds
                for row in t.f.printed[findings_text.GUIDE]
                if row.figure == "table-1" and row.label.startswith(label) and row.threads == count
            ]
            if seconds and seconds[0]:
                rows.append({"x": count, "y": t.f.published_gain(label, 1, count), "line": words})
    for label, words in (("torch", "PyTorch, 16 cores, measured"), ("jax", "JAX, 16 cores, measured")):
        rows += [
            {"x": count, "y": t.f.gain("h200", label, 1, count) if count > 1 else 1.0, "line": words}
            for count in (1, 2, 4, 8, 16, 32)
        ]
    title = "Speed over one thread: a fully connected network of 118 million weights"
    return charts.lines(rows, title, "threads", "times as fast as one thread", 2)


def few_threads(t: Tables) -> Spec:
    jobs = {"resnet50": "ResNet-50", "fcn5": "fcn5", "rnn": "small rnn", "ffn": "small ffn"}
    rows = [
        {"x": n, "y": t.g.seconds(f"threads.{job}.1") / t.g.seconds(f"threads.{job}.{n}"), "line": words}
        for job, words in jobs.items()
        for n in (1, 2, 4, 8, 16)
    ]
    title = "Large and small networks on 16 cores (Ryzen 9), by forecast"
    return charts.lines(rows, title, "threads", "times as fast as one thread", 2)


def cpu_batch(t: Tables) -> Spec:
    first = {job: t.g.example_seconds(f"cpu-batch.{job}.1") for job in ("ffn", "resnet18")}
    rows = [
        {"x": batch, "y": first[job] / t.g.example_seconds(f"cpu-batch.{job}.{batch}"), "line": words}
        for job, words in (("ffn", "ffn (9,610 weights)"), ("resnet18", "ResNet-18 (12 million weights)"))
        for batch in BATCHES
    ]
    title = "Examples a second over the batch, against batch 1 (Ryzen 9, by forecast)"
    return charts.lines(rows, title, "batch", "times as fast as batch 1", 4, log_y=True)


def gpu(t: Tables) -> Spec:
    rows = [{"y": name, "x": t.g.over(f"net.{name}.cpu", f"net.{name}.gpu"), "line": "today"} for name in FED]
    rows += [
        {"y": name, "x": t.g.over(f"old.{name}.cpu", f"old.{name}.resident"), "line": "2018"}
        for name in OLD_FED
    ]
    words = {"today": "RTX 4090 against 16 cores", "2018": "GTX 1080 against 4 cores (i7-3820)"}
    rows = [{**row, "line": words[str(row["line"])]} for row in rows]
    title = "How many times as fast as the CPU the GPU is, by forecast"
    return charts.dots(rows, title, "times as fast (left of the line: the CPU is faster)", FED, at=1.0)


def gpu_parts(t: Tables) -> Spec:
    title = "What a step on the RTX 4090 consists of, by forecast"
    rows = t.part_rows({name: f"net.{name}.gpu" for name in FED})
    return charts.stacked(rows, title, "% of the step", FED)


def copying(t: Tables) -> Spec:
    ways = (("gpu.{}.streamed", "copied, then computed"), ("gpu.{}.prefetched", "copied ahead"))
    rows = [
        {"y": name, "x": t.g.over(key.format(name), f"net.{name}.gpu"), "line": words}
        for name in FED
        for key, words in ways
    ]
    title = "A step on the RTX 4090 against one with its data on the GPU, by forecast"
    return charts.dots(rows, title, "times as long", FED, log=False, at=1.0)


def busy(t: Tables) -> Spec:
    ways = (("batch", "PyTorch's default"), ("modern", "bf16 and channels-last"))
    rows = [
        {"x": batch, "y": 1e3 * t.g.example_seconds(f"{key}.resnet50.{batch}"), "line": words}
        for key, words in ways
        for batch in BATCHES
        if t.g.fits(f"{key}.resnet50.{batch}")
    ]
    title = "ResNet-50 on an RTX 4090: time of a picture over the batch, by forecast"
    return charts.lines(rows, title, "batch", "milliseconds a picture", 4, log_y=True)


drawings: Drawings = {
    "threads": threads,
    "few-threads": few_threads,
    "cpu-batch": cpu_batch,
    "gpu": gpu,
    "gpu-parts": gpu_parts,
    "copying": copying,
    "busy": busy,
}
