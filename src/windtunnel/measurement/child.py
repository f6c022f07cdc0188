"""The measuring child process: builds a job or a framework's tasks, times steps, and reports on a pipe.

Run by `windtunnel.child_lifetime` with the number of its pipe, or through frameworks/start.py in a
framework's own interpreter, with a ChildOrder as JSON on standard input. Messages are lines of JSON. What the
user's code prints goes to standard error and disturbs nothing.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

from windtunnel import child_lifetime
from windtunnel.errors import WindtunnelError, is_out_of_memory, text_of
from windtunnel.measurement import process
from windtunnel.measurement.frameworks import child as framework_child
from windtunnel.measurement.frameworks import readback
from windtunnel.measurement.frameworks.base import Built
from windtunnel.measurement.order import ChildOrder, JobOrder
from windtunnel.measurement.process import END, Emit
from windtunnel.measurement.sampler import Sampler, sample_seconds
from windtunnel.measurement.steady import Protocol as Steps
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.job.workload import Workload


class Subject(Protocol):
    """What is measured: a job in PyTorch, or a task in some framework."""

    device: str
    reports_losses: bool
    checks_clock: bool

    def build(self) -> Built: ...

    def after_first_step(self, emit: Emit) -> None: ...

    def inspect(self, sampler: Sampler, emit: Emit) -> None: ...

    def explain(self, error: BaseException, state: str) -> tuple[str, str]: ...


def main() -> None:
    words = process.words()
    order = ChildOrder.read(json.loads(words.readline()))
    _Child(order, process.emit_on(int(sys.argv[-1])), words).run()
    if order.job is not None:
        os._exit(0)  # everything is reported, and unloading PyTorch takes as long as a short measurement


def run_in_fork(order: ChildOrder, workload: Workload, descriptor: int) -> None:
    """The same in a forked child, for a job made of functions that only this process has.

    The work runs on a new thread: the parent's thread pools do not survive the fork, and OpenMP keeps a pool
    for each thread that starts parallel work.
    """
    child_lifetime.die_with_parent()
    child = _Child(order, process.emit_on(descriptor), process.words(), workload)
    thread = threading.Thread(target=child.run)
    thread.start()
    thread.join()


def _job_subject(order: JobOrder, workload: Workload | None) -> Subject:
    """The subject of an order: a job with its data in memory, or one that is fed from files."""
    if order.folder:
        from windtunnel.measurement.feed.subject import FedJobSubject

        return FedJobSubject(order, workload)
    from windtunnel.measurement.job import JobSubject

    return JobSubject(order, workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SubjectPlace:
    """A subject's number within its process, and the process's memory before it was built."""

    number: int
    resident_bytes: int


class _Child:
    """Carries out one order; reports any failure by name. `words`: later lines from the parent."""

    def __init__(
        self, order: ChildOrder, emit: Emit, words: IO[str], workload: Workload | None = None
    ) -> None:
        self.order, self.emit, self.words, self.workload = order, emit, words, workload
        self.lock = process.Lock(order.lock, emit)
        self.subject: Subject | None = None

    def run(self) -> None:
        try:
            if self.order.tasks is not None and self.order.tasks.loss_steps:
                self._report_losses(self.order.tasks.loss_steps)
            else:
                self._measure()
        except WindtunnelError as error:
            self._fail("refused", error.message, error.hint)
        except BaseException as error:  # whatever the user's code raises has a name
            self._fail_with(error)
        self.emit({"kind": END})  # threads that the job left running may keep this process alive

    def _subjects(self) -> Iterator[Subject]:
        """One after another. Libraries are loaded first, so that their memory does not count."""
        if self.order.job is not None:
            yield _job_subject(self.order.job, self.workload)
        if self.order.tasks is not None:
            framework = framework_child.load(self.order.tasks.module)
            for name in self.order.tasks.imports:
                importlib.import_module(name)
            for task in self.order.tasks.tasks:
                yield framework_child.TaskSubject(task, framework)

    def _measure(self) -> None:
        shared = self.order.tasks is not None and len(self.order.tasks.tasks) > 1
        for number, subject in enumerate(self._subjects()):
            self.subject = subject
            if self.order.locks_first:
                self.lock.take()
            if shared:
                self.emit({"kind": "task"})
            place = _SubjectPlace(number=number, resident_bytes=process.resident_bytes(reset_peak=False))
            built = subject.build()
            self.emit({"kind": "ready", "place": number, **_facts(built)})
            self._time(subject, built, place)
            if not self.order.locks_first:
                self.lock.release()
            del built
            gc.collect()

    def _time(self, subject: Subject, built: Built, place: _SubjectPlace) -> None:
        """Memory and the clock check are reported for a process's first subject only, because later ones
        would include its memory. Compilation happens before the lock is taken, because it only uses the host,
        for seconds.
        """
        if not built.compiles:
            self.lock.take()
        built.sync()
        losses: list[Any] = []
        call, length = built.first or built.step, sample_seconds(subject.device)
        step = (lambda: losses.append(call())) if subject.reports_losses else call
        first = Sampler(step, built.sync, length, self.emit).first()
        self.lock.take()
        subject.after_first_step(self.emit)
        process.resident_bytes(reset_peak=True)  # compiling needs memory that later steps do not
        steps = 1 if built.settle is None else built.settle()
        emit = _per_step(steps, self.emit)
        # Loaders would work ahead while the reference loop runs, and the next steps would seem shorter.
        is_fed = self.order.job is not None and bool(self.order.job.folder)
        watches = subject.device == "cpu" and not self.order.takes_turns and not is_fed
        sampler = Sampler(built.step, built.sync, length, emit, watches=watches)
        stopped = self._sample(sampler, self.order.protocol, built)
        if place.number == 0:
            self.emit({"kind": "memory", **_peak(built, place.resident_bytes)})
        if built.compiles:
            steady = statistics.median(sampler.seconds) / steps
            self.emit({"kind": "compile", "seconds": built.built_seconds + max(0.0, first - steady)})
        linear = None
        if not self.order.takes_turns:
            subject.inspect(sampler, self.emit)
            linear = sampler.linearity() if place.number == 0 and subject.checks_clock else None
        # Read again, because some thread pools are only filled when there is work.
        self.emit({"kind": "ready", "place": place.number, **_facts(built)})
        if subject.reports_losses:
            self.emit({"kind": "losses", "first": built.number(losses[0]), "last": built.number(call())})
        self.emit({"kind": "done", "stopped": stopped, "linear": linear})

    def _sample(self, sampler: Sampler, protocol: Steps, built: Built) -> str:
        sampler.warm_up(protocol.warm_seconds)
        if self.order.takes_turns:
            return self._take_turns(sampler, process.interruptions_of(built.threads()))
        stopped = sampler.steady(protocol)
        if sampler.readings:
            self.emit({"kind": "reference_loop", "readings": sampler.readings})
        return stopped

    def _take_turns(self, sampler: Sampler, interruptions: Callable[[], int]) -> str:
        """Sample only for the seconds that the parent sends: between these turns another process steps."""
        counts = []
        self.emit({"kind": "turn"})
        while seconds := self.words.readline().strip():
            counts.append(sampler.turn(float(seconds), interruptions))
            self.emit({"kind": "turn"})
        self.emit({"kind": "turns", "counts": counts})
        return "turns"

    def _report_losses(self, steps: int) -> None:
        for subject in self._subjects():
            self.subject = subject
            built = subject.build()
            call = built.first or built.step
            losses = [built.number(call()) for _ in range(steps)]
            self.emit({"kind": "trace", "losses": losses, "ready": _facts(built)})
        self.emit({"kind": "done", "stopped": "losses", "linear": None})

    def _fail_with(self, error: BaseException) -> None:
        if isinstance(error, ImportError) and self.order.tasks is not None:
            self._fail("not installed", _words(error), f"{sys.executable} lacks it, or a part is broken.")
            return
        state = "out of memory" if is_out_of_memory(error) else "raised"
        state, hint = self.subject.explain(error, state) if self.subject is not None else (state, "")
        self._fail(state, _words(error), hint)

    def _fail(self, state: str, error: str, hint: str) -> None:
        self.emit({"kind": "failed", "state": state, "error": error, "hint": hint})


def _per_step(steps: int, emit: Emit) -> Emit:
    """If one call runs many steps, convert its samples to those of one step."""

    def emit_steps(message: Plain) -> None:
        seconds = [second / steps for second in message["seconds"]]
        emit({**message, "steps": message["steps"] * steps, "seconds": seconds})

    return emit if steps == 1 else emit_steps


def _facts(built: Built) -> Plain:
    return {
        "threads": built.threads(),
        "cpus": readback.cpus(),
        "versions": {"python": sys.version.split()[0], **built.versions},
        "parameters": built.parameters,
        "dtype": built.dtype,
        "device_name": built.device_name,
        **built.facts,
    }


def _peak(built: Built, resident: int) -> dict[str, float]:
    if built.peak is not None:
        return built.peak()
    return {"peak_bytes": max(0, process.peak_resident_bytes() - resident)}


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: " + " ".join(text_of(error).strip().splitlines()[:2])[:500]


if __name__ == "__main__":
    main()
