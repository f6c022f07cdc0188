"""A worker process of the page: it answers one question at a time, and is ended where it takes too long.

A quick worker prices kept traces only. A tracing worker has a contained process of its own, in which jobs are
built and traced. Both read a line of JSON and answer with a line of JSON and the text of a part of the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from windtunnel.errors import UnknownName, WindtunnelError, nearest
from windtunnel.foreign import shown
from windtunnel.isolation.cache import AnswerCache
from windtunnel.isolation.child import limit_memory
from windtunnel.isolation.jobs import Containment, JobFault, contained
from windtunnel.isolation.limits import TraceLimits
from windtunnel.records import Plain
from windtunnel.study.study import CATALOG, Study
from windtunnel.study.study import load as load_study
from windtunnel.study.study import names as study_names
from windtunnel.web.allowed import AllowedJobs
from windtunnel.web.state import PageState, read_state
from windtunnel.web.worker_cache import KeptOnly, NeedsTrace, WorkerCache

_LATER = 5  # tracing gives way to answers that need no trace


class WorkerContext:
    """What the answers of a worker need: its jobs, its traces, and a way to say how far it is."""

    def __init__(self, setup: Plain) -> None:
        self.allowed = AllowedJobs(files=setup["files"])
        self.store = Path(setup["store"]) if setup.get("store") else None
        self.rows = tuple(Path(path) for path in setup.get("rows", ()))
        self.studies: Mapping[str, str] = setup.get("studies", {})
        cache = AnswerCache(Path(setup["cache"]))
        self.traces = bool(setup["traces"])
        if self.traces:
            os.nice(_LATER)
            limits = TraceLimits(seconds=setup["trace_seconds"], bytes=setup["trace_bytes"])
            self.containment = Containment(limits, cache=cache, hear=lambda text: None)
        else:
            self.containment = KeptOnly(cache)
        self.cache = WorkerCache(self.allowed, self.containment)

    def state(self, query: str) -> PageState:
        return read_state(parse_qsl(query, max_num_fields=64), self.allowed)

    def study(self, name: str) -> Study:
        """A study of the catalogue, or one that the command line registered."""
        return load_study(Path(self.studies[name]) if name in self.studies else CATALOG / known_study(name))

    def tell(self, text: str) -> None:
        """Say what is being done, for whoever waits."""
        with contextlib.suppress(OSError):
            os.write(2, f"{shown(text)}\n".encode())


def known_study(name: str) -> str:
    """The name of a study of the catalogue; an error if it has none of this name."""
    if name not in study_names():
        raise UnknownName(
            f"The catalogue has no study {name[:60]!r}.", hint=nearest(name[:60], study_names())
        )
    return name


Answering = Callable[[WorkerContext, Plain], tuple[str, Plain]]  # the text of a part, and facts about it


def main() -> None:
    words, answers, _ = map(int, sys.argv[1:4])
    with os.fdopen(words, closefd=False) as requests:
        worker = WorkerContext(json.loads(next(requests)))
        _write(answers, b'{"state": "done", "size": 0}\n')
        with contained(worker.containment):
            for line in requests:
                request = json.loads(line)
                limit_memory(request["bytes"])
                facts, text = answer(worker, request, _answers())
                body = text.encode("utf-8", "replace")
                _write(answers, json.dumps({**facts, "size": len(body)}).encode() + b"\n" + body)
    os._exit(0)


def answer(worker: WorkerContext, request: Plain, known: Mapping[str, Answering]) -> tuple[Plain, str]:
    """The answer to one request; whatever goes wrong ends this request only."""
    try:
        text, facts = known[request["task"]](worker, request)
        return {"state": "done", "facts": facts}, text
    except NeedsTrace:
        return {"state": "needs trace"}, ""
    except WindtunnelError as error:
        return {
            "state": "refused",
            "kind": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
        }, ""
    except JobFault as error:
        return {"state": "fault", "message": str(error)}, ""
    except Exception as error:  # a fault of windtunnel itself: the log has it, the browser does not
        import traceback

        return {"state": "fault", "message": "".join(traceback.format_exception(error))}, ""


def _answers() -> Mapping[str, Answering]:
    from windtunnel.web.answers import ANSWERS

    return ANSWERS


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os._exit(0)
