"""Many charts at once. Each takes some 80 ms of one core, most of it measuring letters, so a page's charts are drawn by several processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from windtunnel.reports.charts import Chart

_ENOUGH = 12  # fewer charts a process than this are not worth its start
_MOST_PROCESSES = 8


def draw(charts: Sequence[Chart]) -> list[str]:
    """Every chart as SVG, in order."""
    count = min(_MOST_PROCESSES, _cores(), len(charts) // _ENOUGH)
    if count < 2:
        return [chart.svg() for chart in charts]
    shares = [charts[number::count] for number in range(count)]
    children = [_start(share) for share in shares[1:]]
    drawn = [[chart.svg() for chart in shares[0]]]
    drawn += [_finish(child, share) for child, share in zip(children, shares[1:], strict=True)]
    found = [""] * len(charts)
    for number, some in enumerate(drawn):
        found[number::count] = some
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(share: Sequence[Chart]) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "windtunnel.reports.drawing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: what it should have drawn is drawn here
        json.dump([chart.spec for chart in share], child.stdin)
        child.stdin.close()
    child.stdin = None
    return child


def _finish(child: subprocess.Popen[str], share: Sequence[Chart]) -> list[str]:
    """What the child drew; where it died, the same drawn here."""
    said, _ = child.communicate()
    try:
        drawn = [str(svg) for svg in json.loads(said)]
    except json.JSONDecodeError:
        drawn = []
    return drawn if len(drawn) == len(share) else [chart.svg() for chart in share]


def main() -> None:
    """Descriptions as JSON in, drawings as JSON out."""
    charts = [Chart(spec=spec) for spec in json.load(sys.stdin)]
    json.dump([chart.svg() for chart in charts], sys.stdout)


if __name__ == "__main__":
    main()
