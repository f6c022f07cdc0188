"""measure: real steps in fresh child processes, samples in the store, a Measurement out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import Interrupted, MeasurementFailed, StoreError, Unavailable
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.measurement import children, environment, worker
from windtunnel.measurement.steady import Interval, Protocol, interval
from windtunnel.measurement.store import Store
from windtunnel.results import Memory, Result
from windtunnel.strategy import Strategy

Progress = Callable[[int, int], None]
Timeline = Callable[[dict[str, Any]], None]
_CODE = 2  # raise when a change of this code makes old samples incomparable with new ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Result):
    """Steps that were really run.

    `families` are the device's seconds by family of op, `kernels` how many it ran in a step, where it is not the host itself.
    """

    families: Mapping[str, float] = field(default_factory=dict)
    kernels: float | None = None
    processes: int = 0
    samples: int = 0
    first_seconds: float = 0.0
    stopped_by: str = ""
    measured_at: str = ""
    environment: dict[str, Any] = field(default_factory=dict)

    def headline(self) -> str:
        return f"measured: {Result.headline(self)}"

    def _own_lines(self) -> list[str]:
        first = f"first step {self.first_seconds / self.step_seconds:,.1f} times a steady one"
        return [
            f"  samples  {self.samples:,} in {self.processes} fresh processes, stopped by {self.stopped_by}; {first}"
        ]


def measure(
    workload: Workload,
    machine: Machine,
    strategy: Strategy | None = None,
    *,
    protocol: Protocol | None = None,
    store: Store | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    timeline: Timeline | None = None,
) -> Measurement:
    """Run the job's steps on this machine. An interrupted measurement of the same is continued unless `fresh`.

    `timeline` is called with the events of one profiled step: lane, name, start and seconds of each.
    """
    measuring = _Measuring(workload, machine, strategy or Strategy(), protocol or Protocol())
    own = store is None
    store = store or Store()
    try:
        return measuring.run(store, fresh, progress or (lambda done, most: None), timeline)
    finally:
        if own:
            store.close()


class _Measuring:
    """One measurement from its first child to its last."""

    def __init__(self, workload: Workload, machine: Machine, strategy: Strategy, protocol: Protocol) -> None:
        self.workload, self.machine, self.strategy, self.protocol = workload, machine, strategy, protocol
        self.device = _device_of(machine, strategy)
        self.threads = strategy.threads or (machine.host.cores or 1)
        self.batch = strategy.batch or workload.default_batch
        self.around = environment.describe()
        self.cell = {
            "job": records.plain(workload.origin)
            if workload.origin
            else {"job": f"{workload.name} (made in Python)"},
            "strategy": records.plain(self.told()),
            "batch": self.batch,
            "device": self.device,
            "protocol": records.plain(protocol),
            "device_name": machine.device.model,
            "environment": self.around,
        }

    def told(self) -> dict[str, Any]:
        told = {
            k: v
            for k, v in self.strategy.fields().items()
            if k not in ("batch", "prefetch") or (k == "prefetch" and v)
        }
        if self.device == "cpu":
            told["threads"] = self.threads
            told.pop("data")
        return told

    def run(self, store: Store, fresh: bool, progress: Progress, timeline: Timeline | None) -> Measurement:
        key = self._key()
        row = None if fresh or self.workload.origin is None else store.take_over(key)
        resumed = len(store.reports(row)) if row is not None else 0
        row = row if row is not None else store.begin(key, self.cell)
        try:
            reports, stopped = self._children(store, row, progress, timeline)
        except KeyboardInterrupt:
            kept = len(store.reports(row))
            raise Interrupted(
                f"{kept} of {self.protocol.processes} processes are measured and kept in {store.path}.",
                hint="The same command goes on from there; --fresh begins anew."
                if kept
                else "The same command begins anew.",
            ) from None
        except MeasurementFailed as error:
            store.finish(row, error.state, error=error.message)
            raise
        result = self._result(reports, stopped, resumed)
        try:
            store.finish(row, "complete", result=result.plain())
        except StoreError as error:
            raise StoreError(f"{error.message}\n{result}", hint=error.hint) from error
        return result

    def _children(
        self, store: Store, row: int, progress: Progress, timeline: Timeline | None
    ) -> tuple[list[dict[str, Any]], str]:
        """Fresh processes until their medians agree or there are enough of them."""
        reports = store.reports(row)
        number = max((r["number"] for r in reports), default=-1) + 1
        stopped = ""
        while not stopped:
            progress(len(reports), self.protocol.processes)
            others = environment.busy_cores()
            report = {**self._child(number, timeline is not None), "others": others}
            seen_events = report.pop("timeline", None)  # too much to store, and one process's is enough
            if timeline is not None and seen_events is not None:
                timeline(seen_events)
                timeline = None
            try:
                store.add_process(row, number, "done", report)
            except StoreError as error:
                seen = _interval([*reports, report], self.protocol.seed)
                raise StoreError(
                    f"{error.message} The last process measured {seen.median:.6g} s a step.", hint=error.hint
                ) from error
            reports.append(report)
            number += 1
            if len(reports) >= self.protocol.processes:
                precise = _interval(reports, self.protocol.seed).spread <= self.protocol.precision
                stopped = (
                    "precision"
                    if precise
                    else ("the cap on processes" if len(reports) >= self.protocol.most_processes else "")
                )
        progress(len(reports), len(reports))
        return reports, stopped

    def _child(self, number: int, timeline: bool) -> dict[str, Any]:
        order = {
            "strategy": records.plain(dataclasses.replace(self.strategy, batch=self.batch)),
            "protocol": records.plain(self.protocol),
            "device": self.device,
            "threads": self.threads,
            "seed": self.protocol.seed + number,
            "timeline": timeline,
        }
        origin = self.workload.origin
        if origin is not None:
            return _spawn(
                {**order, "job": origin.job, "settings": dict(origin.settings)},
                self.threads,
                self.device,
                self.protocol.timeout_seconds,
            )
        return _fork(order, self.workload, self.threads, self.device, self.protocol.timeout_seconds)

    def _key(self) -> str:
        """The cell, the code of a user's file, and how it is measured."""
        origin = self.workload.origin
        code = ""
        if origin is not None and ".py:" in origin.job:
            code = hashlib.sha256(Path(origin.job.rpartition(":")[0]).read_bytes()).hexdigest()
        return records.digest({"cell": self.cell, "code": [_CODE, code]})

    def _result(self, reports: list[dict[str, Any]], stopped: str, resumed: int) -> Measurement:
        seen = _interval(reports, self.protocol.seed)
        parts = _parts(reports, seen.median, self.device)
        families = _families(reports, seen.median, self.device)
        return Measurement(
            job=self.workload.name,
            machine=self.machine.name,
            strategy=self.told(),
            batch=self.batch,
            step_seconds=seen.median,
            low_seconds=seen.low,
            high_seconds=seen.high,
            parts=parts,
            memory=_memory(reports, self.machine),
            bound_by=max(parts, key=lambda part: parts[part]),
            device_seconds=sum(families.values()),
            host_seconds=_middle(reports, "host") if self.device == "cuda" else parts.get("launch", 0.0),
            families=families,
            kernels=_middle(reports, "kernels") if self.device == "cuda" else None,
            examples=self.workload.examples,
            cautions=self._cautions(reports, resumed),
            processes=len(reports),
            samples=sum(len(r["samples"]["steady"]["seconds"]) for r in reports),
            first_seconds=statistics.median(r["samples"]["first"]["seconds"][0] for r in reports),
            stopped_by=stopped,
            measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            environment={
                **self.around,
                **{k: v for k, v in reports[0]["ready"].items() if k not in ("kind", "pid")},
            },
        )

    def _cautions(self, reports: list[dict[str, Any]], resumed: int) -> tuple[str, ...]:
        cautions = []
        others = max(r.get("others", 0.0) for r in reports)
        if others > environment.BUSY:
            cautions.append(
                f"other processes kept {others:.1f} cores busy just before a process began: times may be too long"
            )
        wrong = [
            r["ready"]["threads"]
            for r in reports
            if self.device == "cpu" and r["ready"]["threads"] != self.threads
        ]
        if wrong:
            cautions.append(f"{self.threads} threads were asked for but the framework used {wrong[0]}")
        if self.device == "cuda" and min(r["done"]["linear"] for r in reports) < 1.5:
            cautions.append(
                "twice the steps did not take twice the time: the clock may not have waited for the device"
            )
        if self.device == "cuda" and not _middle(reports, "kernels"):
            cautions.append("the profiler saw nothing on the device, so its parts and families are not known")
        if self.workload.origin is None:
            cautions.append(
                "measured in forked processes, since a job made in Python cannot be built in a fresh one; path/to/file.py:function can"
            )
        if resumed:
            cautions.append(f"{resumed} of the processes were measured before an interruption")
        if self.device == "cpu":
            cautions.append(
                "parts are from a profiler pass; on a CPU the cost of launching an op inside the framework counts as compute"
            )
        if self.strategy.execution == "compiled":
            cautions += _compiler_cautions(reports, self.device, self.workload.step is not None)
        return tuple(cautions)


def _compiler_cautions(reports: list[dict[str, Any]], device: str, own_step: bool) -> list[str]:
    told = reports[0].get("compiled", {})
    cautions = (
        ["the job has a step of its own, of which only the network's parts are compiled"] if own_step else []
    )
    if told.get("breaks"):
        cautions.append(
            f"the compiler could not follow all of the step, which it left in {told['breaks']} places: part of it ran eagerly"
        )
    if device == "cpu":
        cautions.append("memory includes what the compiler keeps beside the job")
    return cautions


def _device_of(machine: Machine, strategy: Strategy) -> str:
    """Where to run, or why it cannot be run here."""
    if machine.name != "here":
        raise Unavailable(
            f"measure runs on this machine; {machine.name} is not it.",
            hint="Use predict for a machine that is not here, or --on here.",
        )
    if strategy.execution == "graph" and strategy.data == "streamed":
        raise Unavailable(
            "execution=graph reads its batch from one fixed place, so data=streamed cannot go with it.",
            hint="Use --data resident or --execution eager.",
        )
    if machine.device.kind == "cpu":
        if strategy.execution == "graph":
            raise Unavailable(
                "execution=graph needs a GPU, and this measurement is on a CPU.",
                hint="Use --execution eager.",
            )
        return "cpu"
    return "cuda"


def _interval(reports: list[dict[str, Any]], seed: int) -> Interval:
    return interval([r["samples"]["steady"]["seconds"] for r in reports], seed)


def _middle(reports: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(r["parts"][name] for r in reports))


def _parts(reports: list[dict[str, Any]], step_seconds: float, device: str) -> dict[str, float]:
    """The profiler's shares of a step, applied to the steady step that was timed without it."""
    busy, update, copy = (_middle(reports, name) for name in ("busy", "update", "exposed_copy"))
    whole = step_seconds if device == "cuda" else _middle(reports, "wall")
    shares = {
        "compute": max(0.0, busy - update),
        "update": update,
        "copy": copy,
        "launch": max(0.0, whole - busy - copy),
    }
    total = sum(shares.values())
    return {part: step_seconds * seconds / total for part, seconds in shares.items() if seconds > 0}


def _families(reports: list[dict[str, Any]], step_seconds: float, device: str) -> dict[str, float]:
    """The device's seconds by family of op. Kernels take as long under the profiler as without; a CPU's ops do not, and are scaled."""
    names = {name for r in reports for name in r["parts"]["families"]}
    scale = 1.0 if device == "cuda" else step_seconds / _middle(reports, "wall")
    seconds = {
        name: scale * statistics.median(r["parts"]["families"].get(name, 0.0) for r in reports)
        for name in names
    }
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _memory(reports: list[dict[str, Any]], machine: Machine) -> Memory:
    peak = max(r["memory"]["peak_bytes"] for r in reports)
    reserved = [r["memory"]["reserved_bytes"] for r in reports if "reserved_bytes" in r["memory"]]
    return Memory(
        peak_bytes=float(peak),
        reserved_bytes=float(max(reserved)) if reserved else None,
        capacity_bytes=machine.device.memory_bytes,
    )


def _spawn(order: dict[str, Any], threads: int, device: str, timeout: float) -> dict[str, Any]:
    """One order in a fresh interpreter."""
    command = [sys.executable, "-m", "windtunnel.measurement.worker"]
    return children.spawn(
        command, order, environment.for_child(threads), threads if device == "cpu" else None, timeout
    )


def _fork(
    order: dict[str, Any], workload: Workload, threads: int, device: str, timeout: float
) -> dict[str, Any]:
    """One order in a copy of this process, for a job that exists only here."""
    import torch

    if device == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise Unavailable(
            "This process has used CUDA already, and a copy of it cannot.",
            hint="Put the job in a file and name it path/to/file.py:function.",
        )
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors, children.pinned(threads if device == "cpu" else None):
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.dup2(errors.fileno(), 2)
            try:
                worker.run_in_fork(order, workload, writer)
            finally:
                os._exit(0)
        os.close(writer)
        try:
            messages, timed_out = children.listen(reader, timeout)
            if timed_out:
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return children.report(
            messages, os.waitstatus_to_exitcode(status), timed_out, children.tail(errors), timeout
        )
