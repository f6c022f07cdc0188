"""The gain of a change with its interval: seconds of an example before, over seconds of an example after.

Both forecasts have errors, but these are not independent. A lane (the host, the device, a link) that is
forecast too slow is too slow in both, so most of its error cancels in the ratio. How much depends on what the
two forecasts have in common:

- The same ops at the same prices, such as another feed or exchange: all of it (correlation 1). What only one
  of the two has, such as the calls of another exchange, errs by itself all the same.
- The same ops with other threads, or called otherwise (a captured graph): 0.7. Tuning rows of an Ice Lake
  Xeon with one and two threads give 0.85, but these are 3 pairs. With 0.8, 60 to 75 % of the truth pairs of
  three CPUs were inside of the interval. 0.7 was chosen after that look; with it 75 to 95 % are.
- Other ops or number formats on the same machine: 0.2. By tuning rows of an H200, pairs of one network in two
  precisions: 0.16 (15 pairs; the errors of single rows are 10 %, those of the ratios 12 %).
- Another device: none. The errors of two devices' profiles have nothing in common.

With the shares a and b of a lane in the two critical paths, its spread s and the correlation r, the variance
of the logarithm of the gain is the sum over lanes of s^2 (a^2 + b^2 - 2 r a b). It is at least the sum of
(s d)^2, where d is what only one of the two paths has on the lane, as a share of the longer step. So a gain
by fewer calls is not taken as exact where calls bound both steps.

A path does not show a host that is nearly as slow as the device. A faster device makes it the bound: so the
interval also holds the gain on a host that is slower by its spread. The interval holds four of five true
gains, as the interval of a step does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.advice.trials import NO_TIME, TriedSetup

_SAME_OPS, _OTHER_CALLS, _OTHER_OPS, _OTHER_DEVICE = 1.0, 0.7, 0.2, 0.0
_NORMAL_OF_80 = 1.2816
# torch.compile's kernels by the rule. On a CPU the logarithms of 9 gains of recurrent loops on a Xeon were
# off by 0.43 (root mean square), so four of five are within a factor of 1.7. On a GPU those of three tuning
# networks were off by 0.21: a factor of 1.3.
_GUESSED_SPREAD = {"cpu": 1.7, "gpu": 1.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class GainInterval:
    """How many times as fast; `low` and `high` hold four of five true gains."""

    gain: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval is on one side of 1."""
        return self.low > 1.0 or self.high < 1.0


def gain_of(base: TriedSetup, changed: TriedSetup) -> GainInterval:
    """The gain of the time of an example, with its interval."""
    gain = base.example_seconds / changed.example_seconds
    shared = correlation(base, changed)
    lanes = sorted({*base.lanes, *changed.lanes})
    variance = sum(_variance(base, changed, lane, shared) for lane in lanes)
    variance = max(variance, sum(_own_variance(base, changed, lane) for lane in lanes))
    variance += _guess_variance(base, changed)
    reach = math.exp(_NORMAL_OF_80 * math.sqrt(max(0.0, variance)))
    slow = _on_slower_host(base, changed)
    return GainInterval(gain=gain, low=min(gain / reach, slow), high=max(gain * reach, slow))


def _on_slower_host(base: TriedSetup, changed: TriedSetup) -> float:
    """The gain if the host is slower by its spread and nothing else is."""
    before, after = (
        max(tried.forecast.step_seconds, tried.host.seconds * tried.host.spread) / tried.forecast.batch
        for tried in (base, changed)
    )
    return before / after


def correlation(base: TriedSetup, changed: TriedSetup) -> float:
    """How far the errors of a lane are the same in both forecasts."""
    old, new = base.setup.machine, changed.setup.machine
    if old.device != new.device or old.host != new.host:
        return _OTHER_DEVICE
    if base.trace.ops != changed.trace.ops or _number_format(base) != _number_format(changed):
        return _OTHER_OPS
    before, after = base.setup.strategy, changed.setup.strategy
    has_other_threads = old.device.kind == "cpu" and before.threads != after.threads
    return _OTHER_CALLS if has_other_threads or before.execution != after.execution else _SAME_OPS


def _number_format(tried: TriedSetup) -> str:
    return tried.setup.strategy.precision


def _variance(base: TriedSetup, changed: TriedSetup, lane: str, shared: float) -> float:
    old, new = base.lanes.get(lane, NO_TIME), changed.lanes.get(lane, NO_TIME)
    a = old.seconds / base.forecast.step_seconds
    b = new.seconds / changed.forecast.step_seconds
    s, t = (math.log(each.spread) / _NORMAL_OF_80 for each in (old, new))
    return (s * a) ** 2 + (t * b) ** 2 - 2 * shared * s * a * t * b


def _own_variance(base: TriedSetup, changed: TriedSetup, lane: str) -> float:
    """Of the seconds on a lane that only one of the two steps has."""
    old, new = base.lanes.get(lane, NO_TIME), changed.lanes.get(lane, NO_TIME)
    ratio = changed.forecast.batch / base.forecast.batch  # steps of different batches: by the same examples
    less = abs(old.seconds * ratio - new.seconds)
    whole = max(base.forecast.step_seconds * ratio, changed.forecast.step_seconds)
    return (math.log(max(old.spread, new.spread)) / _NORMAL_OF_80 * less / whole) ** 2


def _guess_variance(base: TriedSetup, changed: TriedSetup) -> float:
    """Kernels of the simple rule are wrong by themselves, unless both sides have the same ones."""
    if base.guessed == changed.guessed:
        return 0.0
    spread = _GUESSED_SPREAD[changed.setup.machine.device.kind]
    return (math.log(spread) / _NORMAL_OF_80) ** 2
