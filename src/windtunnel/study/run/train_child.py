"""The training child process: one trial after another; each result is sent as soon as it is complete.

Run by `windtunnel.child_lifetime` with the number of its pipe, and the order as one line on standard input.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

from windtunnel import records
from windtunnel.errors import WindtunnelError
from windtunnel.measurement.process import Emit, emit_on, words
from windtunnel.measurement.sampler import reference_loop
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.exchange.trial import ClusterTrials
    from windtunnel.learning.trial import TrialOutcome

RESULT = "trained"
_LOOPS = 40  # in each reading of the reference loop, as long as 1 ms


def main() -> None:
    emit = emit_on(int(sys.argv[-1]))
    order = json.loads(words().readline())
    from windtunnel.learning.training import use_threads

    use_threads(1)  # more threads would add the numbers in another order
    for trial in order["trials"]:
        emit({"kind": RESULT, **_carried_out(trial, emit)})


def _carried_out(data: Plain, emit: Emit) -> Plain:
    before, begin, used = _loop_seconds(), time.perf_counter(), time.process_time()
    try:
        result = _run(data)
    except WindtunnelError as error:
        return {"error": error.message}
    except (RuntimeError, ValueError, ArithmeticError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    # Programs that share the core in turns do not slow a loop of 1 ms. They show in the processor's share.
    share = (time.process_time() - used) / (time.perf_counter() - begin)
    loop_seconds = max(before, _loop_seconds())
    return {"result": records.plain(result), "loop_seconds": loop_seconds, "processor_share": share}


def _run(data: Plain) -> TrialOutcome:
    """A trial of one worker, or of the workers of a machine."""
    if "workers" in data:
        from windtunnel.exchange.trial import ClusterTrial

        return _clusters().run(records.read(ClusterTrial, data, "trial"))
    from windtunnel.learning.trial import TrialRun, run_trial

    return run_trial(records.read(TrialRun, data, "trial"))


@functools.cache
def _clusters() -> ClusterTrials:
    from windtunnel.exchange.trial import ClusterTrials

    return ClusterTrials()


def _loop_seconds() -> float:
    return statistics.median(reference_loop() for _ in range(_LOOPS))
