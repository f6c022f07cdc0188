"""Jobs that live in a contained process: what the parent has instead of them, and how it asks.

A contained job is a Workload whose functions exist only in the child. `prediction.trace` asks the child for
its trace, so everything above works with it as with any other job.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel import errors, records
from windtunnel.errors import BadJob, JobStopped, WindtunnelError
from windtunnel.isolation import codec
from windtunnel.isolation.cache import AnswerCache
from windtunnel.isolation.contained import Answer, Contained, OnMessage
from windtunnel.isolation.limits import TraceLimits
from windtunnel.job import workload as jobs
from windtunnel.job.stored import StoredData
from windtunnel.job.workload import Origin, Workload
from windtunnel.records import Plain
from windtunnel.strategy import PRICED_ONLY, Strategy

if TYPE_CHECKING:
    from windtunnel.measurement.feed.files import DataFiles
    from windtunnel.measurement.feed.probe import FeedProbe
    from windtunnel.trace import Trace

_HERE = "(made in Python)"


class JobFault(Exception):
    """A fault of windtunnel itself in the contained process; holds its traceback."""


class Containment:
    """One contained process for all jobs of a command. It starts when it is needed, and again if it ended."""

    def __init__(
        self,
        limits: TraceLimits | None = None,
        *,
        cache: AnswerCache | None = None,
        hear: OnMessage | None = None,
        started: Contained | None = None,
        rests: bool = False,
    ) -> None:
        self.limits, self.cache, self.hear = limits or TraceLimits(), cache, hear
        self.child = started
        self.rests = rests  # the child ends after each answer, so that it disturbs no measurement
        self.workload: Workload | None = None  # a job that only this process has
        self.asked = 0
        self.lock = threading.Lock()
        if started is not None:
            started.limits, started.hear = self.limits, hear
        atexit.register(self.end)

    def open(self, name: str, settings: Mapping[str, object]) -> Workload:
        """The job of this name; its functions stay in the child."""
        job, plain = _full_name(name), dict(settings)
        request: Plain = {"task": "describe", "job": job, "settings": plain}
        facts = self._unpacked(self._kept(request, name), name)
        try:
            return self._workload(facts, Origin(job=job, settings=plain))
        except (KeyError, TypeError, AttributeError) as error:  # what the child sends is checked by use
            raise _unreadable(name) from error

    def take(self, workload: Workload) -> Workload:
        """The same job in a child: built again from its origin, or as it is in a copy of this process."""
        if workload.origin is not None:
            contained = self.open(workload.origin.job, workload.origin.settings)
            own = workload.data
            data = contained.data if own is not None and own.decode is not None else own
            return dataclasses.replace(contained, examples=workload.examples, data=data)
        from windtunnel.isolation.child import describe

        self.workload = workload
        return self._workload(describe(workload), Origin(job=_HERE))

    def trace(self, workload: Workload, strategy: Strategy, target: str) -> Trace:
        request = self._about(workload, "trace")
        request |= {"strategy": traced_fields(strategy), "target": target}
        body = self._kept(request, workload.name)
        try:
            return codec.decode(body)
        except Exception as error:  # what the child sends is checked by use
            raise _unreadable(workload.name) from error

    def told(self, workload: Workload, task: str) -> Plain:
        """What the child says of a job that is the same each time. It is kept."""
        return self._unpacked(self._kept(self._about(workload, task), workload.name), task)

    def ask(self, workload: Workload, task: str, **details: object) -> Plain:
        """The answer of the child about a job. It is not kept."""
        return self._unpacked(self._ask({**self._about(workload, task), **details}, workload.name).body, task)

    def rest(self) -> None:
        """End the child, if there is one; the next question starts another one."""
        with self.lock:
            if self.child is not None:
                self.child.end()
                self.child = None

    def end(self) -> None:
        """End the child for good."""
        self.rest()
        atexit.unregister(self.end)

    def _about(self, workload: Workload, task: str) -> Plain:
        function = workload.model
        assert isinstance(function, ContainedFunction)
        return {"task": task, "job": function.origin.job, "settings": dict(function.origin.settings)}

    def _kept(self, request: Plain, name: str) -> bytes:
        """The answer from the cache, or else from the child."""
        cache = None if request["job"] == _HERE else self.cache
        known = cache.get(request) if cache is not None else None
        if known is not None:
            return known
        answer = self._ask(request, name)
        seen = answer.facts.get("seen")
        if cache is not None and isinstance(seen, dict):
            cache.put(request, seen, answer.body)
        return answer.body

    def _ask(self, request: Plain, name: str) -> Answer:
        with self.lock:
            if self.child is None or not self.child.is_alive:
                self.child = self._start()
            self.asked += 1
            answer = self.child.ask(request)
            if self.rests:
                self.child.end()
        if answer.facts["state"] != "done":
            raise error_of(answer.facts, name, self.limits)
        return answer

    def _start(self) -> Contained:
        child = Contained(self.limits, self.hear)
        if self.workload is not None or _can_fork():
            return child.fork(self.workload)
        return child.start()

    def _unpacked(self, body: bytes, name: str) -> Plain:
        try:
            return codec.unpack(body)
        except Exception as error:
            raise _unreadable(name) from error

    def _workload(self, facts: Plain, asked: Origin) -> Workload:
        """The job as the parent has it. `asked` is by which name the child knows it."""
        function = ContainedFunction(self, asked)
        origin = facts["origin"]
        data = None if facts["data"] is None else self._data(facts["data"], function)
        return Workload(
            name=facts["name"],
            **dict.fromkeys(facts["functions"], function),
            examples=facts["examples"],
            default_batch=facts["default_batch"],
            clip_norm=facts["clip_norm"],
            data=data,
            origin=None if origin is None else Origin(job=origin["job"], settings=origin.get("settings", {})),
        )

    def _data(self, facts: Plain, function: ContainedFunction) -> StoredData:
        decode = ContainedDecoder(function) if facts["decode"] else None
        return StoredData(**{**facts, "decode": decode, "example": None})


@dataclasses.dataclass(frozen=True, slots=True)
class ContainedFunction:
    """Stands for a function of a job that exists in the child only."""

    containment: Containment
    origin: Origin

    def __call__(self, *arguments: object) -> Any:
        raise BadJob(
            f"{self.origin.job} is in a process of its own, and its functions cannot be called here.",
            hint="Build the job in this process: windtunnel.job.workload.build_here(name, settings).",
        )

    def __hash__(self) -> int:
        return hash((id(self.containment), self.origin.job, repr(sorted(self.origin.settings.items()))))


@dataclasses.dataclass(frozen=True, slots=True)
class ContainedDecoder:
    """Stands for the decoder of a job's stored data, which the child times."""

    function: ContainedFunction

    def __call__(self, stored: bytes) -> Any:
        return self.function(stored)

    def timed_elsewhere(self) -> float:
        origin, containment = self.function.origin, self.function.containment
        request: Plain = {"task": "decode", "job": origin.job, "settings": dict(origin.settings)}
        answer = containment._ask(request, origin.job)
        return float(containment._unpacked(answer.body, origin.job)["seconds"])


def containment_of(workload: Workload) -> Containment | None:
    """Where the job lives, if its functions are not here."""
    function = workload.model
    return function.containment if isinstance(function, ContainedFunction) else None


@contextlib.contextmanager
def contained(containment: Containment) -> Iterator[Containment]:
    """Let `Workload.named` open every job in the containment's process."""
    try:
        with jobs.opened_by(containment.open):
            yield containment
    finally:
        containment.end()


def layers_of(workload: Workload) -> Sequence[Plain]:
    """The layers of a job as plain data, wherever its functions are."""
    containment = containment_of(workload)
    if containment is not None:
        return list(containment.ask(workload, "layers")["layers"])
    from windtunnel.learning.layers import layers

    return list(records.plain(layers(workload)))


def optimizer_of(workload: Workload) -> str:
    """The job's own optimizer by its class, wherever its functions are; "" if it has none by itself."""
    containment = containment_of(workload)
    if containment is not None:
        return str(containment.told(workload, "optimizer")["optimizer"])
    from windtunnel.isolation import child

    return child.own_optimizer(workload)


def settings_of(workload: Workload) -> list[Plain]:
    """The settings of a built-in network in words, wherever its functions are; none of another job."""
    containment = containment_of(workload)
    if containment is not None:
        return list(containment.ask(workload, "settings")["settings"])
    from windtunnel.isolation import child

    return child.settings_of(workload.origin.job if workload.origin else "")


def probe_feed_of(workload: Workload, strategy: Strategy, files: DataFiles) -> FeedProbe:
    """How fast files are read and decoded here; the job's own decoder runs where the job is."""
    from windtunnel.measurement.feed.probe import FeedProbe, probe_feed

    containment = containment_of(workload)
    if containment is None:
        return probe_feed(workload, strategy, files)
    given = {field.name: getattr(files, field.name) for field in dataclasses.fields(files)}
    given |= {"folder": str(files.folder), "files": list(map(str, files.files))}
    return FeedProbe(**containment.ask(workload, "probe feed", strategy=records.plain(strategy), files=given))


def rest(workload: Workload) -> None:
    """End the job's process until it is asked again: whatever the job left running disturbs measurements."""
    containment = containment_of(workload)
    if containment is not None:
        containment.rest()


def traced_fields(strategy: Strategy) -> Plain:
    """What of a strategy a trace depends on, as plain data."""
    return {name: value for name, value in records.plain(strategy).items() if name not in PRICED_ONLY}


def error_of(facts: Plain, name: str, limits: TraceLimits) -> Exception:
    """The error that a contained job raised, as it would be here."""
    kind: Callable[..., Exception] | None = getattr(errors, str(facts.get("kind")), None)
    message, hint = str(facts.get("message", "")), str(facts.get("hint", ""))
    if facts["state"] == "out of memory":
        error: Exception = JobStopped(
            message,
            state="out of memory",
            hint=f"{limits.memory_bytes / 2**30:.1f} GiB are allowed: allow more with --trace-memory, or use "
            f"a smaller job. {hint}",
        )
    elif isinstance(kind, type) and issubclass(kind, WindtunnelError):
        error = kind(message, hint=hint)
    else:
        return JobFault(f"{message}\n{facts.get('traceback', '')}")
    error.add_note(str(facts.get("traceback", "")))
    return error


def _unreadable(name: str) -> JobStopped:
    return JobStopped(
        f"The process of {name} gave an answer that cannot be read.",
        state="crashed",
        hint="Let the job not write to descriptors that it did not open.",
    )


def _full_name(name: str) -> str:
    """A file by its full path, since the answer is kept under it."""
    if ".py" in name and (":" in name or name.endswith(".py")):
        path, _, function = name.rpartition(":")
        if path and function:
            return f"{jobs.job_file(path)}:{function}"
    return name


def _can_fork() -> bool:
    """Whether a copy of this process can do the work at once: it has PyTorch, and no second thread."""
    if "torch" not in sys.modules:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
