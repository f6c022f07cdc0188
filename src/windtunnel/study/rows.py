"""What a study has to show: one row for every cell, measured, forecast or published, and a verdict for every claim. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Origin = Literal["measured", "forecast", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell. `label` is framework:variant; `case` names the line of a figure it belongs to; `settings` has the job's settings, the
    swept ones among them. `state` is "done", "waiting", or how it failed by name; a failed row has no seconds, never a zero.

    Seconds are of one step; `groups` has the steady samples of each process that counts, at the pace the row is given at.
    """

    study: str
    figure: str
    case: str
    label: str
    job: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    device_name: str = ""
    threads: int | None = None
    batch: int = 1
    data: str = "resident"
    optimizer: str = "sgd"
    origin: Origin = "measured"
    state: str = "done"
    error: str = ""
    step_seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: float | None = None
    groups: tuple[tuple[float, ...], ...] = ()
    source: str = ""
    measured_at: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def example_seconds(self) -> float | None:
        return None if self.step_seconds is None else self.step_seconds / self.batch

    @property
    def disturbed(self) -> bool:
        """Whether neighbours slowed every process of it: its pace is then reckoned from the machine's pulse, and its interval wider."""
        return bool(self.environment.get("disturbed"))


Ruling = Literal["holds", "does not hold", "can't tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one claim here: the effect that was found with its interval, in what it is counted, and why it was ruled so.

    `parts` are the verdicts framework by framework; each says in `where` whose it is.
    """

    claim: str
    text: str
    source: str
    ruling: Ruling
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    counted: str = ""
    published: str = ""
    reason: str = ""
    rows: int = 0
    where: str = ""
    parts: tuple[Verdict, ...] = ()
