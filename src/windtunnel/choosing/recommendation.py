"""The answer to a task: network, nodes, weights, device, expected time and memory, and the next commands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel import displays, networks, units
from windtunnel.choosing.commands import command_lines
from windtunnel.choosing.rules import KNOWN_NETWORKS, Design, design
from windtunnel.choosing.task import NetworkTask
from windtunnel.errors import DoesNotFit
from windtunnel.forecast.forecast import Forecast
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.networks.definitions.checks import GUIDE_BOUND
from windtunnel.prediction import predict
from windtunnel.records import Plain, plain
from windtunnel.results import Printed, Row
from windtunnel.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation(Printed):
    """A network for a task. `forecast` is one training step on the machine; None if it does not fit."""

    task: NetworkTask
    design: Design
    forecast: Forecast | None
    too_large: str = ""
    device: str = ""
    data: str | None = None

    @property
    def epoch_seconds(self) -> float | None:
        """One pass over the examples of the task, where their number is known."""
        if self.forecast is None or self.task.examples is None:
            return None
        return self.task.examples * self.design.per_example / self.forecast.examples_per_second

    @property
    def training_seconds(self) -> float | None:
        return None if self.epoch_seconds is None else self.epoch_seconds * self.design.epochs

    def plain(self) -> Plain:
        """As data for JSON."""
        return {
            "task": {**plain(self.task), "kind": self.task.kind.name},
            "network": self.design.network,
            "settings": plain(self.design.settings),
            "nodes": self.design.nodes,
            "rules": plain(self.design.rules),
            "landmarks": list(self.design.landmarks),
            "device": self.device,
            "forecast": None if self.forecast is None else self.forecast.plain(),
            "epoch_seconds": self.epoch_seconds,
            "training_seconds": self.training_seconds,
            "commands": [" ".join(words) for words in self.commands()],
        }

    def headline(self) -> str:
        entry = networks.named(self.design.network)
        article = "an" if entry.title[0] in "aeiou" else "a"
        return f"{self.task.kind.name}: take {article} {entry.title} ({entry.name})"

    def _rows(self) -> list[Row]:
        rules = [("why" if number == 0 else "", str(rule)) for number, rule in enumerate(self.design.rules)]
        return [
            *rules,
            ("nodes", self.design.nodes),
            ("weights", self._weights()),
            *self._landmark_rows(),
            *self._forecast_rows(),
            *self._error_rows(),
            *(("note", note) for note in self.design.notes),
        ]

    def lines(self, width: int | None = None) -> list[str]:
        """The answer as text, with commands that can be copied."""
        source = networks.named(self.design.network).module.DATA
        on = "your data" if self.data is not None else f"data that is built in ({source})"
        titles = ("Look at one step of its training:", f"Train it on {on}:")
        lines = Printed.lines(self, width)
        for title, words in zip(titles, self.commands(), strict=True):
            lines += ["", title, *command_lines(words)]
        return lines

    def _repr_html_(self) -> str:
        commands = [line for words in self.commands() for line in command_lines(words)]
        return displays.display(self.headline(), self._facts(), displays.printed(commands))

    def commands(self) -> list[list[str]]:
        """What to type next, each runnable as it is."""
        settings = [f"{key}={_word(value)}" for key, value in self.design.settings.items()]
        job = [self.design.network, *settings]
        machine = [] if self.task.on == "here" else ["--on", self.task.on]
        batch = [] if self.design.batch is None else ["--batch", str(self.design.batch)]
        asked = [["windtunnel", "predict", *job, *batch, *machine]]
        train = ["windtunnel", "network", "train", self.design.network]
        if self.task.error is not None and self.design.metric == "accuracy":
            train += ["--until", f"accuracy={1 - self.task.error:g}"]
        if self.data is None:
            return [*asked, train]
        # The data says how many inputs and classes there are.
        own = [word for word in settings if not word.startswith(("inputs=", "classes="))]
        return [*asked, [*train[:4], *own, *train[4:], "--data", self.data]]

    def _weights(self) -> str:
        fan_in = self.design.fan_in
        modern = f" (within ±{1 / math.sqrt(fan_in):.2g} in the first layer)" if fan_in else ""
        return (
            f"init=modern, the default, draws smaller weights the more inputs a node has{modern}; "
            f"init=guide draws them within ±{GUIDE_BOUND:g}"
        )

    def _landmark_rows(self) -> list[Row]:
        if not self.design.landmarks:
            return [("known", "No published network of the catalogue is made for this task.")]
        names = ", ".join(self.design.landmarks)
        return [("known", f"{names}: {self.design.landmark_note}"), ("", str(KNOWN_NETWORKS))]

    def _forecast_rows(self) -> list[Row]:
        if self.forecast is None:
            return [("memory", self.too_large)]
        step, memory = self.forecast, self.forecast.memory
        capacity = f" of {units.show(memory.capacity_bytes, 'B')}" if memory.capacity_bytes else ""
        return [
            ("device", self.device),
            *self._time_rows(step),
            ("memory", f"{units.show(memory.peak_bytes, 'B')}{capacity}; {step.parameters:,} weights"),
        ]

    def _time_rows(self, step: Forecast) -> list[Row]:
        each = "examples" if self.design.per_example == 1 else "characters"
        one = f"{units.show(step.step_seconds, 's')} for a step of {step.batch} examples (forecast)"
        whole, epoch = self.training_seconds, self.epoch_seconds
        if whole is None or epoch is None:
            return [("time", f"{one}; with --examples, the time of the whole training")]
        low, high = (
            units.show(whole * end / step.step_seconds, "s") for end in (step.low_seconds, step.high_seconds)
        )
        passes = self.design.epochs
        rows = [
            ("time", one),
            ("", f"{units.show(epoch, 's')} for one pass over all {self.task.examples:,} {each}"),
            ("", f"{units.show(whole, 's')} ({low} to {high}) for {passes} passes, the usual number"),
        ]
        limit = self.task.seconds
        if limit is None:
            return rows
        if whole <= limit:
            return [*rows, ("", f"This fits in your {units.show(limit, 's')}.")]
        fitting = int(limit / epoch)
        passes_fit = (
            f"only {fitting} pass{' fits' if fitting == 1 else 'es fit'}" if fitting else "no pass fits"
        )
        advice = "a faster machine (--on), or fewer examples"
        return [*rows, ("", f"In your {units.show(limit, 's')} {passes_fit}: take {advice}.")]

    def _error_rows(self) -> list[Row]:
        if self.task.error is None:
            return []
        text = "No forecast knows the error before training"
        if self.design.metric == "accuracy":
            return [
                ("error", f"{text}; --until accuracy={1 - self.task.error:g} stops as soon as it is reached.")
            ]
        return [("error", f"{text}; look at the results on held-out examples.")]


def recommend(task: NetworkTask, data: str | None = None) -> Recommendation:
    """The guide's network for a task, forecast on its machine. `data`: the path of the user's own data."""
    chosen = design(task)
    machine = Machine.find(task.on)
    workload = Workload.named(chosen.network, **chosen.settings)
    strategy = Strategy(batch=chosen.batch)
    candidates = [machine]
    if task.on == "here" and machine.device.kind == "gpu":
        candidates.append(machine.with_cpu_only())
    found, problem = [], ""
    for candidate in candidates:
        try:
            found.append((predict(workload, candidate, strategy), candidate))
        except DoesNotFit as error:
            problem = str(error).replace("\n    ", " ")
    if not found:
        return Recommendation(task=task, design=chosen, forecast=None, too_large=problem, data=data)
    step, best = min(found, key=lambda pair: pair[0].step_seconds)
    return Recommendation(
        task=task, design=chosen, forecast=step, device=_device(best, candidates), data=data
    )


def _device(best: Machine, candidates: list[Machine]) -> str:
    kind = "GPU" if best.device.kind == "gpu" else "CPU"
    against = ""
    if len(candidates) > 1:
        against = ", faster here than the other by the forecast"
    elif kind == "CPU":
        against = "; no more threads than physical cores (guide, section III.F)"
    return f"{kind} of {best.title}{against}"


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
