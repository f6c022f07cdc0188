"""The verdict on two times: different, same, or can't tell."""

from __future__ import annotations

import math
from typing import Literal

from windtunnel.errors import BadInput

Verdict = Literal["different", "same", "can't tell"]
WITHIN = 0.10  # a difference below this does not matter: the default of --within
_MOST = 10.0


def judge(low: float, high: float, within: float = WITHIN) -> Verdict:
    """The verdict on a ratio whose interval goes from `low` to `high`.

    Different if the interval excludes 1. The same only if the whole interval is within the margin, which is
    symmetric: 10 % means from 1 / 1.10 to 1.10. A ratio that is different and within the margin is different:
    by how much, its interval says.
    """
    if low > 1.0 or high < 1.0:
        return "different"
    return "same" if low >= 1.0 / (1.0 + within) and high <= 1.0 + within else "can't tell"


def percent(within: float) -> str:
    """A margin in words: 10 %."""
    return f"{100.0 * within:.3g} %"


def parse_within(text: str) -> float:
    """The margin in "10%" or "0.1"; BadInput for anything else."""
    body = text.strip()
    try:
        margin = float(body.removesuffix("%")) / (100.0 if body.endswith("%") else 1.0)
    except ValueError:
        margin = math.nan
    if not 0.0 < margin <= _MOST:
        raise BadInput(
            f"--within {text}: not a margin.",
            hint="Write a share above 0 and at most 1000 %, for example --within 10%.",
        )
    return margin
