"""The main use, end to end: describe this machine, predict and measure jobs on it, predict them for two GPUs,
write a report.

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
REPORT = Path(__file__).parent.parent / "build" / "first-flight.html"


def main() -> None:
    here = wt.Machine.find("cpu")
    host = here.host
    memory, rate = wt.units.show(host.memory_bytes or 0, "B"), wt.units.show(host.memory_rate or 0, "B/s")
    print(f"This machine: {host.model}, {host.cores} cores, {memory} of memory at {rate}\n")
    print(f"{'job':<34}{'threads':>8}{'predicted':>12}{'measured':>12}{'ratio':>7}  bound by")
    with tempfile.TemporaryDirectory() as folder:
        store = wt.Store(Path(folder) / "store.sqlite")
        best, remarks, beside = {}, [], []
        for name, settings, threads in FLIGHTS:
            forecast, measured = run_here(name, settings, threads, here, store)
            what = f"{describe(name, settings)}, threads {threads}"
            beside.append((what, forecast, measured))
            remarks += judge(what, forecast, measured)
            key = (name, *settings.values())
            best[key] = min(best.get(key, measured), measured, key=lambda m: m.step_seconds)
        store.close()
    print("\n" + "\n".join(remarks or ["Every measured time is inside of its forecast's interval."]))
    print("\nThe same jobs on other machines, predicted without the hardware:")
    for name, settings, _ in FLIGHTS[:3]:
        compare(name, settings, best[(name, *settings.values())])
    write_report(tuple(beside))


def run_here(
    name: str, settings: dict[str, int], threads: int, here: wt.Machine, store: wt.Store
) -> tuple[wt.Forecast, wt.Measurement]:
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
    return forecast, measured


def judge(what: str, forecast: wt.Forecast, measured: wt.Measurement) -> list[str]:
    """Where the forecast missed: by how much, and what both results say about their own doubt."""
    if forecast.low_seconds <= measured.step_seconds <= forecast.high_seconds:
        return []
    ratio = forecast.step_seconds / measured.step_seconds
    low, high = (wt.units.show(seconds, "s") for seconds in (forecast.low_seconds, forecast.high_seconds))
    missed = f"Missed: {what}: forecast / measured = {ratio:.2f}; the interval was {low} to {high}."
    doubts = [text for text in measured.cautions if "other processes" in text]
    doubts += [text for text in forecast.cautions if "probed" in text]
    return [missed, *(f"  {text}" for text in doubts)]


def write_report(beside: tuple[tuple[str, wt.Forecast, wt.Measurement], ...]) -> None:
    """One HTML file: what was measured, and the last job on this machine and on the others."""
    name, settings, threads = FLIGHTS[-1]
    print("\nWriting a report: measured steps, parts, memory, timeline, advice, what matters ...", flush=True)
    job, strategy = wt.Workload.named(name, **settings), wt.Strategy(threads=threads)
    wt.write_report(job, ("cpu", *ELSEWHERE), strategy, path=REPORT, measured=beside)
    print(f"The report: {REPORT}\nOpen it in a browser; it needs no network.")


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
