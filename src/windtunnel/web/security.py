"""Which requests are answered, and the headers of every answer.

The page runs no code of a browser and reads no path that it names (`allowed`, `state`). What is kept away
here: other hosts' names (a foreign page whose name resolves to this machine), other methods than GET and
HEAD, bodies, requests of other pages for parts that cost work, and long addresses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MOST_QUERY = 4096  # bytes
_MOST_PATH = 300


class Guard:
    """An ASGI layer before the routes. `hosts` are the names under which the page may be asked."""

    def __init__(self, app: Application, hosts: frozenset[str], port: int | None) -> None:
        self.app = app
        self.hosts = hosts | (frozenset(f"{host}:{port}" for host in hosts) if port else frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            return
        refusal = self.refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message.get("headers", [])}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the words with which a request is refused; None if it may pass."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1").lower() for value in headers.get(b"host", [])]
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return (
                421,
                "This page is not served under that name. Use the address that windtunnel serve printed.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This page is only read: GET and HEAD."
        if b"transfer-encoding" in headers or headers.get(b"content-length", [b"0"]) != [b"0"]:
            return 413, "A request here has no body."
        if len(scope.get("query_string", b"")) > _MOST_QUERY or len(scope["path"]) > _MOST_PATH:
            return 414, "The address is too long."
        if not self._is_own(headers):
            return 403, "Another page asked for this. Open it from the page of windtunnel itself."
        return None

    def _is_own(self, headers: dict[bytes, list[bytes]]) -> bool:
        """Whether a browser asks by itself or for this page. A link on another page may be followed."""
        site = headers.get(b"sec-fetch-site", [b"none"])[0]
        mode = headers.get(b"sec-fetch-mode", [b"navigate"])[0]
        place = headers.get(b"sec-fetch-dest", [b"document"])[0]
        return site in (b"none", b"same-origin") or (mode == b"navigate" and place == b"document")


async def _refuse(send: Send, status: int, words: str) -> None:
    body = f"{words}\n".encode()
    own = {**HEADERS, "content-type": "text/plain; charset=utf-8", "content-length": str(len(body))}
    if status == 405:
        own["allow"] = "GET, HEAD"
    headers = [(name.encode(), value.encode()) for name, value in own.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
