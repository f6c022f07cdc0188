"""Re-run a paper: a published table, the same cells measured here today, and what became of the claim.

The claim of Brandfonbrener 2017: on a CPU the time of a small recurrent network grows with its timesteps.
`windtunnel study run brandfonbrener-2017` runs all of it; this takes two cells.
"""

import tempfile
from pathlib import Path

import windtunnel as wt

paper = wt.Study.named("brandfonbrener-2017")
print(f"{paper.title} ({paper.year})")
figure = "figure-09"
printed = {
    row.settings["n_steps"]: row.example_seconds
    for row in paper.published()
    if row.figure == figure and row.settings["n_rec"] == 50
}

short = wt.Protocol(processes=1, most_processes=1, seconds=0.2)
with tempfile.TemporaryDirectory() as folder:
    store = wt.Store(Path(folder) / "store.sqlite")
    measured = {}
    for steps in (10, 100):
        job = wt.Workload.named("rnn", n_rec=50, n_steps=steps)
        run = wt.measure(job, wt.Machine.find("cpu"), wt.Strategy(threads=1), store=store, protocol=short)
        measured[steps] = run.step_seconds
    store.close()

print(f"{'timesteps':>10}{'printed':>12}{'measured here':>16}")
for steps, seconds in measured.items():
    shown = wt.units.show(seconds, "s")
    print(f"{steps:>10}{wt.units.show(printed[steps] or 0.0, 's'):>12}{shown:>16}")
growth = measured[100] / measured[10]
print(f"\n10 times the timesteps take {printed[100] / printed[10]:.1f} times as long in print")
print(
    f"and {growth:.1f} times as long measured here: the time {'grows' if growth > 1.5 else 'does not grow'}"
)
