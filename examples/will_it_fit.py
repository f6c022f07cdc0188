"""Will it fit? Which batch fits a GPU, and what makes room: a smaller number format, or smaller parts."""

import windtunnel as wt

job, machine = wt.Workload.named("vgg16"), wt.Machine.named("gtx1080")

# A step that does not fit is refused with the reason, and with what would fit.
try:
    wt.predict(job, machine, wt.Strategy(batch=256))
except wt.DoesNotFit as error:
    print(f"DoesNotFit: {error}\n")

for precision in ("fp32", "fp16"):
    largest = wt.largest_batch(job, machine, wt.Strategy(precision=precision))
    print(f"precision {precision}: largest batch {largest}")

# The same 256 examples in an update, in parts that each fit.
forecast = wt.predict(job, machine, wt.Strategy(batch=256, accumulate=8))
peak, room = (
    wt.units.show(n or 0.0, "B") for n in (forecast.memory.total_bytes, machine.device.memory_bytes)
)
print(f"\nbatch 256 in 8 parts: {wt.units.show(forecast.step_seconds, 's')} a step, {peak} of {room}")
