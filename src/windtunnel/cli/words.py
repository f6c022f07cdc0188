"""Arguments and options that several commands share, and how they become jobs, devices and strategies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from windtunnel import records, units
from windtunnel.errors import BadInput, Unavailable
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import OF_THIS_MACHINE, DeviceKind
from windtunnel.strategy import Strategy

Job = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB [key=value ...]",
        help="A network with settings (see: windtunnel network list), library:network, "
        "or path/to/file.py:function.",
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
        help="resident: the data set is in device memory. streamed: each batch is copied from the host.",
    ),
]
Prefetch = Annotated[
    int, typer.Option("--prefetch", help="Batches copied to the device ahead of their step.")
]
Accumulate = Annotated[
    int,
    typer.Option(
        "--accumulate",
        help="Micro-batches of equal size in one step; their gradients are added before the update.",
    ),
]
Recompute = Annotated[
    str,
    typer.Option(
        "--recompute",
        help="none, or blocks: keep only the inputs of blocks and run their forward pass again in backward.",
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="sgd, momentum, adam, adamw or fused-adamw. Default: the job's own.",
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
Inference = Annotated[
    bool, typer.Option("--inference", help="Forward only, without gradients: no backward, no update.")
]
Within = Annotated[
    str,
    typer.Option("--within", help="The margin: same only if the whole interval of the ratio is within it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, in seconds and bytes.")]


def find_job(words: Sequence[str]) -> Workload:
    """The job that the words of a command line name: a name, then settings."""
    name, *rest = words
    settings = records.parse_settings(rest)
    if ".py" in name:  # a user's function converts nothing, so it receives numbers as numbers
        return Workload.named(name, **{key: units.literal(value) for key, value in settings.items()})
    return Workload.named(name, **settings)


def find_device(on: str, task: str) -> DeviceKind:
    """The kind of device of this machine that `on` names; `task` says in errors what cannot run elsewhere."""
    if on not in OF_THIS_MACHINE:
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


def make_strategy(**options: int | str | bool | None) -> Strategy:
    """A strategy from the options of a command; None leaves the default."""
    return Strategy.read({name: value for name, value in options.items() if value is not None})


def refuse_unwritable(path: Path, option: str) -> None:
    """Raise an error before long work starts if the output file cannot be written."""
    if path.is_dir():
        raise BadInput(f"{option} {path} is a folder.", hint="Name a file in it.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise BadInput(
            f"{option} {path} cannot be written: {error.strerror or error}.",
            hint="Name a file in a folder that exists and can be written.",
        ) from error


def show(as_json: bool, data: Callable[[], object], text: Callable[[], str]) -> None:
    """Print a result on standard output, as JSON or as text."""
    print(json.dumps(data(), indent=1) if as_json else text())
