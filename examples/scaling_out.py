"""Scaling out: the same batch on more and more GPUs, until exchanging gradients costs more than it saves."""

import windtunnel as wt

job, strategy = wt.Workload.named("vgg16"), wt.Strategy(batch=64)
print(f"{'GPUs':>5}{'step':>10}{'speed-up':>10}{'efficiency':>12}  bound by")
alone = 0.0
for count in (1, 2, 4, 8):
    machine = wt.Machine.named("gtx1080ti" if count == 1 else f"{count}xgtx1080ti")
    forecast = wt.predict(job, machine, strategy)
    alone = alone or forecast.step_seconds
    gain = alone / forecast.step_seconds
    print(
        f"{count:>5}{wt.units.show(forecast.step_seconds, 's'):>10}{gain:>9.2f}x{gain / count:>12.0%}"
        f"  {forecast.bound_by}"
    )

# How many GPUs, and which parallelism? `plan` tries the ways that fit and forecasts the best of them.
found = wt.plan(
    wt.Workload.named("gpt2", size="tiny", length=64), wt.Machine.named("4xh100"), wt.Strategy(batch=64)
)
print(f"\n{found.headline()}")
print(f"best: {found.best.devices} devices, {found.best.in_words()}")
