"""A framework's child: builds the job there, steps it, times it, and tells what it saw as lines of JSON on a pipe of its own."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import WindtunnelError
from windtunnel.measurement import process
from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Built
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.process import Emit
from windtunnel.measurement.sampler import SAMPLE_SECONDS, Sampler
from windtunnel.measurement.steady import Protocol

_SPOKEN = (
    "out of memory",
    "can't allocate memory",
    "resource_exhausted",
    "failed to allocate",
    "bad_alloc",
    "unable to allocate",
    "cudaerrormemoryallocation",
)


def main() -> None:
    order = json.loads(sys.stdin.read())
    process.die_with_parent()
    emit = process.speak_on(int(sys.argv[1]))
    try:
        _carry_out(order, emit)
    except WindtunnelError as error:
        emit(_failed("refused", error.message, error.hint))
    except ImportError as error:
        emit(_failed("not installed", _said(error), f"{sys.executable} lacks it, or a part of it is broken."))
    except Exception as error:
        state = "out of memory" if _is_out_of_memory(error) else "raised"
        emit(
            _failed(
                state,
                _said(error),
                "Try a smaller batch or job." if state == "out of memory" else _place(error),
            )
        )


def load(module: str) -> Any:
    """A framework's file: one of ours by name, or anybody's by its path."""
    if not module.endswith(".py"):
        return importlib.import_module(f"windtunnel.measurement.frameworks.{module}")
    spec = importlib.util.spec_from_file_location(Path(module).stem, module)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _carry_out(order: dict[str, Any], emit: Emit) -> None:
    tasks, protocol = (
        [records.read(Task, task, "task") for task in order["tasks"]],
        Protocol(**order["protocol"]),
    )
    framework = load(order["module"])
    for name in order["imports"]:
        importlib.import_module(name)  # so that its memory is not taken for the job's
    turn = process.Turn(order["turn"], emit)
    if order["trace"]:
        for i, task in enumerate(tasks):
            emit(
                {"kind": f"trace {i}", **_trace(framework.build(base.problem_of(task), task), order["trace"])}
            )
        emit({"kind": "done", "stopped": "trace", "linear": None})
        return
    for place, task in enumerate(tasks):
        if len(tasks) > 1:
            emit({"kind": "task"})
        resident = process.resident_bytes(reset_peak=False)
        built: Built = framework.build(base.problem_of(task), task)
        emit({"kind": "ready", "place": place, **_facts(built)})
        _time(built, task.device, protocol, resident, place, turn, emit)
        turn.give()
        del built
        gc.collect()


def _time(
    built: Built, device: str, protocol: Protocol, resident: int, place: int, turn: process.Turn, emit: Emit
) -> None:
    """`place` counts the tasks of a process. Memory and the clock are those of a first one: what an earlier one left would be in them.

    What compiles does so before its turn: that takes a core of the host for seconds and the device for one step.
    """
    if not built.compiles:
        turn.take()
    built.sync()
    losses: list[Any] = []
    call = built.first or built.step
    alone = Sampler(lambda: losses.append(call()), built.sync, SAMPLE_SECONDS[device], emit)
    first = alone.first()
    turn.take()
    process.resident_bytes(reset_peak=True)  # what compiling took for a while is not what a step takes
    steps = 1 if built.settle is None else built.settle()
    sampler = Sampler(
        built.step, built.sync, SAMPLE_SECONDS[device], _per_step(steps, emit), feels=device == "cpu"
    )
    sampler.warm_up(protocol.warm_seconds)
    stopped = sampler.steady(protocol)
    if sampler.pulse:
        emit({"kind": "pulse", "felt": sampler.pulse})
    if place == 0:
        emit({"kind": "memory", **_peak(built, resident)})
    if built.compiles:
        steady = statistics.median(sampler.seconds) / steps
        emit({"kind": "compile", "seconds": built.built_seconds + max(0.0, first - steady)})
    linear = sampler.linearity() if place == 0 else None
    emit(
        {"kind": "ready", "place": place, **_facts(built)}
    )  # once more: some pools of threads are filled only when there is work
    emit({"kind": "losses", "first": built.number(losses[0]), "last": built.number(call())})
    emit({"kind": "done", "stopped": stopped, "linear": linear})


def _per_step(steps: int, emit: Emit) -> Emit:
    """Where one call does many steps, its samples are told as those of a step."""

    def tell(message: dict[str, Any]) -> None:
        emit(
            {**message, "steps": message["steps"] * steps, "seconds": [s / steps for s in message["seconds"]]}
        )

    return emit if steps == 1 else tell


def _trace(built: Built, steps: int) -> dict[str, Any]:
    call = built.first or built.step
    return {"losses": [built.number(call()) for _ in range(steps)], "ready": _facts(built)}


def _facts(built: Built) -> dict[str, Any]:
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


def _failed(state: str, error: str, hint: str) -> dict[str, Any]:
    return {"kind": "failed", "state": state, "error": error, "hint": hint}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: " + " ".join(str(error).strip().splitlines()[:2])[:500]


def _is_out_of_memory(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or "outofmemory" in text or any(words in text for words in _SPOKEN)


def _place(error: Exception) -> str:
    """Where in the framework's file it happened."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace is not None else ""
