"""What the processes of a training did, gathered from the files that they wrote."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel import child_lifetime, records, units
from windtunnel.displays import Displayed
from windtunnel.errors import MeasurementFailed
from windtunnel.exchange.curves import LearningCurve, curve_lines
from windtunnel.exchange.real.spec import GOES_ON, RealTraining
from windtunnel.records import Plain

LOST_PEER = 3  # the exit code of a process that stopped because another one is gone
LOST_NODE = 254  # stands for the exit code of a process whose machine is gone
_SKIPPED = 5  # first steps: warm-up
_FINE = (0, LOST_PEER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealOutcome(Displayed):
    """What the processes of a training did.

    folder        where its files are; None if they were not kept
    step_seconds  median time between two steps of a worker, over all workers; of local forms, a step of the
                  median period with its average
    lost          workers that ended before their time, with the reason
    samples       seconds of the steps of each worker after the warm-up
    cpu_seconds   processor time of one step of a worker
    """

    spec: RealTraining
    folder: Path | None
    seconds: float
    step_seconds: float
    steps: int
    metric: str
    rows: tuple[Plain, ...]
    staleness: float = 0.0
    lost: Mapping[int, str] = field(default_factory=dict)
    samples: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    def plain(self) -> Plain:
        """Plain data in seconds, for JSON."""
        data: Plain = records.plain(self)
        return {**data, "folder": str(self.folder)} if self.folder else data

    @property
    def curve(self) -> LearningCurve:
        points = tuple((row["seconds"], row["figures"][self.metric]) for row in self.rows)
        return LearningCurve(name=self.spec.exchange, metric=self.metric, points=points)

    @property
    def last(self) -> float | None:
        """The metric on held-out data at the end."""
        value: float | None = self.rows[-1]["figures"].get(self.metric) if self.rows else None
        return value

    def __str__(self) -> str:
        spec = self.spec
        last = self.last
        lines = [
            f"{spec.network}, {spec.workers} workers, exchange {spec.exchange}: {self.steps:,} steps in "
            f"{units.show(self.seconds, 's')}",
            f"  step        {units.show(self.step_seconds, 's')} (median)",
        ]
        if last is not None:
            lines.append(f"  {self.metric:<12}{last:.4g}")
        if self.staleness:
            lines.append(f"  staleness   {self.staleness:.1f} other changes between reading and writing")
        lines += [f"  lost        worker {rank}: {reason}" for rank, reason in self.lost.items()]
        return "\n".join([*lines, *([f"  files       {self.folder}"] if self.folder else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class RealComparison(Displayed):
    """Several forms of exchange, run for real one after another."""

    outcomes: tuple[RealOutcome, ...]

    def plain(self) -> Plain:
        return {"trainings": [outcome.plain() for outcome in self.outcomes]}

    def __str__(self) -> str:
        first = self.outcomes[0]
        lines = [
            f"{first.spec.network}, {first.spec.workers} workers as real processes",
            "",
            f"  {'exchange':9}{'time':>10}{'steps':>8}{'a step':>10}{first.metric:>20}{'staleness':>11}",
        ]
        for each in self.outcomes:
            value = f"{each.last:.4g}" if each.last is not None else ""
            stale = f"{each.staleness:.1f}" if each.staleness else ""
            lines.append(
                f"  {each.spec.exchange:9}{units.show(each.seconds, 's'):>10}{each.steps:>8,}"
                f"{units.show(each.step_seconds, 's'):>10}{value:>20}{stale:>11}"
            )
        return "\n".join([*lines, "", *curve_lines([each.curve for each in self.outcomes])])


def gather(spec: RealTraining, folder: Path, codes: Mapping[int, int]) -> RealOutcome:
    lines = {rank: _lines(folder / f"worker-{rank}.jsonl") for rank in range(spec.workers)}
    lost = {rank: _reason(code) for rank, code in codes.items() if code not in _FINE}
    steps = {rank: [line for line in own if "step" in line] for rank, own in lines.items()}
    if not any(steps.values()):
        raise MeasurementFailed(
            f"No worker of {spec.network} made a step.",
            state="crashed",
            hint=f"The end of {folder / 'process-0.log'}: {_tail(folder / 'process-0.log')}",
        )
    if lost and spec.exchange not in GOES_ON:
        raise _cannot_go_on(spec, folder, lost, steps)
    gaps = {rank: _gaps([line["seconds"] for line in own], spec) for rank, own in steps.items()}
    curve = json.loads((folder / "curve.json").read_text()) if (folder / "curve.json").is_file() else {}
    served = [line["staleness"] for line in _lines(folder / "server.jsonl") if "staleness" in line]
    every = [gap for own in gaps.values() for gap in own]
    return RealOutcome(
        spec=spec,
        folder=folder,
        seconds=max(own[-1]["seconds"] for own in steps.values() if own),
        step_seconds=statistics.median(every) if every else 0.0,
        steps=sum(map(len, steps.values())),
        metric=curve.get("metric", "loss"),
        rows=tuple(curve.get("rows", ())),
        staleness=statistics.fmean(served) if served else 0.0,
        lost=lost,
        samples=gaps,
        cpu_seconds=statistics.fmean(_cpu(own) for own in steps.values() if own),
    )


def _gaps(ends: list[float], spec: RealTraining) -> tuple[float, ...]:
    """Seconds of a step, after the warm-up; of local forms the mean of each period, which has one average."""
    period = spec.every if spec.exchange in ("local", "diloco") else 1
    first = max(_SKIPPED, period) // period * period - 1
    marks = ends[first::period]
    return tuple((b - a) / period for a, b in itertools.pairwise(marks))


def _cpu(lines: list[Plain]) -> float:
    """Processor seconds of a step, after the warm-up."""
    first = min(_SKIPPED, len(lines) - 1)
    count = len(lines) - 1 - first
    return float(lines[-1]["cpu"] - lines[first]["cpu"]) / count if count else 0.0


def _cannot_go_on(
    spec: RealTraining, folder: Path, lost: Mapping[int, str], steps: Mapping[int, list[Plain]]
) -> MeasurementFailed:
    rank, reason = next(iter(lost.items()))
    done = max(len(own) for own in steps.values())
    kept = folder / "weights.safetensors"
    hint = f"The weights after the last complete step are in {kept}." if kept.is_file() else ""
    return MeasurementFailed(
        f"Worker {rank} of {spec.workers} {reason} after about {done} steps. Exchange {spec.exchange} needs "
        "all workers, so the others stopped.",
        state="crashed",
        hint=f"{hint} Start it again, or use --exchange async, which goes on without a lost worker.".strip(),
    )


def _reason(code: int) -> str:
    if code < 0:
        return f"was killed by {child_lifetime.signal_name(-code)}"
    return "was lost with its machine" if code == LOST_NODE else f"ended with exit code {code}"


def _lines(path: Path) -> list[Plain]:
    """The whole lines of a log; a killed process may leave half a line."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def _tail(path: Path) -> str:
    text = path.read_text(errors="replace").strip() if path.is_file() else ""
    return text.splitlines()[-1][:300] if text else "empty"
