"""Work spread over machines: every piece comes back once, by name if it failed, one at a time on each machine."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from windtunnel.errors import BadInput, Unavailable
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.steady import Protocol
from windtunnel.study import engines
from windtunnel.study.engine import Local, Outcome, Work

QUICK = Protocol(processes=1, most_processes=1, seconds=0.05, warm_seconds=0.02)
LONG = Protocol(processes=1, most_processes=1, seconds=120.0, precision=1e-9, warm_seconds=0.02)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (extra cluster)")
needs_submitit = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed (extra cluster)")


def work(key: str, protocol: Protocol = QUICK, way: str = "hand") -> Work:
    task = Task(framework="numpy", way=way, job="rnn", settings={"n_in": 2, "n_rec": 5, "n_out": 2, "n_steps": 3, "activation": "relu"})
    return Work(key=key, number=0, task=task, protocol=protocol)


def steady(outcome: Outcome) -> list[float]:
    return list(outcome.report["samples"]["steady"]["seconds"])


def test_work_travels_as_plain_data_and_arrives_the_same() -> None:
    piece = work("a", LONG)
    assert engines.from_plain(json.loads(json.dumps(engines.to_plain(piece)))) == piece


def test_what_goes_wrong_on_another_machine_comes_back_by_name() -> None:
    assert engines.carry_out_plain(engines.to_plain(work("a", way="nonsense")))["state"] != "done"
    broken = {**engines.to_plain(work("a")), "task": {"framework": "numpy", "colour": "red"}}
    answer = engines.carry_out_plain(broken)
    assert answer["state"] == "failed" and "colour" in answer["error"]


def test_engines_are_found_by_name_and_a_wrong_name_says_the_right_ones() -> None:
    assert isinstance(engines.engine_for("local"), Local)
    assert engines.engine_for("ray://head:10001") == engines.RayCluster(address="ray://head:10001")
    assert engines.engine_for("ray") == engines.RayCluster(address="auto")
    slurm = engines.engine_for("slurm:partition=gpu,jobs=2,chunk=3,gres=gpu:1")
    assert slurm == engines.Slurm(jobs=2, chunk=3, parameters={"slurm_partition": "gpu", "slurm_gres": "gpu:1"})
    for wrong in ("slrum", "slurm:jobs", "slurm:jobs=many", "slurm:jobs=0"):
        with pytest.raises(BadInput):
            engines.engine_for(wrong)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_without_its_package_an_engine_says_what_to_install(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unavailable, match=package):
        list(engines.engine_for(name).measure([work("a")]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray of two nodes on loopback."""
    import ray
    from ray.cluster_utils import Cluster

    quick_to_notice = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": quick_to_notice})
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    made.wait_for_nodes()
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
            yield work(f"cell {place}", way="nonsense" if place == 3 else "hand")

    for outcome in engines.RayCluster().measure(pieces()):
        returned.append(outcome)
    assert sorted(outcome.work.key for outcome in returned) == [f"cell {place}" for place in range(5)]
    assert most == 2, "each of two nodes has one piece, and work is taken only when one is free"
    good = [outcome for outcome in returned if outcome.state == "done"]
    assert len(good) == 4 and all(steady(outcome) and outcome.report["node"] for outcome in good)
    failed = next(outcome for outcome in returned if outcome.work.key == "cell 3")
    assert failed.state not in ("done", engines.NODE_DIED) and failed.error


@needs_ray
def test_a_node_that_dies_is_an_outcome_and_the_other_node_does_the_rest(cluster: Any) -> None:
    import ray

    doomed = [node["NodeID"] for node in engines._nodes(ray)].index(cluster.second.node_id)

    def pieces() -> Iterator[Work]:
        """The node to die gets a piece that would not end by itself; it dies when the other one asks for more."""
        yield from [work(f"cell {place}", LONG if place == doomed else QUICK) for place in range(2)]
        cluster.remove_node(cluster.second, allow_graceful=False)
        yield from [work("cell 2"), work("cell 3")]

    outcomes = {outcome.work.key: outcome for outcome in engines.RayCluster().measure(pieces())}
    assert len(outcomes) == 4
    lost = outcomes.pop(f"cell {doomed}")
    assert lost.state == engines.NODE_DIED and "lost" in lost.error
    assert all(outcome.state == "done" and steady(outcome) for outcome in outcomes.values())


@needs_submitit
def test_slurm_jobs_bring_every_piece_back(tmp_path: Path) -> None:
    engine = engines.Slurm(folder=tmp_path, cluster="local", chunk=2, jobs=1, poll_seconds=0.1)
    outcomes = list(engine.measure([work("a"), work("b", way="nonsense"), work("c")]))
    assert [outcome.work.key for outcome in outcomes] == ["a", "b", "c"]
    assert [outcome.state == "done" for outcome in outcomes] == [True, False, True]
    assert steady(outcomes[0]) and outcomes[1].error


@needs_submitit
def test_a_job_that_is_killed_loses_only_the_piece_it_was_at(tmp_path: Path) -> None:
    engine = engines.Slurm(folder=tmp_path, cluster="local", chunk=3, jobs=1, poll_seconds=0.1)

    def kill_when_the_first_is_written() -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end and not list(tmp_path.glob("chunk-*/0.json")):
            time.sleep(0.05)
        for path in (tmp_path / "log").glob("*_submitted.pkl"):
            job = psutil.Process(int(path.name.split("_")[0]))
            for process in (job, *job.children(recursive=True)):
                process.kill()

    threading.Thread(target=kill_when_the_first_is_written).start()
    outcomes = list(engine.measure([work("a"), work("b", LONG), work("c")]))
    assert [outcome.state for outcome in outcomes] == ["done", engines.NODE_DIED, engines.NODE_DIED]
    assert steady(outcomes[0])
