"""Tasks on lanes: order, waits by name, workers, contention, and the streamed step whose last op has no
kernel."""

from __future__ import annotations

import dataclasses
import random
import sys

import pytest

import windtunnel as wt
from windtunnel.forecast import contributors, schedule
from windtunnel.forecast.contributors.copies import BatchCopy
from windtunnel.forecast.contributors.ops import CapturedOps, CpuOps, GpuOps, StepCalls
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.price import Price
from windtunnel.forecast.schedule import (
    COPY,
    DEVICE,
    HOST,
    Contention,
    Lane,
    LaneTask,
    Step,
    StepBuilder,
    Wait,
    _Contended,
    place,
)
from windtunnel.forecast.timeline import steady_timeline
from windtunnel.machine.profiles import profile_for
from windtunnel.prediction import trace
from windtunnel.trace import Op


def ends_of(step: StepBuilder, steps: int) -> list[float]:
    return list(place(step.build(), steps).step_ends)


def test_a_host_launches_ahead_of_its_device_by_hand() -> None:
    """The host launches three kernels, 10 s each; the device needs 25, 1 and 1. The last ends at 10+25+1+1 =
    37."""
    step = StepBuilder()
    for seconds in (25.0, 1.0, 1.0):
        launch = step.add(LaneTask(HOST, 10.0, "launch"))
        step.add(LaneTask(DEVICE, seconds, "compute"), after=(launch,))
    spans = place(step.build()).spans
    assert [(s.start, s.end) for s in spans[1::2]] == [(10, 35), (35, 36), (36, 37)]
    assert [s.cause for s in spans] == [-1, 0, 0, 1, 2, 3]


@pytest.mark.parametrize(("steps_ago", "ends"), [(1, [5.0, 10.0, 15.0, 20.0]), (2, [5.0, 8.0, 11.0, 14.0])])
def test_a_task_waits_for_a_named_task_of_an_earlier_step_by_hand(steps_ago: int, ends: list[float]) -> None:
    """A copy of 2 s starts when the step before has computed, 3 s: 5 s a step. Two steps back, the copy is
    hidden: 3 s."""
    step = StepBuilder()
    batch = step.add(LaneTask(COPY, 2.0, "copy"), after=(Wait("kernels", steps_ago),))
    step.add(LaneTask(DEVICE, 3.0, "compute"), after=(batch,), name="kernels")
    assert ends_of(step, 4) == ends


def test_the_last_task_of_a_name_is_the_one_that_is_waited_for() -> None:
    step = StepBuilder()
    step.add(LaneTask(DEVICE, 1.0, "compute"), name="kernels")
    step.add(
        LaneTask(Lane("device", 1), 4.0, "compute"), name="kernels"
    )  # another worker's name is another name
    step.add(LaneTask(DEVICE, 1.0, "compute"), name="kernels")
    step.add(LaneTask(HOST, 1.0, "launch"), after=(Wait("kernels"),))
    assert place(step.build()).spans[-1].start == 2.0


@pytest.mark.parametrize("wait", [Wait("nobody"), Wait("later"), Wait("nobody", 1), Wait("first", worker=1)])
def test_a_wait_for_no_earlier_task_is_an_error_of_the_contributor(wait: Wait) -> None:
    step = StepBuilder()
    step.add(LaneTask(HOST, 1.0, "launch"), name="first")
    step.add(LaneTask(HOST, 1.0, "launch"), after=(wait,))
    step.add(LaneTask(HOST, 1.0, "launch"), name="later")
    with pytest.raises(ValueError, match=wait.name):
        step.build()


def test_two_workers_meet_at_an_all_reduce_by_hand() -> None:
    """Workers compute for 3 and 5 s, then reduce over one link for 2 s, and both update after it: 5 + 2 + 1 =
    8 s a step."""
    step = StepBuilder()
    for worker, seconds in enumerate((3.0, 5.0)):
        step.add(LaneTask(Lane("device", worker), seconds, "compute"), name="gradients")
    both = [Wait("gradients", worker=worker) for worker in (0, 1)]
    step.add(LaneTask(Lane("link"), 2.0, "communication"), after=both, name="reduced")
    for worker in (0, 1):
        step.add(LaneTask(Lane("device", worker), 1.0, "update"), after=(Wait("reduced"),))
    timeline = steady_timeline(step.build())
    assert timeline.step_seconds == 8.0 and timeline.is_steady
    assert timeline.parts() == {"update": 1.0, "communication": 2.0, "compute": 5.0}
    assert timeline.busy_seconds("device", worker=1) == 6.0


def test_a_kernel_slows_down_while_the_copy_engine_is_busy_by_hand() -> None:
    """10 s of work at 1.5 times the time while a copy of 3 s runs: 2 s are done in it, 8 are left: it ends at
    11."""
    step = StepBuilder()
    step.add(LaneTask(COPY, 3.0, "copy"))
    step.add(LaneTask(DEVICE, 10.0, "compute", contention=(Contention(COPY, 1.5),)))
    assert [span.end for span in place(step.build()).spans] == [3.0, 11.0]


def test_two_tasks_slow_each_other_down_by_hand() -> None:
    """Both take twice as long while they overlap. The short one, 2 s of work, ends at 4; the long one has 4 s
    left: 8."""
    step = StepBuilder()
    step.add(LaneTask(COPY, 2.0, "copy", contention=(Contention(DEVICE, 2.0),)))
    step.add(LaneTask(DEVICE, 6.0, "compute", contention=(Contention(COPY, 2.0),)))
    assert [span.end for span in place(step.build()).spans] == [4.0, 8.0]


def random_step(seed: int, slowdown: float | None) -> Step:
    rng, step = random.Random(seed), StepBuilder()
    lanes = (HOST, DEVICE, COPY, Lane("device", 1))
    for position in range(rng.randint(2, 30)):
        after: list[int | Wait] = rng.sample(range(position), min(position, rng.randint(0, 2)))
        if rng.random() < 0.3:
            after.append(Wait("mark", rng.randint(1, 3)))
        other = rng.choice(lanes)
        contention = () if slowdown is None else (Contention(other, slowdown),)
        seconds = rng.choice((0.0, 1.0, 2.5, rng.random()))
        step.add(LaneTask(rng.choice(lanes), seconds, "compute", contention=contention), after=after)
    step.name(rng.randrange(position), "mark")
    return step.build()


@pytest.mark.parametrize("seed", range(40))
def test_both_schedulers_agree_where_nothing_slows_down(seed: int) -> None:
    plain, watched = place(random_step(seed, None), 4), place(random_step(seed, 1.0), 4)
    assert [span[1:3] for span in plain.spans] == [pytest.approx(span[1:3]) for span in watched.spans]
    assert plain.step_ends == pytest.approx(watched.step_ends)


@pytest.mark.parametrize("seed", range(20))
def test_contention_never_shortens_a_run_and_lanes_stay_in_order(seed: int) -> None:
    quick, slow = place(random_step(seed, 1.0), 3), place(random_step(seed, 1.7), 3)
    assert slow.step_ends[-1] >= quick.step_ends[-1] * (1 - 1e-9)
    assert slow.step_ends[-1] <= 1.7 * sum(task.seconds for task in slow.tasks) + 1e-9
    last: dict[Lane, float] = {}
    for task, span in zip(slow.tasks, slow.spans, strict=True):
        assert span.start >= last.get(task.lane, 0.0) and span.end - span.start >= task.seconds - 1e-9
        last[task.lane] = span.end
        assert span.cause < 0 or slow.spans[span.cause].end <= span.start


def test_a_host_that_waits_for_nobody_is_placed_without_events() -> None:
    """Three launches of 1 s; kernels of 2 s that take 1.5 times as long beside a copy of 4 s."""
    step = StepBuilder()
    launches = [step.add(LaneTask(HOST, 1.0, "launch")) for _ in range(3)]
    step.add(LaneTask(COPY, 4.0, "copy"))
    for launch in launches:
        step.add(LaneTask(DEVICE, 2.0, "compute", contention=(Contention(COPY, 1.5),)), after=(launch,))
    built = step.build()
    scheduler = _Contended(built)
    assert [built.tasks[scheduler._lanes.index(lane)].lane for lane in scheduler._events] == [COPY, DEVICE]
    # The first kernel runs from 1 to 4 s beside the copy, the others alone.
    assert [span.end for span in scheduler.run(1).spans] == [1.0, 2.0, 3.0, 4.0, 4.0, 6.0, 8.0]


def test_steps_of_alternating_length_are_averaged_over_their_period_by_hand() -> None:
    """Three tasks of 1 s in a row on three lanes; the first waits for the last of two steps ago: two steps in
    3 s, 1.5 s a step."""
    step = StepBuilder()
    first = step.add(LaneTask(HOST, 1.0, "launch"), after=(Wait("last", steps_ago=2),))
    second = step.add(LaneTask(COPY, 1.0, "copy"), after=(first,))
    step.add(LaneTask(DEVICE, 1.0, "compute"), after=(second,), name="last")
    timeline = steady_timeline(step.build())
    assert timeline.is_steady and timeline.period_steps == 2 and timeline.step_seconds == 1.5
    assert timeline.parts() == {"compute": 0.5, "copy": 0.5, "launch": 0.5}
    assert ends_of(step, 4) == [3.0, 4.0, 6.0, 7.0]


def add_ring(step: StepBuilder, tasks: int, seconds: float, steps_ago: int) -> None:
    """Tasks in a row, each on a lane of its own; the first waits for the last of some steps ago."""
    name = f"end of {tasks}"
    after: tuple[int | Wait, ...] = (Wait(name, steps_ago),)
    for worker in range(tasks):
        after = (step.add(LaneTask(Lane(name, worker), seconds, "compute"), after=after),)
    step.name(*(position for position in after if isinstance(position, int)), name)


def test_a_pattern_counts_only_if_it_holds_for_as_many_steps_as_tasks_wait() -> None:
    """Nine tasks of 1 s, six steps under way at a time: 9 s for six steps. The first five steps seem to take
    1 s each."""
    step = StepBuilder()
    add_ring(step, tasks=9, seconds=1.0, steps_ago=6)
    timeline = steady_timeline(step.build())
    assert timeline.is_steady and timeline.period_steps == 6 and timeline.step_seconds == 1.5


def test_a_step_that_does_not_become_steady_says_so() -> None:
    """Rings of four and of five steps repeat together only after 20 steps, which is longer than any pattern
    looked for."""
    step = StepBuilder()
    add_ring(step, tasks=5, seconds=1.2, steps_ago=4)
    step.add(LaneTask(HOST, 1.4, "launch"), after=(Wait("end of 5"),))
    add_ring(step, tasks=8, seconds=7.5 / 8, steps_ago=5)
    assert not steady_timeline(step.build()).is_steady


def op(name: str) -> Op:
    return Op(
        name=name, family="matmul", phase="forward", dtype="fp32", flop=1.0, read_bytes=1.0, written_bytes=1.0
    )


OPS = (op("a"), op("b"), op("c"))
PRICES = (Price(1.0, 4.0), Price(1.0, 2.0), Price(1.0, 0.0))


@pytest.mark.parametrize(
    ("members", "step_seconds"),
    [
        # 3 launches of 1 s and kernels of 4 and 2 s: one after the other on a CPU, overlapped on a GPU.
        ((StepCalls(seconds=0.5, is_device=True), CpuOps(ops=OPS, prices=PRICES)), 9.5),
        ((StepCalls(seconds=0.5), GpuOps(ops=OPS, prices=PRICES)), 6.0),
        ((StepCalls(seconds=0.0), CapturedOps(ops=OPS, prices=PRICES, launch_seconds=0.1)), 6.0),
        # The host waits for a copy of 2 s that starts when the kernels of the step before have ended: 2 + 1 +
        # 4 + 2.
        ((StepCalls(seconds=0.5), BatchCopy(seconds=2.0), GpuOps(ops=OPS, prices=PRICES)), 9.0),
        ((StepCalls(seconds=0.5), BatchCopy(seconds=2.0, prefetch=1), GpuOps(ops=OPS, prices=PRICES)), 6.0),
        ((StepCalls(seconds=0.5), BatchCopy(seconds=8.0, prefetch=2), GpuOps(ops=OPS, prices=PRICES)), 8.0),
    ],
)
def test_steps_of_contributors_by_hand(
    members: tuple[contributors.Contributor, ...], step_seconds: float
) -> None:
    timeline = steady_timeline(contributors.build_step(members))
    assert timeline.step_seconds == pytest.approx(step_seconds) and timeline.is_steady
    assert sum(timeline.parts().values()) == pytest.approx(step_seconds)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_streamed_copy_waits_for_kernels_even_if_the_step_ends_in_an_op_without_one(prefetch: int) -> None:
    machine, strategy = wt.Machine.named("h200"), wt.Strategy(data="streamed", prefetch=prefetch)
    recorded = trace(wt.Workload.named("fcn5"), strategy, "gpu")
    view = dataclasses.replace(recorded.ops[-1], name="aten.view", family="view", allocated=(), freed=())
    longer = dataclasses.replace(recorded, ops=(*recorded.ops, view))
    before, after = (
        forecast_step(steps, machine, strategy, profile_for(machine)).forecast for steps in (recorded, longer)
    )
    assert after.step_seconds == pytest.approx(before.step_seconds, rel=1e-3)
    assert after.step_seconds >= before.step_seconds, "one more op never makes a step shorter"


def test_steps_are_counted_and_not_recognised_by_a_label() -> None:
    timeline = steady_timeline(
        contributors.build_step((StepCalls(seconds=0.5), GpuOps(ops=OPS, prices=PRICES)))
    )
    assert timeline.tasks_per_step == len(timeline.step) == 6
    assert len(timeline.tasks) % timeline.tasks_per_step == 0


def test_the_example_in_the_module_is_true() -> None:
    import doctest

    assert doctest.testmod(sys.modules[schedule.__name__]).attempted
    assert not doctest.testmod(schedule).failed
