"""The contained process: builds jobs, traces their steps, and answers on a pipe of its own.

Started by `windtunnel.child_lifetime`, or forked for a job made of functions that only the parent has. A
request is a line of JSON; an answer is a line of JSON and so many bytes. What the job prints goes to standard
error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import faulthandler
import gc
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel import child_lifetime, records
from windtunnel.errors import WindtunnelError, is_out_of_memory, kind_of, text_of
from windtunnel.garbage_collection import many_lasting_objects
from windtunnel.isolation import codec
from windtunnel.isolation.contained import CLOSED, WHERE
from windtunnel.isolation.watch import Watch
from windtunnel.job import workload as jobs
from windtunnel.job.workload import Workload
from windtunnel.records import Plain
from windtunnel.strategy import Strategy

if TYPE_CHECKING:
    from windtunnel.job.stored import StoredData

HERE = "(made in Python)"  # the job that a forked child was given
_MOST_TEXT = 20_000  # characters of a traceback


def main() -> None:
    words, answers, notes = map(int, sys.argv[1:4])
    for name in ("torch", "windtunnel.prediction", "windtunnel.trace.record"):
        __import__(name)
    serve(words, answers, notes)


def run_in_fork(descriptors: tuple[int, int, int], workload: Workload | None) -> None:
    """The same in a copy of the parent. The work runs on a new thread: the parent's thread pools do not
    survive the fork, and OpenMP keeps a pool for each thread that starts parallel work."""
    thread = threading.Thread(target=serve, args=(*descriptors, workload))
    thread.start()
    thread.join()


def serve(words: int, answers: int, notes: int, workload: Workload | None = None) -> None:
    """Answer requests until the parent closes the pipe or ends."""
    leave = os._exit
    try:
        _serve(words, answers, notes, workload)
    except BaseException:  # a job may change what Python itself has: json, len(), os.write
        leave(CLOSED)


def _serve(words: int, answers: int, notes: int, workload: Workload | None) -> None:
    os.dup2(2, 1)
    jobs.forget_openers()
    faulthandler.enable(file=notes, all_threads=False)
    faulthandler.register(WHERE, file=notes, all_threads=True)
    watch = Watch()
    watch.start()
    own, desk = os.getpid(), _Desk(workload)
    with os.fdopen(words, closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            with contextlib.suppress(OSError):
                os.dup2(2, 1)  # the job may have closed it while it was built with other settings
            limit_memory(request["bytes"])
            answer, body = _answer(desk, request)
            if os.getpid() != own:  # the job has forked, and this is the copy
                os._exit(0)
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            answer |= {"seen": watch.seen(), "size": len(body)}
            _write(answers, json.dumps(answer).encode() + b"\n" + body)
    os._exit(0)


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # the job has closed the pipe, or the parent is gone
        os._exit(CLOSED)


def limit_memory(most_bytes: int) -> None:
    """Private memory, where the system can limit it. Address space is no measure: PyTorch reserves much."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(desk: _Desk, request: Plain) -> tuple[Plain, bytes]:
    try:
        return {"state": "done"}, desk.answer(request)
    except BaseException as error:  # whatever the user's code raises ends this request only
        return failure_of(error, str(request.get("job", ""))), b""


def failure_of(error: BaseException, job: str) -> Plain:
    """How a request failed, as plain data: the kind of error, its words, and what it was in Python."""
    chain = list(_chain(error))
    state = "out of memory" if any(is_out_of_memory(each) for each in chain) else "raised"
    text = traceback.format_exc()[-_MOST_TEXT:]
    if isinstance(error, WindtunnelError):
        kind, message, hint = kind_of(error).__name__, error.message, error.hint
    elif isinstance(error, SystemExit):
        kind, ended = "BadJob", jobs.ends_program(job, error)
        message, hint = ended.message, ended.hint
    elif state == "out of memory" or not isinstance(error, Exception) or _is_by_job(error):
        kind, hint = "BadJob", jobs.place_of(error)
        message = f"{job} raised {type(error).__name__}: {text_of(error)[:500]}"
    else:
        kind, message, hint = "", f"{type(error).__name__}: {text_of(error)[:500]}", ""
    return {"state": state, "kind": kind, "message": message, "hint": hint, "traceback": text}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    count = 0
    while error is not None and count < 20:
        yield error
        error, count = error.__cause__ or error.__context__, count + 1


def _is_by_job(error: BaseException) -> bool:
    """Whether the job raised an error, or left no descriptors to open even our own files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return any(jobs.is_users(frame.filename) for frame in frames)


class _Desk:
    """Carries out requests. Jobs that were built are kept, so that a job may delete its own file."""

    def __init__(self, workload: Workload | None) -> None:
        self.built: dict[str, Workload] = {}
        self.given = workload
        self.tasks: Mapping[str, Callable[[Workload, Plain], bytes]] = {
            "describe": lambda workload, request: codec.pack(describe(workload)),
            "trace": _trace,
            "decode": lambda workload, request: codec.pack({"seconds": _decode_seconds(workload)}),
            "layers": _layers,
            "optimizer": lambda workload, request: codec.pack({"optimizer": own_optimizer(workload)}),
            "settings": lambda workload, request: codec.pack({"settings": settings_of(request["job"])}),
            "probe feed": _probe_feed,
        }

    def answer(self, request: Plain) -> bytes:
        workload = self._workload(request["job"], request["settings"])
        with many_lasting_objects():
            body = (self.tasks.get(request["task"]) or _named(request["task"]))(workload, request)
        gc.collect(0)
        return body

    def _workload(self, job: str, settings: Plain) -> Workload:
        if job == HERE:
            assert self.given is not None
            return self.given
        key = json.dumps([job, settings], sort_keys=True)
        if key not in self.built:
            self.built[key] = jobs.build_here(job, settings)
        return self.built[key]


def _named(task: str) -> Callable[[Workload, Plain], bytes]:
    """A task of another part of this package, as "module:function", which gets and gives plain data."""
    module, _, name = task.partition(":")
    function: Callable[[Workload, Plain], Plain] = getattr(importlib.import_module(module), name)
    return lambda workload, request: codec.pack(function(workload, request))


def describe(workload: Workload) -> Plain:
    """What the parent may know of a job without its functions."""
    return {
        "name": workload.name,
        "functions": [name for name in FUNCTIONS if getattr(workload, name) is not None],
        "examples": workload.examples,
        "default_batch": workload.default_batch,
        "clip_norm": workload.clip_norm,
        "data": None if workload.data is None else _describe_data(workload.data),
        "origin": None if workload.origin is None else records.plain(workload.origin),
    }


FUNCTIONS = ("model", "batch", "loss", "optimizer", "optimizers", "step", "forward")


def _describe_data(data: StoredData) -> Plain:
    facts = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    return {**facts, "decode": data.decode is not None, "example": data.example is not None}


def _trace(workload: Workload, request: Plain) -> bytes:
    from windtunnel.prediction import trace

    return codec.encode(trace(workload, Strategy.read(request["strategy"]), request["target"]))


def _decode_seconds(workload: Workload) -> float:
    return 0.0 if workload.data is None else workload.data.timed()


def _layers(workload: Workload, request: Plain) -> bytes:
    from windtunnel.learning.layers import layers

    return codec.pack({"layers": records.plain(layers(workload))})


def own_optimizer(workload: Workload) -> str:
    """The job's own optimizer by its class, such as "adamw"; "fused-adamw" if it is the fused form.

    The job is asked for one of a single weight. Empty if it has several, or one that cannot be made so.
    """
    import torch

    made: object = None
    if workload.optimizer is not None:
        with contextlib.suppress(Exception):  # whatever a user's function does with an unusual network
            made = workload.optimizer([torch.nn.Parameter(torch.zeros(1))])
    if not isinstance(made, torch.optim.Optimizer):
        return ""
    name = type(made).__name__.lower()
    return f"fused-{name}" if made.defaults.get("fused") else name


def settings_of(job: str) -> list[Plain]:
    """The settings of a built-in network in words; none of another job."""
    from windtunnel import networks
    from windtunnel.networks.described import described

    return described(job) if job in networks.names() else []


def _probe_feed(workload: Workload, request: Plain) -> bytes:
    from windtunnel.measurement.feed.files import DataFiles
    from windtunnel.measurement.feed.probe import probe_feed

    given: Plain = request["files"]
    paths = {"folder": Path(given["folder"]), "files": tuple(map(Path, given["files"]))}
    probe = probe_feed(workload, Strategy.read(request["strategy"]), DataFiles(**{**given, **paths}))
    return codec.pack(records.plain(probe))


def start_in_fork(descriptors: tuple[int, int, int], workload: Workload | None) -> None:
    """What a forked copy of the parent does, to its end."""
    try:
        child_lifetime.die_with_parent()
        run_in_fork(descriptors, workload)
    finally:
        os._exit(1)
