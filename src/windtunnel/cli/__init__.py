"""The command line: parse arguments, call one function, print its result. No arithmetic here.

No framework is imported before a command needs it.
"""

from __future__ import annotations

import errno
import sys
import warnings
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

  1    a fault in windtunnel itself, or (validate) forecasts outside their tolerances

  2    the input cannot be used, does not fit, is not available here, or failed to run

  130  interrupted; measurements so far are saved

[bold]Options of every command[/bold]

  --trace-seconds S  stop a job that takes longer to trace (600; WINDTUNNEL_TRACE_SECONDS)

  --trace-memory B   stop a job that takes more memory (80 % of the machine's; WINDTUNNEL_TRACE_MEMORY)

  --no-cache         trace again, although nothing has changed (WINDTUNNEL_CACHE=off; else a folder)

  --debug            show the traceback of an error
"""

_MOST_TEXT = 8_000  # characters of an error

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("predict", help=predict.HELP)(predict.predict)
app.command("measure", help=measure.HELP)(measure.measure)
app.command("advise", help=advise.HELP)(advise.advise)
app.command("plan", help=plan.HELP)(plan.plan)
app.command("feed", help=feed.HELP)(feed.feed)
app.command("factors", help=factors.HELP)(factors.factors)
app.command("report", help=report.HELP)(report.report)
app.command("compare", help=compare.HELP)(compare.compare)
app.command("exchange", help=exchange.HELP)(exchange.exchange)
app.command("train", help=train.HELP)(train.train)
app.command("validate", help=validate.HELP)(validate.validate)
app.command("crossover", help=crossover.HELP)(crossover.crossover)
app.command("serve", help=serve.HELP)(serve.serve)
app.add_typer(frameworks.app, name="frameworks")
app.add_typer(machine.app, name="machine")
app.add_typer(network.app, name="network")
app.add_typer(store.app, name="store")
app.add_typer(study.app, name="study")


# The base class of Typer's errors for unknown options, missing arguments and wrong values.
_WrongWords: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


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
    except _WrongWords as error:
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
