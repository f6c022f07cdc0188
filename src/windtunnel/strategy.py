"""How a job is run on a machine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from windtunnel import records
from windtunnel.errors import BadRecord

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Execution = Literal["eager", "graph", "compiled"]
Data = Literal["resident", "streamed"]
Recompute = Literal["none", "blocks"]
Optimizer = Literal["sgd", "momentum", "adam", "adamw", "fused-adamw"]
MOST_BATCH = 2**40
# What most runs leave alone goes unsaid in results; the other fields are always told.
_UNSAID = ("accumulate", "recompute", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How one step is run. None leaves the choice to job or machine.

    `batch` counts all examples of a step; with `accumulate` they come in that many equal micro-batches, whose gradients are
    added before the one update. `recompute` keeps only the inputs of the network's blocks and computes what lies inside again on
    the way back. `optimizer` takes the place of the job's own.
    """

    batch: int | None = None
    precision: Precision = "fp32"
    threads: int | None = None
    execution: Execution = "eager"
    data: Data = "resident"
    prefetch: int = 0
    accumulate: int = 1
    recompute: Recompute = "none"
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("batch", 1, MOST_BATCH),
            ("threads", 1, 4096),
            ("prefetch", 0, 1024),
            ("accumulate", 1, 4096),
        ):
            value = getattr(self, name)
            if value is None and name in ("batch", "threads"):
                continue
            if not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
                raise BadRecord(
                    f"strategy: {name} must be a whole number from {least} to {most}, not {value!r}."
                )
        kinds = {
            "precision": Precision,
            "execution": Execution,
            "data": Data,
            "recompute": Recompute,
            "optimizer": Optimizer | None,
        }
        for name, kind in kinds.items():
            records.convert(getattr(self, name), kind, f"strategy: {name}")
        if self.batch is not None:
            self.micro_batch(self.batch)

    def micro_batch(self, batch: int) -> int:
        """Examples of one micro-batch where a step has `batch`."""
        if batch % self.accumulate:
            raise BadRecord(
                f"strategy: a batch of {batch} cannot be split into {self.accumulate} equal micro-batches.",
                hint=f"Use a batch that is a multiple of accumulate, for example {-(-batch // self.accumulate) * self.accumulate}.",
            )
        return batch // self.accumulate

    def told(self) -> dict[str, Any]:
        """Plain data for results, without the choices that were not made."""
        usual = {f.name: f.default for f in fields(self) if f.name in _UNSAID}
        data: dict[str, Any] = records.plain(self)
        return {name: value for name, value in data.items() if name not in usual or value != usual[name]}

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
