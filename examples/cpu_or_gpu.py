"""CPU or GPU? A small recurrent network is faster on a CPU; from some size on the GPU overtakes it.

Everything is forecast, so neither machine need be here. `windtunnel crossover` finds the size by measuring.
"""

import windtunnel as wt

cpu, gpu = wt.Machine.named("i7-3820"), wt.Machine.named("h200")
print(f"{'n_rec':>6}{cpu.name:>12}{gpu.name:>12}  faster")
for n_rec in (50, 200, 800, 3200):
    job = wt.Workload.named("rnn", n_rec=n_rec, n_steps=10)
    times = {machine.name: wt.predict(job, machine).step_seconds for machine in (cpu, gpu)}
    shown = "".join(f"{wt.units.show(seconds, 's'):>12}" for seconds in times.values())
    print(f"{n_rec:>6}{shown}  {min(times, key=lambda name: times[name])}")

crossing = wt.crossover("rnn", "n_rec=50..3200", "i7-3820,h200", n_steps=10, budget_seconds=0)
print(f"\n{crossing.sentence()}")
