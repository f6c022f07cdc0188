"""What should I change? Each change is forecast with its interval; the best of them are tried together."""

import windtunnel as wt

job, machine = wt.Workload.named("resnet50"), wt.Machine.named("h200")
advice = wt.advise(job, machine, wt.Strategy(batch=64))
for each in advice.suggestions:
    sure = "" if each.gain.is_sure else "  (measure it first: the interval includes 1)"
    gain = f"{each.gain.gain:.2f} ({each.gain.low:.2f} to {each.gain.high:.2f})"
    print(f"{each.name:<16}{gain:>22} times as fast{sure}")

# The changes that keep the machine and the batch, together, as a plan that other commands take.
plan = advice.plan()
if plan is not None:
    print(f"\n{plan.why}")
    print(wt.predict(job, machine, plan.strategy))
