"""Arguments and options that several commands share, and their conversion to jobs, devices and strategies."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from windtunnel import records, units
from windtunnel.cli.printing import say
from windtunnel.errors import BadInput, Unavailable
from windtunnel.foreign import shown_lines
from windtunnel.job.stored import StoredData
from windtunnel.job.workload import Workload
from windtunnel.machine.building import shared_storage
from windtunnel.machine.machine import LOCAL_MACHINES, DeviceKind, Machine
from windtunnel.machine.topology import Storage, striped
from windtunnel.saved_plan import OPTIONS, SavedPlan
from windtunnel.strategy import Strategy

_LEAST_WIDTH = 40
_BAR = "\u2588"  # lines of drawings are not wrapped
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_UNIT = re.compile(r"(\d) (?=[KMGTP]?i?(?:B|FLOP|Hz|W|s|ms|us|ns)\b)")

Job = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB [key=value ...]",
        help="A network with settings (see: windtunnel network list), library:network, "
        "or path/to/file.py:function.",
        show_default=False,
    ),
]
OptionalJob = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB [key=value ...]]",
        help="A network with settings (see: windtunnel network list), library:network, "
        "or path/to/file.py:function. Default: that of the plan of --strategy.",
        show_default=False,
    ),
]
NetworkName = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME [key=value ...]",
        help="A network with settings; see: windtunnel network list",
        show_default=False,
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        help="The machine: here (this machine, with its GPU if it has one), cpu or cuda (its CPU or GPU), "
        "a name of the catalogue (h200, 8xh200, 4x8xh200) or a machine file (FILE.toml).",
    ),
]
OnThisMachine = Annotated[
    str,
    typer.Option(
        "--on", help="This machine: here (with its GPU if it has one), cpu or cuda (its CPU or GPU)."
    ),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", help="Examples in one step. Default: the job's own.", show_default=False),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="pytorch: PyTorch's default, convolutions in tf32 and matrix products in fp32. fp32: both in "
        "fp32. tf32: both in tf32. bf16, fp16: autocast.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads. Default: one for each physical core.", show_default=False),
]
Execution = Annotated[
    str,
    typer.Option(
        "--execution",
        help="eager: op by op. graph: the whole step as one captured CUDA graph. compiled: by torch.compile. "
        "reduce-overhead: by torch.compile with CUDA graphs.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="Where the data set lies. resident: in device memory. streamed: in host memory, ready to be "
        "copied. page-cache: in files that the host has cached. storage: in files read from storage.",
    ),
]
Prefetch = Annotated[
    int, typer.Option("--prefetch", help="Batches copied to the device ahead of their step.")
]
Loaders = Annotated[
    int,
    typer.Option(
        "--loaders",
        help="Processes that read and decode examples ahead (workers of a DataLoader). 0: the training "
        "process does it.",
    ),
]
LoadAhead = Annotated[
    int, typer.Option("--load-ahead", help="Batches that each loader prepares ahead (prefetch_factor).")
]
Pinned = Annotated[
    bool | None,
    typer.Option(
        "--pinned/--pageable",
        help="Copy batches from page-locked memory. Default: with --prefetch only.",
        show_default=False,
    ),
]
Direct = Annotated[
    bool, typer.Option("--direct", help="The GPU reads from storage without the host (GPUDirect Storage).")
]
StorageName = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="The storage: a name of the catalogue (samsung-960-pro), several striped (5xsamsung-960-pro), "
        "or a rate (3.5GB/s). Default: the machine's own.",
        show_default=False,
    ),
]
ExampleBytes = Annotated[
    str | None,
    typer.Option(
        "--example-bytes",
        help="Size of one stored example (110KB). Default: the job's own, else that of its tensors.",
        show_default=False,
    ),
]
Decode = Annotated[
    str | None,
    typer.Option(
        "--decode",
        help="Time of one core to decode an example (5ms). Default: the job's own, else none.",
        show_default=False,
    ),
]
Examples = Annotated[
    int | None,
    typer.Option("--examples", help="Examples in the data set. Default: the job's own.", show_default=False),
]
Accumulate = Annotated[
    int,
    typer.Option(
        "--accumulate",
        "--micro-batches",
        help="Micro-batches of equal size in one step; their gradients are added before the update.",
    ),
]
Recompute = Annotated[
    str,
    typer.Option(
        "--recompute",
        help="blocks: keep only the inputs of blocks and run their forward pass again in backward; "
        "whole-blocks: to its end, as PyTorch before 2.1; or none.",
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="sgd, momentum, adam, adamw, fused-adam or fused-adamw. Default: the job's own.",
        show_default=False,
    ),
]
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        help="channels_last or contiguous, for images and convolutions. Default: the job's own.",
        show_default=False,
    ),
]
CudnnBenchmark = Annotated[
    bool, typer.Option("--cudnn-benchmark", help="Let cuDNN time its algorithms and take the fastest.")
]
ExpandableSegments = Annotated[
    bool,
    typer.Option(
        "--expandable-segments",
        help="PyTorch's allocator grows its segments on a GPU: less fragmentation.",
    ),
]
Inference = Annotated[
    bool, typer.Option("--inference", help="Forward only, without gradients: no backward, no update.")
]
DataParallel = Annotated[
    int | None,
    typer.Option(
        "--data-parallel",
        "--by-case",
        help="Workers that share the batch. Default: all devices that the other degrees leave.",
        show_default=False,
    ),
]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", "--by-feature", help="Workers that divide each layer.")
]
PipelineParallel = Annotated[
    int,
    typer.Option("--pipeline-parallel", "--by-parts", help="Stages that divide the blocks of the network."),
]
PipelineSchedule = Annotated[
    str, typer.Option("--pipeline-schedule", help="gpipe, 1f1b, or interleaved (with --virtual-stages).")
]
VirtualStages = Annotated[
    int, typer.Option("--virtual-stages", help="Groups of blocks on each stage of an interleaved pipeline.")
]
Shard = Annotated[
    str,
    typer.Option(
        "--shard",
        help="What data-parallel workers divide: none, optimizer (ZeRO-1), gradients (ZeRO-2) or weights "
        "(ZeRO-3, FSDP).",
    ),
]
Exchange = Annotated[
    str,
    typer.Option(
        "--exchange",
        help="How gradients are summed: buckets, tensors (each when it is complete), after (when backward "
        "has ended), server or server-after (parameter servers).",
    ),
]
SequenceParallel = Annotated[
    bool,
    typer.Option("--sequence-parallel", help="Tensor-parallel workers also divide ops between layers."),
]
ExpertParallel = Annotated[
    int, typer.Option("--expert-parallel", help="Data-parallel workers that divide the experts of mixtures.")
]
Within = Annotated[
    str,
    typer.Option("--within", help="The margin: same only if the whole interval of the ratio is within it."),
]
StrategyFile = Annotated[
    Path | None,
    typer.Option(
        "--strategy",
        metavar="FILE",
        help="Read a plan (of advise --apply, or of plan) or a strategy from this file. Options that are "
        "typed replace those in the file.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, in seconds and bytes.")]


def find_job(words: Sequence[str]) -> Workload:
    """The job that the words of a command line name: a name, then settings."""
    name, *rest = words
    settings = records.parse_settings(rest)
    if ".py" in name:  # a user's function does not convert text, so it receives numbers
        return Workload.named(name, **{key: units.literal(value) for key, value in settings.items()})
    return Workload.named(name, **settings)


def find_device(on: str, task: str) -> DeviceKind:
    """The kind of device of this machine that `on` names; `task` says in errors what cannot run elsewhere."""
    if on not in LOCAL_MACHINES:
        raise Unavailable(
            f"--on {on}: {task} runs on this machine only.", hint="Use --on here, --on cpu or --on cuda."
        )
    if on == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "gpu"
    if on == "here":
        return "cpu"
    raise Unavailable("PyTorch finds no CUDA GPU on this machine.", hint="Use --on cpu.")


def with_stored_data(
    job: Workload, example_bytes: str | None, decode: str | None, examples: int | None
) -> Workload:
    """The job with its stored data as the options describe them."""
    if example_bytes is None and decode is None and examples is None:
        return job
    if job.data is None and example_bytes is None:
        raise BadInput(
            f"{job.name} does not say what one stored example is.",
            hint="Give its size too, for example --example-bytes 110KB.",
        )
    changes: dict[str, object] = {}
    if example_bytes is not None:
        changes["example_bytes"] = units.parse(example_bytes, "B")
    if decode is not None:
        changes |= {"decode_seconds": units.parse(decode, "s"), "decode": None}
    if examples is not None:
        changes["examples"] = examples
    known = job.data or StoredData(example_bytes=1.0)
    return dataclasses.replace(job, data=dataclasses.replace(known, **changes))  # type: ignore[arg-type]


def with_storage(machine: Machine, name: str | None) -> Machine:
    """The machine with the storage that an option names."""
    if name is None:
        return machine
    match = re.match(r"^(?:(\d{1,9})x)?([a-z].*)$", name)
    if match is None:
        storage = Storage(name=name, read_rate=units.parse(name, "B/s"))
    else:
        count = int(match[1] or 1)
        storage = shared_storage(match[2]) if count == 1 else striped(shared_storage(match[2]), count)
    sources = {**machine.sources, "storage": "given by an option"}
    return dataclasses.replace(machine, storage=storage, sources=sources)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndTyped:
    """A plan that a command reads, and the names of the options that were typed in addition."""

    plan: SavedPlan
    typed: frozenset[str]


def read_plan(path: Path | None, context: typer.Context) -> PlanAndTyped | None:
    """The plan in the file of --strategy, if one is given."""
    if path is None:
        return None
    return PlanAndTyped(plan=SavedPlan.load(path), typed=typed_options(context))


def typed_options(context: typer.Context) -> frozenset[str]:
    """The options that were typed, not left at their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source and source.name == "COMMANDLINE")


def make_strategy(beside: PlanAndTyped | None = None, /, **options: int | str | bool | None) -> Strategy:
    """A strategy from the options of a command; None leaves the default.

    With a plan, only options that were typed count; the plan has the others.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if beside is None:
        return Strategy.read(given)
    typed = {name: value for name, value in given.items() if name in beside.typed}
    return Strategy.read({**records.plain(beside.plan.strategy), **typed})


def further_options(beside: PlanAndTyped | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a forecast that are not part of its strategy: as typed, otherwise as in the plan."""
    kept = {} if beside is None else {k: v for k, v in beside.plan.options.items() if k not in beside.typed}
    return {name: kept.get(name, options[name]) for name in OPTIONS}


def machine_of(beside: PlanAndTyped | None, on: str) -> str:
    """The machine that --on names; if it was not typed, that of the plan."""
    return on if beside is None or beside.plan.on is None or "on" in beside.typed else beside.plan.on


def job_of(beside: PlanAndTyped | None, job: Sequence[str] | None) -> Sequence[str]:
    """The words of the job; if none were typed, those of the plan."""
    found = job or (beside.plan.job if beside is not None else ())
    if not found:
        raise BadInput(
            "No job is named." if beside is None else "No job is named, and the plan names none.",
            hint="Write a network, library:network or path/to/file.py:function. See: windtunnel network list",
        )
    return found


def refuse_unwritable(path: Path, option: str) -> None:
    """Raise an error before long work starts if the output file cannot be written."""
    if path.is_dir():
        raise BadInput(f"{option} {path} is a folder.", hint="Name a file in it.")
    try:
        records.try_writing(path)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise BadInput(
            f"{option} {path} cannot be written: {error.strerror or error}.",
            hint="Free some space, or name a file on another disk. What was there is unchanged."
            if is_full
            else "Name a file in a folder that exists and can be written.",
        ) from error


def refuse_plot(path: Path) -> None:
    """Refuse a chart that cannot be drawn, before long work starts."""
    from windtunnel.reports import charts

    if path.suffix not in charts.SUFFIXES:
        raise BadInput(
            f"--plot {path} ends in none of {', '.join(charts.SUFFIXES)}.",
            hint=f"For example --plot {path.stem or 'chart'}.svg",
        )
    charts.require_converter()
    refuse_unwritable(path, "--plot")


def fitted(text: str, stream: IO[str]) -> str:
    """The text wrapped to the width of the terminal, unchanged if that is unknown. Continuation lines are
    indented."""
    if not (stream.isatty() or "COLUMNS" in os.environ):
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in _parts(line, max(width, _LEAST_WIDTH)))


def _parts(line: str, width: int) -> list[str]:
    if len(line) <= width or _BAR in line:
        return [line]
    columns = [
        gap.end() for gap in _GAP.finditer(line)
    ]  # continue the last column below itself, if it has room
    leading = len(line) - len(line.lstrip())
    has_room = bool(columns) and leading < columns[-1] <= width // 2
    indent = " " * (columns[-1] if has_room else leading + (0 if line.startswith("    ") else 4))
    whole = _UNIT.sub("\\1\u00a0", line)  # a number stays with its unit
    found = textwrap.wrap(
        whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part.replace("\u00a0", " ") for part in found]


def show(as_json: bool, data: Callable[[], object], text: Callable[[], str]) -> None:
    """Print a result on standard output, as JSON or as text."""
    # JSON writes all harmful characters by their number but this one.
    as_text = json.dumps(data(), indent=1).replace("\x7f", "\\u007f") if as_json else ""
    say(as_text or fitted(shown_lines(text()), sys.stdout))
