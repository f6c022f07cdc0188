"""One thing a framework is asked to do: which job, how it is written there, on what, with which data and optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windtunnel.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`variant` is one of the framework's own variants to write the job (a loop, a module, a scan ...); `data` says whether all examples lie
    on the device from the start (resident: the paper's shared) or cross to it one batch at a time (streamed: unshared)."""

    framework: str
    variant: str
    job: Literal["rnn", "fcn5", "ffn"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    data: Literal["resident", "streamed"] = "resident"
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "threads"):
            if getattr(self, name) < 1:
                raise BadRecord(f"task: {name} must be above 0, not {getattr(self, name)}.")

    @property
    def label(self) -> str:
        """How the framework and its way are named in tables: torch:loop."""
        return f"{self.framework}:{self.variant}"
