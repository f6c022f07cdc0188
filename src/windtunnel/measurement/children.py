"""The parent's side of a child process: start it, read its messages, and name how it failed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from windtunnel.errors import BadRecord, MeasurementFailed
from windtunnel.measurement import environment, report
from windtunnel.measurement.report import ProcessReport
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.measurement.order import ChildOrder

_LIVING = set[int]()
Message = Plain
Hear = Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a child: the command, to which the pipe's number is added, its environment, and the number
    of threads to whose processors it is pinned, None for all."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """All messages of a child, and how it ended."""

    messages: Sequence[Message]
    code: int
    timed_out: bool
    errors: str
    timeout_seconds: float


def _ignore(message: Message) -> None:
    """For a parent that does not follow what its child does."""


def spawn(launch: Launch, order: ChildOrder, hear: Hear = _ignore) -> ProcessReport:
    """Carry out one order in a fresh interpreter. MeasurementFailed says by name why there is no report."""
    return report_of(converse(launch, order, hear))


def spawn_shared(launch: Launch, order: ChildOrder) -> list[ProcessReport | MeasurementFailed | None]:
    """Carry out an order of several tasks: a report or a failure for each, None where the child ended before
    it."""
    assert order.tasks is not None
    ending = converse(launch, order)
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


def converse(launch: Launch, order: ChildOrder, hear: Hear = _ignore) -> Ending:
    """Start a child, hand it the order, and read all its messages until it ends."""
    timeout = order.protocol.timeout_seconds
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors, pinned(launch.threads):
        child = subprocess.Popen(
            [*launch.command, str(writer)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            pass_fds=(writer,),
            env=dict(launch.environment),
            start_new_session=True,  # so that what the child starts can be ended with it
        )
        _LIVING.add(child.pid)
        os.close(writer)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(order.plain()).encode())
                child.stdin.close()
            messages, timed_out = _listen(reader, timeout, hear)
            if timed_out:
                _end_group(child.pid)
            code = child.wait()
            _end_group(child.pid)  # what it left running would hold its lock, and disturb the next
        except BaseException:
            _end_group(child.pid)
            child.wait()
            raise
        finally:
            _LIVING.discard(child.pid)
        return Ending(
            messages=messages,
            code=code,
            timed_out=timed_out,
            errors=_last_lines(errors),
            timeout_seconds=timeout,
        )


def fork(
    run: Callable[[int], None], threads: int | None, timeout: float, hear: Hear = _ignore
) -> ProcessReport:
    """Call `run` with the pipe's number in a copy of this process, for a job that exists only here."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors, pinned(threads):
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.dup2(errors.fileno(), 2)
            try:
                run(writer)
            finally:
                os._exit(0)
        os.close(writer)
        try:
            messages, timed_out = _listen(reader, timeout, hear)
            if timed_out:
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return report_of(
            Ending(
                messages=messages,
                code=os.waitstatus_to_exitcode(status),
                timed_out=timed_out,
                errors=_last_lines(errors),
                timeout_seconds=timeout,
            )
        )


def end_all() -> None:
    """End every child of this process, whichever thread waits for it: their results are no longer wanted."""
    for leader in tuple(_LIVING):
        _end_group(leader)


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@contextlib.contextmanager
def pinned(threads: int | None) -> Iterator[None]:
    """Pin this thread for a moment: a child inherits the processors of the thread that starts it."""
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


def _listen(reader: int, timeout: float, hear: Hear) -> tuple[list[Message], bool]:
    """All messages of a child until it closes its pipe or its time is up. Waits for a lock do not count."""
    deadline = time.monotonic() + timeout
    messages, rest = list[Message](), b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left if left < math.inf else None)[0]:
                return messages, True
            chunk = pipe.read(1 << 16)
            *lines, rest = (rest + chunk).split(b"\n") if chunk else [rest, b""]
            for message in filter(None, map(_decode, lines)):
                messages.append(message)
                hear(message)
                if message["kind"] in ("waits", "locked"):
                    deadline = math.inf if message["kind"] == "waits" else time.monotonic() + timeout
            if not chunk:
                return messages, False


def _decode(line: bytes) -> Message | None:
    """A message, or None for anything else that came through the pipe."""
    with contextlib.suppress(ValueError):
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


def report_of(ending: Ending, messages: Sequence[Message] | None = None) -> ProcessReport:
    """What a child reported, in one piece; or how it failed, by name."""
    messages = ending.messages if messages is None else messages
    kinds = {message["kind"]: message for message in messages}
    if "done" in kinds:
        try:
            return report.assemble(messages)
        except BadRecord as error:
            raise MeasurementFailed(
                f"A process gave a report that cannot be read: {error.message}", state="no result"
            ) from error
    if "failed" in kinds:
        failed = kinds["failed"]
        raise MeasurementFailed(
            f"The step could not be measured ({failed['state']}): {failed['error']}",
            state=failed["state"],
            hint=failed["hint"],
        )
    raise _silent_failure(ending)


def _silent_failure(ending: Ending) -> MeasurementFailed:
    """How a child failed that had no time to say so."""
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
    name = signal.Signals(-ending.code).name
    killed = name == "SIGKILL"
    return MeasurementFailed(
        f"A process was ended by {name} before it had a result.{ending.errors}",
        state="killed" if killed else "crashed",
        hint="SIGKILL most often means that memory ran out: try a smaller batch." if killed else hint,
    )


def _last_lines(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return "\n    " + "\n    ".join(lines[-5:]) if lines else ""
