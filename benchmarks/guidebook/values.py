"""Numbers of the guide as words: what {{ expressions }} of the templates call."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from guidebook import numbers
from windtunnel import units

MEMORY_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimiser": "optimizer",
    "activations": "activations",
}


class Values:
    """The kept numbers, by name."""

    def __init__(self, data: numbers.Data | None = None) -> None:
        data = data or numbers.read()
        self.forecasts: Mapping[str, Any] = data["forecasts"]
        self.largest: Mapping[str, int] = data["largest"]
        self.exchanged: Mapping[str, Any] = data["exchange"]
        self.weights: Mapping[str, Any] = data["weights"]
        self.learned: Mapping[str, Any] = data["learned"]
        self.flow: Mapping[str, float] = data["data flow"]
        self.ladder: dict[str, Any] = data["ladder"]

    # One forecast

    def seconds(self, name: str) -> float:
        return float(self.forecasts[name]["step_seconds"])

    def example_seconds(self, name: str) -> float:
        return self.seconds(name) / int(self.forecasts[name]["batch"])

    def step(self, name: str) -> str:
        return units.show(self.seconds(name), "s")

    def interval(self, name: str) -> str:
        kept = self.forecasts[name]
        return f"{units.show(kept['low_seconds'], 's')} to {units.show(kept['high_seconds'], 's')}"

    def example(self, name: str) -> str:
        return units.show(self.example_seconds(name), "s")

    def rate(self, name: str) -> str:
        """Examples a second."""
        return units.digits(1 / self.example_seconds(name))

    def run(self, name: str, epochs: int = 90) -> str:
        """How long so many epochs take."""
        return duration(epochs * float(self.forecasts[name]["epoch_seconds"]))

    def hours(self, name: str, epochs: int = 90) -> float:
        return epochs * float(self.forecasts[name]["epoch_seconds"]) / 3600

    def over(self, one: str, other: str) -> float:
        """The time of an example over that of another."""
        return self.example_seconds(one) / self.example_seconds(other)

    def part(self, name: str, part: str) -> float:
        """The share of a step."""
        return float(self.forecasts[name]["parts"].get(part, 0.0)) / self.seconds(name)

    def bound(self, name: str) -> str:
        return str(self.forecasts[name]["bound_by"])

    def parameters(self, name: str) -> str:
        return count(int(self.forecasts[name]["parameters"]))

    def memory(self, name: str) -> str:
        return units.show(float(self.forecasts[name]["memory_bytes"]), "B")

    def fits(self, name: str) -> bool:
        return bool(self.forecasts[name]["fits"])

    def memory_parts(self, name: str) -> dict[str, float]:
        """Bytes by the parts that the guide names; the rest is "other"."""
        kept = self.forecasts[name]
        found = {word: float(kept["memory_parts"].get(part, 0.0)) for part, word in MEMORY_PARTS.items()}
        return {**found, "other": float(kept["memory_bytes"]) - sum(found.values())}

    def memory_part(self, name: str, part: str) -> str:
        return units.show(self.memory_parts(name)[part], "B")

    # Exchange

    def exchange(self, run: str, form: str, workers: int, field: str = "examples_per_second") -> float:
        return float(self.exchanged[f"{run}.{form}.{workers}"][field])

    def reached(self, form: str) -> list[dict[str, Any]]:
        """The trainings of a form that reached the target."""
        return [row for row in self.trainings(form) if row["reached"]]

    def learning(self, form: str, field: str) -> float:
        """The median over the seeds."""
        return float(statistics.median(float(row[field]) for row in self.trainings(form)))

    def trainings(self, form: str) -> list[dict[str, Any]]:
        return [row for name, row in self.learned.items() if name.startswith(f"{form}.")]

    # Weights

    def stored(self, field: str) -> float:
        """Of one picture that ResNet-50 is trained on: example_bytes, decode_seconds or examples."""
        return float(self.weights["resnet50"][field])

    def read_rate(self, name: str) -> float:
        """Bytes a second that storage must deliver."""
        return self.stored("example_bytes") / self.example_seconds(name)

    def needed_rate(self, name: str) -> str:
        return units.show(self.read_rate(name), "B/s")

    def dense_share(self, network: str) -> float:
        kept = self.weights[network]
        return float(kept["dense"] / kept["all"])

    def gradient_bytes(self, network: str) -> str:
        return units.show(4.0 * self.weights[network]["all"], "B")


def duration(seconds: float) -> str:
    """222 days, 13 h, 18 min, 40 s."""
    for limit, scale, word in ((2 * 86400, 86400, "days"), (5400, 3600, "h"), (120, 60, "min")):
        if seconds >= limit:
            return f"{plain(seconds / scale)} {word}"
    return f"{plain(seconds)} s"


def count(value: float) -> str:
    """118 million, 25,600."""
    for scale, word in ((1e9, "billion"), (1e6, "million")):
        if value >= scale:
            return f"{plain(value / scale)} {word}"
    return f"{value:,.0f}"


def plain(value: float) -> str:
    """1.08, 4.5, 27, 1,230: a ratio or a count in words."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def percent(share: float) -> str:
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def sure(condition: bool) -> str:
    """Nothing; the sentence that follows is wrong, and no page is written, if its numbers have changed."""
    assert condition, "A sentence of the guide is no longer true:"
    return ""


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    rows = ["| " + " | ".join(map(str, row)) + " |" for row in (list(heads), *map(list, lines))]
    return "\n".join([rows[0], "|---" * len(list(rows[0].split(" | "))) + "|", *rows[1:]])


_NUMERIC = re.compile(r"(?:under |below )?[-+]?[\d,.]+(?: (?:[%a-zA-Z/]+|of \d+))?")
_RULE = re.compile(r"^\|(?:---\|)+$")


def aligned(text: str) -> str:
    """A page whose tables have their columns of numbers aligned at the right."""
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if _RULE.match(line):
            rows = []
            for row in lines[place + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            numeric = [
                _is_numeric([row[n] for row in rows if n < len(row)]) for n in range(line.count("---"))
            ]
            lines[place] = "|" + "".join("---:|" if each else "---|" for each in numeric)
    return "\n".join(lines)


def _is_numeric(cells: Iterable[str]) -> bool:
    found = [cell for cell in cells if cell]
    return bool(found) and all(_NUMERIC.fullmatch(cell) for cell in found)
