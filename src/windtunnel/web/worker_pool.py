"""The workers of the page: who answers which question, who waits, and which answers are kept.

Two kinds of workers, so that nobody who moves a slider waits for another one's trace. Quick workers price
kept traces. What needs a trace goes to the tracing workers; steps that a slider may ask for next are traced
ahead while these have nothing else to do. Every question has a limit of time and memory; a worker that
exceeds it is ended and started again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import JobStopped, WindtunnelError
from windtunnel.isolation.contained import Answer, Contained
from windtunnel.isolation.limits import TraceLimits
from windtunnel.records import Plain
from windtunnel.units import GIB, MIB

_WORKER = "windtunnel.web.worker"
_HEARD = 1 << 40  # what a worker may say about its progress
_AHEAD, _ASKED = 1, 0  # priorities: what somebody waits for comes first
QUICK = frozenset({"forecast", "scaling", "feed"})  # first tried with kept traces only


class Busy(WindtunnelError):
    """Too many questions wait already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetup:
    """What workers are told and allowed.

    files       registered job files by their labels
    cache       folder of kept traces
    store       store of measurements, which is only read; `rows`: files of further rows of studies
    studies     folders of registered studies by name
    seconds     for each question; `trace_seconds` for one trace within it
    bytes       for a worker with its children
    most_waiting  questions that may wait; further ones are refused
    """

    cache: Path
    files: Mapping[str, str] = field(default_factory=dict)
    store: Path | None = None
    rows: tuple[Path, ...] = ()
    studies: Mapping[str, str] = field(default_factory=dict)
    quick_workers: int = 2
    tracing_workers: int = 2
    quick_seconds: float = 20.0
    seconds: float = 180.0
    trace_seconds: float = 90.0
    quick_bytes: int = int(1.5 * GIB)
    bytes: int = 4 * GIB
    most_waiting: int = 128
    most_ahead: int = 48
    kept_bytes: int = 64 * MIB

    def plain(self, traces: bool) -> Plain:
        return {
            "job": "the page",
            "files": dict(self.files),
            "cache": str(self.cache),
            "store": str(self.store) if self.store else "",
            "rows": [str(path) for path in self.rows],
            "studies": dict(self.studies),
            "traces": traces,
            "trace_seconds": self.trace_seconds,
            "trace_bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a question: its text, or why there is none. `state` is "done", "refused" or "fault"."""

    state: str
    text: str = ""
    facts: Plain = field(default_factory=dict)
    message: str = ""
    hint: str = ""


class Ticket:
    """A question that was asked, and how far its answer is."""

    def __init__(self, key: str, request: Plain) -> None:
        self.key, self.request = key, request
        self.future: Future[Reply] = Future()
        self.since = time.monotonic()
        self.stage = "waiting for a free worker"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    def hear(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            self.stage = lines[-1][:200]


class _Lane:
    """Workers of one kind and the tickets that wait for them."""

    def __init__(self, pool: WorkerPool, traces: bool) -> None:
        setup = pool.setup
        self.pool, self.traces = pool, traces
        self.limits = TraceLimits(
            seconds=setup.seconds if traces else setup.quick_seconds,
            bytes=setup.bytes if traces else setup.quick_bytes,
            output_bytes=_HEARD,
        )
        self.waiting: list[tuple[int, int, Ticket]] = []
        self.numbers = itertools.count()
        self.ready = threading.Condition()
        self.ended = False
        count = setup.tracing_workers if traces else setup.quick_workers
        # One tracing worker traces ahead; the others stay free for those who wait.
        self.threads = [
            threading.Thread(target=self._work, args=(number == 0,), daemon=True) for number in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def put(self, ticket: Ticket, priority: int) -> None:
        with self.ready:
            heapq.heappush(self.waiting, (priority, next(self.numbers), ticket))
            self.ready.notify_all()

    def count(self, priority: int) -> int:
        with self.ready:
            return sum(each[0] == priority for each in self.waiting)

    def end(self) -> None:
        with self.ready:
            self.ended = True
            self.ready.notify_all()
        for thread in self.threads:
            thread.join(timeout=1.0)

    def _take(self, ahead: bool) -> Ticket | None:
        with self.ready:
            while not self.ended and (not self.waiting or (self.waiting[0][0] == _AHEAD and not ahead)):
                self.ready.wait()
            return None if self.ended else heapq.heappop(self.waiting)[2]

    def _start(self) -> Contained:
        """A worker that is ready. Starting one takes long on a busy machine, so it has the longer limit."""
        patient = dataclasses.replace(self.limits, seconds=self.pool.setup.seconds)
        child = Contained(patient).start(_WORKER)
        child.ask(self.pool.setup.plain(self.traces))
        child.limits = self.limits
        return child

    def _work(self, ahead: bool) -> None:
        child: Contained | None = None
        with contextlib.suppress(Exception):  # the first question says what is wrong
            child = self._start()
        while (ticket := self._take(ahead)) is not None:
            try:
                if child is None or not child.is_alive:
                    ticket.stage = "starting a worker"
                    child = self._start()
                ticket.stage = "tracing the step" if self.traces else "pricing the step"
                child.hear = ticket.hear
                reply = _reply(child.ask(ticket.request))
            except JobStopped as error:
                reply = Reply(state="refused", message=error.message, hint=error.hint)
            except Exception as error:  # a worker that cannot be started, for example
                reply = Reply(state="fault", message=f"{type(error).__name__}: {error}")
            self.pool.settle(ticket, reply, self.traces)
        if child is not None:
            child.end()


class WorkerPool:
    """Asks workers, joins equal questions, and keeps answers up to a limit of bytes."""

    def __init__(self, setup: PoolSetup, report: Callable[[str], None] = lambda text: None) -> None:
        """`report` hears of faults of windtunnel itself, which no browser sees."""
        self.setup, self._report = setup, report
        self._lock = threading.Lock()
        self._asked: dict[str, Ticket] = {}
        self._kept: OrderedDict[str, Ticket] = OrderedDict()
        self._kept_bytes = 0
        self._quick, self._tracing = _Lane(self, traces=False), _Lane(self, traces=True)

    def ask(self, task: str, query: str, job: str, stamp: str = "", **details: object) -> Ticket:
        """The ticket of a question: answered, being answered, or new. Raises Busy if too many wait."""
        key = f"{task}?{query}#{stamp}#{sorted(details.items())}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            if key in self._asked:
                return self._asked[key]
            if len(self._asked) >= self.setup.most_waiting:
                raise Busy(f"{len(self._asked)} questions wait already.", hint="Try again in a few seconds.")
            ticket = Ticket(key, {"task": task, "query": query, "job": job, **details})
            self._asked[key] = ticket
        (self._quick if task in QUICK else self._tracing).put(ticket, _ASKED)
        return ticket

    def ahead(self, query: str, job: str, stamp: str = "", **details: object) -> None:
        """Trace a step that somebody may ask for next, if there is room."""
        if self._tracing.count(_AHEAD) < self.setup.most_ahead:
            key = f"ahead?{query}#{stamp}#{sorted(details.items())}"
            with self._lock:
                if key in self._kept or key in self._asked:
                    return
            ticket = Ticket(key, {"task": "ahead", "query": query, "job": job, **details})
            self._tracing.put(ticket, _AHEAD)

    def settle(self, ticket: Ticket, reply: Reply, traced: bool) -> None:
        """Hand over an answer; a quick worker that found no trace passes the question on."""
        if reply.state == "needs trace" and not traced:
            ticket.stage = "waiting for a free tracer"
            self._tracing.put(ticket, _ASKED)
            return
        with self._lock:
            self._asked.pop(ticket.key, None)
            if reply.state == "done":
                self._kept[ticket.key] = ticket
                self._kept_bytes += len(reply.text)
                while self._kept_bytes > self.setup.kept_bytes and len(self._kept) > 1:
                    _, old = self._kept.popitem(last=False)
                    self._kept_bytes -= len(old.future.result().text)
        if reply.state == "fault":
            self._report(f"{ticket.key}: {reply.message}")
        ticket.future.set_result(reply)

    def end(self) -> None:
        self._quick.end()
        self._tracing.end()


def _reply(answer: Answer) -> Reply:
    facts = answer.facts
    return Reply(
        state=str(facts["state"]),
        text=answer.body.decode("utf-8", "replace"),
        facts=dict(facts.get("facts") or {}),
        message=str(facts.get("message", "")),
        hint=str(facts.get("hint", "")),
    )
