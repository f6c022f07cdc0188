"""windtunnel store check | repair"""

from __future__ import annotations

from pathlib import Path

import typer

from windtunnel.cli import levels, words

app = typer.Typer(
    help="The store of measurements: check it for damage, and repair a damaged one.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_DAMAGED_EXIT = 2
_CHECK = """
Read every row of the store and compare it with its checksum. Nothing is changed.

Exit code 2 if the store is damaged.

Example: windtunnel store check --store study.sqlite
"""
_REPAIR = """
Rebuild a damaged store from its undamaged rows.

The damaged store and the damaged rows are kept next to it. Cells that lost a process are measured again by
the next run.

Example: windtunnel store repair --store study.sqlite
"""


@app.command("check", help=_CHECK)
def check_store(store: levels.StoreFile = None, as_json: words.Json = False) -> None:
    from windtunnel.measurement import repair

    found = repair.check(_path(store))
    words.show(as_json, found.plain, lambda: str(found))
    if not found.is_whole:
        raise typer.Exit(_DAMAGED_EXIT)


@app.command("repair", help=_REPAIR)
def repair_store(store: levels.StoreFile = None, as_json: words.Json = False) -> None:
    from windtunnel.measurement import repair

    done = repair.repair(_path(store))
    words.show(as_json, done.plain, lambda: str(done))


def _path(store: Path | None) -> Path:
    from windtunnel.measurement.store import default_path

    return store or default_path()
