"""Tables of measured steps: the cases, what was measured for each, and the tolerances for forecasts of them.

A table is a file of JSON lines: a header, then a row for each case. benchmarks/truth.py writes it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from windtunnel import records
from windtunnel.agreement import ShareRange, Tolerance
from windtunnel.errors import BadInput, BadRecord
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import CATALOG
from windtunnel.strategy import Strategy

# Above this ratio of step time to device time, the step waits for the host.
HOST_BOUND = 1.4
_CONTRADICTION = 1.1
_GRID = ("batch", "precision", "optimizer", "execution", "threads", "layout", "inference")
# Keys leave these out while they have their defaults, so that rows measured before keep their keys.
_ADDED_LATER = {"layout": None, "inference": False}
_NUMBERS = ("step_seconds", "device_seconds", "peak_bytes", "host_factor")
Quantity = Literal["device", "step", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("device", "step", "memory")
JsonLine = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthCase:
    """One job under one strategy.

    `kind`: its family of networks; `detail`: record the shapes of its ops too.
    """

    job: str
    settings: Mapping[str, object] = field(default_factory=dict)
    batch: int
    precision: str = "fp32"
    optimizer: str | None = None
    execution: str = "eager"
    threads: int | None = None
    layout: str | None = None
    inference: bool = False
    kind: str = "other"
    detail: bool = False

    @property
    def key(self) -> str:
        """A unique name of the case; `kind` and `detail` are not part of it."""
        left_out = {"kind", "detail"} | {
            name for name, default in _ADDED_LATER.items() if getattr(self, name) == default
        }
        return records.digest(
            {name: value for name, value in records.plain(self).items() if name not in left_out}
        )

    def workload(self) -> Workload:
        return Workload.named(self.job, **self.settings)

    def strategy(self) -> Strategy:
        chosen = {name: getattr(self, name) for name in _GRID}
        return Strategy.read({name: value for name, value in chosen.items() if value is not None}, str(self))

    def __str__(self) -> str:
        words = [self.job, *(f"{key}={value}" for key, value in self.settings.items()), f"b{self.batch}"]
        words += [self.precision, *([self.optimizer] if self.optimizer else []), self.execution]
        words += [self.layout] if self.layout else []
        words += ["inference"] if self.inference else []
        return " ".join(words + ([f"threads {self.threads}"] if self.threads else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """What was measured for a case, or the `error` that prevented it.

    `device_seconds`: how long the device was busy in a step. `host_factor`: how many times slower the host
    was than the machine's description says.
    """

    case: TruthCase
    step_seconds: float | None = None
    device_seconds: float | None = None
    peak_bytes: float | None = None
    host_factor: float | None = None
    error: str = ""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadRecord(f"{self.case}: {name} must be above 0, not {value}.")

    @property
    def bound(self) -> Literal["host", "device"] | None:
        """What limits the step; None where the device time is not known, as on a CPU."""
        if self.step_seconds is None or self.device_seconds is None:
            return None
        return "host" if self.step_seconds > HOST_BOUND * self.device_seconds else "device"

    @property
    def contradicts(self) -> bool:
        """Whether the profiled device time exceeds the whole step: then the profiler saw other work."""
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
    """Limits on the errors of eager rows; `step` is for machines whose device time is not known.

    `compiled_step`, `compiled_memory` and `gain` (eager step / compiled step) are for rows of torch.compile.
    `inside`: the share of rows whose measured step lies in the forecast's interval. `refused`: how many rows
    may have no forecast, not counting those whose library is not installed.
    """

    device: Tolerance | None = None
    step: Tolerance | None = None
    device_bound: Tolerance | None = None
    host_bound: Tolerance | None = None
    memory: Tolerance | None = None
    compiled_step: Tolerance | None = None
    compiled_memory: Tolerance | None = None
    gain: Tolerance | None = None
    inside: ShareRange | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthTable:
    """Measured rows, the header that says how they were measured, and the tolerances for them."""

    path: Path
    machine: str
    header: Mapping[str, object]
    rows: tuple[TruthRow, ...]
    tolerances: Tolerances = Tolerances()


def read_cases(path: Path) -> list[TruthCase]:
    """The cases of a file in its order; a list of batches, precisions, ... stands for one case each."""
    data = records.load(path)
    if set(data) - {"case"} or not isinstance(data.get("case"), list):
        raise BadRecord(f"{path}: must hold [[case]] tables and nothing else.")
    cases = []
    for number, entry in enumerate(data["case"], 1):
        grids = [
            [(name, value) for value in entry[name]] for name in _GRID if isinstance(entry.get(name), list)
        ]
        cases += [
            records.read(TruthCase, {**entry, **dict(choice)}, f"{path}: case {number}")
            for choice in itertools.product(*grids)
        ]
    doubled = {str(case) for case in cases if sum(other.key == case.key for other in cases) > 1}
    if doubled:
        raise BadRecord(f"{path}: given twice: {'; '.join(sorted(doubled))}.")
    return cases


def find_table(name: str, kind: str) -> Path:
    """The "truth" or "tuning" table of a machine of the catalogue, or the file NAME.jsonl itself."""
    if name.endswith(".jsonl"):
        return Path(name)
    path = CATALOG / kind / f"{name}.jsonl"
    if not path.is_file():
        known = sorted(table.stem for table in path.parent.glob("*.jsonl"))
        raise BadInput(
            f"There is no {kind} table for {name!r}.",
            hint=f"There is one for: {', '.join(known) or 'none'}. "
            "Or measure one with benchmarks/truth.py and name its file.",
        )
    return path


def read_table(path: Path) -> TruthTable:
    """The table of a file, with the tolerances of the .toml file beside it, if any."""
    header, lines = read_lines(path)
    beside = path.with_suffix(".toml")
    tolerances = (
        records.read(Tolerances, records.load(beside), str(beside)) if beside.is_file() else Tolerances()
    )
    return TruthTable(
        path=path,
        machine=str(header.get("machine", path.stem)),
        header=header,
        rows=tuple(_read_row(header, line, f"{path}: row {number}") for number, line in enumerate(lines, 1)),
        tolerances=tolerances,
    )


def _read_row(header: JsonLine, line: JsonLine, where: str) -> TruthRow:
    names = {f.name for f in dataclasses.fields(TruthCase)}
    if line.get("host_factor") is None:
        line = {**line, "host_factor": header.get("host_factor")}
    numbers: dict[str, float] = {
        name: records.convert(line[name], float, f"{where}: {name}")
        for name in _NUMBERS
        if line.get(name) is not None
    }
    if "step_seconds" not in numbers and not line.get("error"):
        raise BadRecord(f"{where}: neither step_seconds nor an error is given.")
    case = records.read(TruthCase, {name: value for name, value in line.items() if name in names}, where)
    return TruthRow(case=case, error=str(line.get("error", "")), **numbers)


def read_lines(path: Path) -> tuple[JsonLine, list[JsonLine]]:
    """The header and the rows. A row may have several lines (timed, profiled, repeated), which are joined."""
    lines = whole_lines(path)
    if not lines or "job" in lines[0]:
        raise BadRecord(
            f"{path}: the first line must be a header.", hint="benchmarks/truth.py collect writes such files."
        )
    rows: dict[str, JsonLine] = {}
    for number, line in enumerate(lines[1:], 2):
        row = rows.setdefault(str(line.get("key", number)), {})
        if row.get("error") and line.get("pass") == "time":
            row.pop("error")
        row.update({name: value for name, value in line.items() if name != "pass"})
    return lines[0], list(rows.values())


def whole_lines(path: Path) -> list[JsonLine]:
    """All lines of a file, without an incomplete last line that a killed process left."""
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from error
    lines: list[JsonLine] = []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number < len(texts):
                raise BadRecord(f"{path}: line {number} is not valid JSON: {error}.") from error
            continue
        if not isinstance(line, dict):
            raise BadRecord(f"{path}: line {number} must be a table, not {text[:40]!r}.")
        lines.append(line)
    return lines
