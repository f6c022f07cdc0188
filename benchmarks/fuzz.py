"""Many command lines that nobody would type: tries and failures for each command.

    python benchmarks/fuzz.py [--tries 300] [--seed 1]

A try fails if it does not end in time, ends by a signal, with a code other than 0, 1, 2 and 130, with a
traceback, without a word, or with control characters in what it prints. The test suite runs fewer of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import hypothesis

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import conftest
import fuzzed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tries, failures = dict[str, int](), dict[str, list[str]]()
    longest = (0.0, "")

    @hypothesis.seed(options.seed)
    @hypothesis.settings(
        max_examples=options.tries,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(fuzzed.any_command_line())
    def attack(words: list[str]) -> None:
        nonlocal longest
        name, start = fuzzed.name_of(words), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            done = conftest.run(
                *words, folder=Path(folder), seconds=fuzzed.LIMIT_SECONDS, **fuzzed.variables()
            )
        tries[name] = tries.get(name, 0) + 1
        longest = max(longest, (time.monotonic() - start, fuzzed.in_short(words)))
        fault = fuzzed.fault_of(done.returncode, done.stdout, done.stderr)
        if fault:
            failures.setdefault(name, []).append(f"{fuzzed.in_short(words)}: {fault}")
            if fault == "traceback":
                failures[name].append("    " + done.stderr.strip().splitlines()[-1][:200])

    attack()
    for name, count in sorted(tries.items()):
        found = failures.get(name, [])
        print(f"{name:<20}{count:>6} tries{sum(not each.startswith(' ') for each in found):>5} failures")
        for line in found:
            print(f"    {line}")
    print(f"longest {longest[0]:.1f} s: {longest[1]}")


if __name__ == "__main__":
    main()
