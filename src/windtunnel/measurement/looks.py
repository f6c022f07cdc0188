"""The interval of a ratio from several pairs of processes, and when to stop adding pairs.

Stopping as soon as the interval excludes 1 after any pair would be wrong far more often than in 5 of 100
cases. So the interval is only looked at after 3, 5, 8, 12, 18 ... pairs, and once when the time is up. Each
look spends a fifth of the remaining error probability, the last one all of it. These add up to 5 %: whichever
look ends the comparison, two equal sides are called different in at most 5 of 100 comparisons.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.measurement.equivalence import Verdict, judge

ERROR = 0.05
_SHARE = 0.2  # of the chance of error that is left, for each look but the last
_FIRST, _GROWTH = 3, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioAnswer:
    """The ratio, its interval with a confidence `level` that accounts for all looks, and the verdict."""

    ratio: float
    low: float
    high: float
    level: float
    verdict: Verdict


def answer(logs: Sequence[float], within: float, *, is_last: bool) -> RatioAnswer | None:
    """The answer from the logarithm of each pair's ratio; None if another pair is needed.

    `is_last`: no further pair follows, for a reason that does not depend on the ratios.
    """
    if not is_last and not is_planned(len(logs)):
        return None
    over = interval_of(logs, within, is_last=is_last)
    return over if is_last or over.verdict != "can't tell" else None


def is_planned(pairs: int) -> bool:
    """Whether the interval may be looked at after this number of pairs."""
    return pairs in _planned(pairs)


def error_at(pairs: int, *, is_last: bool) -> float:
    """The error probability of the look after this number of pairs; the last look has all that is left."""
    left = ERROR * (1.0 - _SHARE) ** sum(1 for each in _planned(pairs) if each < pairs)
    return left if is_last else _SHARE * left


def interval_of(logs: Sequence[float], within: float, *, is_last: bool) -> RatioAnswer:
    """The interval by Student's t over pairs, and the verdict by that interval.

    Pairs are the unit of statistics: rounds of one pair share two processes, whose memory layouts differ from
    those of the next pair. One pair does not show this variation, so its interval is infinite.
    """
    middle, error = statistics.fmean(logs), error_at(len(logs), is_last=is_last)
    reach = math.inf
    if len(logs) > 1:
        reach = student_t(len(logs) - 1, error) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = _exp(middle - reach), _exp(middle + reach)
    verdict = judge(low, high, within)
    return RatioAnswer(ratio=math.exp(middle), low=low, high=high, level=1.0 - error, verdict=verdict)


@functools.cache
def student_t(degrees_of_freedom: int, error: float) -> float:
    """The quantile of Student's t that is exceeded on either side with probability `error`, by bisection."""
    low, high = 0.0, 1.0
    while _two_sided_tail(high, degrees_of_freedom) > error:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _two_sided_tail(middle, degrees_of_freedom) > error else (low, middle)
    return (low + high) / 2.0


def _two_sided_tail(t: float, degrees_of_freedom: int) -> float:
    """The probability that Student's t is beyond `t` on either side: Abramowitz and Stegun 26.7.3 and
    26.7.4."""
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = cosine if degrees_of_freedom % 2 else 1.0
    for k in range(degrees_of_freedom % 2 + 2, degrees_of_freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if degrees_of_freedom % 2 == 0:
        return 1.0 - sine * total
    return 1.0 - 2.0 / math.pi * (angle + (sine * total if degrees_of_freedom > 1 else 0.0))


def _planned(most: int) -> list[int]:
    looks, pairs = list[int](), _FIRST
    while pairs <= most:
        looks.append(pairs)
        pairs = math.ceil(_GROWTH * pairs)
    return looks


def _exp(log: float) -> float:
    return math.exp(log) if log < 700.0 else math.inf
