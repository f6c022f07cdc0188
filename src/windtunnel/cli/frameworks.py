"""windtunnel frameworks list | install | check"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.cli import words
from windtunnel.cli.printing import say, tell
from windtunnel.errors import MeasurementFailed, WindtunnelError
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.measurement.frameworks.agreement import FrameworkComparison

app = typer.Typer(
    help="The frameworks that jobs are measured in, each in its own Python.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

CHECK_HELP = """
Check that frameworks do the same work: compare the losses of ten steps of every job with a reference.

The reference is NumPy by hand, and PyTorch for the jobs that NumPy does not build.

[bold]Examples[/bold]

  windtunnel frameworks check

  windtunnel frameworks check jax
"""
INSTALL_HELP = """
Build the isolated environment of a framework that this Python lacks, with versions that were tested together.

An installation that fails or is interrupted leaves nothing behind.

[bold]Examples[/bold]

  windtunnel frameworks install jax

  windtunnel frameworks install all
"""


@app.command(
    "list",
    help="Every framework: where it is, version, devices, jobs; and which can no longer be installed.\n\n"
    "Example: windtunnel frameworks list --json",
)
def list_frameworks(as_json: words.Json = False) -> None:
    from windtunnel.measurement.frameworks import catalogue

    rows = [_row(name) for name in catalogue.names()]
    gone = [_gone_row(name) for name in catalogue.names(gone=True)]
    words.show(as_json, lambda: [*rows, *gone], lambda: _table(rows, gone))


@app.command("install", help=INSTALL_HELP)
def install_framework(
    name: Annotated[
        str, typer.Argument(metavar="NAME|all", help="A framework of: windtunnel frameworks list")
    ],
    fresh: Annotated[bool, typer.Option("--fresh", help="Rebuild an environment that exists.")] = False,
) -> None:
    from windtunnel.measurement.frameworks import catalogue, installation

    built: set[str] = set()
    failed = []
    for each in catalogue.names() if name == "all" else [name]:
        environment = catalogue.named(each).environment
        try:
            where = installation.install(each, fresh=fresh and environment not in built, tell=_tell)
        except WindtunnelError as error:
            if name != "all":
                raise
            tell(f"{type(error).__name__}: {error}")
            failed.append(each)
            continue
        built.add(environment)
        say(f"{each:<18}{_versions(each):<34}{where}")
    if failed:
        raise typer.Exit(2)


@app.command("check", help=CHECK_HELP)
def check_frameworks(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One framework. Default: all that are installed.")
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.measurement.frameworks import agreement, catalogue

    installed = [each for each in catalogue.names() if catalogue.python_for(each) is not None]
    comparisons: list[FrameworkComparison] = []
    failures: list[str] = []
    for each in [name] if name else installed:
        try:
            comparisons += agreement.check(each)
        except MeasurementFailed as error:
            if name:
                raise
            failures.append(f"{each}: {error}")
    words.show(
        as_json,
        lambda: [each.plain() for each in comparisons] + [{"failed": text} for text in failures],
        lambda: _comparison_table(comparisons, failures),
    )
    if failures or not all(each.agrees for each in comparisons):
        raise typer.Exit(1)


def _row(name: str) -> Plain:
    from windtunnel.measurement.frameworks import catalogue, installation

    framework, python = catalogue.named(name), catalogue.python_for(name)
    state = (
        "not installed"
        if python is None
        else "this Python"
        if python == Path(sys.executable)
        else "own environment"
    )
    return {
        "name": name,
        "title": framework.title,
        "status": framework.status,
        "state": "outdated environment"
        if state == "own environment" and installation.is_outdated(framework)
        else state,
        "versions": installation.versions(name),
        "python": str(python) if python else None,
        "variants": {job: list(variants) for job, variants in framework.variants.items()},
        "devices": list(framework.devices),
        "reason": framework.reason,
    }


def _gone_row(name: str) -> Plain:
    from windtunnel.measurement.frameworks import catalogue

    framework = catalogue.named(name)
    return {
        "name": name,
        "title": framework.title,
        "status": "gone",
        "reason": framework.reason,
        "successor": framework.successor,
    }


def _table(rows: list[Plain], gone: list[Plain]) -> str:
    lines = [f"{'name':<18}{'where':<21}{'version':<30}{'devices':<9}", "    jobs with their variants"]
    for row in rows:
        variants = "  ".join(f"{job}: {' '.join(variants)}" for job, variants in row["variants"].items())
        devices, versions = " ".join(row["devices"]), _shown(row["versions"])
        lines += [
            f"{row['name']:<18}{row['state']:<21}{versions:<30}{devices:<9}".rstrip(),
            f"    {variants}",
        ]
    lines += [
        "",
        *(f"{row['name']} is {row['status']}: {row['reason']}." for row in rows if row["status"] != "living"),
    ]
    lines += ["", "These can no longer be installed; their published figures stay in the tables:"]
    return "\n".join(
        [*lines, *(f"  {row['name']:<16}{row['reason']}; its successor: {row['successor']}" for row in gone)]
    )


def _comparison_table(comparisons: list[FrameworkComparison], failures: list[str]) -> str:
    head = f"{'framework:variant':<24}{'job':<10}{'data':<10}{'optimiser':<11}{'parameters':>10}"
    lines = [f"{head}  {'apart by':>9}  verdict"]
    for each in comparisons:
        task, verdict = each.task, "the same" if each.agrees else each.difference
        start = f"{task.label:<24}{task.job:<10}{task.data:<10}{task.optimizer:<11}{each.parameters:>10}"
        lines.append(f"{start}  {each.apart:>9.1e}  {verdict}")
    return "\n".join([*lines, *failures])


def _versions(name: str) -> str:
    from windtunnel.measurement.frameworks import installation

    return _shown(installation.versions(name))


def _shown(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "-"


def _tell(text: str) -> None:
    tell(text)
