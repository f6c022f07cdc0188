"""Forecast beside measurement for the first two jobs on this machine; prints a table and writes JSON if
named.

python benchmarks/first_flight.py cpu|cuda|networks [results.json]

`networks` measures every named network at its default settings on the device of this machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import windtunnel as wt
from windtunnel import networks

RNN = [
    {"n_rec": r, "n_steps": t, "variant": w}
    for w in ("loop", "module")
    for r, t in ((50, 20), (50, 100), (200, 100), (1000, 20))
]
PROCESSES = {"cpu": 2, "cuda": 2, "networks": 1}
ROWS: dict[str, list[tuple[str, dict[str, object], wt.Strategy]]] = {
    "cpu": [("rnn", s, wt.Strategy(threads=1)) for s in RNN]
    + [("fcn5", {}, wt.Strategy(threads=t)) for t in (1, 2)],
    "cuda": [("rnn", s, wt.Strategy()) for s in RNN]
    + [("rnn", {"n_rec": 50, "n_steps": t}, wt.Strategy(execution="graph")) for t in (20, 100)]
    + [("rnn", {"n_rec": 5000, "n_steps": 20}, wt.Strategy(batch=b)) for b in (1, 64)]
    + [("fcn5", {}, wt.Strategy(precision=p, batch=b)) for p in ("fp32", "tf32", "bf16") for b in (64, 4096)]
    + [("fcn5", {}, wt.Strategy(data="streamed", prefetch=p, batch=1024)) for p in (0, 1)],
}
ROWS["networks"] = [(name, {}, wt.Strategy()) for name in networks.names() if name not in ("rnn", "fcn5")]


def show(name: str, settings: dict[str, object], forecast: wt.Forecast, measured: wt.Measurement) -> None:
    ratio = forecast.step_seconds / measured.step_seconds
    memory = forecast.memory.peak_bytes / measured.memory.peak_bytes
    seconds = f"device {forecast.device_seconds * 1e3:9.3f} / {(measured.device_seconds or 0) * 1e3:9.3f}"
    words = " ".join(f"{key}={value}" for key, value in settings.items())
    print(f"{name:5} {words:34} {forecast.strategy} b{forecast.batch}")
    print(
        f"      step ms {forecast.step_seconds * 1e3:9.3f} / {measured.step_seconds * 1e3:9.3f} = "
        f"{ratio:5.2f}  {seconds}  memory x{memory:.2f}  {forecast.bound_by} / {measured.bound_by}",
        flush=True,
    )


def main(device: str, target: str | None) -> None:
    machine = wt.Machine.here().with_cpu_only() if device == "cpu" else wt.Machine.here()
    store = wt.Store(Path(tempfile.mkdtemp()) / "store.sqlite")
    rows = []
    print(machine.title)
    for name, settings, strategy in ROWS[device]:
        job = wt.Workload.named(name, **settings)
        forecast = wt.predict(job, machine, strategy)
        measured = wt.measure(
            job,
            machine,
            strategy,
            store=store,
            protocol=wt.Protocol(processes=PROCESSES[device], most_processes=PROCESSES[device], seconds=1.0),
        )
        ratio = forecast.step_seconds / measured.step_seconds
        rows.append(
            {"settings": settings, "forecast": forecast.plain(), "measured": measured.plain(), "ratio": ratio}
        )
        show(name, settings, forecast, measured)
    errors = sorted(abs(row["ratio"] - 1) for row in rows)
    inside = sum(
        r["forecast"]["low_seconds"] <= r["measured"]["step_seconds"] <= r["forecast"]["high_seconds"]
        for r in rows
    )
    print(
        f"{len(rows)} rows: median error {statistics.median(errors):.0%}, worst {errors[-1]:.0%}, "
        f"{inside} inside the interval"
    )
    if target:
        Path(target).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu", sys.argv[2] if len(sys.argv) > 2 else None)
