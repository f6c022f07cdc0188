"""The application: routes, how long a request waits for its answer, and what is shown meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from windtunnel import networks
from windtunnel.errors import UnknownName, WindtunnelError
from windtunnel.reports.page import Markup, element, joined
from windtunnel.web import assets, layout, states
from windtunnel.web.allowed import AllowedJobs
from windtunnel.web.pages import accuracy, forecast, guide, machines, studies
from windtunnel.web.pages import networks as network_pages
from windtunnel.web.security import LOOPBACK, Application, Guard
from windtunnel.web.state import PageState, read_state, read_what_is_right
from windtunnel.web.worker_pool import Busy, Reply, Ticket, WorkerPool

_PAGE_SECONDS = 0.7  # a page waits so long for its first answer, then comes with a note that it is coming
_PART_SECONDS = 1.0  # a part likewise; the script then asks again
PARTS = ("forecast", "advice", "factors", "scaling", "feed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSetup:
    """What the application needs. `port` None accepts the names of `hosts` without a port only."""

    allowed: AllowedJobs
    pool: WorkerPool
    hosts: frozenset[str] = LOOPBACK
    port: int | None = None


def create_app(setup: PageSetup) -> Application:
    """The page as an ASGI application."""
    pages = _Pages(setup)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        setup.pool.end()

    routes = [
        Route("/", pages.forecast),
        Route("/part/{name}", pages.part),
        Route("/machines", pages.plain(machines.every, "Machines")),
        Route("/machines/{name}", pages.plain(machines.one, "Machines")),
        Route("/networks", pages.plain(network_pages.every, "Networks")),
        Route("/networks/{name}", pages.network),
        Route("/part/networks/{name}", pages.network_part),
        Route("/studies", pages.plain(pages.studies.every, "Studies")),
        Route("/studies/{name}", pages.study),
        Route("/part/studies/{name}", pages.study_part),
        Route("/part/studies/{name}/{figure}", pages.study_part),
        Route("/accuracy", pages.plain(accuracy.every, "Accuracy")),
        Route("/accuracy/{name}", pages.plain(accuracy.one, "Accuracy")),
        Route("/guide", pages.plain(guide.first, "Guide")),
        Route("/guide/{name}", pages.guide),
        Route("/static/{name}", pages.static),
    ]
    handlers: dict[Any, Any] = {HTTPException: pages.wrong, Exception: pages.fault}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return Guard(app, setup.hosts, setup.port)


class _Pages:
    """The handlers of all routes."""

    def __init__(self, setup: PageSetup) -> None:
        self.allowed, self.pool = setup.allowed, setup.pool
        self.studies = studies.Studies(setup.pool.setup.studies)
        self._forms = forecast.Forms(self.allowed)

    # The forecast

    async def forecast(self, request: Request) -> Response:
        try:
            state = read_state(request.query_params.multi_items(), self.allowed)
        except WindtunnelError as error:
            readable = read_what_is_right(request.query_params.multi_items(), self.allowed)
            form = self._forms.form(readable, batch=None, typed=dict(request.query_params))
            body = forecast.body(form, states.refusal(error.message, error.hint), None)
            return self._page("Forecast", body, "Forecast", status=400)
        found = await self._asked("forecast", state, _PAGE_SECONDS)
        batch = found.facts.get("batch") if isinstance(found, Reply) else None
        form = self._forms.form(state, batch=batch)
        body = forecast.body(form, _shown(found), state)
        title = f"{state.job} on {', '.join(state.on)}"
        waits = f"/?{state.query()}" if isinstance(found, Ticket) else None
        return self._page(title, body, "Forecast", waits=waits)

    async def part(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PARTS:
            raise HTTPException(404)
        try:
            state = read_state(request.query_params.multi_items(), self.allowed)
        except WindtunnelError as error:
            return _fragment(states.refusal(error.message, error.hint), 400)
        return self._piece(request, await self._asked(name, state, _PART_SECONDS), f"{name} of {state.job}")

    async def _asked(self, task: str, state: PageState, seconds: float) -> Reply | Ticket | Busy:
        """The answer to a question about a state, or its ticket if it takes longer."""
        stamp = self.allowed.stamp(state.job)
        found = await self._wait(task, state.query(), state.job, seconds, stamp)
        if task == "forecast" and isinstance(found, Reply) and found.state == "done":
            for ahead in forecast.next_states(state, found.facts):
                self.pool.ahead(ahead.query(), ahead.job, stamp)
        return found

    async def _wait(
        self, task: str, query: str, job: str, seconds: float, stamp: str = "", **details: object
    ) -> Reply | Ticket | Busy:
        try:
            ticket = self.pool.ask(task, query, job, stamp, **details)
        except Busy as error:
            return error
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(ticket.future)), seconds)
        return ticket

    # Pages that a worker fills

    async def network(self, request: Request) -> Response:
        entry = self._network(request)
        found = await self._wait("network", f"job={entry.name}", entry.name, _PAGE_SECONDS)
        body = network_pages.body(entry, _shown(found))
        return self._page(
            entry.title, body, "Networks", waits=_path(request) if isinstance(found, Ticket) else None
        )

    async def network_part(self, request: Request) -> Response:
        entry = self._network(request)
        found = await self._wait("network", f"job={entry.name}", entry.name, _PART_SECONDS)
        return self._piece(request, found, entry.title)

    def _network(self, request: Request) -> networks.NetworkEntry:
        try:
            return networks.named(request.path_params["name"])
        except UnknownName as error:
            raise HTTPException(404, error.message) from error

    async def study(self, request: Request) -> Response:
        study = await run_in_threadpool(self.studies.find, request.path_params["name"])
        found = await self._wait("study", study.name, study.name, _PAGE_SECONDS, self._rows_stamp())
        body = studies.body(study, _shown(found))
        return self._page(
            study.title, body, "Studies", waits=_path(request) if isinstance(found, Ticket) else None
        )

    async def study_part(self, request: Request) -> Response:
        study = await run_in_threadpool(self.studies.find, request.path_params["name"])
        figure = request.path_params.get("figure")
        if figure is not None and figure not in {each.name for each in study.figures}:
            raise HTTPException(404, f"The study {study.name} has no figure {figure[:60]!r}.")
        details = {"figure": figure} if figure else {}
        stamp = self._rows_stamp()
        found = await self._wait("study", study.name, study.name, _PART_SECONDS, stamp, **details)
        return self._piece(request, found, study.title)

    def _rows_stamp(self) -> str:
        """Changes with the rows: what was measured while the page runs is shown."""
        setup = self.pool.setup
        paths = [path for path in (setup.store, *setup.rows) if path is not None]
        return ";".join(_stamp(path) for path in paths)

    # Pages that need no worker

    def plain(self, make: Callable[..., tuple[str, Markup]], section: str) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            title, body = await run_in_threadpool(make, *request.path_params.values())
            return self._page(title, body, section)

        return page

    async def guide(self, request: Request) -> Response:
        found = await run_in_threadpool(guide.one, request.path_params["name"])
        if isinstance(found, assets.Asset):
            return Response(found.body, media_type=found.kind)
        return self._page(*found, "Guide")

    async def static(self, request: Request) -> Response:
        asset = assets.named(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        headers = {"etag": asset.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, media_type=asset.kind, headers=headers)

    # What goes wrong

    async def wrong(self, request: Request, error: HTTPException) -> Response:
        message, hint = states.NOT_FOUND
        if error.status_code == 404 and error.detail not in ("", "Not Found"):
            message = str(error.detail)
        body = states.error_page(message, hint)
        return self._page(message, body, "", status=error.status_code)

    async def fault(self, request: Request, error: Exception) -> Response:
        if isinstance(error, WindtunnelError):
            return self._page("Error", states.error_page(error.message, error.hint), "", status=400)
        return self._page("Error", states.error_page(*states.FAULT), "", status=500)

    def _piece(self, request: Request, found: Reply | Ticket | Busy, title: str) -> Response:
        """A part of a page for the script; a whole page for a browser that follows its link without one."""
        if request.headers.get("sec-fetch-dest") != "document":
            return _part(found)
        body = joined([element("h1", f"{title[:1].upper()}{title[1:]}"), _shown(found)])
        return self._page(title, body, "", waits=_path(request) if isinstance(found, Ticket) else None)

    def _page(
        self, title: str, body: Markup, section: str, status: int = 200, waits: str | None = None
    ) -> Response:
        return HTMLResponse(layout.page(title, body, section, waits), status_code=status)


def _stamp(path: Path) -> str:
    """When a file was changed, and how long it is."""
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_mtime_ns}:{found.st_size}"


def _path(request: Request) -> str:
    return str(request.url.path)


def _shown(found: Reply | Ticket | Busy) -> Markup:
    """An answer as it is shown in its place: the answer, why there is none, or how far it is."""
    if isinstance(found, Busy):
        return states.busy(found.message)
    if isinstance(found, Ticket):
        return states.progress(found.stage, found.seconds, str(found.request.get("task", "")))
    if found.state == "done":
        return Markup(found.text)
    if found.state == "refused":
        return states.refusal(found.message, found.hint)
    return states.refusal(*states.FAULT)


def _part(found: Reply | Ticket | Busy) -> Response:
    status, headers = 200, {}
    if isinstance(found, Busy):
        status, headers = 503, {"retry-after": "3"}
    elif isinstance(found, Ticket):
        status, headers = 202, {"retry-after": "1"}
    elif found.state == "done":
        headers = {f"x-{name}": str(value) for name, value in found.facts.items() if name in ("batch", "cpu")}
    elif found.state == "refused":
        status = 422
    else:
        status = 500
    return _fragment(_shown(found), status, headers)


def _fragment(text: Markup, status: int, headers: dict[str, str] | None = None) -> Response:
    return HTMLResponse(text, status_code=status, headers=headers)
