"""Many charts at once. One takes 20 to 80 ms of a core, so several processes draw those of a long page."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from windtunnel import child_lifetime
from windtunnel.reports.charts import Chart

_ENOUGH = 24  # with fewer charts for each, starting a process (0.7 s of a core) costs more than it saves
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
    svgs = [""] * len(charts)
    for number, some in enumerate(drawn):
        svgs[number::count] = some
    return svgs


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(share: Sequence[Chart]) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [*child_lifetime.command("windtunnel.reports.drawing"), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; `_finish` then draws its share
        # Written as one text: `json.dump` encodes in Python and takes many times as long.
        child.stdin.write(json.dumps([chart.spec for chart in share]))
        child.stdin.close()
    child.stdin = None
    return child


def _finish(child: subprocess.Popen[str], share: Sequence[Chart]) -> list[str]:
    """What the child drew; if it died, this process draws its share."""
    output, _ = child.communicate()
    try:
        drawn = [str(svg) for svg in json.loads(output)]
    except json.JSONDecodeError:
        drawn = []
    return drawn if len(drawn) == len(share) else [chart.svg() for chart in share]


def main() -> None:
    """Read chart descriptions as JSON, write SVG drawings as JSON."""
    charts = [Chart(spec=spec) for spec in json.load(sys.stdin)]
    sys.stdout.write(json.dumps([chart.svg() for chart in charts]))


if __name__ == "__main__":
    main()
