"""The strategy: how one step is run on a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windtunnel import records
from windtunnel.bounds import MOST_THREADS
from windtunnel.errors import BadRecord
from windtunnel.records import Plain

Precision = Literal["pytorch", "fp32", "tf32", "bf16", "fp16"]
Layout = Literal["contiguous", "channels_last"]
Execution = Literal["eager", "graph", "compiled", "reduce-overhead"]
Data = Literal["resident", "streamed", "page-cache", "storage"]
LOADED: tuple[Data, ...] = ("page-cache", "storage")  # examples are stored as files, to be read and decoded
Recompute = Literal["none", "blocks", "whole-blocks"]
Optimizer = Literal["sgd", "momentum", "adam", "adamw", "fused-adam", "fused-adamw"]
Shard = Literal["none", "optimizer", "gradients", "weights"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved"]
Exchange = Literal["buckets", "tensors", "after", "server", "server-after"]
MOST_BATCH = 2**40
_MOST_WORKERS = 2**20
# `fields` omits these while they have their default value, since few runs set them.
_RARELY_SET = (
    *("loaders", "load_ahead", "pinned", "direct"),
    *("accumulate", "recompute", "optimizer", "layout", "cudnn_benchmark", "inference"),
    "expandable_segments",
    *("data_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel"),
    *("shard", "pipeline_schedule", "virtual_stages", "sequence_parallel", "exchange"),
)
# Fields that change how a step is fed, priced or divided, not which ops its trace has.
PRICED_ONLY = (
    *("threads", "data", "prefetch", "loaders", "load_ahead", "pinned", "direct"),
    *("cudnn_benchmark", "expandable_segments", "shard", "pipeline_schedule", "virtual_stages"),
)
# The guide's names of the splits, and of the micro-batches of a pipeline.
_OTHER_NAMES = {
    "by_case": "data_parallel",
    "by_feature": "tensor_parallel",
    "by_parts": "pipeline_parallel",
    "micro_batches": "accumulate",
}
_FLAGS = ("cudnn_benchmark", "expandable_segments", "inference", "sequence_parallel", "direct", "pinned")
_DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel")
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
    data             where the data set lies. resident: in device memory; streamed: in host memory, ready to
                     be copied; page-cache: in files that the host holds in its page cache; storage: in files
                     that are read from storage
    prefetch         batches copied to the device ahead while earlier ones are trained on
    loaders          processes that read and decode examples; 0: the training process does it between steps
    load_ahead       batches that each loader prepares ahead (prefetch_factor of PyTorch's DataLoader)
    pinned           copy batches from page-locked memory; default: only with prefetch, which needs it
    direct           the device reads from storage without the host (GPUDirect Storage); examples are then
                     stored as the tensors of the batch, since no CPU decodes them
    accumulate       micro-batches of equal size in one step; their gradients are added before the one update
    recompute        blocks: keep only the inputs of the network's blocks, run their forward pass again in
                     backward, up to the last tensor that backward needs; whole-blocks: to their end, as
                     PyTorch did before 2.1
    optimizer        replaces the job's own optimiser
    layout           memory layout of images and of the weights of convolutions; default: the job's own
    cudnn_benchmark  cuDNN times its algorithms and takes the fastest (torch.backends.cudnn.benchmark)
    expandable_segments  the allocator on a GPU grows its segments: less memory is lost between tensors
    inference        forward only, with torch.no_grad() and eval(): no backward, no update

    Several workers, one for each device:

    data_parallel      each worker computes a share of the batch ("by case"); gradients are summed. Default:
                       all devices that the other degrees leave
    tensor_parallel    number of workers among which each layer's matrices are divided ("by feature")
    pipeline_parallel  number of stages into which the network's blocks are divided ("by parts")
    pipeline_schedule  gpipe: all forwards, then all backwards; 1f1b: one forward, one backward in turn;
                       interleaved: 1f1b with `virtual_stages` groups of blocks on each worker
    shard              what data-parallel workers divide instead of each keeping all: optimizer (ZeRO-1),
                       gradients (ZeRO-2), weights (ZeRO-3, FSDP)
    exchange           when and how data-parallel workers sum gradients. buckets: in buckets while backward
                       runs, as DistributedDataParallel; tensors: each by itself as soon as it is complete;
                       after: all at once when backward has ended; server: each by itself through parameter
                       servers, one on each node; server-after: through these when backward has ended. A
                       single worker, too, exchanges with a server that is on the host
    sequence_parallel  tensor-parallel workers also divide the ops between their matrices, by timesteps
    expert_parallel    number of data-parallel workers among which the experts of mixture layers are divided

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
    loaders: int = 0
    load_ahead: int = 2
    pinned: bool | None = None
    direct: bool = False
    accumulate: int = 1
    recompute: Recompute = "none"
    optimizer: Optimizer | None = None
    layout: Layout | None = None
    cudnn_benchmark: bool = False
    expandable_segments: bool = False
    inference: bool = False
    data_parallel: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    pipeline_schedule: PipelineSchedule = "1f1b"
    virtual_stages: int = 1
    shard: Shard = "none"
    sequence_parallel: bool = False
    expert_parallel: int = 1
    exchange: Exchange = "buckets"

    def __post_init__(self) -> None:
        for name, least, most in (
            ("batch", 1, MOST_BATCH),
            ("threads", 1, MOST_THREADS),
            ("prefetch", 0, 1024),
            ("loaders", 0, 4096),
            ("load_ahead", 1, 1024),
            ("accumulate", 1, 65536),
            *((name, 1, _MOST_WORKERS) for name in ("data_parallel", *_DEGREES)),
            ("virtual_stages", 1, 1024),
        ):
            value = getattr(self, name)
            if value is None and name in ("batch", "threads", "data_parallel"):
                continue
            if not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
                limits = f"from {least} to {most}"
                raise BadRecord(f"strategy: {name} must be a whole number {limits}, not {value!r}.")
        kinds = {
            "precision": Precision,
            "execution": Execution,
            "data": Data,
            "recompute": Recompute,
            "optimizer": Optimizer | None,
            "layout": Layout | None,
            "shard": Shard,
            "pipeline_schedule": PipelineSchedule,
            "exchange": Exchange,
        }
        for name, kind in kinds.items():
            records.convert(getattr(self, name), kind, f"strategy: {name}")
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "pinned" and value is None):
                raise BadRecord(f"strategy: {name} must be true or false, not {value!r}.")
        if self.batch is not None:
            self.micro_batch(self.batch)
        if self.inference:
            self._refuse_training_options()
        self._refuse_feed_options()
        self._refuse_useless_splits()

    def _refuse_useless_splits(self) -> None:
        """Options about a split that is not there would do nothing."""
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise BadRecord(
                "strategy: sequence_parallel has no effect without tensor_parallel.",
                hint="Set tensor_parallel to 2 or more, or leave sequence_parallel out.",
            )
        if self.exchange != "buckets" and (self.shard != "none" or self.pipeline_parallel > 1):
            raise BadRecord(
                f"strategy: exchange={self.exchange} is for plain data parallelism.",
                hint="Leave exchange out, or leave shard and pipeline_parallel out.",
            )
        if self.pipeline_schedule == "interleaved" and self.virtual_stages == 1:
            raise BadRecord(
                "strategy: an interleaved pipeline needs virtual_stages of 2 or more.",
                hint="Set virtual_stages=2, or pipeline_schedule=1f1b.",
            )
        if self.virtual_stages > 1 and self.pipeline_schedule != "interleaved":
            raise BadRecord(
                f"strategy: virtual_stages={self.virtual_stages} has no effect with "
                f"pipeline_schedule={self.pipeline_schedule}.",
                hint="Set pipeline_schedule=interleaved, or leave virtual_stages out.",
            )
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise BadRecord(
                "strategy: virtual_stages has no effect without pipeline_parallel.",
                hint="Set pipeline_parallel to 2 or more, or leave virtual_stages out.",
            )

    def _refuse_training_options(self) -> None:
        """Inference has neither a backward pass nor an update, so options about them would do nothing."""
        defaults = {
            "accumulate": 1,
            "recompute": "none",
            "optimizer": None,
            "shard": "none",
            "pipeline_parallel": 1,
            "exchange": "buckets",
        }
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise BadRecord(
                    f"strategy: {name}={getattr(self, name)} has no effect with inference.",
                    hint=f"Leave {name} out, or leave inference out.",
                )

    def _refuse_feed_options(self) -> None:
        """Refuse options for loading, copying and direct reads if nothing is loaded, copied or read."""
        for name, unset, places in (
            ("loaders", 0, LOADED),
            ("load_ahead", 2, LOADED),
            ("pinned", None, ("streamed", *LOADED)),
            ("direct", False, ("storage",)),
        ):
            if getattr(self, name) != unset and self.data not in places:
                raise BadRecord(
                    f"strategy: {name}={getattr(self, name)} has no effect with data={self.data}.",
                    hint=f"Leave {name} out, or use data={' or data='.join(places)}.",
                )
        if self.load_ahead != 2 and not self.loaders:
            raise BadRecord(
                f"strategy: load_ahead={self.load_ahead} has no effect without loaders.",
                hint="Set loaders to 1 or more, or leave load_ahead out.",
            )
        if self.prefetch and self.pinned is False:
            raise BadRecord(
                f"strategy: prefetch={self.prefetch} needs pinned memory, so pinned=false is not possible.",
                hint="Leave prefetch out, or leave pinned out.",
            )
        if self.direct and (self.loaders or self.pinned is not None):
            raise BadRecord(
                "strategy: direct reads use neither loaders nor host memory.",
                hint="Leave loaders and pinned out, or leave direct out.",
            )

    def in_memory(self) -> Literal["resident", "streamed"]:
        """Where the data are, for code that only supports memory; an error if they are in files."""
        if self.data == "page-cache" or self.data == "storage":
            raise BadRecord(
                f"strategy: data={self.data} needs files to read, and none are named.",
                hint="Use: windtunnel measure JOB --data FOLDER, or --data jpeg:2000x110KB.",
            )
        return self.data

    @property
    def is_loaded(self) -> bool:
        """Whether examples are read from files and decoded on the host."""
        return self.data in LOADED and not self.direct

    @property
    def copies_pinned(self) -> bool:
        """Whether batches are copied from page-locked memory."""
        return bool(self.prefetch) if self.pinned is None else self.pinned

    @property
    def compiles(self) -> bool:
        """Whether torch.compile compiles the step."""
        return self.execution in ("compiled", "reduce-overhead")

    @property
    def model_parallel(self) -> int:
        """The number of workers that hold one copy of the network together."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def is_parallel(self) -> bool:
        """Whether a worker exchanges anything: with other workers, or with a parameter server."""
        is_served = self.exchange.startswith("server")
        return is_served or (self.data_parallel or 1) * self.model_parallel > 1

    def micro_batch(self, batch: int) -> int:
        """Examples in one micro-batch if a step has `batch` examples."""
        if batch % self.accumulate:
            raise BadRecord(
                f"strategy: a batch of {batch} cannot be split into {self.accumulate} equal micro-batches.",
                hint="Use a batch that is a multiple of accumulate, for example "
                f"{-(-batch // self.accumulate) * self.accumulate}.",
            )
        return batch // self.accumulate

    def as_traced(self) -> Strategy:
        """This strategy with defaults for all fields that change no op: strategies that share a trace are
        then equal."""
        defaults: Plain = {f.name: f.default for f in dataclasses.fields(self) if f.name in PRICED_ONLY}
        return dataclasses.replace(self, **defaults)

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
        return Strategy.read(records.load(Path(path)), str(path))

    def save(self, path: str | Path) -> None:
        """Write this strategy to a TOML or JSON file that `load` reads."""
        records.save(Path(path), self)

    @staticmethod
    def read(data: Mapping[str, object], where: str = "strategy") -> Strategy:
        """Build a strategy from plain data; an unknown key is an error.

        The guide's names are accepted too: by_case, by_feature and by_parts.
        """
        named: dict[str, object] = {}
        for key, value in data.items():
            name = _OTHER_NAMES.get(key, key)
            if name in named:
                raise BadRecord(f"{where}: {key} and {name} are the same field.", hint="Give one of them.")
            named[name] = value
        return records.read(Strategy, named, where)
