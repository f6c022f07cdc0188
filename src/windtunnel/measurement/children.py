"""The parent's side of a child process: start it, listen to its messages, say by name how it failed."""

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windtunnel.errors import MeasurementFailed
from windtunnel.measurement import environment

_LIVING = set[int]()


def spawn(
    command: Sequence[str],
    order: Mapping[str, Any],
    around: Mapping[str, str],
    threads: int | None,
    timeout: float,
) -> dict[str, Any]:
    """One order in a fresh interpreter, pinned to as many processors as it has threads; its last argument is where it shall speak."""
    return report(*_converse(command, order, around, threads, timeout), timeout)


def spawn_shared(
    command: Sequence[str],
    order: Mapping[str, Any],
    around: Mapping[str, str],
    threads: int | None,
    timeout: float,
) -> list[dict[str, Any] | MeasurementFailed | None]:
    """An order of several tasks: for each what the child told of it, how it failed, or None where the child never came to it."""
    messages, code, timed_out, errors = _converse(command, order, around, threads, timeout)
    parts = list[list[dict[str, Any]]]()
    for message in messages:
        if message["kind"] == "task":
            parts.append([])
        elif parts:
            parts[-1].append(message)
    found = list[dict[str, Any] | MeasurementFailed | None]()
    for part in parts:
        try:
            found.append(report(part, code, timed_out, errors, timeout))
        except MeasurementFailed as error:
            found.append(error)
    return found + [None] * (len(order["tasks"]) - len(found))


def _converse(
    command: Sequence[str],
    order: Mapping[str, Any],
    around: Mapping[str, str],
    threads: int | None,
    timeout: float,
) -> tuple[list[dict[str, Any]], int, bool, str]:
    """All that a child says from its start to its end, and how it ended."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors, pinned(threads):
        child = subprocess.Popen(
            [*command, str(writer)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            pass_fds=(writer,),
            env=dict(around),
            start_new_session=True,  # so that what the child itself starts can be ended with it
        )
        _LIVING.add(child.pid)
        os.close(writer)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(order).encode())
                child.stdin.close()
            messages, timed_out = listen(reader, timeout)
            if timed_out:
                _end_group(child.pid)
            code = child.wait()
            _end_group(child.pid)  # what it started and left behind would hold its turn, and disturb the next
        except BaseException:
            _end_group(child.pid)
            child.wait()
            raise
        finally:
            _LIVING.discard(child.pid)
        return messages, code, timed_out, tail(errors)


def end_all() -> None:
    """End every child of this process, whichever thread waits for it: nobody wants their results any more."""
    for leader in tuple(_LIVING):
        _end_group(leader)


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@contextlib.contextmanager
def pinned(threads: int | None) -> Iterator[None]:
    """Children inherit the processors of the thread that starts them, so this one is pinned for that moment; None leaves it free."""
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


def listen(reader: int, timeout: float) -> tuple[list[dict[str, Any]], bool]:
    """All messages of a child until it closes its pipe or its time is up; sleeps in between. Waiting for its turn is not its time."""
    deadline = time.monotonic() + timeout
    data = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left if left < math.inf else None)[0]:
                return _decode(data), True
            chunk = pipe.read(1 << 16)
            if not chunk:
                return _decode(data), False
            data += chunk
            waits, turn = (chunk.rfind(f'"kind": "{kind}"'.encode()) for kind in ("waits", "turn"))
            if waits != turn:
                deadline = math.inf if waits > turn else time.monotonic() + timeout


def _decode(data: bytes) -> list[dict[str, Any]]:
    """What reads as a message; anything else that came through the pipe is nobody's."""
    messages = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict) and _is_whole(message):
                messages.append(message)
    return messages


def _is_whole(message: dict[str, Any]) -> bool:
    kind = message.get("kind")
    if kind == "samples":
        seconds = message.get("seconds")
        told = (
            isinstance(message.get("phase"), str)
            and isinstance(message.get("steps"), int)
            and isinstance(seconds, list)
        )
        return told and all(isinstance(second, (int, float)) for second in seconds or ())
    if kind == "failed":
        return all(isinstance(message.get(name), str) for name in ("state", "error", "hint"))
    return isinstance(kind, str)


def report(
    messages: list[dict[str, Any]], code: int, timed_out: bool, errors: str, timeout: float
) -> dict[str, Any]:
    """What a child told, in one piece; or how it failed, by name."""
    report: dict[str, Any] = {"samples": {}}
    for message in messages:
        if message["kind"] == "samples":
            entry = report["samples"].setdefault(message["phase"], {"steps": message["steps"], "seconds": []})
            entry["seconds"] += message["seconds"]
        elif message["kind"] not in ("waits", "turn"):
            report[message["kind"]] = message
    if "done" in report:
        return report
    if "failed" in report:
        failed = report["failed"]
        raise MeasurementFailed(
            f"The step could not be measured ({failed['state']}): {failed['error']}",
            state=failed["state"],
            hint=failed["hint"],
        )
    if timed_out:
        raise MeasurementFailed(
            f"A process gave no result within {timeout:.0f} s and was ended.",
            state="timeout",
            hint="Give more time with --timeout, or measure a smaller job.",
        )
    if code < 0:
        name = signal.Signals(-code).name
        state = "killed" if name == "SIGKILL" else "crashed"
        raise MeasurementFailed(
            f"A process was ended by {name} before it had a result.{errors}",
            state=state,
            hint="SIGKILL most often means that memory ran out: try a smaller batch."
            if state == "killed"
            else "Its last words are above.",
        )
    raise MeasurementFailed(
        f"A process ended with code {code} and no result.{errors}",
        state="no result",
        hint="Its last words are above.",
    )


def tail(file: Any) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return "\n    " + "\n    ".join(lines[-5:]) if lines else ""
