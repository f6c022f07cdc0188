"""windtunnel train"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.cli import exchange, levels, words
from windtunnel.errors import BadInput, nearest
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.ownership import temporary_folder
from windtunnel.records import parse_settings

if TYPE_CHECKING:
    from windtunnel.exchange.outcome import ClusterTraining
    from windtunnel.exchange.real.spec import Backend, RealTraining
    from windtunnel.exchange.run import ExchangeSettings
    from windtunnel.exchange.training import ClusterOptions
    from windtunnel.exchange.variation import Variation

_CLOCKS = ("simulated", "real")
HELP = """
Train a network, or your own job, with several workers that exchange their updates.

Without --on, each worker is a real process: on this machine, or with --engine on a cluster of Ray or Slurm
(torch.distributed: DistributedDataParallel, FSDP2 with --shard, a parameter server, or averages).

With --on MACHINE the clock is simulated: the workers' gradients are computed here, one after another. Each is
applied at the time and with the staleness that the simulation of the machine gives. The result is what is
learned against the time of that machine, which need not exist.

[bold]Examples[/bold]

  windtunnel train ffn --on guide-figure-6 --exchange sync --until accuracy=0.95

  windtunnel train dcn --on 4x4xgtx1080 --compare sync,async,mixed,local --jitter 0.2

  windtunnel train lstm --on 8x8xh100 --workers 16 --exchange local --every 20 --folder runs/local

  windtunnel train ffn --workers 2 --exchange async --slow 1 --slow-factor 3

  windtunnel train dcn --workers 8 --exchange mixed --groups 2 --engine ray://head:10001

  windtunnel train my_model.py:build width=64 --workers 2 --exchange async
"""

_Exchange = Annotated[str, typer.Option("--exchange", help="sync, server, async, mixed, local or diloco.")]
_Compare = Annotated[
    str | None,
    typer.Option("--compare", help="Several forms, with commas: sync,async.", show_default=False),
]
_Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Workers. Default: 2 real ones, or all devices of the simulated machine.",
        show_default=False,
    ),
]
_Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        min=1,
        help="Passes over the data by all workers together. Default: the network's own.",
        show_default=False,
    ),
]
_Until = Annotated[
    str | None,
    typer.Option("--until", help="Stop at a result on held-out examples: accuracy=0.95.", show_default=False),
]
_DataSet = Annotated[
    str | None,
    typer.Option("--data", help="A data set, or a path. Default: the network's own.", show_default=False),
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        help="Keep checkpoints there: the same command continues after an interrupt or a lost worker. Real "
        "workers also keep their weights, curve and logs there.",
        show_default=False,
    ),
]
_Clock = Annotated[
    str | None,
    typer.Option(
        "--clock",
        help="simulated: workers of a machine that may be elsewhere. real: processes. Default: simulated "
        "with --on, otherwise real.",
        show_default=False,
    ),
]
_OnMachine = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="The machine whose workers are simulated: a name of the catalogue (guide-figure-6, 4x4xgtx1080, "
        "8x8xh100) or a machine file (FILE.toml).",
        show_default=False,
    ),
]
_Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where real workers run: local, ray://HOST:PORT, or slurm:nodes=2,partition=gpu (then --folder "
        "on a disk that all nodes share).",
    ),
]
_Backend = Annotated[
    str, typer.Option("--backend", help="How real workers send: gloo (CPUs), or nccl (a GPU for each).")
]
_Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw the learning curves to FILE.svg, .png or .html (needs the extra plots).",
        show_default=False,
    ),
]
_SIMULATED_DEFAULT = "guide-figure-6"
_ShardWeights = Annotated[
    bool, typer.Option("--shard", help="Real workers with sync: divide the weights (FSDP2).")
]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Start again instead of continuing.")]


_Job = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB [key=value ...]",
        help="A network with settings (windtunnel network list), or your own job: path/to/file.py:function.",
        show_default=False,
    ),
]


def train(
    job: _Job,
    on: _OnMachine = None,
    exchange_form: _Exchange = "sync",
    compare: _Compare = None,
    clock: _Clock = None,
    engine: _Engine = "local",
    backend: _Backend = "gloo",
    shard: _ShardWeights = False,
    workers: _Workers = None,
    groups: exchange.Groups = None,
    every: exchange.Every = 10,
    staleness: exchange.Staleness = None,
    jitter: exchange.Jitter = 0.0,
    samples: exchange.Samples = None,
    spread: exchange.Spread = 0.0,
    slow: exchange.Slow = 0,
    slow_factor: exchange.SlowFactor = 2.0,
    pause_share: exchange.PauseShare = 0.0,
    pause_factor: exchange.PauseFactor = 2.0,
    failures: exchange.FailuresPerDay = 0.0,
    restart: exchange.Restart = 300.0,
    epochs: _Epochs = None,
    until: _Until = None,
    data: _DataSet = None,
    seed: exchange.Seed = 0,
    folder: _Folder = None,
    fresh: _Fresh = False,
    plot: _Plot = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.exchange.training import ClusterOptions

    variation = exchange.make_variation(
        jitter=jitter,
        samples=samples,
        spread=spread,
        slow_workers=slow,
        slow_factor=slow_factor,
        pause_share=pause_share,
        pause_factor=pause_factor,
        failures=failures,
        restart_seconds=restart,
    )
    settings = exchange.make_settings(groups, every, staleness)
    is_real = _is_real(clock, on)
    names = _names(compare, exchange_form)
    if plot is not None:
        words.refuse_plot(plot)
    folders = {name: folder / name if folder and compare else folder for name in names}
    if is_real:
        _refuse_simulated(variation, until)
        alone = _shared_network(job, data)
        specs = [
            dataclasses.replace(
                _real_spec(alone, name, workers, settings, epochs, variation),
                seed=seed,
                shard=shard,
                backend=_backend(backend),
                keep=folder is not None,
            )
            for name in names
        ]
        _train_for_real(specs, engine, folders, plot, as_json, fresh)
        return
    _refuse_real(engine, backend, shard)
    on, found = on or _SIMULATED_DEFAULT, []
    for name in names:
        options = ClusterOptions(
            exchange=name,
            workers=workers,
            settings=settings,
            variation=variation,
            epochs=epochs,
            until=until,
            seed=seed,
            folder=folders[name],
            fresh=fresh,
        )
        found.append(_train(job, on, options, data))
    _show_simulated(found, bool(compare), plot, as_json)


def _show_simulated(found: list[ClusterTraining], several: bool, plot: Path | None, as_json: bool) -> None:
    from windtunnel.exchange.outcome import ClusterComparison

    first = found[0]
    if plot is not None:
        from windtunnel.reports.clusters import chart

        title = f"{first.network} on {first.machine}, {first.workers} workers"
        target = first.goal.target if first.goal and first.goal.metric == first.metric else None
        chart([each.curve for each in found], title, target).save(plot)
    shown = ClusterComparison(trainings=tuple(found)) if several else first
    words.show(as_json, shown.plain, lambda: _with_plot(str(shown), plot))


def _with_plot(text: str, plot: Path | None) -> str:
    return text if plot is None else f"{text}\n\nThe chart is in {plot}."


def _is_real(clock: str | None, on: str | None) -> bool:
    """Workers are simulated on a named machine, and real otherwise."""
    if clock is not None and clock not in _CLOCKS:
        raise BadInput(f"--clock {clock}: it is simulated or real.", hint=nearest(clock, _CLOCKS))
    if clock == "real" and on is not None:
        raise BadInput(
            f"--on {on} with --clock real: real workers run on this machine or on a cluster.",
            hint="Leave out --on, or use --engine ray://HOST:PORT or --engine slurm.",
        )
    return clock == "real" or (clock is None and on is None)


def _names(compare: str | None, exchange_form: str) -> list[str]:
    """The forms to train, each once."""
    from windtunnel.exchange import forms

    words_given = [name.strip() for name in compare.split(",")] if compare is not None else [exchange_form]
    return list(dict.fromkeys(forms.named(name).name for name in words_given))


def _refuse_simulated(variation: Variation, until: str | None) -> None:
    """What only a simulated clock has."""
    hint = "Leave it out, or name a machine to simulate: --on guide-figure-6"
    given = (variation.jitter, variation.spread, variation.samples, variation.pause_share)
    if any(given) or variation.failure_rate:
        raise BadInput(
            "--jitter, --samples, --spread, --pause-share and --failures: real workers differ by themselves.",
            hint=hint,
        )
    if variation.slow_workers > 1:
        raise BadInput(
            f"--slow {variation.slow_workers}: of real workers one can be slow.", hint="Use --slow 1."
        )
    if until is not None:
        raise BadInput("--until: real workers train for a number of passes.", hint="Use --epochs, or --on.")


def _refuse_real(engine: str, backend: str, shard: bool) -> None:
    """What only real workers have."""
    given = {"--engine": engine != "local", "--backend": backend != "gloo", "--shard": shard}
    for option, is_given in given.items():
        if is_given:
            raise BadInput(
                f"{option} is for real workers.", hint="Leave it out, or leave out --on and --clock."
            )


def _backend(word: str) -> Backend:
    known: dict[str, Backend] = {"gloo": "gloo", "nccl": "nccl"}
    if word not in known:
        raise BadInput(f"--backend {word}: it is gloo or nccl.", hint=nearest(word, known))
    return known[word]


def _shared_network(job: list[str], data: str | None) -> RealTraining:
    """The training of one worker: a network whose steps workers can share, or a job of one's own by its full
    path."""
    from windtunnel.exchange import own_jobs
    from windtunnel.exchange.real.spec import RealTraining
    from windtunnel.exchange.splitting import refuse_undivided

    workload = _own(job, data)
    if workload is None:
        name, settings = job[0], parse_settings(job[1:])
        refuse_undivided(name, settings)
        return RealTraining(network=name, settings=settings, workers=1, data=data)
    unused = own_jobs.refuse_undivided_job(workload)
    assert workload.origin is not None
    origin = workload.origin
    return RealTraining(network=origin.job, settings=origin.settings, workers=1, unused=unused)


def _own(job: list[str], data: str | None) -> Workload | None:
    """The job of one's own that is named, in the process where it lives."""
    from windtunnel.learning import own_job

    if not own_job.is_own(job[0]):
        return None
    own_job.refuse_data(job[0], data)
    return words.find_job(job)


def _real_spec(
    alone: RealTraining,
    exchange_form: str,
    workers: int | None,
    settings: ExchangeSettings,
    epochs: int | None,
    variation: Variation,
) -> RealTraining:
    count = 2 if workers is None else workers
    groups = settings.groups if settings.groups > 1 or count % 2 else 2
    return dataclasses.replace(
        alone,
        workers=count,
        exchange=exchange_form,
        groups=groups if exchange_form == "mixed" else 1,
        every=settings.every,
        staleness=settings.staleness,
        epochs=epochs,
        slow_rank=0 if variation.slow_workers else -1,
        slow_factor=variation.slow_factor,
    )


def _train_for_real(
    specs: list[RealTraining],
    engine: str,
    folders: dict[str, Path | None],
    plot: Path | None,
    as_json: bool,
    fresh: bool,
) -> None:
    from windtunnel.exchange.real.engines import OnSlurm, engine_for
    from windtunnel.exchange.real.gathering import RealComparison
    from windtunnel.exchange.real.launch import run_workers

    chosen, found = engine_for(engine), []
    if isinstance(chosen, OnSlurm) and None in folders.values():
        raise BadInput(
            "--engine slurm needs --folder: its workers meet there.",
            hint="Give --folder FOLDER on a disk that all nodes share.",
        )
    for spec in specs:
        folder = folders[spec.exchange]
        with contextlib.ExitStack() as stack:
            place = folder or stack.enter_context(temporary_folder())
            found.append(dataclasses.replace(run_workers(spec, place, chosen, fresh=fresh), folder=folder))
    if plot is not None:
        from windtunnel.reports.clusters import chart

        title = f"{specs[0].network}, {specs[0].workers} workers"
        chart([each.curve for each in found], title).save(plot)
    shown = RealComparison(outcomes=tuple(found)) if len(found) > 1 else found[0]
    words.show(as_json, shown.plain, lambda: _with_plot(str(shown), plot))


def _train(job: list[str], on: str, options: ClusterOptions, data: str | None) -> ClusterTraining:
    from windtunnel.exchange.own_jobs import train_apart
    from windtunnel.exchange.training import train_on_cluster

    machine, own = Machine.find(on), _own(job, data)
    name, *rest = job
    said = ""
    with levels.show_line() as say:

        def tell(done: int, total: int, text: str) -> None:
            nonlocal said
            if text != said:  # once an epoch
                said = text
                say(f"{options.exchange}: {text}, {done:,} of at most {total:,} changes")

        if own is not None:
            return train_apart(own, on, options, tell)
        return train_on_cluster(
            name, machine, options, settings=dict(parse_settings(rest)), data=data, progress=tell
        )
