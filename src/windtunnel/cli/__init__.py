"""The command line: parse arguments, call one function, print its result. No arithmetic here.

No framework is imported before a command needs it.
"""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

import windtunnel
from windtunnel.cli import (
    advise,
    compare,
    containment,
    crossover,
    exchange,
    factors,
    feed,
    frameworks,
    machine,
    measure,
    network,
    plan,
    predict,
    report,
    serve,
    store,
    study,
    train,
    validate,
    words,
)
from windtunnel.cli.help_layout import HelpCommand
from windtunnel.cli.printing import cannot_print, say, tell
from windtunnel.errors import Note, WindtunnelError
from windtunnel.foreign import shown_lines
from windtunnel.isolation.jobs import JobFault

_HELP = """
Fly your training run before you build it: predict or measure a training step's time, memory and bottleneck.

[bold]Examples[/bold]

  windtunnel predict rnn n_rec=50 n_steps=100 --on h200

  windtunnel measure fcn5 --threads 2

  windtunnel predict my_job.py:build --on 8xh100 --batch 64 --precision bf16 --json

  windtunnel compare rnn threads=1 threads=2

  windtunnel machine list

[bold]Exit codes[/bold]

  0    done

  1    a fault of windtunnel itself; validate: forecasts outside tolerances

  2    bad input, does not fit, not available here, or failed to run

  130  interrupted; measurements so far are saved

[bold]Options of every command[/bold]

  --trace-seconds S  the most seconds to trace a job (600)

  --trace-memory B   the most memory to trace a job (80 % of the machine's)

  --no-cache         trace again although nothing has changed

  --debug            show the traceback of an error

Variables: WINDTUNNEL_TRACE_SECONDS, WINDTUNNEL_TRACE_MEMORY, WINDTUNNEL_CACHE (off, or a folder).
"""

_MOST_TEXT = 8_000  # characters of an error

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _add(name: str, command: Callable[..., None], text: str, short: str) -> None:
    """Add a command with its help, and the line about it in the list of commands."""
    app.command(name, help=text, short_help=short, cls=HelpCommand)(command)


_add(
    "predict",
    predict.predict,
    predict.HELP,
    "Predict the time, memory and bottleneck of a training or inference step.",
)
_add(
    "measure",
    measure.measure,
    measure.HELP,
    "Measure real steps on this machine, and compare them with the forecast.",
)
_add(
    "advise",
    advise.advise,
    advise.HELP,
    "Say what to change in a job, or which network fits a task or your data.",
)
_add("plan", plan.plan, plan.HELP, "Find the fastest, cheapest or smallest way to run a job on several GPUs.")
_add("feed", feed.feed, feed.HELP, "Show how well devices are fed with data, and the gain of each remedy.")
_add(
    "factors",
    factors.factors,
    factors.HELP,
    "Rank the factors of a step's time: network, batch, device, data flow ...",
)
_add("report", report.report, report.HELP, "Write the forecast of a job as one HTML file.")
_add(
    "compare",
    compare.compare,
    compare.HELP,
    "Compare two ways to run a job here: different, same or can't tell.",
)
_add(
    "exchange",
    exchange.exchange,
    exchange.HELP,
    "Simulate how workers exchange their updates: speed-up, waiting, staleness.",
)
_add("train", train.train, train.HELP, "Train a network with several real or simulated workers.")
_add("validate", validate.validate, validate.HELP, "Forecast measured steps again and show the errors.")
_add(
    "crossover",
    crossover.crossover,
    crossover.HELP,
    "Find the size from which on one device or framework is faster than another.",
)
_add("serve", serve.serve, serve.HELP, "Show forecasts, machines, networks and studies in a browser.")
app.add_typer(frameworks.app, name="frameworks")
app.add_typer(machine.app, name="machine")
app.add_typer(network.app, name="network")
app.add_typer(store.app, name="store")
app.add_typer(study.app, name="study")


# The base class of Typer's errors for unknown options, missing arguments and wrong values.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _print_version(wanted: bool) -> None:
    if wanted:
        say(windtunnel.__version__)
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Run the command line. An expected error prints its message; only --debug prints a traceback."""
    debug = "--debug" in sys.argv
    _print_notes()
    try:
        line = containment.read_command_line(sys.argv[1:])
        with containment.around(line):
            code = app(list(line.words), standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # a number: after --help, or by Ctrl-C
    except WindtunnelError as error:
        if debug:
            raise
        _print_error(f"{type(error).__name__}: {error}")
        sys.exit(error.exit_code)
    except _UsageError as error:
        _print_usage(error)
        sys.exit(2)
    except JobFault as error:
        _print_error(f"A fault of windtunnel itself, in the process of the job:\n{error}")
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as error:
        code = getattr(error, "code", 130)
        if code == 130:
            tell("Interrupted before anything was measured or trained.")
        sys.exit(code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if debug or error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename:
            raise
        full = cannot_print(error)  # text that Typer prints itself, such as --help
        _print_error(f"{type(full).__name__}: {full}")
        sys.exit(full.exit_code)


def _print_notes() -> None:
    """Print notes as lines on standard error; other warnings stay as they are."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, Note):
            _print_error(f"Note: {message}")
        else:
            usual(message, category, *rest, **more)

    warnings.simplefilter("always", Note)
    warnings.showwarning = show


def _print_usage(error: Any) -> None:
    """Print a usage error. Typer formats it; the text contains words of the user."""
    from typer import rich_utils

    text = shown_lines(error.format_message())
    error.format_message = lambda: text
    rich_utils.rich_format_error(error)


def _print_error(text: str) -> None:
    tell(words.fitted(shown_lines(_shortened(text)), sys.stderr))


def _shortened(text: str) -> str:
    """The text without its middle if it is very long: messages of a file or a job may have any length."""
    left_out = len(text) - _MOST_TEXT
    half = _MOST_TEXT // 2
    return f"{text[:half]} ... ({left_out:,} characters) ... {text[-half:]}" if left_out > 0 else text
