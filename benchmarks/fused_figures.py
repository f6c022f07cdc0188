"""The figures of docs/findings.md about the fused engine, from the rows that benchmarks/recurrent.py and
benchmarks/kernel_parts.py wrote."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

FUSED = "fused:epoch"
NARROW_UNITS = 128  # the widest network that one thread block holds
NAMES = {
    FUSED: "fused",
    "torch:module-graph": "graph of `nn.RNN`",
    "torch:graph": "graph of the loop",
    "torch:module": "`nn.RNN`",
    "torch:loop": "PyTorch loop",
    "jax:epoch": "JAX, an epoch a call",
    "jax:scan": "JAX, a step a call",
    "numba:hand": "numba by hand",
    "numpy:hand": "NumPy by hand",
    "tensorflow:unrolled": "TensorFlow, unrolled",
    "tensorflow:scan": "TensorFlow scan",
    "pytensor:scan": "PyTensor",
}
Cell = tuple[int, int]  # hidden units and timesteps


def digits(value: float) -> str:
    """Two digits: 0.052, 2.4, 15, 1,500."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def span(values: Iterable[float], write: Callable[[float], str] = digits) -> str:
    values = list(values)
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


class Rows:
    """One file of benchmarks/recurrent.py: samples of each variant in each cell, in rounds.

    `again`: a later run; its wide cells replace those of the first, whole cells at a time.
    """

    def __init__(self, path: Path, again: Path | None = None) -> None:
        self.file: dict[str, Any] = json.loads(path.read_text())
        self.samples: dict[Cell, dict[str, list[float]]] = {}
        self.flop: dict[Cell, float] = {}
        for row in self.file["rows"]:
            cell = row["n_rec"], row["n_steps"]
            self.samples.setdefault(cell, {})[row["variant"]] = row["step_seconds"]
            self.flop[cell] = row["flop"]
        self.later = Rows(again) if again is not None and again.is_file() else None
        for cell in self.later.wide() if self.later else ():
            assert self.later is not None
            self.samples[cell] = self.later.samples[cell]

    @property
    def day(self) -> str:
        return str(self.file["measured_at"][:10])

    @property
    def device(self) -> str:
        return str(self.file["device"])

    @property
    def versions(self) -> str:
        """PyTorch 2.11, JAX 0.11: of the other variants."""
        titles = {
            "torch": "PyTorch",
            "jax": "JAX",
            "numba": "numba",
            "cuda": "CUDA",
            "tensorflow": "TensorFlow",
        }
        found = {k: v for versions in self.file["versions"].values() for k, v in versions.items()}
        return ", ".join(f"{titles[k]} {v.split('+')[0]}" for k, v in sorted(found.items()) if k in titles)

    def apart(self) -> str:
        """The largest relative difference of a loss from NumPy's."""
        return f"{max(row['apart'] for row in self.file['rows']):.0e}".replace("e-0", "e-")

    def narrow(self) -> list[Cell]:
        return [cell for cell in self.samples if cell[0] <= NARROW_UNITS]

    def wide(self) -> list[Cell]:
        return [cell for cell in self.samples if cell[0] > NARROW_UNITS]

    def seconds(self, variant: str, cell: Cell) -> float:
        return statistics.median(self.samples[cell][variant])

    def ratio(self, variant: str, cell: Cell) -> float:
        """The median over the rounds of the variant's time over the fused time."""
        pairs = zip(self.samples[cell][variant], self.samples[cell][FUSED], strict=True)
        return statistics.median(other / fused for other, fused in pairs)

    def best(self, cell: Cell) -> str:
        """The fastest other variant."""
        others = [variant for variant in self.samples[cell] if variant != FUSED]
        return min(others, key=lambda variant: self.seconds(variant, cell))

    def speedup(self, cell: Cell) -> float:
        return self.ratio(self.best(cell), cell)

    def over_arithmetic(self, cell: Cell) -> float:
        """The fused time over the time of its arithmetic alone, on one multiprocessor or one core."""
        return self.seconds(FUSED, cell) * float(self.file["peak_flop_rate"]) / self.flop[cell]

    # Text

    def time(self, variant: str, *cell: int) -> str:
        return f"{digits(self.seconds(variant, (cell[0], cell[1])) * 1e6)} us"

    def arithmetic(self, *cell: int) -> str:
        seconds = self.flop[cell[0], cell[1]] / float(self.file["peak_flop_rate"])
        return f"{digits(seconds * 1e6)} us"

    def speedups(self) -> str:
        """Of the fused engine over the best other variant, in the narrow cells."""
        return span(self.speedup(cell) for cell in self.narrow())

    def speedups_over(self, variant: str) -> str:
        return span(self.ratio(variant, cell) for cell in self.narrow() if variant in self.samples[cell])

    def best_others(self) -> str:
        """In how many narrow cells each variant is the best other one."""
        best = [self.best(cell) for cell in self.narrow()]
        counts = sorted(((best.count(v), NAMES[v]) for v in set(best)), reverse=True)
        return ", ".join(f"{name} in {count} of {len(best)} cells" for count, name in counts)

    def narrow_table(self, variants: Sequence[str]) -> list[list[str]]:
        """Microseconds of an example in each narrow cell, the speedup, and the distance from arithmetic."""
        heads = ["units x timesteps", *(NAMES[v] for v in variants), "speedup", "over arithmetic"]
        lines = [heads]
        for cell in self.narrow():
            times = [digits(self.seconds(v, cell) * 1e6) if v in self.samples[cell] else "" for v in variants]
            ends = [digits(self.speedup(cell)), digits(self.over_arithmetic(cell))]
            lines.append([f"{cell[0]} x {cell[1]}", *times, *ends])
        return lines

    def wide_table(self, *others: Rows) -> list[list[str]]:
        """The speedup over the best other variant above the kernel's limit, for each device."""
        units = sorted({cell[0] for rows in (self, *others) for cell in rows.wide()})
        lines = [["units", *(f"{n:,}" for n in units)]]
        for rows in (self, *others):
            at = {cell[0]: f"{rows.speedup(cell):.2f}x ({NAMES[rows.best(cell)]})" for cell in rows.wide()}
            lines.append([rows.device, *(at.get(n, "") for n in units)])
        return lines

    def arithmetic_of_a_timestep(self, n_rec: int) -> float:
        cell = next(cell for cell in self.samples if cell[0] == n_rec)
        return self.flop[cell] / cell[1] / float(self.file["peak_flop_rate"])

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Rows that failed and were not measured later."""
        mended = set(self.later.wide()) if self.later else set()
        found: list[dict[str, Any]] = self.file.get("failures", [])
        return [row for row in found if (row["n_rec"], row["n_steps"]) not in mended]

    def changed_since(self, variant: str) -> str:
        """How far the times of a variant in the later run are from those of the first, in narrow cells."""
        assert self.later is not None
        shares = [
            abs(self.later.seconds(variant, cell) / self.seconds(variant, cell) - 1)
            for cell in self.later.narrow()
        ]
        return f"{max(shares):.1%}"

    def not_measured(self) -> str:
        """Variants that failed, with the sizes at which they did."""
        units: dict[str, list[str]] = {}
        for row in self.failures:
            units.setdefault(NAMES[row["variant"]], []).append(f"{row['n_rec']:,}")
        texts = [f"{name} at {_listed(sizes)} units" for name, sizes in sorted(units.items())]
        return "; ".join(texts)

    def many_ratio(self) -> str:
        many = self.file["many"]
        pairs = zip(many["together_seconds"], many["alone_seconds"], strict=True)
        return f"{statistics.median(b / a for b, a in pairs):.2f}"

    def many_example(self) -> str:
        many = self.file["many"]
        return f"{statistics.median(many['alone_seconds']) / many['examples'] * 1e6:.0f} us"


def against(one: Rows, other: Rows, n_rec: int) -> str:
    """How many times as long the fused engine takes on one device as on another, at a width."""
    cells = [cell for cell in one.narrow() if cell[0] == n_rec and cell in other.samples]
    return span((one.seconds(FUSED, c) / other.seconds(FUSED, c) for c in cells), lambda v: f"{v:.2g}")


def wins(one: Rows, other: Rows) -> str:
    """In how many cells the fused engine on one device beats every variant but the fused on the other."""
    cells = [cell for cell in one.narrow() if cell in other.samples]
    won = sum(one.seconds(FUSED, c) < other.seconds(other.best(c), c) for c in cells)
    return f"{won} of {len(cells)} cells"


class Parts:
    """The file of benchmarks/kernel_parts.py."""

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]

    def line(self, n_rec: int, without: str) -> tuple[float, float]:
        """Seconds of a timestep and of an update: slope and rest between both numbers of timesteps.

        Medians over the rounds.
        """
        (row,) = [r for r in self.rows if (r["n_rec"], r["without"]) == (n_rec, without)]
        (few, at_few), (many, at_many) = ((int(n), s) for n, s in row["example_seconds"].items())
        pairs = list(zip(at_few, at_many, strict=True))
        slope = statistics.median((b - a) / (many - few) for a, b in pairs)
        return slope, statistics.median(a - few * (b - a) / (many - few) for a, b in pairs)

    def saving(self, n_rec: int, part: str) -> float:
        """The share of a timestep that goes with a part."""
        return 1 - self.line(n_rec, part)[0] / self.line(n_rec, "nothing")[0]

    def saved(self, n_rec: int, part: str) -> str:
        return f"{100 * self.saving(n_rec, part):.0f} %"

    def most_saved(self, n_rec: int) -> str:
        return f"{100 * max(self.saving(n_rec, part) for part in self.parts()):.0f} %"

    def parts(self) -> list[str]:
        return list(dict.fromkeys(row["without"] for row in self.rows if row["without"] != "nothing"))

    def table(self, rows: Rows) -> list[list[str]]:
        """Nanoseconds of a timestep, whole and without each part, its arithmetic, and the update."""
        units = sorted({row["n_rec"] for row in self.rows})
        whole = {n: self.line(n, "nothing") for n in units}
        lines = [["", *(f"{n} units" for n in units)]]
        lines.append(["a timestep, forward and backward", *(f"{whole[n][0] * 1e9:.0f} ns" for n in units)])
        lines.append(
            ["its arithmetic alone", *(f"{rows.arithmetic_of_a_timestep(n) * 1e9:.0f} ns" for n in units)]
        )
        for part in self.parts():
            times = (f"{self.line(n, part)[0] * 1e9:.0f} ns" for n in units)
            lines.append([f"without the {part}", *times])
        return [*lines, ["an update", *(f"{whole[n][1] * 1e6:.1f} us" for n in units)]]
