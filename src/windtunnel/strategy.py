"""How a job is run on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from windtunnel import records
from windtunnel.errors import BadRecord

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Execution = Literal["eager", "graph"]
Data = Literal["resident", "streamed"]
MOST_BATCH = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Batch, precision, threads, execution and where the data lies. None leaves the choice to job or machine."""

    batch: int | None = None
    precision: Precision = "fp32"
    threads: int | None = None
    execution: Execution = "eager"
    data: Data = "resident"
    prefetch: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (("batch", 1, MOST_BATCH), ("threads", 1, 4096), ("prefetch", 0, 1024)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and least <= value <= most):
                raise BadRecord(f"strategy: {name} must be a whole number from {least} to {most}, not {value!r}.")
        for name, kind in (("precision", Precision), ("execution", Execution), ("data", Data)):
            records.convert(getattr(self, name), kind, f"strategy: {name}")

    @staticmethod
    def load(path: str | Path) -> Strategy:
        """A strategy from a TOML or JSON file."""
        return records.read(Strategy, records.load(Path(path)), str(path))

    def save(self, path: str | Path) -> None:
        """Write this strategy so that `load` gives an equal one."""
        records.save(Path(path), self)

    @staticmethod
    def read(data: dict[str, Any], where: str = "strategy") -> Strategy:
        """A strategy from plain data, strictly."""
        return records.read(Strategy, data, where)
