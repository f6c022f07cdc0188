"""Is the data the bottleneck? A GPU waits while pictures are read and decoded; what helps, and how much."""

import windtunnel as wt

job = wt.Workload.named("resnet50")  # its data are JPEG files; your own job says so with wt.StoredData
machine = wt.Machine.named("guide-figure-5")
table = wt.compare_remedies(job, machine, wt.Strategy(batch=64, data="storage", loaders=2))
print(table)

base = table.base
print(f"\nnow the devices work {base.utilisation:.0%} of the time")
possible = [step for step in table.steps if step.step_seconds is not None]
best = min(possible, key=lambda step: step.step_seconds or 0.0)
print(f"best: {best.name}, {base.step_seconds / best.step_seconds:.2f} times as fast")
