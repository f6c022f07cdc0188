"""Gains that studies measured (`catalog/advice.toml`), for advice that is not forecast."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from windtunnel import records
from windtunnel.advice.contract import QuotedRatio
from windtunnel.machine.machine import CATALOG


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRatio:
    """How many times as fast compiled steps were: median, 10th and 90th percentile of `cells`.

    It is for all jobs on this kind of device, or for one job. `what` says in words what was measured.
    """

    device: str
    gain: float
    low: float
    high: float
    cells: int
    what: str
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRatio:
    """How many times as fast a framework was than a variant of a job in PyTorch, over this many cells."""

    job: str
    device: str
    variant: str
    framework: str
    most_units: int
    gain: float
    low: float
    high: float
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRatios:
    """The whole file."""

    compile: tuple[CompileRatio, ...]
    framework: tuple[FrameworkRatio, ...]


@functools.cache
def study_ratios() -> StudyRatios:
    path = CATALOG / "advice.toml"
    return records.read(StudyRatios, records.load(path), path.name)


def quote(ratio: CompileRatio | FrameworkRatio) -> QuotedRatio:
    return QuotedRatio(gain=ratio.gain, low=ratio.low, high=ratio.high)
