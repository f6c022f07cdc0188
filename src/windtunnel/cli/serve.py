"""windtunnel serve"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel import folders, ownership
from windtunnel.cli import containment, levels
from windtunnel.cli.printing import tell
from windtunnel.errors import BadInput, Unavailable

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")
HELP = """
Show forecasts, machines, networks, studies and the accuracy of forecasts in a browser.

The page is for this machine only, unless --host says otherwise. It runs no code that a browser sends and
reads no file that a browser names: your own jobs are those of --job. Stop it with Ctrl-C.

[bold]Examples[/bold]

  windtunnel serve

  windtunnel serve --job my_job.py:build --port 9000

  windtunnel serve --rows docs/results/wuensche-2018-xeon.json
"""
_INSTALL = "pip install 'windtunnel[web]'"
_LEAST_PORT, _MOST_PORT = 1, 65535


def serve(
    job: Annotated[
        list[str] | None,
        typer.Option("--job", help="A job file that the page may show: path/to/file.py:function."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address on which the page is served.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port.")] = 8765,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            help="A further name under which browsers may ask, for a page that is not on loopback.",
        ),
    ] = None,
    store: levels.StoreFile = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option("--rows", help="Further rows of a study, as study export wrote them (FILE.json)."),
    ] = None,
    study: Annotated[
        list[Path] | None,
        typer.Option("--study", help="A folder of a study of your own that the page may show."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=16, help="Processes that trace jobs at the same time.")
    ] = 2,
) -> None:
    _require_web()
    import uvicorn

    from windtunnel.study import export
    from windtunnel.web.allowed import AllowedJobs
    from windtunnel.web.app import PageSetup, create_app
    from windtunnel.web.security import LOOPBACK
    from windtunnel.web.state import PageState
    from windtunnel.web.worker_pool import PoolSetup, WorkerPool

    allowed = AllowedJobs.with_files(job or ())
    for path in rows or ():
        if not path.is_file():
            raise BadInput(
                f"--rows {path}: there is no such file.", hint="windtunnel study export writes one."
            )
        export.read(path)  # a file of another kind is an error before anything starts
    for option, name in (("--host", host), *(("--allow-host", each) for each in allow_host or ())):
        _refuse_odd_host(option, name)
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    hosts = frozenset(name.lower() for name in allow_host or ())
    hosts |= LOOPBACK if is_loopback(host) else {host.lower()}
    with ownership.temporary_folder(kind="page") as spare:
        setup = PoolSetup(
            **_limits(),
            cache=_cache(spare),
            files=allowed.files,
            store=store or folders.store_file(),
            rows=tuple(path.resolve() for path in rows or ()),
            studies=_studies(study or ()),
            tracing_workers=workers,
        )
        pool = WorkerPool(setup, report=tell)
        pool.ahead(PageState().query(), PageState().job)  # PyTorch starts while the browser opens
        app = create_app(PageSetup(allowed=allowed, pool=pool, hosts=hosts, port=port))
        shown = f"[{host}]" if ":" in host else host
        tell(f"Windtunnel is at http://{shown}:{port}/  (Ctrl-C stops it)")
        if not is_loopback(host):
            tell(_open_caution(host))
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=400,
            timeout_keep_alive=10,
            server_header=False,
            proxy_headers=False,
            ws="none",
        )
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            pool.end()
            listening.close()


def _studies(folders: Sequence[Path]) -> dict[str, str]:
    """Folders of studies by their names; a folder that is no study is an error before anything starts."""
    from windtunnel.study.study import load, names

    found = {}
    for folder in folders:
        whole = load(folder)
        if whole.name in names():
            raise BadInput(
                f"--study {folder}: the catalogue has a study of this name.", hint="Rename the folder."
            )
        found[whole.name] = str(folder.resolve())
    return found


def _require_web() -> None:
    """Raise an error that says how to install what the page needs, if it is missing."""
    import importlib.util

    missing = [name for name in ("starlette", "uvicorn", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"The page needs {', '.join(missing)}.", hint=f"Install it with: {_INSTALL}")


def _listen(host: str, port: int) -> socket.socket:
    """An open socket, so that a port in use is a clear error before anything starts."""
    if port != 0 and not _LEAST_PORT <= port <= _MOST_PORT:
        raise BadInput(f"--port must be from {_LEAST_PORT} to {_MOST_PORT}, not {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)  # browsers that connect early wait
    except OSError as error:
        listening.close()
        raise BadInput(
            f"Nothing can be served on {host} port {port}: {error.strerror or error}.",
            hint="Use another port, for example --port 8766, or stop the program that has this one.",
        ) from error
    return listening


def _refuse_odd_host(option: str, name: str) -> None:
    if not _HOST.fullmatch(name):
        raise BadInput(
            f"{option} {name!r} is not a host name.",
            hint="A host is like 127.0.0.1, ::1 or wind.example.org.",
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _open_caution(host: str) -> str:
    return (
        f"Caution: everybody who can reach {host} can use this page; there is no password. Browsers may "
        "ask under this address only; --allow-host adds a name."
    )


def _cache(spare: Path) -> Path:
    """The folder of cached traces, which workers share; a temporary folder if the cache is off."""
    from windtunnel.isolation.cache import folder_from

    line = containment.current_command_line()
    return (folder_from(os.environ) if line is None or line.keeps else None) or spare


def _limits() -> dict[str, Any]:
    """The limits of --trace-seconds and --trace-memory; without them the page has stricter limits of its
    own."""
    from windtunnel.isolation.limits import TraceLimits

    line, usual, found = containment.current_command_line(), TraceLimits(), dict[str, Any]()
    if line is not None and line.limits.seconds != usual.seconds:
        found |= {"trace_seconds": line.limits.seconds, "seconds": 2 * line.limits.seconds}
    if line is not None and line.limits.bytes:
        found |= {"bytes": line.limits.bytes}
    return found
