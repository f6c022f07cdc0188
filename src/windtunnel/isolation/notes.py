"""Which line of the user's code ran last, from what faulthandler wrote."""

from __future__ import annotations

import re
from pathlib import Path

from windtunnel.job.workload import is_users

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')


def users_line_in(text: str) -> str:
    """Such as "job.py line 12 in forward()": the innermost frame of the user's code in the last dump."""
    dumps = re.split(r"^(?=Fatal|Timeout|Current thread|Thread )", text, flags=re.MULTILINE)
    for dump in reversed(dumps):
        for line in dump.splitlines():  # the most recent call is first
            match = _FRAME.match(line)
            if match is not None and is_users(match["file"]):
                return f"{Path(match['file']).name} line {match['line']} in {match['name']}()"
    return ""
