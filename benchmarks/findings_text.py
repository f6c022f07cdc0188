"""Writes docs/findings.md: fills the figures of benchmarks/findings.template.md from docs/results.

python benchmarks/findings_text.py
python benchmarks/findings_text.py --forecasts    forecasts the cells of several devices again before

A placeholder {{ expression }} calls a method of `Figures`, so that each number stands beside its command. A
paragraph below a line {{if expression}} is left out where the expression is false, since rows of another
machine may be added to docs/results later.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from choice_figures import ChoiceFigures
from exchange_figures import ExchangeFigures
from forecast_figures import ForecastFigures
from fused_figures import Parts, Rows, against, digits, wins

from windtunnel import records, units
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.claims import judge
from windtunnel.study.results import by_interval, published
from windtunnel.study.rows import BY_FORECAST, ClaimVerdict, Grade, StudyForecasts, StudyRow
from windtunnel.study.selection import fits, key_of

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE, PAGE, RESULTS = (
    ROOT / "benchmarks/findings.template.md",
    ROOT / "docs/findings.md",
    ROOT / "docs/results",
)
RNN, GUIDE, CHOICE = "brandfonbrener-2017", "wuensche-2018", "choice-2026"
EXCHANGE = "exchange-2026"
SMALL_HOSTS = {"xeon": "Xeon", "epyc": "EPYC"}  # machines of two cores, by their word in names of files
_WIDTH = 110
_PLAIN = ("|", "#", "!", "```")  # lines that are never wrapped
_PAPER = {"n_in": 2, "activation": "relu", "batch": 1, "optimizer": "sgd", "data": "resident"}
_PLURAL = {grade: grade.replace("holds", "hold") for grade in get_args(Grade)}
NAMES = {
    "jax": "JAX",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "mxnet": "MXNet",
    "pytensor": "PyTensor",
    "numpy": "NumPy by hand",
    "keras-jax": "Keras on JAX",
    "keras-torch": "Keras on PyTorch",
    "keras-tensorflow": "Keras on TensorFlow",
    "caffe": "Caffe",
    "torch7": "Torch 7",
}


def times(value: float) -> str:
    """1.08x, 4.5x, 20x."""
    return f"{value:.2f}x" if value < 2 else f"{value:.1f}x" if value < 10 else f"{value:.0f}x"


def clock(seconds: float) -> str:
    """Two digits: 90 us, 0.27 ms, 1.6 ms, 12 ms."""
    unit, scale = ("us", 1e6) if seconds < 1e-4 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    value = seconds * scale
    return f"{value:.{2 if value < 1 else 1 if value < 10 else 0}f} {unit}"


class Figures:
    """Every figure of the page, by its command."""

    def __init__(self, *names: str) -> None:
        names = names or (RNN, GUIDE)
        self.rows = {name: measured(name) for name in names}
        self.printed = {name: published(studies.find(name)) for name in names}
        self.verdicts = {name: verdicts_of(name) for name in names}
        self.ahead = ForecastFigures(forecasts(GUIDE))
        self.verdicts[CHOICE] = verdicts_of(CHOICE)
        self.choice = ChoiceFigures(measured(CHOICE), self.verdicts[CHOICE])
        self.verdicts[EXCHANGE] = verdicts_of(EXCHANGE)
        self.exchange = ExchangeFigures(measured(EXCHANGE), self.verdicts[EXCHANGE])

    # Claims

    def verdict(self, claim: str) -> ClaimVerdict:
        return next(v for each in self.verdicts.values() for v in each if v.claim == claim)

    def grade(self, claim: str) -> str:
        return self.verdict(claim).marked_ruling

    def effect(self, claim: str, where: str) -> float:
        """The effect in one framework and device."""
        found = [part for part in self.verdict(claim).parts if part.where.startswith(where)]
        assert len(found) == 1 and found[0].effect is not None, (claim, where)
        return found[0].effect

    def ratio(self, claim: str, where: str) -> str:
        return times(self.effect(claim, where))

    def inverse(self, claim: str, where: str) -> str:
        return times(1 / self.effect(claim, where))

    def plain(self, claim: str, where: str) -> str:
        return f"{self.effect(claim, where):.2f}"

    def size(self, claim: str, where: str) -> str:
        return f"{self.effect(claim, where):.0f}"

    def then(self, claim: str) -> str:
        """The effect by the paper's own figures."""
        stated = next(c for name in (RNN, GUIDE) for c in studies.find(name).claims if c.name == claim)
        rows = self.printed[RNN if stated in studies.find(RNN).claims else GUIDE]
        (verdict,) = judge([stated], rows, "published")
        assert verdict.effect is not None
        return units.digits(verdict.effect)

    def where(self, claim: str, ruling: str) -> str:
        """Frameworks and devices in which a claim has a ruling, by device."""
        lists = []
        for device, words in (("GPU", "on the H200"), ("CPU", "on the core")):
            labels = [p.where.split()[0] for p in self.verdict(claim).parts if self._is(p, ruling, device)]
            lists += [f"{words} in {', '.join(f'`{label}`' for label in labels)}"] if labels else []
        return "; ".join(lists)

    def _is(self, part: ClaimVerdict, ruling: str, device: str) -> bool:
        return part.ruling == ruling and device in part.where.split()

    def of_cells(self, claim: str) -> str:
        """In how many of its cells a claim about the slowest or fastest is true."""
        found = re.search(r"\d+ of \d+ cells", self.verdict(claim).reason)
        assert found is not None
        return found[0]

    def over_parts(self, claim: str, ruling: str = "holds") -> str:
        values = [p.effect for p in self.verdict(claim).parts if p.ruling == ruling and p.effect is not None]
        return f"{min(values):.2f} to {max(values):.2f}"

    def doublings(self, claim: str) -> str:
        """The gain for each doubling, from slopes in logarithms."""
        values = [2**part.effect for part in self.verdict(claim).parts if part.effect is not None]
        return f"{times(min(values))} to {times(max(values))}"

    def count(self, study: str) -> int:
        return len(self.verdicts[study])

    def _judged(self, study: str, basis: str) -> list[ClaimVerdict]:
        """Claims that forecasts judge, or all others; never both together."""
        return [each for each in self.verdicts[study] if (each.basis == "forecast") == (basis == "forecast")]

    def tally(self, study: str, basis: str = "measured") -> str:
        """How many claims have each grade."""
        counts = Counter(verdict.ruling for verdict in self._judged(study, basis))
        known = [grade for grade in get_args(Grade) if counts[grade]]
        words = ", ".join(f"{counts[grade]} {_PLURAL.get(grade, grade)}" for grade in known)
        return f"{words} {BY_FORECAST}" if basis == "forecast" else words

    def claims_table(self, study: str, basis: str = "measured") -> str:
        """Every claim with its grade; the reasons are in `windtunnel study report`."""
        lines = ["| claim | verdict | holds in |", "|---|---|---|"]
        for verdict in self._judged(study, basis):
            holding = sum(part.ruling == "holds" for part in verdict.parts)
            where = f"{holding} of {len(verdict.parts)}" if verdict.parts else ""
            where = "" if verdict.ruling == "not asked here" else where
            lines.append(f"| {verdict.claim} | {verdict.marked_ruling} | {where} |")
        return "\n".join(lines)

    # Rows

    def cells(self, study: str, machine: str = "") -> list[StudyRow]:
        """Measured cells, each once although two figures may show it; `machine` is xeon, epyc or h200.

        Where one was measured again for a later figure, the paper's own figure counts.
        """
        rows = [row for row in reversed(self.rows[study]) if machine in machine_of(row)]
        return list({(key_of(row), row.device_name): row for row in rows}.values())[::-1]

    def number(self, study: str, machine: str) -> str:
        return f"{len(self.cells(study, machine)):,}"

    def version(self, machine: str, framework: str) -> str:
        """Of a framework in the rows of one machine, with the variants that were measured: 2.13: loop."""
        rows = [row for row in self.cells(RNN, machine) if row.label.startswith(f"{framework}:")]
        stated = {row.environment["ready"]["versions"][framework.partition("-")[0]] for row in rows}
        numbers = ", ".join(sorted({".".join(each.split(".")[:2]) for each in stated}))
        return f"{numbers}: {', '.join(sorted({row.label.partition(':')[2] for row in rows}))}"

    def states(self) -> str:
        """Whether all cells of both studies have a time."""
        failed = sum(row.state != "done" for study in (RNN, GUIDE) for row in self.rows[study])
        return f"{failed} cells failed" if failed else "No cell failed"

    def days(self) -> str:
        rows = [row for study in self.rows.values() for row in study]
        *others, last = sorted({row.measured_at[:10] for row in rows if row.measured_at})
        return f"{', '.join(others)} and {last}" if others else last

    def restated(self) -> str:
        """How many cells version 0.1 had scaled: `source` has the factor of each."""
        sources = [row.source for row in self.cells(RNN, "xeon")]
        found = [re.search(r"had divided these times by ([\d.]+\d)", source) for source in sources]
        factors = [float(factor[1]) for factor in found if factor]
        far = sum(abs(factor - 1) > 0.05 for factor in factors)
        return f"{len(factors)} of {len(sources):,} cells scaled, {far} by more than 5 %"

    def disturbed(self) -> int:
        return sum(row.disturbed for row in self.cells(RNN, "xeon"))

    def share_twice(self) -> str:
        cells = self.cells(RNN)
        return f"{100 * sum(len(row.groups) > 1 for row in cells) / len(cells):.0f} %"

    def agreement(self, factor: float) -> str:
        """The share of cells whose quiet processes agree within a factor."""
        pairs = [[statistics.median(group) for group in row.groups] for row in self.cells(RNN, "xeon")]
        pairs = [pair for pair in pairs if len(pair) > 1]
        agreeing = sum(max(pair) / min(pair) <= factor for pair in pairs)
        return f"{100 * agreeing / len(pairs):.1f} % of {len(pairs)}"

    def seconds(self, label: str, device: str, n_rec: int, n_steps: int) -> float:
        """A step in the paper's setting; on a CPU with one thread."""
        wanted = {"label": label, "device": device, "n_rec": n_rec, "n_steps": n_steps, **_PAPER}
        found = [row for row in self.cells(RNN) if fits(row, wanted) and row.threads in (None, 1)]
        (row,) = [row for row in found if row.job == "rnn"]
        assert row.step_seconds is not None
        return row.step_seconds

    def time(self, label: str, device: str, n_rec: int, n_steps: int) -> str:
        return clock(self.seconds(label, device, n_rec, n_steps))

    def range_of(self, label: str, device: str, **wanted: Any) -> str:
        """From the fastest to the slowest step in the paper's setting."""
        values = [r.step_seconds for r in self._lines(label, device, **wanted) if r.step_seconds]
        return f"{clock(min(values)).split()[0]} to {clock(max(values))}"

    def _lines(self, label: str, device: str, **wanted: Any) -> list[StudyRow]:
        rows = [row for row in self.cells(RNN) if row.job == "rnn"]
        return [row for row in rows if fits(row, {"label": label, "device": device, **_PAPER, **wanted})]

    def inputs(self, label: str, device: str) -> str:
        """Fifty times the inputs: the ratio at each number of units."""
        at = {
            (row.settings["n_rec"], row.settings["n_in"]): row.step_seconds or 0.0
            for row in self.rows[RNN]
            if fits(row, {"figure": "figure-05", "label": label, "device": device})
        }
        sizes = sorted({units for units, inputs in at if inputs == 100} & {u for u, i in at if i == 2})
        return ", ".join(f"{times(at[size, 100] / at[size, 2])} at {size:,}" for size in sizes)

    def ratios(self, one: str, other: str, device: str) -> list[float]:
        """Seconds of one variant over those of another, in every cell that was measured for both."""
        sides = []
        for label in (one, other):
            rows = [r for r in self.cells(RNN) if r.label == label and r.device == device and not r.disturbed]
            sides.append({key_of(row, ("label",)): row.step_seconds or 0.0 for row in rows})
        return sorted(sides[0][key] / sides[1][key] for key in sides[0].keys() & sides[1].keys())

    def spread(self, values: Sequence[float]) -> str:
        middle = times(statistics.median(values))
        return f"{times(values[0])} to {times(values[-1])} ({middle} at the median of {len(values)} cells)"

    def first_over_steady(self, machine: str, label: str = "") -> str:
        """The first step over a steady one, at the median."""
        rows = [r for r in self.cells(RNN, machine) if r.first_seconds and r.label.startswith(label)]
        return times(statistics.median((r.first_seconds or 0) / (r.step_seconds or 1) for r in rows))

    def first_seconds(self, label: str, device: str) -> str:
        rows = [row for row in self.cells(RNN) if (row.label, row.device) == (label, device)]
        values = sorted(row.first_seconds or 0 for row in rows)
        return f"{values[0]:.0f} to {values[-1]:.0f} s"

    def first_cells(self) -> str:
        """The paper's first cell over the one below it, in each of its tables."""
        figures = ("figure-02", "figure-04", "figure-06", "figure-07", "figure-08", "figure-09")
        ratios = []
        for figure in figures:
            rows = [r for r in self.printed[RNN] if fits(r, {"figure": figure, "n_steps": 10})]
            at = {row.settings["n_rec"]: row.step_seconds or 0.0 for row in rows}
            ratios.append(at[10] / at[20])
        return f"{times(min(ratios))} to {times(max(ratios))}"

    # Tables

    def frameworks_table(self) -> str:
        """One core, 50 units, 20 timesteps, in order of time."""
        labels = {"torch:compiled": "PyTorch compiled", "torch:loop": "PyTorch loop"}
        chosen = ("jax:scan", "pytensor:scan", "numpy:hand", *labels, "mxnet:loop", "keras-torch:fit")
        times_of = {label: self.seconds(label, "cpu", 50, 20) for label in chosen}
        order = sorted(chosen, key=lambda label: times_of[label])
        heads = [labels.get(label) or NAMES[label.partition(":")[0]] for label in order]
        return table(heads, [[clock(times_of[label]) for label in order]])

    def threads_table(self) -> str:
        """Table I in seconds: published, and on the hosts that were measured."""
        counts = (1, 2, 4, 8, 16, 32)
        lines = list[list[str]]()
        blocks = (
            ("published, i7-3820, 4 cores", self.printed[GUIDE]),
            ("Xeon, 2 cores", self.cells(GUIDE, "xeon")),
            ("EPYC, 2 cores", self.cells(GUIDE, "epyc")),
            ("host of the H200, 16 cores", self.cells(GUIDE, "h200")),
        )
        for title, rows in blocks:
            if not rows:
                continue
            lines.append([f"**{title}**", *("" for _ in counts)])
            rows = [row for row in rows if row.figure == "table-1"]
            for label in dict.fromkeys(row.label for row in rows):
                at = {row.threads: row.step_seconds for row in rows if row.label == label}
                cells = [f"{at[n]:.2f}" if at.get(n) else "" for n in counts]
                lines.append([NAMES[label.partition(":")[0]], *cells])
        return table(["threads", *map(str, counts)], lines)

    def gain(self, machine: str, label: str, few: int, many: int) -> float:
        """Seconds with few threads over seconds with many, in Table I."""
        rows = [r for r in self.cells(GUIDE, machine) if r.figure == "table-1" and r.label.startswith(label)]
        at = {row.threads: row.step_seconds or 0.0 for row in rows}
        assert at.get(few) and at.get(many), f"{machine}: no rows of {label} with {few} and {many} threads"
        return at[few] / at[many]

    def published_seconds(self, label: str, threads: int) -> float:
        rows = [r for r in self.printed[GUIDE] if r.figure == "table-1" and r.label.startswith(label)]
        (seconds,) = [row.step_seconds for row in rows if row.threads == threads]
        assert seconds is not None
        return seconds

    def published_gain(self, label: str, few: int, many: int) -> float:
        return self.published_seconds(label, few) / self.published_seconds(label, many)

    def small_hosts(self) -> list[str]:
        """Machines of two cores with rows of Table I; the one of the newest rows is last."""
        return [machine for machine in SMALL_HOSTS if self.cells(GUIDE, machine)]

    def small_host(self) -> str:
        return f"the {SMALL_HOSTS[self.small_hosts()[-1]]}"

    def median_gains(self, figure: str, few: int, many: int) -> str:
        """The median over all frameworks on each machine of two cores."""
        hosts = self.small_hosts()
        gains = [self._median_gain(host, figure, few, many) for host in hosts]
        if len(hosts) == 1:
            return gains[0]
        return " and ".join(f"{g} on the {SMALL_HOSTS[host]}" for g, host in zip(gains, hosts, strict=True))

    def _median_gain(self, machine: str, figure: str, few: int, many: int) -> str:
        rows = [row for row in self.cells(GUIDE, machine) if row.figure == figure]
        at = {(row.label, row.threads): row.step_seconds for row in rows}
        pairs = [(at.get((label, few)), at.get((label, many))) for label in {row.label for row in rows}]
        return times(statistics.median(a / b for a, b in pairs if a and b))

    def hosts(self) -> str:
        """Where Table I was repeated."""
        small = ", on ".join(f"the {SMALL_HOSTS[host]}'s two cores" for host in self.small_hosts())
        return f"{small} and on the 16 cores of the H200's host"

    def processes_text(self) -> str:
        """How many processes the cells of Table I rest on."""
        counts = []
        for host in (*self.small_hosts(), "h200"):
            cells = self.cells(GUIDE, host)
            several = sum(len(row.groups) > 1 for row in cells)
            counts.append(f"{several} of {len(cells)} on the {SMALL_HOSTS.get(host, 'host of the H200')}")
        return f"Cells with two processes or more: {', '.join(counts)}. The interval of one process is wide."


def measured(study: str) -> list[StudyRow]:
    return [row for path in sorted(RESULTS.glob(f"{study}-*.json")) for row in export.read(path)]


def forecast_file(study: str) -> Path:
    return RESULTS / f"forecast-{study}.json"


def forecasts(study: str) -> StudyForecasts:
    """The committed forecasts of a study's cells with several devices."""
    path = forecast_file(study)
    if not path.exists():
        return StudyForecasts()
    return records.read(StudyForecasts, json.loads(path.read_text(encoding="utf-8")), str(path))


def forecast_again(study: str) -> None:
    """Writes the forecasts of this version."""
    from windtunnel.study.run.forecast_cells import forecasts_of

    made = records.plain(forecasts_of(studies.find(study)))
    lists = [f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in made.items()]
    forecast_file(study).write_text("{\n" + ",\n".join(lists) + "\n}\n", encoding="utf-8")


def verdicts_of(study: str) -> list[ClaimVerdict]:
    """As `windtunnel study report STUDY --with FILE...` judges the committed rows."""
    whole = studies.find(study)
    rows = [*published(whole), *measured(study), *forecasts(study).rows]
    return judge(whole.claims, by_interval(rows))


def machine_of(row: StudyRow) -> str:
    cpu = str(row.environment.get("cpu"))
    if row.device == "cpu" and "EPYC" in cpu:
        return "epyc"
    return "xeon" if row.device == "cpu" and "2.80GHz" in cpu else "h200"


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    rows = [heads, *map(list, lines)]
    text = ["|" + "|".join(f" {word} ".replace("  ", " ") for word in row) + "|" for row in rows]
    return "\n".join([text[0], "|---" * len(heads) + "|", *text[1:]])


def grid(lines: list[list[str]]) -> str:
    return table(lines[0], lines[1:])


def fused_names() -> dict[str, Any]:
    """The fused engine's rows: g of the GPU, c of one core, p of the kernel without its parts."""
    return {
        "g": Rows(RESULTS / "fused-h200.json", RESULTS / "fused-mended-h200.json"),
        "c": Rows(RESULTS / "fused-epyc.json"),
        "p": Parts(RESULTS / "fused-parts-h200.json"),
        "grid": grid,
        "digits": digits,
        "against": against,
        "wins": wins,
    }


def render() -> str:
    """The page."""
    return filled(TEMPLATE.read_text(), Figures())


def filled(text: str, figures: Figures) -> str:
    """A part of the template with its figures, its paragraphs wrapped."""
    names = {"f": figures, "times": times, "clock": clock, "RNN": RNN, "GUIDE": GUIDE, "CHOICE": CHOICE}
    return filled_with(text, names | {"EXCHANGE": EXCHANGE} | fused_names())


def filled_with(text: str, names: dict[str, Any]) -> str:
    """A template in which expressions may use these names."""
    kept = (_wanted(block, names) for block in text.strip().split("\n\n"))
    text = inserted("\n\n".join(block for block in kept if block), names)
    return "\n\n".join(_wrapped(block) for block in text.split("\n\n")) + "\n"


def inserted(text: str, names: dict[str, Any]) -> str:
    """A text with the value of each expression in its place."""
    return re.sub(r"\{\{(.+?)\}\}", lambda found: _value(found[1].strip(), names), text, flags=re.S)


def _value(expression: str, names: dict[str, Any]) -> str:
    try:
        return str(eval(expression, names))
    except AssertionError as error:
        raise AssertionError(f"{error} {expression}") from error


def _wanted(block: str, names: dict[str, Any]) -> str:
    """A block without its condition; nothing if the condition is false."""
    condition = re.match(r"\{\{if (.+?)\}\}\n", block)
    if condition is None:
        return block
    return block[condition.end() :] if eval(condition[1], names) else ""


def _wrapped(block: str) -> str:
    if block.startswith(_PLAIN):
        head, _, rest = block.partition("\n")
        # A heading may have its paragraph in the next line.
        return f"{head}\n{_wrapped(rest)}" if block.startswith("#") and rest else block
    items = re.split(r"\n(?=- |\d+\. )", block)
    return "\n".join(_fill(item) for item in items)


def _fill(item: str) -> str:
    mark = re.match(r"- |\d+\. ", item)
    indent = " " * len(mark[0]) if mark else ""
    words = " ".join(item.split())
    return textwrap.fill(
        words, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    if "--forecasts" in sys.argv:
        forecast_again(GUIDE)
    PAGE.write_text(render())
    print(f"{PAGE.relative_to(ROOT)}: {len(PAGE.read_text().splitlines())} lines")
