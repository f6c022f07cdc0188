"""How often the rule of `compare` is right: on noise of known kinds, and on real pairs drawn again.

python benchmarks/compare_rates.py                    the tables of docs/design.md, a few seconds
python benchmarks/compare_rates.py --comparisons 400  fewer simulated comparisons (default 2000)
python benchmarks/compare_rates.py --equal-turns      as if all turns had the same length

Each comparison gets at most as many pairs as 60 s allow. A pair of simulated noise has 18 rounds of four
turns; its ratio comes from them as in measurement/pairs.py, and the verdict from measurement/looks.py.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from compare import RESULTS, Trial, read

from windtunnel.measurement import looks
from windtunnel.measurement.equivalence import WITHIN
from windtunnel.measurement.pairs import TURN_SECONDS, TURN_VARIES

PAIRS, ROUNDS, COMPARISONS = 8, 18, 2000
FACTORS = (1.0, 1.1, 1.2)
_TWOFOLD = math.log(2.0)
_IS_B = numpy.array([[False, True, True, False], [True, False, False, True]])  # A B B A, B A A B
Turns = Any  # logarithms of the seconds of turns: comparisons x pairs x turns
Draw = Callable[[numpy.random.Generator], Turns]
Lengths = Callable[[numpy.random.Generator, tuple[int, ...]], Turns]


def pair_logs(turns: Turns) -> Any:
    """The logarithm of each pair's ratio, from that of its turns: comparisons x pairs."""
    rounds = turns.reshape(*turns.shape[:2], -1, 4)
    ratios = list[Any]()
    for number in range(rounds.shape[2]):
        is_b = _IS_B[number % 2]
        a, b = rounds[..., number, ~is_b], rounds[..., number, is_b]
        ratios += [b[..., i] - a[..., j] for i in range(2) for j in range(2)]
    return numpy.median(numpy.stack(ratios), axis=0)


def turn_lengths(rng: numpy.random.Generator, shape: tuple[int, ...]) -> Turns:
    """The seconds of each turn, as measurement/pairs.py draws them."""
    return TURN_SECONDS * rng.uniform(1.0 - TURN_VARIES, 1.0 + TURN_VARIES, shape)


def equal_lengths(rng: numpy.random.Generator, shape: tuple[int, ...]) -> Turns:
    """Turns as they must not be: a neighbour that comes by the clock meets the same side again and again."""
    return numpy.full(shape, TURN_SECONDS)


def noises(comparisons: int, pairs: int = PAIRS, lengths: Lengths = turn_lengths) -> Mapping[str, Draw]:
    """What a turn takes beside the step itself, by its kind."""
    shape = comparisons, pairs, 4 * ROUNDS
    is_b = numpy.resize(_IS_B, (ROUNDS, 4)).ravel()

    def by_side(values: Turns) -> Turns:
        """For each turn, the value of its side: the last axis has that of A, then that of B."""
        return numpy.where(is_b, values[..., 1:], values[..., :1])

    def calm(rng: numpy.random.Generator) -> Turns:
        effects = rng.standard_normal((*shape[:2], 2))
        return 0.013 * by_side(effects) + 0.05 * rng.standard_normal(shape)

    def heavy(rng: numpy.random.Generator) -> Turns:
        effects = rng.standard_t(3, (*shape[:2], 2)) / math.sqrt(3)
        return 0.02 * by_side(effects) + 0.05 * rng.standard_t(3, shape)

    def outliers(rng: numpy.random.Generator) -> Turns:
        return calm(rng) + numpy.where(rng.random(shape) < 0.15, rng.uniform(0.2, 1.5, shape), 0.0)

    def drift(rng: numpy.random.Generator) -> Turns:
        return calm(rng) + rng.uniform(-0.7, 0.7, (*shape[:2], 1)) * numpy.linspace(0.0, 1.0, shape[-1])

    def bursts(rng: numpy.random.Generator) -> Turns:
        return calm(rng) + _TWOFOLD * _present(rng, shape, 1 / 12, 1 / 28)

    def in_step(rng: numpy.random.Generator, there: float, period: float) -> Turns:
        """A neighbour slows the turns that it meets for the most part."""
        turns = lengths(rng, shape)
        middles = numpy.cumsum(turns, axis=-1) - turns / 2 + rng.uniform(0.0, period, (*shape[:2], 1))
        return calm(rng) + _TWOFOLD * (middles % period < there)

    def wandering(rng: numpy.random.Generator) -> Turns:
        both = numpy.stack([_wandering(rng, shape, 0.95) for _ in range(2)], axis=-1)
        return calm(rng) + 0.05 * numpy.where(is_b, both[..., 1], both[..., 0])

    def whole_pairs(rng: numpy.random.Generator) -> Turns:
        is_off = rng.random((*shape[:2], 2)) < 0.025
        return calm(rng) + 0.3 * by_side(is_off)

    return {
        "calm: processes 1.3 %, turns 5 %": calm,
        "heavy tails of processes and turns": heavy,
        "one turn in seven up to 4.5 times as long": outliers,
        "drift up to twofold within a pair": drift,
        "a neighbour comes for 0.3 s by chance: twofold": bursts,
        "25 ms of each 100 ms by the clock: twofold": functools.partial(in_step, there=0.025, period=0.1),
        "half of each 100 ms by the clock: twofold": functools.partial(in_step, there=0.05, period=0.1),
        "half of each 200 ms by the clock: twofold": functools.partial(in_step, there=0.1, period=0.2),
        "each process wanders by 5 % for half a second": wandering,
        "one process in forty is 35 % slower throughout": whole_pairs,
    }


def _present(rng: numpy.random.Generator, shape: tuple[int, ...], leaves: float, comes: float) -> Turns:
    """1 while a neighbour is there, which comes and goes by chance; else 0."""
    is_there = rng.random(shape[:-1]) < comes / (comes + leaves)
    turns = numpy.empty(shape)
    for place in range(shape[-1]):
        chance = rng.random(shape[:-1])
        is_there = numpy.where(is_there, chance >= leaves, chance < comes)
        turns[..., place] = is_there
    return turns


def _wandering(rng: numpy.random.Generator, shape: tuple[int, ...], memory: float) -> Turns:
    """Noise of size 1 in which each turn is like the one before."""
    turns = rng.standard_normal(shape)
    for place in range(1, shape[-1]):
        turns[..., place] = memory * turns[..., place - 1] + math.sqrt(1 - memory**2) * turns[..., place]
    return turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of comparisons: equal sides called different and the same, 1.10 and 1.20 detected."""

    spread: float
    alarms: float
    same: float
    detected: tuple[float, ...]


def rates(errors: Any) -> Rates:
    """By the logarithms of pairs whose sides are equal: comparisons x pairs."""
    equal, *slower = ([judged(row, factor) for row in errors] for factor in FACTORS)
    return Rates(
        spread=float(numpy.std(errors)),
        alarms=sum(each != "same" and each != "can't tell" for each in equal) / len(errors),
        same=equal.count("same") / len(errors),
        detected=tuple(each.count("slower") / len(errors) for each in slower),
    )


def judged(errors: Sequence[float], factor: float) -> str:
    """The verdict of one comparison that may have so many pairs; slower or faster where it is different."""
    logs = [float(error) + math.log(factor) for error in errors]
    for count in range(1, len(logs) + 1):
        answer = looks.answer(logs[:count], WITHIN, is_last=count == len(logs))
        if answer is not None:
            break
    assert answer is not None
    if answer.verdict == "different":
        return "slower" if answer.ratio > 1.0 else "faster"
    return answer.verdict


def drawn_again(trials: Sequence[Trial], comparisons: int, rng: numpy.random.Generator) -> Any:
    """Comparisons of real pairs with equal sides, drawn with replacement.

    Equal sides could change places, so each drawn pair is turned round by chance. Pairs with a slowed side
    are left out: on a busy machine, a longer step is interrupted more often, so its true ratio is not known.
    """
    pool = numpy.array([error for trial in trials if trial.factor == 1.0 for error in trial.errors])
    return rng.choice(pool, (comparisons, PAIRS)) * rng.choice([-1.0, 1.0], (comparisons, PAIRS))


def bias(trials: Sequence[Trial]) -> str:
    """The mean error of pairs with equal sides, and its 95 % interval by Student's t."""
    pool = [error for trial in trials if trial.factor == 1.0 for error in trial.errors]
    reach = looks.student_t(len(pool) - 1, 0.05) * statistics.stdev(pool) / math.sqrt(len(pool))
    return f"{100 * statistics.fmean(pool):+.1f} % (either way {100 * reach:.1f} %) over {len(pool)} pairs"


HEAD = (
    "| | pairs differ by | equal: different | equal: same | 1.10 detected | 1.20 detected |\n"
    "|---|---|---|---|---|---|"
)


def line(name: str, found: Rates) -> str:
    detected = " | ".join(f"{100 * share:.1f} %" for share in found.detected)
    return (
        f"| {name} | {100 * found.spread:.1f} % | {100 * found.alarms:.1f} % | {100 * found.same:.0f} % "
        f"| {detected} |"
    )


def simulated_rates(
    comparisons: int = COMPARISONS, lengths: Lengths = turn_lengths
) -> Iterator[tuple[str, Rates]]:
    for number, (name, draw) in enumerate(noises(comparisons, lengths=lengths).items()):
        yield name, rates(pair_logs(draw(numpy.random.default_rng(number))))


def recorded_table(trials: Sequence[Trial], comparisons: int = COMPARISONS) -> Iterator[str]:
    yield HEAD
    for name, busy in (("quiet", False), ("busy", True)):
        some = [trial for trial in trials if trial.is_busy == busy]
        if sum(trial.factor == 1.0 for trial in some) > 1:
            yield line(name, rates(drawn_again(some, comparisons, numpy.random.default_rng(0))))


def most_spread(share: float, factor: float, comparisons: int = COMPARISONS) -> float:
    """How far pairs may differ (standard deviation) so that a factor is still detected this often."""
    draws = numpy.random.default_rng(0).standard_normal((comparisons, PAIRS))

    @functools.cache
    def is_enough(thousandths: int) -> bool:
        found = [judged(row, factor) for row in thousandths / 1000 * draws]
        return found.count("slower") >= share * comparisons

    return max(n for n in range(5, 300, 5) if is_enough(n)) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--equal-turns", action="store_true")
    options = parser.parse_args()
    lengths = equal_lengths if options.equal_turns else turn_lengths
    simulated = [line(name, found) for name, found in simulated_rates(options.comparisons, lengths)]
    print("\n".join(("Simulated noise:", HEAD, *simulated)))
    for share, factor in ((0.80, 1.1), (0.95, 1.2)):
        most = most_spread(share, factor, options.comparisons)
        print(f"{factor:.2f} is detected in {share:.0%} while pairs differ by up to {100 * most:.1f} %")
    trials = read(RESULTS)
    if trials:
        print("Real pairs, drawn again:\n" + "\n".join(recorded_table(trials, options.comparisons)))
        print(f"Equal sides: mean error {bias(trials)}")


if __name__ == "__main__":
    main()
