"""The strategy: how one step is run on a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windtunnel import records
from windtunnel.errors import BadRecord

Precision = Literal["pytorch", "fp32", "tf32", "bf16", "fp16"]
Layout = Literal["contiguous", "channels_last"]
Execution = Literal["eager", "graph", "compiled", "reduce-overhead"]
Data = Literal["resident", "streamed"]
Recompute = Literal["none", "blocks"]
Optimizer = Literal["sgd", "momentum", "adam", "adamw", "fused-adamw"]
MOST_BATCH = 2**40
# `fields` omits these while they have their default value, since few runs set them.
_RARELY_SET = ("accumulate", "recompute", "optimizer", "layout", "cudnn_benchmark", "inference")
# What each precision means, as headlines say it.
PRECISIONS: Mapping[str, str] = {
    "pytorch": "PyTorch's default precision (tf32 convolutions, fp32 products)",
    "fp32": "precision fp32",
    "tf32": "precision tf32",
    "bf16": "precision bf16 (autocast)",
    "fp16": "precision fp16 (autocast)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How one step is run. None leaves the choice to the job or the machine.

    batch            examples in one step
    precision        number format of matrix products and convolutions; see below
    threads          CPU threads; default: one for each physical core
    execution        eager: op by op; graph: one captured CUDA graph; compiled: torch.compile;
                     reduce-overhead: torch.compile whose kernels are captured in CUDA graphs
    data             resident: the data set is in device memory; streamed: each batch is copied from the host
    prefetch         batches copied ahead while earlier ones are trained on
    accumulate       micro-batches of equal size in one step; their gradients are added before the one update
    recompute        blocks: keep only the inputs of the network's blocks, run their forward pass again in
                     backward
    optimizer        replaces the job's own optimiser
    layout           how images and the weights of convolutions lie in memory; default: as the job has them
    cudnn_benchmark  cuDNN times its algorithms and takes the fastest (torch.backends.cudnn.benchmark)
    inference        forward only, with torch.no_grad() and eval(): no backward, no update

    Precision "pytorch" is what PyTorch does if nothing is set: cuDNN's convolutions and recurrent layers may
    use tf32, matrix products do not. "fp32" is strict. "tf32" lets both use tf32. "bf16" and "fp16" run the
    forward pass under autocast. A device without tf32, such as every CPU, computes the first three in fp32.
    """

    batch: int | None = None
    precision: Precision = "pytorch"
    threads: int | None = None
    execution: Execution = "eager"
    data: Data = "resident"
    prefetch: int = 0
    accumulate: int = 1
    recompute: Recompute = "none"
    optimizer: Optimizer | None = None
    layout: Layout | None = None
    cudnn_benchmark: bool = False
    inference: bool = False

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
            "layout": Layout | None,
        }
        for name, kind in kinds.items():
            records.convert(getattr(self, name), kind, f"strategy: {name}")
        for name in ("cudnn_benchmark", "inference"):
            if not isinstance(getattr(self, name), bool):
                raise BadRecord(f"strategy: {name} must be true or false, not {getattr(self, name)!r}.")
        if self.batch is not None:
            self.micro_batch(self.batch)
        if self.inference:
            self._refuse_training_options()

    def _refuse_training_options(self) -> None:
        """Inference has neither a backward pass nor an update, so options about them would do nothing."""
        defaults = {"accumulate": 1, "recompute": "none", "optimizer": None}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise BadRecord(
                    f"strategy: {name}={getattr(self, name)} has no effect with inference.",
                    hint=f"Leave {name} out, or leave inference out.",
                )

    @property
    def compiles(self) -> bool:
        """Whether torch.compile compiles the step."""
        return self.execution in ("compiled", "reduce-overhead")

    def micro_batch(self, batch: int) -> int:
        """Examples in one micro-batch if a step has `batch` examples."""
        if batch % self.accumulate:
            raise BadRecord(
                f"strategy: a batch of {batch} cannot be split into {self.accumulate} equal micro-batches.",
                hint="Use a batch that is a multiple of accumulate, for example "
                f"{-(-batch // self.accumulate) * self.accumulate}.",
            )
        return batch // self.accumulate

    def fields(self) -> dict[str, int | str]:
        """The strategy as plain data for results. Options that few runs set appear only if they were set."""
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name in _RARELY_SET}
        data: dict[str, int | str] = records.plain(self)
        return {
            name: value for name, value in data.items() if name not in defaults or value != defaults[name]
        }

    @staticmethod
    def load(path: str | Path) -> Strategy:
        """Read a strategy from a TOML or JSON file."""
        return records.read(Strategy, records.load(Path(path)), str(path))

    def save(self, path: str | Path) -> None:
        """Write this strategy to a TOML or JSON file that `load` reads."""
        records.save(Path(path), self)

    @staticmethod
    def read(data: Mapping[str, object], where: str = "strategy") -> Strategy:
        """Build a strategy from plain data; an unknown key is an error."""
        return records.read(Strategy, data, where)
