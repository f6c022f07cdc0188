"""The words that several commands share: jobs with settings, machines, strategies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel.errors import BadInput, Unavailable
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

Job = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB [key=value ...]",
        help="A named network with settings, or path/to/file.py:function.",
        show_default=False,
    ),
]
Network = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME [key=value ...]",
        help="A named network with settings; see: windtunnel network list",
        show_default=False,
    ),
]
Batch = Annotated[int | None, typer.Option("--batch", help="Examples a step; the job's own default else.")]
Precision = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads; one for each physical core else.")
]
Execution = Annotated[
    str,
    typer.Option(
        "--execution",
        help="eager; graph: the whole step captured as one CUDA graph; compiled: by torch.compile.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data", help="resident: the data lies on the device. streamed: each batch crosses the link."
    ),
]
Prefetch = Annotated[
    int, typer.Option("--prefetch", help="Batches copied ahead while others are trained on.")
]
Accumulate = Annotated[
    int,
    typer.Option(
        "--accumulate", help="Equal micro-batches a step, whose gradients are added before the one update."
    ),
]
Recompute = Annotated[
    str,
    typer.Option(
        "--recompute",
        help="none, or blocks: keep the inputs of blocks only, and compute the rest again going back.",
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", help="sgd, momentum, adam, adamw or fused-adamw in place of the job's own."),
]
Json = Annotated[bool, typer.Option("--json", help="Plain data in seconds and bytes.")]


def find_job(words: list[str]) -> Workload:
    """The workload that the words of a command line name."""
    name, *rest = words
    settings: dict[str, Any] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadInput(
                f"{word!r} is not a setting.", hint="Write settings as key=value, for example n_rec=50."
            )
        settings[key] = value if ".py" not in name else _literal(value)
    return Workload.named(name, **settings)


def find_machine(word: str) -> Machine:
    """`here`, `cpu` or `cuda` of this machine, a name of the catalogue with counts, or a file."""
    if word in ("here", "cpu", "cuda", "gpu"):
        here = Machine.here()
        if word in ("cuda", "gpu") and here.device.kind != "gpu":
            raise Unavailable(
                "There is no CUDA GPU that PyTorch can use on this machine.",
                hint="Use --on cpu, or predict for one of: windtunnel machine list",
            )
        return here.with_cpu_only() if word == "cpu" and here.device.kind == "gpu" else here
    if word.endswith((".toml", ".json")):
        return Machine.load(Path(word))
    return Machine.named(word)


def make_strategy(
    batch: int | None,
    precision: str,
    threads: int | None,
    execution: str,
    data: str,
    prefetch: int,
    *,
    accumulate: int = 1,
    recompute: str = "none",
    optimizer: str | None = None,
) -> Strategy:
    given: dict[str, Any] = {
        "precision": precision,
        "execution": execution,
        "data": data,
        "prefetch": prefetch,
    }
    given |= {"accumulate": accumulate, "recompute": recompute}
    given |= {
        key: value
        for key, value in (("batch", batch), ("threads", threads), ("optimizer", optimizer))
        if value is not None
    }
    return Strategy.read(given)


def refuse_unwritable(path: Path, option: str) -> None:
    """Say now, not after long work, that the file cannot be written."""
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


def show(as_json: bool, data: Callable[[], Any], text: Callable[[], str]) -> None:
    """Data on standard output, one way or the other."""
    print(json.dumps(data(), indent=1) if as_json else text())


def _literal(value: str) -> Any:
    """A user's own function gets numbers as numbers."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value.lower(), value)
