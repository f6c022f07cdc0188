"""Work spread over machines: every piece comes back once, by name if it failed, one at a time on each
machine."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from windtunnel.errors import BadInput, Unavailable
from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.study.run import engines, plain_work
from windtunnel.study.run.engine import Local, Outcome, Work

QUICK = Protocol(processes=1, most_processes=1, seconds=0.05, warm_seconds=0.02)
LONG = Protocol(
    processes=1,
    most_processes=1,
    seconds=1200.0,
    precision=1e-9,
    warm_seconds=0.02,
    timeout_seconds=3600.0,
)
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (extra cluster)"
)
needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="submitit is not installed (extra cluster)"
)


def work(key: str, protocol: Protocol = QUICK, variant: str = "hand") -> Work:
    task = Task(
        framework="numpy",
        variant=variant,
        job="rnn",
        settings={"n_in": 2, "n_rec": 5, "n_out": 2, "n_steps": 3, "activation": "relu"},
    )
    return Work(key=key, number=0, task=task, protocol=protocol)


# A framework of the user's own that notes when a child has loaded it, when it begins, when it goes on and
# when it has reported its last loss, and that dies in some variants.
OWN = """
import atexit, os, signal, time
from pathlib import Path
from types import SimpleNamespace
from windtunnel.measurement.frameworks.base import Built

def note(what):
    with open(Path(__file__).with_name("notes"), "a") as file:
        file.write(f"{what} {os.getpid()} {time.monotonic()}\\n")

def wait_for_two(what):
    end = time.monotonic() + 300
    while Path(__file__).with_name("notes").read_text().count(what) < 2 and time.monotonic() < end:
        time.sleep(0.01)

note("loaded")
atexit.register(note, "ended")

def build(problem, task):
    steps = 0

    def step():
        nonlocal steps
        steps += 1
        if steps == 1:
            note("began")
        if steps == 2 and task.variant == "compiles":
            wait_for_two("began")
        if steps == 2:
            note("continued")
        return sum(range(1000))

    def number(loss):
        note("reported")
        return float(loss)

    if task.variant == "exits":
        os._exit(7)
    if task.variant == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task.variant == "raises":
        raise ValueError("no such layer")
    if task.variant == "patient":
        wait_for_two("loaded")
    facts = {"child": os.getpid(), "variant": task.variant}
    about = {"parameters": 1, "dtype": "float32", "versions": {}, "facts": facts}
    return Built(step=step, number=number, compiles=task.variant == "compiles", **about)
"""


def own(folder: Path, name: str = "own.py") -> str:
    (folder / name).write_text(OWN)
    return str(folder / name)


def of_own(framework: str, variant: str, key: str = "", protocol: Protocol = QUICK, **other: Any) -> Work:
    settings = {"n_in": 2, "n_rec": 5, "n_out": 2, "n_steps": 3, "activation": "relu"}
    return Work(
        key=key or variant,
        number=0,
        task=Task(framework=framework, variant=variant, job="rnn", settings=settings, **other),
        protocol=protocol,
    )


def notes(folder: Path, what: str) -> dict[int, float]:
    """When each child did it, by its process."""
    reported = [line.split() for line in (folder / "notes").read_text().splitlines()]
    return {int(child): float(moment) for word, child, moment in reported if word == what}


def children(outcomes: list[Outcome]) -> list[int]:
    return [outcome.report.ready.facts["child"] for outcome in outcomes]


def steady(outcome: Outcome) -> list[float]:
    return list(outcome.report.steady) if outcome.report else []


def test_work_travels_as_plain_data_and_arrives_the_same() -> None:
    piece = work("a", LONG)
    assert plain_work.from_plain(json.loads(json.dumps(plain_work.to_plain(piece)))) == piece


def test_what_goes_wrong_on_another_machine_comes_back_by_name() -> None:
    assert plain_work.carry_out_plain(plain_work.to_plain(work("a", variant="nonsense")))["state"] != "done"
    broken = {**plain_work.to_plain(work("a")), "task": {"framework": "numpy", "colour": "red"}}
    answer = plain_work.carry_out_plain(broken)
    assert answer["state"] == "failed" and "colour" in answer["error"]


def test_engines_are_found_by_name_and_a_wrong_name_says_the_right_ones() -> None:
    assert isinstance(engines.engine_for("local"), Local)
    assert engines.engine_for("ray://head:10001") == engines.RayCluster(address="ray://head:10001")
    assert engines.engine_for("ray") == engines.RayCluster(address="auto")
    slurm = engines.engine_for("slurm:partition=gpu,jobs=2,chunk=3,gres=gpu:1")
    assert slurm == engines.Slurm(
        jobs=2, chunk=3, parameters={"slurm_partition": "gpu", "slurm_gres": "gpu:1"}
    )
    for wrong in ("slrum", "slurm:jobs", "slurm:jobs=many", "slurm:jobs=0"):
        with pytest.raises(BadInput):
            engines.engine_for(wrong)


def test_the_local_engine_is_told_how_many_to_start_ahead_and_how_many_share_a_process() -> None:
    assert engines.engine_for("local") == Local(ahead=1, share=1)
    assert engines.engine_for("local:ahead=4,share=10") == Local(ahead=4, share=10)
    assert engines.engine_for("local:share=3") == Local(share=3)
    for wrong in (
        "ahead",
        "ahead=",
        "ahead=0",
        "ahead=65",
        "share=-1",
        "share=2.5",
        "share=many",
        "jobs=4",
        "ahead=4;share=10",
    ):
        with pytest.raises(BadInput, match="is not a setting"):
            engines.engine_for(f"local:{wrong}")


def test_cells_that_share_a_process_are_timed_one_after_another_and_only_the_first_tells_of_memory(
    tmp_path: Path,
) -> None:
    framework = own(tmp_path)
    outcomes = list(Local(share=3).measure([of_own(framework, f"case {place}") for place in range(4)]))
    assert [outcome.work.task.variant for outcome in outcomes] == ["case 0", "case 1", "case 2", "case 3"]
    assert all(
        outcome.state == "done"
        and steady(outcome)
        and outcome.report.ready.facts["variant"] == outcome.work.task.variant
        for outcome in outcomes
    )
    assert [outcome.report.ready.place for outcome in outcomes] == [0, 1, 2, 0], (
        "a fourth has a process of its own"
    )
    assert [outcome.report.memory is not None for outcome in outcomes] == [True, False, False, True]
    assert len(set(children(outcomes[:3]))) == 1 and len(set(children(outcomes))) == 2


@pytest.mark.parametrize(
    ("variant", "state"), [("exits", "no result"), ("crashes", "crashed"), ("raises", "raised")]
)
def test_a_shared_child_that_dies_keeps_what_it_told_names_whom_it_died_of_and_the_rest_is_measured(
    tmp_path: Path, variant: str, state: str
) -> None:
    framework = own(tmp_path)
    first, second, third = Local(share=3).measure(
        [of_own(framework, "before"), of_own(framework, variant), of_own(framework, "after")]
    )
    assert first.state == "done" and steady(first) and first.report.ready.facts["variant"] == "before"
    assert (
        second.work.task.variant == variant and second.state == state and second.error and not second.report
    )
    assert third.state == "done" and steady(third) and third.report.ready.facts["variant"] == "after"
    assert (
        third.report.ready.place == 0
        and third.report.memory is not None
        and children([first]) != children([third])
    )


def test_cells_of_another_framework_number_of_threads_device_or_protocol_never_share_a_process(
    tmp_path: Path,
) -> None:
    one, other = own(tmp_path), own(tmp_path, "other.py")
    pieces = [
        of_own(one, "a"),
        of_own(one, "b"),
        of_own(other, "c"),
        of_own(one, "d", threads=2),
        of_own(one, "e", device="gpu"),
    ]
    longer = Protocol(processes=1, most_processes=1, seconds=0.06, warm_seconds=0.02)
    outcomes = {
        outcome.work.key: outcome
        for outcome in Local(share=10).measure([*pieces, of_own(one, "f", protocol=longer)])
    }
    by_key = dict(zip(outcomes, children(list(outcomes.values())), strict=True))
    assert set(by_key) == set("abcdef") and by_key["a"] == by_key["b"]
    assert len(set(by_key.values())) == 5


def test_a_child_for_a_gpu_is_started_ahead_and_waits_for_the_lock_and_one_for_a_cpu_is_alone(
    tmp_path: Path,
) -> None:
    framework = own(tmp_path)
    pieces = [
        of_own(framework, "patient", f"{place} {device}", device=device)
        for place, device in enumerate(("gpu", "gpu", "cpu", "gpu"))
    ]
    outcomes = list(Local(ahead=2).measure(pieces))
    child = dict(zip((outcome.work.key for outcome in outcomes), children(outcomes), strict=True))
    loaded, began, reported, ended = (
        notes(tmp_path, what) for what in ("loaded", "began", "reported", "ended")
    )
    first, second = sorted((child["0 gpu"], child["1 gpu"]), key=lambda each: began[each])
    assert loaded[second] < reported[first] <= began[second], (
        "it was there before the first was done, and did no step until then"
    )
    alone = child.pop("2 cpu")
    assert len(child) == 3 and all(
        ended[other] <= loaded[alone] or ended[alone] <= loaded[other] for other in child.values()
    )


@pytest.mark.parametrize("share", [1, 2])
def test_an_interrupt_ends_the_children_under_way_and_starts_no_others(tmp_path: Path, share: int) -> None:
    """The interrupt comes while one group is timed for twenty minutes and another waits for the lock."""
    framework = own(tmp_path)

    def pieces() -> Iterator[Work]:
        for place in range(2 * share):
            yield of_own(framework, "plain", str(place), protocol=LONG, device="gpu")
        deadline = time.monotonic() + 300
        while not (tmp_path / "notes").exists() or len(notes(tmp_path, "loaded")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(Local(ahead=3, share=share).measure(pieces()))
    assert time.monotonic() - begin < LONG.seconds, "it did not wait for their twenty minutes"
    assert len(notes(tmp_path, "loaded")) == 2
    end = time.monotonic() + 120  # one that was killed is there until it is waited for
    while any(map(psutil.pid_exists, notes(tmp_path, "loaded"))):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("variant", "begins"), [("plain", "began"), ("compiles", "continued")])
def test_two_children_of_one_lock_overlap_only_while_they_compile(
    tmp_path: Path, variant: str, begins: str
) -> None:
    task, lock = of_own(own(tmp_path), variant).task, str(tmp_path / "lock")
    with ThreadPoolExecutor(2) as pool:
        reports = list(
            pool.map(lambda number: frameworks.run_task(task, QUICK, number=number, lock=lock), range(2))
        )
    began, reported = notes(tmp_path, begins), notes(tmp_path, "reported")
    first, second = sorted(
        (report.ready.facts["child"] for report in reports), key=lambda child: began[child]
    )
    assert reported[first] <= began[second]
    if variant == "compiles":
        assert notes(tmp_path, "began")[second] < reported[first], "it compiled while the other was timed"


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_without_its_package_an_engine_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unavailable, match=package):
        list(engines.engine_for(name).measure([work("a")]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray of two nodes on loopback."""
    import ray
    from ray.cluster_utils import Cluster

    quick_to_notice = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 4,
        "memory_monitor_refresh_ms": 0,  # other programs may hold the memory
    }
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": quick_to_notice},
    )
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    made.wait_for_nodes(timeout=300)
    yield made
    ray.shutdown()
    made.shutdown()


@needs_ray
def test_ray_measures_every_piece_once_and_one_at_a_time_on_each_node(cluster: Any) -> None:
    taken, most = [], 0
    returned: list[Outcome] = []

    def pieces() -> Iterator[Work]:
        nonlocal most
        for place in range(5):
            taken.append(place)
            most = max(most, len(taken) - len(returned))
            yield work(f"cell {place}", variant="nonsense" if place == 3 else "hand")

    for outcome in engines.RayCluster().measure(pieces()):
        returned.append(outcome)
    assert sorted(outcome.work.key for outcome in returned) == [f"cell {place}" for place in range(5)]
    assert most == 2, "each of two nodes has one piece, and work is taken only when one is free"
    good = [outcome for outcome in returned if outcome.state == "done"]
    assert len(good) == 4 and all(steady(outcome) and outcome.report.node for outcome in good)
    failed = next(outcome for outcome in returned if outcome.work.key == "cell 3")
    assert failed.state not in ("done", plain_work.NODE_DIED) and failed.error


@needs_ray
def test_a_node_that_dies_is_an_outcome_and_the_other_node_does_the_rest(cluster: Any) -> None:
    import ray

    doomed = [node["NodeID"] for node in engines._nodes(ray)].index(cluster.second.node_id)

    def pieces() -> Iterator[Work]:
        """The node to die gets a piece that would not end by itself; it dies when the other one asks for
        more."""
        yield from [work(f"cell {place}", LONG if place == doomed else QUICK) for place in range(2)]
        cluster.remove_node(cluster.second, allow_graceful=False)
        yield from [work("cell 2"), work("cell 3")]

    outcomes = {outcome.work.key: outcome for outcome in engines.RayCluster().measure(pieces())}
    assert len(outcomes) == 4
    lost = outcomes.pop(f"cell {doomed}")
    assert lost.state == plain_work.NODE_DIED and "lost" in lost.error
    assert all(outcome.state == "done" and steady(outcome) for outcome in outcomes.values())


@needs_submitit
def test_slurm_jobs_bring_every_piece_back(tmp_path: Path) -> None:
    engine = engines.Slurm(folder=tmp_path, cluster="local", chunk=2, jobs=1, poll_seconds=0.1)
    outcomes = list(engine.measure([work("a"), work("b", variant="nonsense"), work("c")]))
    assert [outcome.work.key for outcome in outcomes] == ["a", "b", "c"]
    assert [outcome.state == "done" for outcome in outcomes] == [True, False, True]
    assert steady(outcomes[0]) and outcomes[1].error


@needs_submitit
def test_a_job_that_is_killed_loses_only_the_piece_it_was_at(tmp_path: Path) -> None:
    engine = engines.Slurm(folder=tmp_path, cluster="local", chunk=3, jobs=1, poll_seconds=0.1)

    def kill_when_the_first_is_written() -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end and not list(tmp_path.glob("chunk-*/0.json")):
            time.sleep(0.05)
        for path in (tmp_path / "log").glob("*_submitted.pkl"):
            job = psutil.Process(int(path.name.split("_")[0]))
            for process in (job, *job.children(recursive=True)):
                process.kill()

    threading.Thread(target=kill_when_the_first_is_written).start()
    outcomes = list(engine.measure([work("a"), work("b", LONG), work("c")]))
    assert [outcome.state for outcome in outcomes] == ["done", plain_work.NODE_DIED, plain_work.NODE_DIED]
    assert steady(outcomes[0])


@needs_submitit
def test_chunks_that_finish_after_the_coordinator_died_are_collected_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "slurm"
    engine = engines.Slurm(folder=folder, cluster="local", chunk=2, jobs=1, poll_seconds=0.1)
    pieces = [work("a"), work("b")]
    dying = engine.measure(pieces)
    # What a SIGKILL does: nothing is cancelled, nothing is collected.
    monkeypatch.setattr(engines.Slurm, "_cancel", lambda self, running: None)
    sleep = SimpleNamespace(sleep=lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(engines, "time", sleep)
    with pytest.raises(KeyboardInterrupt):
        next(dying)
    monkeypatch.undo()
    assert folder.stat().st_mode & 0o777 == 0o700
    submitted: list[object] = []
    real = engines.Slurm._submit

    def submit(self: engines.Slurm, module: object, chunk: list[Work]) -> object:
        submitted.append([piece.key for piece in chunk])
        return real(self, module, chunk)  # type: ignore[arg-type]

    monkeypatch.setattr(engines.Slurm, "_submit", submit)
    outcomes = {outcome.work.key: outcome for outcome in engine.measure([*pieces, work("c")])}
    assert submitted == [["c"]], "what the first job measured, or is at, is waited for"
    assert all(outcome.state == "done" and steady(outcome) for outcome in outcomes.values())
    assert set(outcomes) == {"a", "b", "c"} and not list(folder.glob("chunk-*")), (
        "collected chunks are removed"
    )
