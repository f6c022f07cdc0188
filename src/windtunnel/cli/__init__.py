"""The command line: parse arguments, call one function, print its result. No arithmetic here.

No framework is imported before a command needs it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import windtunnel
from windtunnel.cli import (
    compare,
    crossover,
    feed,
    frameworks,
    machine,
    measure,
    network,
    predict,
    study,
    validate,
    words,
)
from windtunnel.errors import WindtunnelError

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

Add --debug to any command to see the traceback of an error.
"""

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("predict", help=predict.HELP)(predict.predict)
app.command("measure", help=measure.HELP)(measure.measure)
app.command("feed", help=feed.HELP)(feed.feed)
app.command("compare", help=compare.HELP)(compare.compare)
app.command("validate", help=validate.HELP)(validate.validate)
app.command("crossover", help=crossover.HELP)(crossover.crossover)
app.add_typer(frameworks.app, name="frameworks")
app.add_typer(machine.app, name="machine")
app.add_typer(network.app, name="network")
app.add_typer(study.app, name="study")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(windtunnel.__version__)
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
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(arguments, standalone_mode=True)
    except WindtunnelError as error:
        if debug:
            raise
        print(words.fitted(f"{type(error).__name__}: {error}", sys.stderr), file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as error:
        code = getattr(error, "code", 130)
        if code == 130:
            print("Interrupted before anything was measured or trained.", file=sys.stderr)
        sys.exit(code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
