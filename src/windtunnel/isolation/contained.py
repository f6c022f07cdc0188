"""The parent's side of a contained process: start it, ask it, and name how it ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, NamedTuple

from windtunnel import child_lifetime
from windtunnel.errors import BadJob, JobStopped
from windtunnel.isolation.limits import TraceLimits
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.job.workload import Workload

OnMessage = Callable[[str], None]
_CHUNK = 1 << 16
_MOST_ANSWER = 1 << 30
_LOOK_SECONDS = 0.05  # between two looks at the child's memory
_GRACE_SECONDS = 2.0  # for the child to note where it is when its time is over
_END_SECONDS = 20.0  # for a child that closed its pipes to end: on a busy machine its keeper is slow
_KEPT_LINES = 5
_MOST_CHUNKS = 16  # of what a job prints are read at once: it may print faster than anyone reads
_LEFT_OUT = "\n(The job prints more; the rest is left out.)\n"
WHERE = signal.SIGUSR2  # asks the child to note where it is
CHILD = "windtunnel.isolation.child"
CLOSED = 86  # the exit code of a child that can no longer answer


class Answer(NamedTuple):
    """What the child said: its state with details, and the data."""

    facts: Plain
    body: bytes


class Contained:
    """A living child. It answers one request at a time; whatever ends it is named by JobStopped."""

    def __init__(self, limits: TraceLimits, hear: OnMessage | None = None) -> None:
        self.limits, self.hear = limits, hear
        self.pid = self.worker = 0
        self.mark = child_lifetime.new_mark()
        self.words = self.answers = self.errors = -1
        self.notes: IO[bytes] | None = None
        self.heard = 0
        self.last = ""
        self.doing = "traced"  # what happens to the job, in the messages

    def start(self, module: str = CHILD) -> Contained:
        """Start a fresh interpreter that answers requests: `module.main()`. The usual one begins to import
        PyTorch at once."""
        theirs = self._open()
        words, answers, errors, notes = theirs
        for number in (words, answers, notes):
            os.set_inheritable(number, True)
        command = [*child_lifetime.command(module), str(os.getpid())]
        command += map(str, (words, answers, notes))
        silent = os.open(os.devnull, os.O_RDONLY)
        actions = [(os.POSIX_SPAWN_DUP2, silent, 0), *((os.POSIX_SPAWN_DUP2, errors, n) for n in (1, 2))]
        # A group of its own, so that what the child starts can be ended with it.
        self.pid = os.posix_spawn(
            sys.executable,
            command,
            {**os.environ, child_lifetime.MARK: self.mark},
            file_actions=actions,
            setpgroup=0,
        )
        for number in (silent, *theirs[:3]):
            os.close(number)
        return self

    def fork(self, workload: Workload | None) -> Contained:
        """Start a copy of this process, for a job that exists only here or where PyTorch is loaded."""
        words, answers, errors, notes = self._open()
        sys.stdout.flush()
        sys.stderr.flush()
        own = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            child_lifetime.keep(own)
            from windtunnel.isolation import child

            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(errors, 2)
            for mine in (self.words, self.answers, self.errors):
                os.close(mine)
            child.start_in_fork((words, answers, notes), workload)
        with contextlib.suppress(OSError):  # the child does the same; whichever comes first
            os.setpgid(self.pid, self.pid)
        for number in (words, answers, errors):
            os.close(number)
        return self

    def _open(self) -> tuple[int, int, int, int]:
        """Three pipes and a file; returns the child's ends."""
        words, self.words = os.pipe()
        self.answers, answers = os.pipe()
        self.errors, errors = os.pipe()
        for mine in (self.words, self.answers, self.errors):
            os.set_blocking(mine, False)
        self.notes = tempfile.TemporaryFile()  # noqa: SIM115  `end` closes it
        return words, answers, errors, self.notes.fileno()

    @property
    def is_alive(self) -> bool:
        return self.pid > 0

    def ask(self, request: Plain) -> Answer:
        """Send a request and wait for the answer, within the limits."""
        what = f"{request['job']}"
        self.doing = str(request.get("doing", "traced"))
        try:
            line = json.dumps({**request, "bytes": self.limits.memory_bytes}).encode() + b"\n"
        except TypeError as error:
            raise BadJob(
                f"The settings of {what} are not plain data ({error}).",
                hint="Give numbers, text and lists of them, or do not isolate the job.",
            ) from error
        try:
            return self._converse(line, what)
        except BaseException:
            self.end()
            raise

    def _converse(self, line: bytes, what: str) -> Answer:
        end, received = time.monotonic() + self.limits.seconds, bytearray()
        looks = 0
        while True:
            readable, writable, _ = select.select(
                [self.answers, self.errors], [self.words] if line else [], [], _LOOK_SECONDS
            )
            if writable:
                line = self._send(line)
            if self.errors in readable:
                self._hear()
            if self.answers in readable:
                chunk = os.read(self.answers, _CHUNK)
                if not chunk:
                    raise self._named_end(what)
                received += chunk
                answer = _answer_in(received)
                if answer is not None:
                    self._hear()
                    return answer
                if len(received) > _MOST_ANSWER:
                    raise JobStopped(f"{what} sent more than {_MOST_ANSWER:,} bytes.", state="crashed")
            looks += 1
            if time.monotonic() > end:
                self._ask_for_line()
                raise self._timed_out(what)
            self._watch_memory(what, whole=looks % 20 == 0)

    def _send(self, line: bytes) -> bytes:
        try:
            return line[os.write(self.words, line) :]
        except BlockingIOError:
            return line
        except BrokenPipeError:  # the child has ended; its answers end, too
            return b""

    def _hear(self) -> None:
        """Pass on what the job prints, up to a limit."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_CHUNKS):
                chunk = os.read(self.errors, _CHUNK)
                if not chunk:
                    return
                text = chunk.decode(errors="replace")
                self.last = (self.last + text)[-4000:]
                room = self.limits.output_bytes - self.heard
                self.heard += len(chunk)
                if self.hear is not None and room >= 0:
                    is_last = len(chunk) > room
                    self.hear(text[:room] + (_LEFT_OUT if is_last else ""))
                    self.heard += is_last

    def _watch_memory(self, what: str, whole: bool) -> None:
        self.worker = self.worker or child_lifetime.worker_of(self.pid)
        used = _resident_bytes(self.worker)
        if whole:
            used = _resident_with_children(self.pid)
        if used > self.limits.memory_bytes:
            raise JobStopped(
                f"{what} took {_gib(used)} of memory while it was {self.doing}; "
                f"{_gib(self.limits.memory_bytes)} are allowed.",
                state="out of memory",
                hint=self._with_line("Allow more with --trace-memory, or use a smaller job."),
            )

    def _timed_out(self, what: str) -> JobStopped:
        return JobStopped(
            f"{what} did not end within {self.limits.seconds:g} s while it was {self.doing}, and was "
            "stopped.",
            state="timed out",
            hint=self._with_line("Allow more with --trace-seconds, or use a smaller job."),
        )

    def _named_end(self, what: str) -> JobStopped:
        """How a child ended that gave no answer."""
        self._hear()
        code = self._wait()
        if code is None or code == CLOSED:
            return JobStopped(
                f"{what} closed the files of its process, or changed Python itself, while it was "
                f"{self.doing}.",
                state="exited",
                hint=self._with_line("Let the job leave alone what it did not open or define."),
            )
        if code >= 0:
            return JobStopped(
                f"{what} ended its process with exit code {code} while it was {self.doing}.{self._said()}",
                state="exited",
                hint=self._with_line("Let the job return its workload, and not exit (os._exit)."),
            )
        name = child_lifetime.signal_name(-code)
        if -code == signal.SIGKILL:
            return JobStopped(
                f"{what} was ended by {name} while it was {self.doing}.{self._said()}",
                state="crashed",
                hint=self._with_line("Most often this means that memory ran out: try a smaller job."),
            )
        return JobStopped(
            f"{what} crashed by {name} while it was {self.doing}.{self._said()}",
            state="crashed",
            hint=self._with_line("The fault is in the job or in a library that it calls."),
        )

    def _wait(self) -> int | None:
        """The exit code of a child that closes its pipes; None if it lives on."""
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                code = os.waitstatus_to_exitcode(status)
                if code == -signal.SIGKILL:  # perhaps not the worker, but its keeper
                    child_lifetime.kill_marked(self.mark)
                return code
            time.sleep(0.01)
        return None

    def _has_ended_within(self, seconds: float | None) -> bool:
        end = math.inf if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(self.pid, os.WNOHANG)[0]:
                if time.monotonic() > end:
                    return False
                time.sleep(0.002)
        return True

    def _said(self) -> str:
        if self.hear is not None:  # it was passed on already
            return ""
        lines = [line for line in self.last.splitlines() if line.strip()][-_KEPT_LINES:]
        return "\n    It printed last:\n    " + "\n    ".join(line[:200] for line in lines) if lines else ""

    def _ask_for_line(self) -> None:
        """Let the child note where it is."""
        if self.worker and self.notes is not None:
            with contextlib.suppress(OSError):
                os.kill(self.worker, WHERE)
            end = time.monotonic() + _GRACE_SECONDS
            while not os.fstat(self.notes.fileno()).st_size and time.monotonic() < end:
                time.sleep(0.01)

    def _with_line(self, hint: str) -> str:
        line = self._line()
        return f"It was at {line}. {hint}" if line else hint

    def _line(self) -> str:
        """The user's line that ran last, as faulthandler noted it."""
        if self.notes is None:
            return ""
        from windtunnel.isolation.notes import users_line_in

        self.notes.seek(0)
        return users_line_in(self.notes.read(1 << 20).decode(errors="replace"))

    def end(self) -> None:
        """End the child and all that it has started."""
        if self.pid > 0:
            child_lifetime.end(self.pid, self._has_ended_within, self.mark)
            self.pid = 0
        for number in (self.words, self.answers, self.errors):
            if number >= 0:
                os.close(number)
        self.words = self.answers = self.errors = -1
        if self.notes is not None:
            self.notes.close()
            self.notes = None


def _answer_in(received: bytearray) -> Answer | None:
    """The whole answer, once it is there."""
    place = received.find(b"\n")
    if place < 0:
        return None
    try:
        facts = json.loads(bytes(received[:place]))
        size = int(facts["size"])
        str(facts["state"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise JobStopped(
            "The job wrote into the pipe of its process, so its answer cannot be read.",
            state="crashed",
            hint="Let the job not write to descriptors that it did not open.",
        ) from error
    body = bytes(received[place + 1 :])
    return Answer(facts, body[:size]) if len(body) >= size else None


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _resident_bytes(pid: int) -> int:
    """The memory that a process holds; 0 where that is not known."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _resident_with_children(pid: int) -> int:
    import psutil

    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return 0
    return sum(_resident_bytes(each.pid) for each in below)
