"""windtunnel exchange, and the options about differences between workers"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.cli import words
from windtunnel.errors import BadInput
from windtunnel.machine.machine import Machine

if TYPE_CHECKING:
    from windtunnel.exchange.run import ExchangeSettings
    from windtunnel.exchange.variation import Variation

HELP = """
Simulate how workers exchange their updates: step time, examples a second, waiting and staleness of each form.

[bold]Forms[/bold]

  sync    all-reduce of gradients in every step       server  the same through a parameter server

  async   each worker by itself with the server       mixed   sync inside of groups, async between them

  local   an average of all weights after some steps  diloco  the same with an outer optimizer

[bold]Examples[/bold]

  windtunnel exchange resnet50 --on guide-figure-6 --jitter 0.1

  windtunnel exchange gpt2 --on 8x8xh100 --workers 8,16,32,64 --slow 1 --slow-factor 1.5
"""

Forms = Annotated[
    str, typer.Option("--forms", help="The forms, with commas. Default: all.", show_default=False)
]
WorkerCounts = Annotated[
    str | None,
    typer.Option(
        "--workers",
        help="Numbers of workers, with commas. Default: doubled up to all devices.",
        show_default=False,
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        min=1,
        help="Groups of mixed. Default: one on each node; two of real workers.",
        show_default=False,
    ),
]
Every = Annotated[int, typer.Option("--every", help="Local steps between two averages (H) of local, diloco.")]
Staleness = Annotated[
    int | None,
    typer.Option(
        "--staleness",
        help="The most steps that an async worker may be ahead of the slowest one. Default: no limit.",
        show_default=False,
    ),
]
Jitter = Annotated[
    float, typer.Option("--jitter", help="Standard deviation of a step's time, as a share of its mean.")
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        help="Measured seconds of steps, one a line, or the log of a real worker (worker-0.jsonl). Steps "
        "vary as they do, around the forecast.",
        show_default=False,
    ),
]
Spread = Annotated[
    float,
    typer.Option(
        "--spread", help="Standard deviation of the workers' own mean times: a slow worker stays slow."
    ),
]
Slow = Annotated[int, typer.Option("--slow", help="How many workers are always slower than the others.")]
SlowFactor = Annotated[
    float, typer.Option("--slow-factor", help="How many times as long a step of them takes.")
]
PauseShare = Annotated[float, typer.Option("--pause-share", help="Share of all steps that meet a pause.")]
PauseFactor = Annotated[
    float, typer.Option("--pause-factor", help="How many times as long such a step takes.")
]
FailuresPerDay = Annotated[
    float, typer.Option("--failures", help="Failures of one worker in a day.", show_default=False)
]
Restart = Annotated[float, typer.Option("--restart", help="Seconds until a worker that failed goes on.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]
_DAY = 86400.0


def exchange(
    job: words.Job,
    on: words.On = "here",
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    forms: Forms = "",
    workers: WorkerCounts = None,
    groups: Groups = None,
    every: Every = 10,
    staleness: Staleness = None,
    jitter: Jitter = 0.0,
    samples: Samples = None,
    spread: Spread = 0.0,
    slow: Slow = 0,
    slow_factor: SlowFactor = 2.0,
    pause_share: PauseShare = 0.0,
    pause_factor: PauseFactor = 2.0,
    failures: FailuresPerDay = 0.0,
    restart: Restart = 300.0,
    seed: Seed = 0,
    as_json: words.Json = False,
) -> None:
    from windtunnel.exchange import forms as known
    from windtunnel.exchange.comparison import compare_forms
    from windtunnel.exchange.costs import WorkerForecasts

    names = [known.named(name.strip()).name for name in forms.split(",")] if forms else list(known.FORMS)
    settings = make_settings(groups, every, staleness)
    variation = make_variation(
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
    machine = Machine.find(on)
    counts = _counts(workers, machine.devices * machine.nodes)
    strategy = words.make_strategy(batch=batch, precision=precision)
    forecasts = WorkerForecasts.of(words.find_job(job), machine, strategy)
    table = compare_forms(forecasts, counts, names=names, settings=settings, variation=variation, seed=seed)
    words.show(as_json, table.plain, lambda: str(table))


def make_settings(groups: int | None, every: int, staleness: int | None) -> ExchangeSettings:
    from windtunnel.exchange.run import ExchangeSettings

    return ExchangeSettings(groups=groups or 1, every=every, staleness=staleness)


def make_variation(*, samples: Path | None, failures: float, **options: float) -> Variation:
    from windtunnel.exchange.samples import read_samples
    from windtunnel.exchange.variation import Variation

    if samples is not None and options["jitter"]:
        raise BadInput("--samples and --jitter both say how steps vary.", hint="Leave one of them out.")
    measured = read_samples(samples) if samples is not None else ()
    return Variation(samples=measured, failure_rate=failures / _DAY, **options)  # type: ignore[arg-type]


def _counts(text: str | None, most: int) -> list[int]:
    """The numbers of workers that the option names; by default 1, 2, 4 ... and all, and the guide's 40."""
    if text is None:
        from windtunnel.exchange.comparison import GUIDE_LIMIT

        doubled = {2**power for power in range(most.bit_length()) if 2**power <= most}
        return sorted(doubled | {most} | ({GUIDE_LIMIT} if most >= GUIDE_LIMIT else set()))
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise BadInput(
            f"--workers {text} is not a list of numbers.", hint="Write --workers 1,4,16."
        ) from None
