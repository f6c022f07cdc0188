"""The main use, end to end: describe this machine, predict and measure jobs on it, predict them for two GPUs.

make demo
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import windtunnel as wt

FLIGHTS = [
    ("rnn", {"n_rec": 50, "n_steps": 20}, 1),
    ("rnn", {"n_rec": 200, "n_steps": 100}, 1),
    ("fcn5", {}, 1),
    ("fcn5", {}, 2),
]
ELSEWHERE = ("h200", "k80")


def main() -> None:
    here = wt.Machine.find("cpu")
    host = here.host
    memory, rate = wt.units.show(host.memory_bytes or 0, "B"), wt.units.show(host.memory_rate or 0, "B/s")
    print(f"This machine: {host.model}, {host.cores} cores, {memory} of memory at {rate}\n")
    print(f"{'job':<34}{'threads':>8}{'predicted':>12}{'measured':>12}{'ratio':>7}  bound by")
    with tempfile.TemporaryDirectory() as folder:
        store = wt.Store(Path(folder) / "store.sqlite")
        best = {}
        for name, settings, threads in FLIGHTS:
            measured = run_here(name, settings, threads, here, store)
            key = (name, *settings.values())
            best[key] = min(best.get(key, measured), measured, key=lambda m: m.step_seconds)
        store.close()
    print("\nThe same jobs on other machines, predicted without the hardware:")
    for name, settings, _ in FLIGHTS[:3]:
        compare(name, settings, best[(name, *settings.values())])


def run_here(
    name: str, settings: dict[str, int], threads: int, here: wt.Machine, store: wt.Store
) -> wt.Measurement:
    job, strategy = wt.Workload.named(name, **settings), wt.Strategy(threads=threads)
    forecast = wt.predict(job, here, strategy)
    measured = wt.measure(
        job, here, strategy, store=store, protocol=wt.Protocol(processes=2, most_processes=3, seconds=1.5)
    )
    ratio = forecast.step_seconds / measured.step_seconds
    seconds = "".join(f"{wt.units.show(each.step_seconds, 's'):>12}" for each in (forecast, measured))
    print(
        f"{describe(name, settings):<34}{threads:>8}{seconds}{ratio:>7.2f}  {forecast.bound_by}", flush=True
    )
    return measured


def compare(name: str, settings: dict[str, int], measured: wt.Measurement) -> None:
    """Print which device is fastest for this job, and why."""
    job = wt.Workload.named(name, **settings)
    forecasts = {machine: wt.predict(job, wt.Machine.named(machine)) for machine in ELSEWHERE}
    times = {
        "this CPU": measured.step_seconds,
        **{machine: f.step_seconds for machine, f in forecasts.items()},
    }
    winner = min(times, key=lambda device: times[device])
    print(f"\n{describe(name, settings)}")
    for device, seconds in times.items():
        limit = "measured" if device not in forecasts else f"{forecasts[device].bound_by}-bound"
        print(f"  {device:<10}{wt.units.show(seconds, 's'):>10}  {limit}")
    print(f"  {winner} is fastest: {reason(winner, forecasts)}")


def reason(winner: str, forecasts: dict[str, wt.Forecast]) -> str:
    launch_bound = [machine for machine, f in forecasts.items() if f.bound_by == "launch"]
    if winner not in forecasts:
        machines = " and ".join(launch_bound)
        return f"on {machines} the host needs longer to launch each small op than the CPU needs to run it"
    forecast = forecasts[winner]
    rate = wt.units.show(forecast.flop / forecast.step_seconds, "flop/s")
    return f"its ops are large enough to keep the device busy, at {rate}"


def describe(name: str, settings: dict[str, int]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in settings.items())])


if __name__ == "__main__":
    main()
