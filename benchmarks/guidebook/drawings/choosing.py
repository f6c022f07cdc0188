"""The first page and chapters 1 to 3: one job, networks, nodes, layers, initial weights."""

from __future__ import annotations

import statistics
from typing import Any

from guidebook import charts
from guidebook.cases import NETWORKS, WIDTHS
from guidebook.drawings import Drawings, Spec
from guidebook.ladder import DATA
from guidebook.tables import MACHINES, Tables
from guidebook.values import count, duration

_SHOWN = ("ffn on digits", "lstm on text", "recursive on trees", "rnn on decisions")
_TASKS = ("ffn", "dcn", "dbn", "rnn", "lstm", "gan", "vae", "autoencoder", "deconv", "recursive", "rbm")


def one_job(t: Tables) -> Spec:
    rows = [
        {"y": words, "x": t.g.hours(f"job.{name}"), "text": duration(3600 * t.g.hours(f"job.{name}"))}
        for name, words in MACHINES.items()
    ]
    return charts.bars(rows, "ResNet-50 on ImageNet, 90 epochs, by forecast", "hours", log=True)


def weights(t: Tables) -> Spec:
    sizes = {name: int(t.g.forecasts[f"net.{name}.cpu"]["parameters"]) for name in NETWORKS}
    names = sorted({*_TASKS, "resnet50", "bert"}, key=lambda name: sizes[name])
    rows = [{"y": name, "x": sizes[name], "text": count(sizes[name])} for name in names]
    return charts.bars(rows, "Weights of the networks of the table", "weights", log=True)


def networks(t: Tables) -> Spec:
    rows = [
        {"y": name, "x": 1e3 * t.g.example_seconds(f"net.{name}.{kind}"), "line": words}
        for name in NETWORKS
        for kind, words in (("cpu", "desktop CPU, 16 cores"), ("gpu", "desktop GPU"))
    ]
    order = sorted(NETWORKS, key=lambda name: t.g.example_seconds(f"net.{name}.cpu"))
    return charts.dots(rows, "Training time of one example, by forecast", "milliseconds", order)


def ladder(t: Tables) -> Spec:
    rows = [
        {"x": layers, "y": score, "line": words}
        for name, words in DATA.items()
        for layers, score in enumerate(t.ladder.scores(name))
    ]
    title = "Score on examples that were held back, mean of three random divisions"
    return charts.lines(rows, title, "hidden layers", "accuracy (diabetes: R2)")


def nodes(t: Tables) -> Spec:
    shown = ("autoencoder on digits", *_SHOWN)
    rows = [
        {"x": row.settings["width"], "y": skill(row), "line": row.case}
        for row in t.f.choice.rows
        if row.figure == "width" and row.case in shown
    ]
    return charts.lines(rows, "What was learned over the hidden nodes (measured)", "hidden nodes", "skill", 2)


def skill(row: Any) -> float:
    return max(-0.25, statistics.fmean(row.training.skills))


def layers(t: Tables) -> Spec:
    rows = [
        {"x": row.settings["depth"], "y": skill(row), "line": row.case}
        for row in t.f.choice.rows
        if row.figure == "depth"
    ]
    return charts.lines(rows, "What was learned over the hidden layers (measured)", "hidden layers", "skill")


def node_costs(t: Tables) -> Spec:
    rows = [
        {"x": width, "y": 1e3 * t.g.seconds(f"nodes.{kind}.{width}"), "line": words}
        for width in WIDTHS
        for kind, words in (("cpu", "desktop CPU"), ("gpu", "desktop GPU"))
    ]
    title = "A step of the feed-forward network over its hidden nodes, by forecast"
    return charts.lines(rows, title, "hidden nodes", "milliseconds", 4, log_y=True)


def initial_weights(t: Tables) -> Spec:
    shown = ("deep ffn on digits", "dcn on digits", *_SHOWN)
    rows = [
        {"x": row.settings["initial_bound"], "y": skill(row), "line": row.case}
        for row in t.f.choice.rows
        if row.figure == "initial-values" and row.case in shown
    ]
    title = "What was learned over the largest initial weight (measured)"
    return charts.lines(rows, title, "largest initial weight", "skill (lowest: -0.25 or less)", 10)


def signal(t: Tables) -> Spec:
    """What one layer makes of its input: the formula of chapter 3."""
    bounds = {
        "bound 1": lambda n: 1.0,
        "bound 0.1": lambda n: 0.1,
        "bound 0.001": lambda n: 0.001,
        "bound of the library, 1 / √n": lambda n: n**-0.5,
    }
    rows = [
        {"x": n, "y": bound(n) * (n / 3) ** 0.5, "line": words}
        for words, bound in bounds.items()
        for n in (1, 10, 100, 1000, 10_000)
    ]
    title = "How many times as large as its inputs the output of a node is (formula)"
    return charts.lines(rows, title, "inputs of the node", "times its inputs", 10, log_y=True, limit=1.0)


drawings: Drawings = {
    "job": one_job,
    "weights": weights,
    "network": networks,
    "ladder": ladder,
    "nodes": nodes,
    "layers": layers,
    "node-costs": node_costs,
    "initial-weights": initial_weights,
    "signal": signal,
}
