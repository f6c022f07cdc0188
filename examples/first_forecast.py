"""Your first forecast: how long a training step takes on a machine that you do not have.

A job, a machine and a strategy go in; seconds, memory and what limits the step come out.
"""

import windtunnel as wt

job = wt.Workload.named("resnet50")
machine = wt.Machine.named("rtx3090")
forecast = wt.predict(job, machine, wt.Strategy(batch=64, precision="fp16"))
print(forecast)

# A result is also plain numbers, in seconds and bytes.
print(f"\n{forecast.examples_per_second:.0f} images a second, {forecast.memory.peak_bytes / 2**30:.1f} GiB")
print(f"the 80 % interval: {forecast.low_seconds * 1e3:.0f} to {forecast.high_seconds * 1e3:.0f} ms")
