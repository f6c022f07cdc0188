"""The parent's side of a child process: start it, read its messages, and turn a failure into a named
error."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from windtunnel import child_lifetime
from windtunnel.errors import BadRecord, MeasurementFailed
from windtunnel.measurement import environment, report
from windtunnel.measurement.process import END
from windtunnel.measurement.report import ProcessReport
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.measurement.order import ChildOrder

_RUNNING = set[int]()
# Allowed from a child's last message to its exit: frameworks write their caches when they unload.
_GRACE_SECONDS = 2.0
_CRASH_SECONDS = 20.0  # allowed from the end of the messages to the exit of a child that crashes
_KEPT_BYTES, _CHUNKS = 1 << 14, 64  # of a child's output; chunks that are read at once
_MOST_LINE = 1 << 28  # bytes of a message: a timeline of a million ops has fewer
_LINE = 300  # characters of a printed line that an error shows
Message = Plain
OnMessage = Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a child: the command, to which the numbers of this process and of the pipe are added, its
    environment, and the number of threads to whose processors it is pinned, None for all."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """All messages of a child, and how it ended."""

    messages: Sequence[Message]
    code: int
    timed_out: bool
    errors: str
    timeout_seconds: float


class SentOrder(Protocol):
    """The order for a child: as plain data, with the most seconds to wait for a message."""

    @property
    def timeout_seconds(self) -> float: ...

    def plain(self) -> Plain: ...


def _ignore(message: Message) -> None:
    """Ignore a child's messages."""


def spawn(launch: Launch, order: ChildOrder, on_message: OnMessage = _ignore) -> ProcessReport:
    """Carry out one order in a fresh interpreter. Raises MeasurementFailed, with the reason, if there is no
    report."""
    return report_of(run_child(launch, order, on_message))


def spawn_shared(launch: Launch, order: ChildOrder) -> list[ProcessReport | MeasurementFailed | None]:
    """Carry out an order of several tasks. The result is a report or a failure for each, or None if the child
    ended before it."""
    assert order.tasks is not None
    ending = run_child(launch, order)
    parts = list[list[Message]]()
    for message in ending.messages:
        if message["kind"] == "task":
            parts.append([])
        elif parts:
            parts[-1].append(message)
    outcomes = list[ProcessReport | MeasurementFailed | None]()
    for part in parts:
        try:
            outcomes.append(report_of(ending, part))
        except MeasurementFailed as error:
            outcomes.append(error)
    return outcomes + [None] * (len(order.tasks.tasks) - len(outcomes))


def run_child(launch: Launch, order: ChildOrder, on_message: OnMessage = _ignore) -> ChildResult:
    """Start a child, send it the order, and read its messages until it ends."""
    return start(launch, order, on_message).finish()


def fork(
    run: Callable[[int], None], threads: int | None, timeout: float, on_message: OnMessage = _ignore
) -> ProcessReport:
    """Call `run` with the pipe's number in a copy of this process, for a job that exists only here."""
    return report_of(start_fork(run, threads, timeout, on_message).finish())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A running child: our ends of three pipes (its messages, our lines to it, its output). `wait(seconds)`
    returns its exit code, or None if it still runs; None waits without limit."""

    pid: int
    messages: int
    words: int
    errors: int
    wait: Callable[[float | None], int | None]
    mark: str = ""


class RunningChild:
    """A running child. Its messages are read until it ends, or until it waits for a line from us.

    A message must come within `timeout` seconds; waits for a lock do not count.
    """

    def __init__(self, started: _Started, timeout: float, on_message: OnMessage) -> None:
        self.started, self.timeout, self.on_message = started, timeout, on_message
        self.messages = list[Message]()
        self.rest, self.timed_out, self.words_open = bytearray(), False, True
        self.printed, self.prints = b"", True
        os.set_blocking(started.errors, False)
        _RUNNING.add(started.pid)

    def listen(self, until: str = "") -> bool:
        """Read messages. True if one of the kind `until` came before the child ended or the time was over."""
        deadline = time.monotonic() + self.timeout
        while True:
            left, pipe = deadline - time.monotonic(), self.started.messages
            pipes = [pipe, self.started.errors] if self.prints else [pipe]
            ready = select.select(pipes, [], [], left if left < math.inf else None)[0] if left > 0 else []
            if not ready:
                self.timed_out = True
                return False
            if self.started.errors in ready:
                self._keep_printed()
            if pipe not in ready:
                continue
            chunk = os.read(pipe, 1 << 16)
            kinds = [self._hear(message) for message in filter(None, map(_decode, self._lines_with(chunk)))]
            if "waits" in kinds or "locked" in kinds:
                waiting = [kind for kind in kinds if kind in ("waits", "locked")][-1] == "waits"
                deadline = math.inf if waiting else time.monotonic() + self.timeout
            if until in kinds:
                return True
            if not chunk:
                return False

    def _lines_with(self, chunk: bytes) -> Sequence[bytearray]:
        """The lines that this chunk completes. A job may also write into the pipe, so a line that is longer
        than any message is dropped."""
        self.rest += chunk
        if chunk and b"\n" not in chunk:
            if len(self.rest) > _MOST_LINE:
                self.rest.clear()
            return ()
        *lines, self.rest = self.rest.split(b"\n") if chunk else [self.rest, bytearray()]
        return lines

    def _hear(self, message: Message) -> str:
        self.messages.append(message)
        self.on_message(message)
        return str(message["kind"])

    def _keep_printed(self) -> None:
        """Keep only the end of the child's output; all of it could fill the disk."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_CHUNKS):
                chunk = os.read(self.started.errors, 1 << 16)
                if not chunk:
                    self.prints = False
                    return
                self.printed = (self.printed + chunk)[-_KEPT_BYTES:]

    def tell(self, word: str) -> None:
        """Send a line. No error if the child has ended: its result says why."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.started.words, f"{word}\n".encode())

    def send_end(self) -> None:
        """Send an empty line, which ends the turns: closing the pipe is not enough if a forked sibling keeps
        it open."""
        if self.words_open:
            self.words_open = False
            self.tell("")
            os.close(self.started.words)

    def finish(self) -> ChildResult:
        """Read the remaining messages, and wait for the child to exit."""
        self.send_end()
        try:
            ended = not self.timed_out and self.listen(END)
            if self.timed_out:
                self._end()
            code = self._wait(ended)  # also ends what it left running, which would disturb the next child
        except BaseException:
            self.abandon()
            raise
        self._keep_printed()
        self._close()
        return ChildResult(
            messages=self.messages,
            code=code,
            timed_out=self.timed_out,
            errors=_last_lines(self.printed),
            timeout_seconds=self.timeout,
        )

    def _wait(self, ended: bool) -> int:
        """The exit code. A child that has sent its last message or closed its pipe has some seconds to exit
        by itself."""
        code = self.started.wait(_GRACE_SECONDS if ended else _CRASH_SECONDS)
        if code is None:
            self._end()
        elif code == -signal.SIGKILL:  # perhaps not the worker, but its keeper
            child_lifetime.kill_marked(self.started.mark)
        return 0 if ended or code is None else code

    def _end(self) -> None:
        wait = self.started.wait
        child_lifetime.end(self.started.pid, lambda seconds: wait(seconds) is not None, self.started.mark)

    def abandon(self) -> None:
        """End the child now; its results are not needed."""
        if self.started.pid in _RUNNING:
            self._end()
            self.send_end()
            self._close()

    def _close(self) -> None:
        _RUNNING.discard(self.started.pid)
        os.close(self.started.messages)
        os.close(self.started.errors)


def start(launch: Launch, order: SentOrder, on_message: OnMessage = _ignore) -> RunningChild:
    """Start a child in a fresh interpreter and send it the order."""
    messages, writer = os.pipe()
    reader, words = os.pipe()
    errors, printed = os.pipe()
    mark = child_lifetime.new_mark()
    with pinned(launch.threads):
        child = subprocess.Popen(
            [*launch.command, str(os.getpid()), str(writer)],
            stdin=reader,
            stdout=printed,
            stderr=printed,
            pass_fds=(writer,),
            env={**launch.environment, child_lifetime.MARK: mark},
            start_new_session=True,  # so that what the child starts can be ended with it
        )
    for theirs in (writer, reader, printed):
        os.close(theirs)
    wait = functools.partial(_wait_for, child)
    started = _Started(pid=child.pid, messages=messages, words=words, errors=errors, wait=wait, mark=mark)
    conversation = RunningChild(started, order.timeout_seconds, on_message)
    conversation.tell(json.dumps(order.plain()))
    return conversation


def start_fork(
    run: Callable[[int], None], threads: int | None, timeout: float, on_message: OnMessage = _ignore
) -> RunningChild:
    """Start a copy of this process, which calls `run` with the number of the pipe for its messages."""
    messages, writer = os.pipe()
    reader, words = os.pipe()
    errors, printed = os.pipe()
    own = os.getpid()
    with pinned(threads):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            child_lifetime.keep(own)
            os.dup2(reader, 0)
            os.dup2(printed, 2)
            for inherited in (messages, words, reader, errors, printed):
                os.close(inherited)
            try:
                run(writer)
            finally:
                os._exit(0)
    with contextlib.suppress(OSError):  # the child does the same, and either may come first
        os.setpgid(pid, pid)
    for theirs in (writer, reader, printed):
        os.close(theirs)
    wait = functools.partial(_wait, pid, [])
    started = _Started(pid=pid, messages=messages, words=words, errors=errors, wait=wait)
    return RunningChild(started, timeout, on_message)


def _wait_for(child: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


def _wait(pid: int, known: list[int], seconds: float | None) -> int | None:
    """Wait for a forked child. Its exit code can be read only once, so it is kept in `known`."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    while not known and time.monotonic() < end:
        found, status = os.waitpid(pid, 0 if seconds is None else os.WNOHANG)
        if found:
            known.append(os.waitstatus_to_exitcode(status))
        else:
            time.sleep(0.005)
    return known[0] if known else None


def end_all() -> None:
    """End every child of this process, whichever thread waits for it."""
    for child in tuple(_RUNNING):
        child_lifetime.tell_to_end(child)


@contextlib.contextmanager
def pinned(threads: int | None) -> Iterator[None]:
    """Pin this thread while a child is started: the child inherits the processors of that thread."""
    wanted = None if threads is None else environment.cpus_for(threads)
    if wanted is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _decode(line: bytearray) -> Message | None:
    """A message, or None for anything else that came through the pipe."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and _is_whole(message):
            return message
    return None


def _is_whole(message: Message) -> bool:
    kind = message.get("kind")
    if kind == "samples":
        seconds = message.get("seconds")
        whole = isinstance(message.get("phase"), str) and isinstance(message.get("steps"), int)
        return whole and isinstance(seconds, list) and all(isinstance(s, (int, float)) for s in seconds)
    if kind == "failed":
        return all(isinstance(message.get(name), str) for name in ("state", "error", "hint"))
    return isinstance(kind, str)


def report_of(ending: ChildResult, messages: Sequence[Message] | None = None) -> ProcessReport:
    """The child's report, assembled from its messages. Raises MeasurementFailed with the reason if it
    failed."""
    messages = ending.messages if messages is None else messages
    kinds = {message["kind"]: message for message in messages}
    if "done" in kinds:
        try:
            return report.assemble(messages)
        except BadRecord as error:
            raise MeasurementFailed(
                f"A process sent a report that cannot be read: {error.message}", state="no result"
            ) from error
    if "failed" in kinds:
        failed = kinds["failed"]
        raise MeasurementFailed(
            f"The step could not be measured ({failed['state']}): {failed['error']}",
            state=failed["state"],
            hint=failed["hint"],
        )
    raise silent_failure(ending)


def silent_failure(ending: ChildResult) -> MeasurementFailed:
    """The error for a child that ended without a report."""
    if ending.timed_out:
        return MeasurementFailed(
            f"A process gave no result within {ending.timeout_seconds:.0f} s and was ended.",
            state="timeout",
            hint="Give more time with --timeout, or measure a smaller job.",
        )
    hint = "Its last lines of output are above."
    if ending.code >= 0:
        return MeasurementFailed(
            f"A process ended with code {ending.code} and no result.{ending.errors}",
            state="no result",
            hint=hint,
        )
    killed, name = -ending.code == signal.SIGKILL, child_lifetime.signal_name(-ending.code)
    return MeasurementFailed(
        f"A process was ended by {name} before it had a result.{ending.errors}",
        state="killed" if killed else "crashed",
        hint="SIGKILL most often means that memory ran out: try a smaller batch." if killed else hint,
    )


def _last_lines(printed: bytes) -> str:
    lines = [line[:_LINE] for line in printed.decode(errors="replace").strip().splitlines()]
    return "\n    " + "\n    ".join(lines[-5:]) if lines else ""
