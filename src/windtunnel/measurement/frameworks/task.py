"""One step for a framework to run: which job in which variant, on what, with which data and optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from windtunnel.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`variant` names how the framework's file writes the job: a loop, a module, a scan.

    `data` is "resident" where all examples are on the device from the start (the paper's shared data), and
    "streamed" where each batch is copied to it (unshared).
    """

    framework: str
    variant: str
    job: str
    settings: Mapping[str, object] = field(default_factory=dict)
    batch: int = 1
    device: Literal["cpu", "gpu"] = "cpu"
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
        """How tables name the framework and its variant: torch:loop."""
        return f"{self.framework}:{self.variant}"
