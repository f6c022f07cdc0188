"""windtunnel measure"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_args

import typer

from windtunnel.cli import levels, words
from windtunnel.errors import BadInput, DoesNotFit, Unavailable, WindtunnelError
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain
from windtunnel.strategy import Data, Strategy

if TYPE_CHECKING:
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.forecast.timeline import Timeline
    from windtunnel.measurement.feed.files import DataFiles
    from windtunnel.measurement.measure import Measurement
    from windtunnel.measurement.processes import MeasureOptions
    from windtunnel.measurement.steady import Protocol
    from windtunnel.measurement.store import Store

HELP = """
Measure real steps on this machine, in fresh processes, and compare them with the forecast.

[bold]Examples[/bold]

  windtunnel measure rnn n_rec=50 n_steps=100 --threads 1

  windtunnel measure rnn --quick

  windtunnel measure fcn5 --threads 2 --rigorous

  windtunnel measure my_job.py:build --on cuda --batch 64 --precision bf16 --json

  windtunnel measure resnet18 --data jpeg:500x110KB --loaders 2 --batch 16

  windtunnel measure my_job.py:build --data photos/ --loaders 8 --prefetch 2 --on cuda
"""
_Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="resident: the data set is in device memory. streamed: each batch is copied from the host. "
        "FOLDER: batches are read from its files by PyTorch's DataLoader, cold and warm, and the step is "
        "split into read, decode, copy and compute. KIND:COUNTxBYTES (jpeg:2000x110KB, npy:..., raw:...): "
        "the same with files written for it, in a temporary folder or in @FOLDER.",
    ),
]


Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=1000,
        help="Minimum number of fresh processes. Default: the level's own.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=1,
        help="Stop a process after this many seconds. Default: the level's own.",
        show_default=False,
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start again instead of continuing an interrupted measurement.")
]
TimelineFile = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        help="Write the forecast and one measured step to this file; ui.perfetto.dev opens it.",
        show_default=False,
    ),
]


def measure(
    context: typer.Context,
    job: words.OptionalJob = None,
    on: words.OnThisMachine = "here",
    strategy_file: words.StrategyFile = None,
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: _Data = "resident",
    prefetch: words.Prefetch = 0,
    loaders: words.Loaders = 0,
    load_ahead: words.LoadAhead = 2,
    pinned: words.Pinned = None,
    accumulate: words.Accumulate = 1,
    recompute: words.Recompute = "none",
    optimizer: words.Optimizer = None,
    layout: words.Layout = None,
    cudnn_benchmark: words.CudnnBenchmark = False,
    expandable_segments: words.ExpandableSegments = False,
    inference: words.Inference = False,
    quick: levels.Quick = False,
    rigorous: levels.Rigorous = False,
    processes: Processes = None,
    seconds: levels.Seconds = None,
    timeout: Timeout = None,
    fresh: Fresh = False,
    store: levels.StoreFile = None,
    timeline: TimelineFile = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.isolation.jobs import rest
    from windtunnel.measurement.measure import measure as measure_step
    from windtunnel.measurement.processes import MeasureOptions
    from windtunnel.measurement.steady import LEVELS
    from windtunnel.measurement.store import Store

    is_fed = data not in ("resident", "streamed")
    plan = words.read_plan(strategy_file, context)
    named, on = words.job_of(plan, job), words.machine_of(plan, on)
    strategy = words.make_strategy(
        plan,
        batch=batch,
        precision=precision,
        threads=threads,
        execution=execution,
        data="storage" if is_fed else data,
        prefetch=prefetch,
        loaders=loaders,
        load_ahead=load_ahead,
        pinned=pinned,
        accumulate=accumulate,
        recompute=recompute,
        optimizer=optimizer,
        layout=layout,
        cudnn_benchmark=cudnn_benchmark,
        expandable_segments=expandable_segments,
        inference=inference,
    )
    protocol = _protocol(LEVELS[levels.level_of(quick, rigorous)], processes, seconds, timeout)
    if timeline:
        words.refuse_unwritable(timeline, "--timeline")
    if is_fed and data in get_args(Data):
        raise BadInput(
            f"--data {data}: files must be named that can be read.",
            hint="Use --data FOLDER, or --data jpeg:2000x110KB.",
        )
    if is_fed:
        if timeline:
            raise BadInput("--timeline cannot go with --data FOLDER.", hint="Leave it out.")
        from windtunnel.measurement.feed.files import data_files

        with data_files(data) as files:
            workload, machine = words.find_job(named), Machine.find(on)
            strategy = dataclasses.replace(strategy, batch=strategy.batch or workload.default_batch)
            fed = _Fed(files, workload, machine, strategy)
            _measure_feed(fed, protocol, Store(store), MeasureOptions(fresh=fresh), as_json)
        return
    workload, machine = words.find_job(named), Machine.find(on)
    forecast = _forecast(workload, machine, strategy)
    rest(workload)
    events: list[Plain] = []
    with levels.show_stages(workload.name) as progress:
        options = MeasureOptions(fresh=fresh, progress=progress, timeline=events.append if timeline else None)
        measured = measure_step(
            workload, machine, strategy, protocol=protocol, store=Store(store), options=options
        )
    _show(measured, forecast, as_json)
    if timeline:
        _write_timeline(timeline, forecast, events)


class _Fed(NamedTuple):
    """A job and the files from which it is fed."""

    files: DataFiles
    workload: Workload
    machine: Machine
    strategy: Strategy


def _measure_feed(
    fed: _Fed, protocol: Protocol, store: Store, options: MeasureOptions, as_json: bool
) -> None:
    """All passes of a feed, with their forecasts."""
    from windtunnel.feed.measured import FeedComparison, forecast_passes
    from windtunnel.isolation.jobs import probe_feed_of, rest
    from windtunnel.measurement.feed.measure import measure_feed

    _refuse_elsewhere(fed.machine)
    files, workload, machine, strategy = fed
    probe, reason = probe_feed_of(workload, strategy, files), ""
    try:
        forecasts = forecast_passes(workload, machine, strategy, files, probe)
    except DoesNotFit:
        raise
    except WindtunnelError as error:
        forecasts, reason = {}, error.message
    rest(workload)
    with levels.show_stages(workload.name) as progress:
        told = dataclasses.replace(options, progress=progress)
        measured = measure_feed(
            workload, machine, strategy, files, protocol=protocol, store=store, options=told
        )
    beside = FeedComparison(measured=measured, forecasts=forecasts, probe=probe, reason=reason)
    words.show(as_json, beside.plain, lambda: str(beside))


def _protocol(
    level: Protocol, processes: int | None, seconds: float | None, timeout: float | None
) -> Protocol:
    """The level's protocol with what the user sets."""
    changes: Plain = {}
    if processes is not None:
        most = max(processes, min(2 * processes, processes + 2))
        changes |= {"processes": processes, "most_processes": most}
    if seconds is not None:
        changes |= {"seconds": seconds}
    if timeout is not None:
        changes |= {"timeout_seconds": timeout}
    return dataclasses.replace(level, **changes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """The forecast of a measured step and its schedule, or the reason why there is none."""

    forecast: Forecast | None = None
    timeline: Timeline | None = None
    reason: str = ""


def _refuse_elsewhere(machine: Machine) -> None:
    if machine.name != "here":
        raise Unavailable(
            f"measure runs on this machine only, not on {machine.name}.",
            hint=f"Use: windtunnel predict ... --on {machine.name}",
        )


def _forecast(workload: Workload, machine: Machine, strategy: Strategy) -> _Forecast:
    """The forecast, or why there is none. A job that does not fit raises an error and is not measured."""
    from windtunnel.prediction import predict_with_timeline

    _refuse_elsewhere(machine)
    try:
        forecast, timeline = predict_with_timeline(workload, machine, strategy)
    except DoesNotFit:
        raise
    except WindtunnelError as error:
        return _Forecast(reason=error.message)
    return _Forecast(forecast=forecast, timeline=timeline)


def _show(measured: Measurement, beside: _Forecast, as_json: bool) -> None:
    """The measurement, then the forecast and where the two differ."""
    from windtunnel.accuracy.difference import explain

    forecast = beside.forecast
    if forecast is None:
        nothing = {"forecast": None, "forecast_over_measured": None, "difference": None}
        words.show(
            as_json,
            lambda: {**measured.plain(), **nothing},
            lambda: f"{measured}\n\nforecast: none, {beside.reason}",
        )
        return
    ratio, difference = forecast.step_seconds / measured.step_seconds, explain(forecast, measured)
    words.show(
        as_json,
        lambda: {
            **measured.plain(),
            "forecast": forecast.plain(),
            "forecast_over_measured": ratio,
            "difference": difference.plain() if difference else None,
        },
        lambda: f"{measured}\n\n{forecast}\n\n{difference}\n\nforecast over measured: {ratio:.2f}",
    )


def _write_timeline(path: Path, beside: _Forecast, events: list[Plain]) -> None:
    from windtunnel import perfetto

    predicted = [perfetto.from_timeline(beside.timeline)] if beside.timeline else []
    seen = [perfetto.from_events(each["events"], left_out=each["left_out"]) for each in events]
    perfetto.write(path, perfetto.together(*predicted, *seen))
