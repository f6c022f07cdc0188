"""The target at which a training stops.

>>> parse_goal("accuracy=0.95")
Goal(metric='accuracy', target=0.95, better=None)
>>> str(parse_goal("loss<=0.3"))
'loss<=0.3'
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from windtunnel.errors import BadInput

Better = Literal["higher", "lower"]
_GOAL = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*(=|>=|<=)\s*(\S+)\s*$")
_DIRECTIONS: dict[str, Better | None] = {"=": None, ">=": "higher", "<=": "lower"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A metric on held-out data and the value at which to stop.

    `better` says whether a higher or a lower value is better; None leaves that to the lesson.
    """

    metric: str
    target: float
    better: Better | None = None

    def __str__(self) -> str:
        sign = next(sign for sign, better in _DIRECTIONS.items() if better == self.better)
        return f"{self.metric}{sign}{self.target:g}"


def parse_goal(text: str) -> Goal:
    """`accuracy=0.95`, or with a direction `loss<=0.3`."""
    match = _GOAL.match(text)
    try:
        target = float(match[3]) if match else math.nan
    except ValueError:
        target = math.nan
    if match is None or not math.isfinite(target):
        raise BadInput(
            f"{text!r} is not a target.",
            hint="Write a metric on held-out data and a number, for example --until accuracy=0.95",
        )
    return Goal(metric=match[1], target=target, better=_DIRECTIONS[match[2]])
