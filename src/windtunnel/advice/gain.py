"""The gain of a change with its interval: seconds of an example before, over seconds of an example after.

Both forecasts have errors, but these are not independent. A lane (the host, the device, a link) that is
forecast too slow is too slow in both, so most of its error cancels in the ratio. How much depends on what the
two forecasts have in common:

- The same ops at the same prices, such as another feed or exchange: all of it (correlation 1).
- The same ops with other threads, or called otherwise (a captured graph): 0.7. Tuning rows of an Ice Lake
  Xeon with one and two threads give 0.85, but these are 3 pairs. With 0.8, 60 to 75 % of the truth pairs of
  three CPUs were inside of the interval. 0.7 was chosen after that look; with it 75 to 95 % are.
- Other ops or number formats on the same machine: 0.2. By tuning rows of an H200, pairs of one network in two
  precisions: 0.16 (15 pairs; the errors of single rows are 10 %, those of the ratios 12 %).
- Another device: none. The errors of two devices' profiles have nothing in common.

With the shares a and b of a lane in the two critical paths, its spread s and the correlation r, the variance
of the logarithm of the gain is the sum over lanes of s^2 (a^2 + b^2 - 2 r a b). The interval holds four of
five true gains, as the interval of a step does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.advice.trials import LaneTime, TriedSetup

_SAME_OPS, _OTHER_CALLS, _OTHER_OPS, _OTHER_DEVICE = 1.0, 0.7, 0.2, 0.0
_NORMAL_OF_80 = 1.2816
# torch.compile's kernels by the rule. On a CPU the logarithms of 9 gains of recurrent loops on a Xeon were
# off by 0.43 (root mean square), so four of five are within a factor of 1.7. On a GPU those of three tuning
# networks were off by 0.21: a factor of 1.3.
_GUESSED_SPREAD = {"cpu": 1.7, "gpu": 1.3}
_NO_TIME = LaneTime(seconds=0.0, spread=1.0)


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
    variance += _guess_variance(base, changed)
    reach = math.exp(_NORMAL_OF_80 * math.sqrt(max(0.0, variance)))
    return GainInterval(gain=gain, low=gain / reach, high=gain * reach)


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
    old, new = base.lanes.get(lane, _NO_TIME), changed.lanes.get(lane, _NO_TIME)
    a = old.seconds / base.forecast.step_seconds
    b = new.seconds / changed.forecast.step_seconds
    s, t = (math.log(each.spread) / _NORMAL_OF_80 for each in (old, new))
    return (s * a) ** 2 + (t * b) ** 2 - 2 * shared * s * a * t * b


def _guess_variance(base: TriedSetup, changed: TriedSetup) -> float:
    """Kernels of the simple rule are wrong by themselves, unless both sides have the same ones."""
    if base.guessed == changed.guessed:
        return 0.0
    spread = _GUESSED_SPREAD[changed.setup.machine.device.kind]
    return (math.log(spread) / _NORMAL_OF_80) ** 2
