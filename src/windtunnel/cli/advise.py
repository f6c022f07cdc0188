"""windtunnel advise"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from windtunnel.cli import levels, predict, words
from windtunnel.cli import task_options as tasks
from windtunnel.cli.copied_options import with_options_of
from windtunnel.cli.printing import say
from windtunnel.cli.task import advise_task
from windtunnel.errors import BadInput, Unavailable
from windtunnel.machine.machine import LOCAL_MACHINES
from windtunnel.strategy import Strategy

if TYPE_CHECKING:
    from windtunnel.advice.proof import Proofs
    from windtunnel.advice.result import Advice
    from windtunnel.measurement.compare import ComparisonStage

HELP = """
Say what to change in a job, or which network fits a task or your data.

With a JOB, every change that applies is tried in the forecast, alone and then together.

Each piece of advice has its gain with an interval, its memory, what it costs, the reason, a source, the flag
of windtunnel and the line of PyTorch. Options say how the job runs today, as for predict. The machine need
not be available, and the job need not fit on it.

[bold]Examples[/bold]

  windtunnel advise rnn n_rec=50 n_steps=100

  windtunnel advise resnet50 --on h200 --batch 64

  windtunnel advise my_job.py:build --measure

  windtunnel advise gpt2 --on h200 --apply plan.toml

  windtunnel predict --strategy plan.toml

  windtunnel advise                                   (asks step by step)

  windtunnel advise --task "classify images" --inputs 784 --outputs 10 --examples 60000 --error 0.03

  windtunnel advise --data flowers.csv --target species --error 5% --time 1m

A gain compares the time of an example. Its interval holds four of five true gains; "?" marks one that
includes 1. --measure measures the first ones here, in turn with the unchanged job.

Without a JOB, the guide's rules choose a network for --task; with --data, networks are trained on your data
from shallow to deep, and the best is kept.
"""
_TODAY = "How the job runs today"
_WITHOUT_JOB = (
    "task",
    "inputs",
    "outputs",
    "error",
    "time",
    "target",
    "header",
    "to",
    "seed",
    "fresh",
    "plot",
)
_DATA = (
    "With a JOB, where its data set lies, as for predict. Without one, your data: FILE.csv, .npy, .npz, "
    ".txt, or a folder with one folder of pictures for each class."
)

MeasureTop = Annotated[
    bool,
    typer.Option(
        "--measure", help="Measure the first pieces of advice here, in turn with the unchanged job."
    ),
]
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=1, max=86400, help="With --measure: at most this many seconds for each."),
]
Top = Annotated[
    int, typer.Option("--top", min=1, help="Pieces of advice that are shown in detail, and measured.")
]
Everything = Annotated[
    bool, typer.Option("--all", help="Also show what does not help or does not apply, and why.")
]
Thorough = Annotated[
    bool,
    typer.Option(
        "--thorough",
        help="Ask PyTorch's compiler for compiled steps on a GPU, 20 to 60 s for some networks. Default: a "
        "simple rule of what is fused.",
    ),
]
Apply = Annotated[
    Path | None,
    typer.Option(
        "--apply",
        metavar="FILE",
        help="Write the best combination to this file (.toml or .json); predict and measure read it with "
        "--strategy.",
        show_default=False,
    ),
]
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="NAME", help="With --apply: this advice alone.", show_default=False),
]


@with_options_of(predict.predict, "timeline", "batches", title=_TODAY)
def advise(
    context: typer.Context,
    job: words.OptionalJob = None,
    on: words.On = "here",
    measure: MeasureTop = False,
    seconds: Seconds = 60.0,
    top: Top = 3,
    everything: Everything = False,
    thorough: Thorough = False,
    apply: Apply = None,
    only: Only = None,
    data: Annotated[str, typer.Option("--data", help=_DATA)] = "resident",
    task: tasks.TaskName = None,
    inputs: tasks.Inputs = None,
    outputs: tasks.Outputs = None,
    error: tasks.Error = None,
    time: tasks.TimeLimit = None,
    target: tasks.TargetName = None,
    header: tasks.Header = None,
    to: tasks.ToFolder = None,
    seed: tasks.LadderSeed = 0,
    fresh: tasks.Again = False,
    plot: tasks.PlotFile = None,
    store: levels.StoreFile = None,
    as_json: words.Json = False,
    **today: Any,
) -> None:
    given = words.typed_options(context)
    if not job and today["strategy_file"] is None:
        return advise_task(
            tasks.TaskOptions(
                task=task,
                inputs=inputs,
                outputs=outputs,
                examples=today["examples"],
                error=error,
                time=time,
                on=on,
                data=Path(data) if "data" in given else None,
                target=target,
                header=header,
                to=to,
                seed=seed,
                fresh=fresh,
                plot=plot,
                as_json=as_json,
            )
        )
    _refuse_without_job(given)
    _advise_job(
        context,
        _JobOptions(job, on, measure, seconds, top, everything, thorough, apply, only, store, as_json),
        {**today, "data": data},
    )
    return None


def _advise_job(context: typer.Context, options_of: _JobOptions, today: dict[str, Any]) -> None:
    from windtunnel.advice.engine import AdviceOptions
    from windtunnel.advice.engine import advise as find_advice

    job, on, measure, seconds, top, everything, thorough, apply, only, store, as_json = options_of
    plan = words.read_plan(today["strategy_file"], context)
    named, on = words.job_of(plan, job), words.machine_of(plan, on)
    if only is not None and apply is None:
        raise BadInput("--only says what --apply writes, and --apply is missing.", hint="Add --apply FILE.")
    if apply is not None:
        _refuse_plan_file(apply)
    if measure and on not in LOCAL_MACHINES:
        raise Unavailable(
            f"--measure runs on this machine only, not on {on}.",
            hint="Leave --measure out, or use --on here, --on cpu or --on cuda.",
        )
    fields = {field.name for field in dataclasses.fields(Strategy)}
    strategy = words.make_strategy(plan, **{name: today[name] for name in today if name in fields})
    further = words.further_options(plan, today)
    workload = words.with_stored_data(
        words.find_job(named), further["example_bytes"], further["decode"], further["examples"]
    )
    machine = predict.find_machine(on, further["storage"], further["host"], further["host_factor"])
    with levels.show_line() as say:
        options = AdviceOptions(
            thorough=thorough,
            seconds=600.0 if thorough else 60.0,
            on=on,
            storage=further["storage"] or "",
            progress=say if sys.stderr.isatty() else lambda text: None,
        )
        advice = find_advice(workload, machine, strategy, options=options)
    proofs = _prove(advice, top, seconds, store) if measure else None
    words.show(
        as_json,
        lambda: {**advice.plain(), **({"measured": proofs.plain()} if proofs else {})},
        lambda: _text(advice, proofs, top, everything),
    )
    if apply is not None:
        _write(advice, apply, only, further, as_json)


class _JobOptions(NamedTuple):
    """The options of advice for a job."""

    job: list[str] | None
    on: str
    measure: bool
    seconds: float
    top: int
    everything: bool
    thorough: bool
    apply: Path | None
    only: str | None
    store: Path | None
    as_json: bool


def _refuse_without_job(given: frozenset[str]) -> None:
    for name in _WITHOUT_JOB:
        if name in given:
            raise BadInput(
                f"--{name} is for a task or your own data, and a job was named.",
                hint=f"Leave the job out, or leave --{name} out.",
            )


def _text(advice: Advice, proofs: Proofs | None, top: int, everything: bool) -> str:
    lines = advice.lines(top=top, everything=everything)
    return "\n".join([*lines, "", *proofs.lines()] if proofs else lines)


def _prove(advice: Advice, top: int, seconds: float, store: Path | None) -> Proofs:
    from windtunnel.advice.proof import prove
    from windtunnel.measurement.store import Store

    with levels.show_line() as say:

        def tell(name: str, stage: ComparisonStage) -> None:
            say(f"{name}: {stage.pairs} pairs, {stage.seconds:.0f} of at most {stage.most_seconds:.0f} s")

        return prove(advice, top=top, seconds=seconds, store=Store(store), progress=tell)


def _refuse_plan_file(path: Path) -> None:
    if path.suffix not in (".toml", ".json"):
        raise BadInput(f"--apply {path}: a plan is a TOML or JSON file.", hint="Name it plan.toml.")
    words.refuse_unwritable(path, "--apply")


def _write(advice: Advice, path: Path, only: str | None, further: dict[str, Any], as_json: bool) -> None:
    plan = advice.plan(only)
    if plan is None:
        what = "no combination on this machine helps and fits"
        if only:
            what = f"{only} needs new code, or a machine that --on cannot name"
        raise BadInput(f"--apply: {what}, so there is no plan to write.", hint="See --all.")
    has_new_machine = plan.on != advice.base.setup.on
    hosts = ("host", "host_factor") if has_new_machine else ()  # a new machine has a host of its own
    kept = {name: value for name, value in further.items() if value is not None and name not in hosts}
    plan = dataclasses.replace(plan, options={**kept, **plan.options})
    plan.save(path)
    if not as_json:
        say(f"\nwrote {path}: {plan.why}\n    windtunnel predict --strategy {path}")
