"""Tables of measured steps: cases, what was measured of each, and the tolerances that forecasts of them are held against.

A table is a file of JSON lines: a header, then a row for each case, as benchmarks/truth.py writes them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windtunnel import records
from windtunnel.agreement import ShareRange, Tolerance
from windtunnel.errors import BadInput, BadRecord
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import CATALOG
from windtunnel.strategy import Strategy

# A step that takes so many times what its device is busy waits for the host.
HOST_BOUND = 1.4
_CONTRADICTION = 1.1
_GRID = ("batch", "precision", "optimizer", "execution", "threads")
_FIGURES = ("step_seconds", "device_seconds", "peak_bytes", "host_factor")
Quantity = Literal["device", "step", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("device", "step", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job, run one way. `kind`: the family of networks it stands for; `detail`: note its ops with their shapes too."""

    job: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch: int
    precision: str = "fp32"
    optimizer: str | None = None
    execution: str = "eager"
    threads: int | None = None
    kind: str = "other"
    detail: bool = False

    @property
    def key(self) -> str:
        """A name for this case among others; how it is grouped and told is no part of it."""
        return records.digest(
            {name: value for name, value in records.plain(self).items() if name not in ("kind", "detail")}
        )

    def workload(self) -> Workload:
        return Workload.named(self.job, **self.settings)

    def strategy(self) -> Strategy:
        chosen = {name: getattr(self, name) for name in _GRID}
        return Strategy.read({name: value for name, value in chosen.items() if value is not None}, str(self))

    def __str__(self) -> str:
        words = [self.job, *(f"{key}={value}" for key, value in self.settings.items())]
        words += [
            f"b{self.batch}",
            self.precision,
            *([self.optimizer] if self.optimizer else []),
            self.execution,
        ]
        return " ".join(words + ([f"threads {self.threads}"] if self.threads else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured of a case. `device_seconds`: what the device was busy in a step; `error`: why nothing was measured.

    `host_factor`: how slow the host was in that hour against the machine's description.
    """

    case: Case
    step_seconds: float | None = None
    device_seconds: float | None = None
    peak_bytes: float | None = None
    host_factor: float | None = None
    error: str = ""

    def __post_init__(self) -> None:
        for name in _FIGURES:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadRecord(f"{self.case}: {name} must be above 0, not {value}.")

    @property
    def bound(self) -> Literal["host", "device"] | None:
        """None where the device's part is not known apart, as on a CPU."""
        if self.step_seconds is None or self.device_seconds is None:
            return None
        return "host" if self.step_seconds > HOST_BOUND * self.device_seconds else "device"

    @property
    def contradicts(self) -> bool:
        """Whether the profiler saw the device busy for longer than a whole step took without it: then it ran something else."""
        return (
            self.step_seconds is not None
            and self.device_seconds is not None
            and self.device_seconds > _CONTRADICTION * self.step_seconds
        )

    def measured(self, quantity: Quantity) -> float | None:
        if quantity == "device" and self.contradicts:
            return None
        return {"device": self.device_seconds, "step": self.step_seconds, "memory": self.peak_bytes}[quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """What the errors of eager rows may be at most; `step` is for machines whose device's part is not known apart.

    `inside`: the share of rows whose measured step lies in the forecast's interval. `refused`: how many rows may go without a
    forecast for another reason than a library that is not installed.
    """

    device: Tolerance | None = None
    step: Tolerance | None = None
    device_bound: Tolerance | None = None
    host_bound: Tolerance | None = None
    memory: Tolerance | None = None
    inside: ShareRange | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Measured rows with what is known of how they were measured, and the tolerances beside them."""

    path: Path
    machine: str
    header: Mapping[str, Any]
    rows: tuple[Row, ...]
    tolerances: Tolerances = Tolerances()


def read_cases(path: Path) -> list[Case]:
    """The cases of a file in its order; a list for batch, precision, optimizer, execution or threads stands for a case each."""
    data = records.load(path)
    if set(data) - {"case"} or not isinstance(data.get("case"), list):
        raise BadRecord(f"{path}: must hold [[case]] tables and nothing else.")
    cases = []
    for number, entry in enumerate(data["case"], 1):
        grids = [
            [(name, value) for value in entry[name]] for name in _GRID if isinstance(entry.get(name), list)
        ]
        cases += [
            records.read(Case, {**entry, **dict(choice)}, f"{path}: case {number}")
            for choice in itertools.product(*grids)
        ]
    doubled = {str(case) for case in cases if sum(other.key == case.key for other in cases) > 1}
    if doubled:
        raise BadRecord(f"{path}: given twice: {'; '.join(sorted(doubled))}.")
    return cases


def find_table(word: str, kind: str) -> Path:
    """The table ("truth" or "tuning") of a machine of the catalogue, of this machine's CPU, or of a file."""
    if word.endswith(".jsonl"):
        return Path(word)
    path = CATALOG / kind / f"{word}.jsonl"
    if not path.is_file():
        known = sorted(found.stem for found in path.parent.glob("*.jsonl"))
        raise BadInput(
            f"There is no {kind} table for {word!r}.",
            hint=f"There is one for: {', '.join(known) or 'none'}. benchmarks/truth.py collects one; give its file.",
        )
    return path


def read_table(path: Path) -> Table:
    """The table of a file, with the tolerances in the .toml beside it where there is one."""
    header, rows = read_lines(path)
    beside = path.with_suffix(".toml")
    tolerances = (
        records.read(Tolerances, records.load(beside), str(beside)) if beside.is_file() else Tolerances()
    )
    named = {f.name for f in dataclasses.fields(Case)}
    read = []
    for number, row in enumerate(rows, 1):
        where = f"{path}: row {number}"
        case = records.read(Case, {name: value for name, value in row.items() if name in named}, where)
        figures = {
            name: records.convert(row[name], float, f"{where}: {name}")
            for name in _FIGURES
            if row.get(name) is not None
        }
        if "step_seconds" not in figures and not row.get("error"):
            raise BadRecord(f"{where}: neither step_seconds nor an error is given.")
        factor = header.get("host_factor")
        read.append(
            Row(**{"case": case, "host_factor": factor, "error": str(row.get("error", "")), **figures})
        )
    return Table(
        path=path,
        machine=str(header.get("machine", path.stem)),
        header=header,
        rows=tuple(read),
        tolerances=tolerances,
    )


def read_lines(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header, and the rows with the lines of each joined: it is timed and profiled apart, and may be tried again."""
    lines = whole_lines(path)
    if not lines or "job" in lines[0]:
        raise BadRecord(
            f"{path}: the first line must be a header.", hint="benchmarks/truth.py collect writes such files."
        )
    rows: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines[1:], 2):
        row = rows.setdefault(str(line.get("key", number)), {})
        if row.get("error") and line.get("pass") == "time":
            row.pop("error")
        row.update({name: value for name, value in line.items() if name != "pass"})
    return lines[0], list(rows.values())


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file; a kill may have left half a one at the end, which is passed over."""
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from error
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError as error:
            if number < len(texts):
                raise BadRecord(f"{path}: line {number} is not valid JSON: {error}.") from error
        else:
            if not isinstance(lines[-1], dict):
                raise BadRecord(f"{path}: line {number} must be a table, not {text[:40]!r}.")
    return lines
